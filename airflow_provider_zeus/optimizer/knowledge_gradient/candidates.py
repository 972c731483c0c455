"""Which batch sizes may be tried next, and which a run would make available. Pure; needs numpy, imported lazily."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from airflow_provider_zeus.optimizer.knowledge_gradient.gp import Vector

OCTAVES = 1.0  # distance of a candidate from a batch size that has converged; its neighbours in the list always count
BEYOND_FACTOR = 1.4  # factor on the believed cost of a batch size that becomes available only after one more run


def candidates(sizes: tuple[int, ...], converged: frozenset[int]) -> tuple[bool, ...]:
    """Whether each batch size is in reach of one that converged. Eq. KG-19 of docs/knowledge-gradient.md.

    :param sizes: ascending.
    """
    near, last = [False] * len(sizes), len(sizes) - 1
    factor = 2.0**OCTAVES * (1 + 1e-9)
    for i, b in enumerate(sizes):
        if b in converged:
            for j in range(max(i - 1, 0), min(i + 1, last) + 1):
                near[j] = True
            for j, other in enumerate(sizes):
                if b <= other * factor and other <= b * factor:
                    near[j] = True
    return tuple(near)


@lru_cache(maxsize=256)
def in_reach(sizes: tuple[int, ...], feasible: frozenset[int], converged: frozenset[int]) -> tuple[bool, ...]:
    """Whether each batch size may be tried next. Infeasible ones are removed first, so that they block no neighbour."""
    fitting = tuple(b for b in sizes if b in feasible)
    near = dict(zip(fitting, candidates(fitting, converged), strict=True))
    return tuple(near.get(b, False) for b in sizes)


@lru_cache(maxsize=256)
def log_factors_after(sizes: tuple[int, ...], feasible: frozenset[int], converged: frozenset[int]) -> Vector:
    """Log factor on the cost of each size after another has converged. Eq. KG-20 of docs/knowledge-gradient.md.

    Shape (size, the size that converged). Shared: do not modify.
    """
    factors = np.full((len(sizes), len(sizes)), np.inf)
    for i, b in enumerate(sizes):
        if b not in converged:
            factors[np.array(in_reach(sizes, feasible, frozenset({b}))), i] = math.log(BEYOND_FACTOR)
        factors[i, i] = 0.0
    factors[[b in converged for b in sizes]] = 0.0
    return factors
