"""EpochCost(b) of batch sizes that were not measured on this device, predicted from those that were.

A training step takes ``a + c b`` seconds: an overhead, and work that grows with the batch size b. So the cost of a
sample, and of an epoch, is proportional to ``1 + r / b``, where ``r = a / c`` is the batch size at which half of a step
is overhead. r is unknown: a grid of values is weighted by how well each fits the measurements. A small Gaussian process
of log EpochCost over log2 b models the deviation from this curve.

Before a second batch size has run, the power drawn shows where r may lie: a device that waits draws little power, so
the power gives the share of a step that is work, ``b / (b + r)``.

Where another device has run the job, its curve is expected here too, at another level: EpochCost can be translated
between GPUs, and Epochs do not depend on the GPU (section 7 of the paper). Needs numpy; imported lazily.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from airflow_provider_zeus.optimizer.knowledge_gradient.gp import Vector

R_SHARE, R_SD = 0.1, 1.5  # r as a share of the default batch size where no power is known; sd of log r
IDLE_LOAD, FULL_LOAD = 0.15, 0.5  # share of MAXPOWER that a device draws while it waits, and while it always works
MIN_WORK, MAX_WORK = 0.2, 0.95  # bounds of the share of a step that is inferred to be work from the power
TREND_SD, TREND_ELSEWHERE_SD = 0.05, 0.25  # sd of a linear trend around the curve, around another device's; per octave
OWN_SD = 0.02  # sd of a batch size's deviation from its neighbours
LEVEL_SD = 3.0  # sd of the level

_R_GRID = np.linspace(-4.0, 4.0, 33)  # values of log r, in standard deviations around its expected value


def predicted(
    sizes: Sequence[int],
    known: Mapping[int, float],
    elsewhere: Mapping[int, float],
    default: int,
    loads: Mapping[int, float] | None = None,
) -> tuple[Vector, Vector] | None:
    """(log EpochCost, its variance) of each batch size; None where nothing was measured on any device.

    :param known: EpochCost [J] measured on this device, by batch size; taken as exact.
    :param elsewhere: the same on another device, at the same weights.
    :param default: the job's default batch size.
    :param loads: share of MAXPOWER that training drew on this device, by batch size.
    """
    order = tuple(sizes)
    here = tuple(i for i, b in enumerate(order) if b in known)
    there = tuple(i for i, b in enumerate(order) if b in elsewhere)
    if there:
        mean, variance = _curve(order, there, _of(order, there, elsewhere), default * R_SHARE)
        return _around(mean, order, here, known) if here else (mean, variance)
    if here:
        return _curve(order, here, _of(order, here, known), _expected_r(known, default, loads or {}))
    return None


def _expected_r(known: Mapping[int, float], default: int, loads: Mapping[int, float]) -> float:
    """Batch size at which half of a step is expected to be overhead, from the share of MAXPOWER drawn.

    Eqs. KG-15 and KG-16 of docs/knowledge-gradient.md.
    """
    logs = []
    for b in known.keys() & loads.keys():
        work = min(max((loads[b] - IDLE_LOAD) / (FULL_LOAD - IDLE_LOAD), MIN_WORK), MAX_WORK)
        logs.append(math.log(b * (1 / work - 1)))
    return math.exp(math.fsum(logs) / len(logs)) if logs else default * R_SHARE


def _of(order: tuple[int, ...], at: tuple[int, ...], costs: Mapping[int, float]) -> tuple[float, ...]:
    return tuple(costs[order[i]] for i in at)


@lru_cache(maxsize=256)
def _curve(
    order: tuple[int, ...], at: tuple[int, ...], costs: tuple[float, ...], expected_r: float
) -> tuple[Vector, Vector]:
    """Mean and variance of log EpochCost, mixed over the grid of r. Eq. KG-13 of docs/knowledge-gradient.md.

    Shared: do not modify.

    :param order: all batch sizes, ascending.
    :param at: indices of the measured ones.
    :param costs: theirs [J].
    """
    known, residual = list(at), _conditioning(order, at, TREND_SD)
    y = np.log(costs)
    curves = np.log1p(expected_r * np.exp(R_SD * _R_GRID)[:, None] / np.asarray(order, float))
    curves += (y.mean() - curves[:, known].mean(1))[:, None]  # the level is free
    off = y - curves[:, known]
    log_weights = -0.5 * _R_GRID * _R_GRID - 0.5 * np.einsum("ki,ij,kj->k", off, residual.precision, off)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    each = curves + off @ residual.gain
    mean = weights @ each
    variance = residual.variance + weights @ (each - mean) ** 2
    mean[known], variance[known] = y, 0.0
    return mean, variance


def _around(
    expected: Vector, order: tuple[int, ...], at: tuple[int, ...], costs: Mapping[int, float]
) -> tuple[Vector, Vector]:
    """Mean and variance of log EpochCost around another device's curve. Eq. KG-17 of docs/knowledge-gradient.md."""
    known, residual = list(at), _conditioning(order, at, TREND_ELSEWHERE_SD)
    y = np.log([costs[order[i]] for i in at])
    mean, variance = expected + (y - expected[known]) @ residual.gain, residual.variance.copy()
    mean[known], variance[known] = y, 0.0
    return mean, variance


class _Conditioning(NamedTuple):
    """What knowing the cost of some batch sizes implies for all, whatever these costs are. Shared: do not modify."""

    precision: Vector  # (known, known)
    gain: Vector  # (known, size)
    variance: Vector  # (size,) that remains


@lru_cache(maxsize=256)
def _conditioning(sizes: tuple[int, ...], at: tuple[int, ...], trend_sd: float) -> _Conditioning:
    """Condition the Gaussian process of the deviation from the curve. Eq. KG-14 of docs/knowledge-gradient.md."""
    x, known = np.log2(np.asarray(sizes, float)), list(at)
    centred = x - x[known].mean()
    cov: Vector = LEVEL_SD**2 + trend_sd**2 * np.outer(centred, centred) + OWN_SD**2 * np.eye(len(x))
    precision = np.asarray(np.linalg.inv(cov[np.ix_(known, known)]), np.float64)
    gain = precision @ cov[known]
    return _Conditioning(precision, gain, np.maximum(cov.diagonal() - np.einsum("ij,ij->j", gain, cov[known]), 0.0))
