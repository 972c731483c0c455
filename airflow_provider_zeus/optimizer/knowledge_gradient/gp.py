"""Gaussian process of log Epochs over log2 of the batch size.

So runs of one batch size inform its neighbours.

``c(b) ~ GP`` over ``x = log2(b / default)`` with a free level, a linear trend and a deviation of
each batch size (Rasmussen & Williams, *Gaussian Processes for Machine Learning*, chapter 2). Runs
condition it in ``slice_filter.py``. Arrays are over batch sizes in ascending order; variances are
of natural logarithms. Needs numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# KG-2: larger batches need more epochs, by MLPerf's convergence points .33 for d log Epochs /
# d log b. Below the default nothing is expected, unless all other sizes lie there.
SLOPE = 0.3
TREND_SD = 0.25  # epochs grow with the batch size, by how much is not known
WALK_SD = 0.2  # far from the default less is known
LEVEL_SD = 3.0  # what a job needs is not known before it ran
P_FAIL = 0.05  # no prediction is so sure that a run cannot fail

Vector = NDArray[np.float64]
Indices = NDArray[np.intp]


def by_size(sizes: Sequence[int], values: Vector) -> dict[int, float]:
    """The values by batch size, as plain numbers."""
    return dict(zip(sizes, values.tolist(), strict=True))


class GaussianProcess(NamedTuple):
    """Posterior of c, and of log Epochs of the next run."""

    sizes: tuple[int, ...]
    mean: Vector
    cov: Vector
    run_variance: Vector  # more than in ``cov``: a run differs from the mean of its size
    noise: float


@lru_cache(maxsize=256)
def prior(sizes: tuple[int, ...], default: int) -> tuple[Vector, Vector]:
    """Prior mean (n,) and covariance (n, n) of c, without the level.

    Eqs. KG-2, KG-3 of docs/knowledge-gradient.md.

    Shared: do not modify.

    :param sizes: ascending.
    """
    x = np.log2(np.asarray(sizes, float) / default)
    products = np.outer(x, x)
    # KG-3: two walks from the default, so that larger sizes say nothing of smaller ones.
    walked = np.where(products > 0.0, np.minimum.outer(np.abs(x), np.abs(x)), 0.0)
    shape: Vector = TREND_SD**2 * products + WALK_SD**2 * walked
    sloping = x if default == sizes[-1] else np.maximum(x, 0.0)
    return SLOPE * math.log(2.0) * sloping, shape


def mills_ratio(z: float) -> float:
    """Density over upper tail of the standard normal at z.

    Eq. KG-9 of docs/knowledge-gradient.md.
    """
    tail = 0.5 * math.erfc(z / math.sqrt(2.0))
    if tail <= 1e-12:  # too small to divide by: the first terms of its asymptotic series
        return z + 1.0 / max(z, 1.0)
    return math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) / tail
