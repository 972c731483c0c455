"""Which batch sizes may be tried, and which come into reach by a run. Pure; needs numpy, imported lazily."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from airflow_provider_zeus.optimizer.surrogate import Vector

OCTAVES = 1.0  # candidates lie so near to a batch size that has converged, or are its neighbours in the list
BEYOND = 1.4  # what a run would bring into reach counts as if it cost 1.4 x what is believed


def candidates(sizes: tuple[int, ...], converged: frozenset[int]) -> tuple[bool, ...]:
    """Per batch size (ascending): whether it is within reach of one that converged."""
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
def reach(sizes: tuple[int, ...], feasible: frozenset[int], converged: frozenset[int]) -> tuple[bool, ...]:
    """Per batch size: whether it may be tried next. What does not fit or keeps dying is passed over."""
    walked = tuple(b for b in sizes if b in feasible)
    near = dict(zip(walked, candidates(walked, converged), strict=True))
    return tuple(near.get(b, False) for b in sizes)


@lru_cache(maxsize=256)
def open_after(sizes: tuple[int, ...], feasible: frozenset[int], converged: frozenset[int]) -> Vector:
    """Log factor at which each size's cost counts once another one has run to its target, (size, the one that ran).

    0 of those that have converged, and of the one that ran; :data:`BEYOND` of those that it alone brings into reach:
    they may turn out cheap, but that takes a run more; infinite of all others. Shared: not to be written to.
    """
    factors = np.full((len(sizes), len(sizes)), np.inf)
    for i, b in enumerate(sizes):
        if b not in converged:
            factors[np.array(reach(sizes, feasible, frozenset({b}))), i] = math.log(BEYOND)
        factors[i, i] = 0.0
    factors[[b in converged for b in sizes]] = 0.0
    return factors
