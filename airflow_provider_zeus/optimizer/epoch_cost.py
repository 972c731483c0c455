"""EpochCost(b) of batch sizes that were not measured on this device: predicted from those that were.

A Gaussian process of log EpochCost over log2 of the batch size, with a free level, a linear trend and a smooth part:
larger batches use a GPU better. Where another device has run the job, its curve is what to expect here, at a level of
its own: EpochCost translates between GPUs, Epochs do not change (section 7 of the paper). Needs numpy; imported lazily.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from airflow_provider_zeus.optimizer.surrogate import Vector

SLOPE, TREND = -0.17, 0.25  # of log EpochCost per octave: expected, and its standard deviation
SMOOTH, LENGTH = 0.1, 3.0  # sd of the smooth part, and its length scale [octaves]
LEVEL, NOISE = 3.0, 0.01


def predicted(
    sizes: Sequence[int], known: Mapping[int, float], elsewhere: Mapping[int, float]
) -> tuple[Vector, Vector] | None:
    """(log EpochCost, its variance) of each batch size; None where nothing was measured anywhere.

    :param known: EpochCost [J] measured on this device, by batch size; taken as exact.
    :param elsewhere: the same on another device, at the same weights.
    """
    if not known and not elsewhere:
        return None
    order = tuple(sizes)
    mean, variance = SLOPE * np.log2(np.asarray(order, float)), np.zeros(len(order))
    for costs in (elsewhere, known):
        at = [i for i, b in enumerate(order) if b in costs]
        if at:
            y = np.log([costs[order[i]] for i in at])
            gain, left = _conditioning(order, tuple(at))
            mean, variance = mean + (y - mean[at]) @ gain, left.copy()
            mean[at], variance[at] = y, 0.0
    return mean, variance


@lru_cache(maxsize=256)
def _conditioning(sizes: tuple[int, ...], at: tuple[int, ...]) -> tuple[Vector, Vector]:
    """(gain, variance left) of knowing the sizes at these places: the same whatever was found there."""
    x, known = np.log2(np.asarray(sizes, float)), list(at)
    middle = x - x[known].mean()
    smooth = SMOOTH**2 * np.exp(-0.5 * ((x[:, None] - x[None, :]) / LENGTH) ** 2)
    cov = LEVEL**2 + TREND**2 * np.outer(middle, middle) + smooth
    gain = np.linalg.solve(cov[np.ix_(known, known)] + NOISE**2 * np.eye(len(known)), cov[known])
    return gain, np.maximum(cov.diagonal() - np.einsum("ij,ij->j", gain, cov[known]), 0.0)
