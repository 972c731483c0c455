"""EpochCost(b) of batch sizes that were not measured on this device: predicted from those that were.

A training step takes ``a + c b`` seconds: an overhead, and work that grows with the batch size b. So one sample, and
with it one epoch, costs in proportion to ``1 + r / b``, where ``r = a / c`` is the batch size at which half of a step
is overhead. r is not known: a grid of values is weighed by how well each explains what was measured. A small Gaussian
process of log EpochCost over log2 b holds what the curve leaves out.

How busy the device is says where r may lie before a second size has run. A device that waits draws little power, so
the power drawn tells the share of a step that is work, which is ``b / (b + r)``.

Where another device has run the job, its curve is what to expect here, at a level of its own: EpochCost translates
between GPUs, Epochs do not change (section 7 of the paper). Needs numpy; imported lazily.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from airflow_provider_zeus.optimizer.surrogate import Vector

HALF, SPREAD = 0.1, 1.5  # r as a share of the default size where no power is known; sd of log r
WAITS, WORKS = 0.15, 0.5  # share of MAXPOWER that a device draws while it waits, and while it works all the time
WORK = 0.2, 0.95  # least and greatest share of a step that power may tell to be work
TREND, TREND_ELSEWHERE = 0.05, 0.25  # sd of a linear trend around the curve, and around another device's, per octave
SMOOTH, LENGTH, OWN = 0.05, 3.0, 0.02  # sd of the smooth part, its length scale [octaves], sd of a size's own part
LEVEL = 3.0  # sd of the level

_GRID = np.linspace(-4.0, 4.0, 33)  # values of log r, in standard deviations
_LOG_PRIOR = -0.5 * _GRID * _GRID


def predicted(
    sizes: Sequence[int],
    known: Mapping[int, float],
    elsewhere: Mapping[int, float],
    default: int,
    loads: Mapping[int, float] | None = None,
) -> tuple[Vector, Vector] | None:
    """(log EpochCost, its variance) of each batch size; None where nothing was measured anywhere.

    :param known: EpochCost [J] measured on this device, by batch size; taken as exact.
    :param elsewhere: the same on another device, at the same weights.
    :param default: the job's default batch size.
    :param loads: share of MAXPOWER that training drew on this device, by batch size.
    """
    order = tuple(sizes)
    here, there = (tuple(i for i, b in enumerate(order) if b in costs) for costs in (known, elsewhere))
    if not here and not there:
        return None
    if not there:
        return _curve(order, here, known, _half(known, default, loads or {}))
    mean, variance = _curve(order, there, elsewhere, default * HALF)
    return _around(mean, order, here, known) if here else (mean, variance)


def _half(known: Mapping[int, float], default: int, loads: Mapping[int, float]) -> float:
    """The batch size at which half of a step is expected to be overhead, r."""
    told = [math.log(b * (1 / _work(loads[b]) - 1)) for b in known if b in loads]
    return math.exp(math.fsum(told) / len(told)) if told else default * HALF


def _work(load: float) -> float:
    """Share of a step that is work, where a device draws this share of MAXPOWER."""
    return min(max((load - WAITS) / (WORKS - WAITS), WORK[0]), WORK[1])


def _curve(
    order: tuple[int, ...], at: tuple[int, ...], costs: Mapping[int, float], half: float
) -> tuple[Vector, Vector]:
    """Mean and variance of log EpochCost: the curves of all r, mixed by how likely each is."""
    known, left = list(at), _conditioning(order, at, TREND)
    y = np.log([costs[order[i]] for i in at])
    curves = np.log1p(half * np.exp(SPREAD * _GRID)[:, None] / np.asarray(order, float))
    curves += (y.mean() - curves[:, known].mean(1))[:, None]  # the level is free
    off = y - curves[:, known]
    likely = _LOG_PRIOR - 0.5 * np.einsum("ki,ij,kj->k", off, left.precision, off)
    weights = np.exp(likely - likely.max())
    weights /= weights.sum()
    each = curves + off @ left.gain
    mean = weights @ each
    variance = left.variance + weights @ (each - mean) ** 2
    mean[known], variance[known] = y, 0.0
    return mean, variance


def _around(
    expected: Vector, order: tuple[int, ...], at: tuple[int, ...], costs: Mapping[int, float]
) -> tuple[Vector, Vector]:
    """Mean and variance of log EpochCost around another device's curve, at a level of its own."""
    known, left = list(at), _conditioning(order, at, TREND_ELSEWHERE)
    y = np.log([costs[order[i]] for i in at])
    mean, variance = expected + (y - expected[known]) @ left.gain, left.variance.copy()
    mean[known], variance[known] = y, 0.0
    return mean, variance


class _Left(NamedTuple):
    """What knowing some sizes teaches of all: the same whatever was found there. Shared: not to be written to."""

    precision: Vector  # (known, known)
    gain: Vector  # (known, size)
    variance: Vector  # (size,) what is left of it


@lru_cache(maxsize=256)
def _conditioning(sizes: tuple[int, ...], at: tuple[int, ...], trend: float) -> _Left:
    x, known = np.log2(np.asarray(sizes, float)), list(at)
    middle = x - x[known].mean()
    smooth = SMOOTH**2 * np.exp(-0.5 * ((x[:, None] - x[None, :]) / LENGTH) ** 2)
    cov = LEVEL**2 + trend**2 * np.outer(middle, middle) + smooth + OWN**2 * np.eye(len(x))
    precision = np.linalg.inv(cov[np.ix_(known, known)])
    gain = precision @ cov[known]
    return _Left(precision, gain, np.maximum(cov.diagonal() - np.einsum("ij,ij->j", gain, cov[known]), 0.0))
