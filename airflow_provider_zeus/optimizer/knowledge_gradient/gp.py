"""Gaussian process of log Epochs over log2 of the batch size: runs of one batch size inform its neighbours.

``c(b) ~ GP`` over ``x = log2(b / default)`` with a free level, a linear trend, a smooth part and a small deviation of
each batch size (Rasmussen & Williams, *Gaussian Processes for Machine Learning*, chapter 2). Runs condition it in
``slice_filter.py``. Arrays are over batch sizes in ascending order; variances are of natural logarithms. Needs numpy.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SLOPE = 0.3  # prior mean of d log Epochs / d log b above the default batch size, and below one that is the largest
TREND_SD = 0.25  # sd of the linear trend, per octave
SMOOTH_SD, LENGTH_OCTAVES = 0.35, 1.85  # sd of the smooth part and its length scale
OWN_SD = 0.05  # sd of a batch size's deviation from its neighbours
LEVEL_SD = 3.0  # sd of the level
P_FAIL = 0.05  # probability that a run never reaches its target, whatever was predicted for it

Vector = NDArray[np.float64]
Indices = NDArray[np.intp]


class GaussianProcess(NamedTuple):
    """Posterior of log Epochs(b) of the next run, and its covariance with c, which lasts."""

    sizes: tuple[int, ...]
    mean: Vector  # (size,) of log Epochs on the next slice
    cov: Vector  # (size, size): of each size's c with the next run of each size
    run_variance: Vector  # (size,) predictive variance of the next run's log Epochs
    difference_sd: Vector  # (size,) of c(b) - c(default)
    noise: float  # variance of one run


@lru_cache(maxsize=256)
def prior(sizes: tuple[int, ...], default: int) -> tuple[Vector, Vector]:
    """Prior mean (n,) and covariance (n, n) of c, without the level. Eqs. KG-2, KG-3 of docs/knowledge-gradient.md.

    Shared: do not modify.

    :param sizes: ascending.
    """
    x = np.log2(np.asarray(sizes, float) / default)
    distance = (x[:, None] - x[None, :]) / LENGTH_OCTAVES
    smooth = SMOOTH_SD**2 * np.exp(-0.5 * distance**2)
    shape: Vector = TREND_SD**2 * np.outer(x, x) + smooth + OWN_SD**2 * np.eye(len(sizes))
    sloping = x if default == sizes[-1] else np.maximum(x, 0.0)
    return SLOPE * math.log(2.0) * sloping, shape


def mills_ratio(z: float) -> float:
    """Density over upper tail of the standard normal at z. Eq. KG-10 of docs/knowledge-gradient.md."""
    tail = 0.5 * math.erfc(z / math.sqrt(2.0))
    return math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) / tail if tail > 1e-12 else z + 1.0 / max(z, 1.0)
