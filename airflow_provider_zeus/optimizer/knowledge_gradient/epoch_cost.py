"""EpochCost(b) of the batch sizes that no run on this device has measured.

A training step takes ``a + c b`` seconds: an overhead, and work that grows with the batch size b.
So the cost of a sample, and of an epoch, is proportional to ``1 + r / b``, where ``r = a / c`` is
the batch size at which half of a step is overhead. r is unknown: a grid of values is weighted by
how well each fits the measurements. A small Gaussian process of log EpochCost over log2 b models
the deviation from this curve.

Before a second batch size has run, the power drawn gives a first value of r: a device that waits
draws little power, so the power gives the share of a step that is work, ``b / (b + r)``.

If another device has run the job, its curve is expected here too, at another level: EpochCost
can be translated between GPUs, and Epochs do not depend on the GPU (section 7 of the paper).
Needs numpy; imported lazily.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.trial import DeviceInfo
from airflow_provider_zeus.optimizer.arms import epoch_costs_elsewhere, loads, run_variance
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.knowledge_gradient.gp import Vector

# Before a second size has run, and without power, nothing shows r (KG-16, KG-19): both are tuned.
R_SHARE = 0.1
R_SD = 1.5
# The draw between idle and full work tells how busy a batch size keeps the device (KG-18).
# Measured: idle .15 (V100) and .28 (A40) of MAXPOWER, at full work .47 to .8.
IDLE_LOAD = 0.15
FULL_LOAD = 0.5
# Power is a rough witness: what is inferred from it stays within these.
MIN_WORK = 0.2
MAX_WORK = 0.95
# Another device's curve is only a good guess, so it may be left further per octave (KG-20).
TREND_SD = 0.05
TREND_ELSEWHERE_SD = 0.25
OWN_SD = 0.02  # neighbouring sizes use the hardware alike
LEVEL_SD = 3.0  # what a job draws is not known before it ran

# KG-16: beyond 4 sd of log r the prior leaves a value no weight.
_R_GRID = np.linspace(-4.0, 4.0, 33)


def of_next_run(
    belief: Belief, device: DeviceInfo | None, weights: Weights, own: Mapping[int, float]
) -> tuple[Vector, Vector] | None:
    """(log EpochCost of the next run, its variance) of each size the job ever had.

    None if no device has measured one. Eq. KG-21 of docs/knowledge-gradient.md.

    Shared: do not modify.

    :param own: EpochCost [J] measured on this device, by batch size.
    """
    sizes = belief.gp.sizes
    default = belief.job.default_batch_size
    elsewhere = epoch_costs_elsewhere(belief, device, weights)
    costs = predicted(sizes, own, elsewhere, default, drawn=loads(belief, device))
    if costs is None:
        return None
    log_cost, variance = costs
    of_runs, runs = run_variance(belief, device, weights)
    return log_cost, variance + np.array([of_runs / runs.get(b, math.inf) for b in sizes])


def predicted(
    sizes: Sequence[int],
    own: Mapping[int, float],
    elsewhere: Mapping[int, float],
    default: int,
    drawn: Mapping[int, float] | None = None,
) -> tuple[Vector, Vector] | None:
    """(log EpochCost, its variance) of each size; None if no device has measured one.

    Shared: do not modify.

    :param own: EpochCost [J] measured on this device, by batch size; taken as exact.
    :param elsewhere: the same on another device, at the same weights.
    :param default: the job's default batch size.
    :param drawn: share of MAXPOWER that training drew on this device, by batch size.
    """
    order = tuple(sizes)
    here = tuple(i for i, b in enumerate(order) if b in own)
    there = tuple(i for i, b in enumerate(order) if b in elsewhere)
    if there:
        mean, variance = _curve(
            order, there, _of(order, there, elsewhere), expected_r=default * R_SHARE
        )
        if not here:
            return mean, variance
        return _around(mean, order, here, costs=own)
    if here:
        return _curve(
            order, here, _of(order, here, own), expected_r=_expected_r(own, default, drawn or {})
        )
    return None


def _expected_r(own: Mapping[int, float], default: int, drawn: Mapping[int, float]) -> float:
    """Batch size at which half of a step is expected to be overhead.

    From the share of MAXPOWER that training draws.

    Eqs. KG-18 and KG-19 of docs/knowledge-gradient.md.
    """
    logs = []
    for b in own.keys() & drawn.keys():
        work = min(max((drawn[b] - IDLE_LOAD) / (FULL_LOAD - IDLE_LOAD), MIN_WORK), MAX_WORK)
        logs.append(math.log(b * (1 / work - 1)))
    if not logs:
        return default * R_SHARE
    return math.exp(math.fsum(logs) / len(logs))


def _of(
    order: tuple[int, ...], at: tuple[int, ...], costs: Mapping[int, float]
) -> tuple[float, ...]:
    return tuple(costs[order[i]] for i in at)


@lru_cache(maxsize=256)
def _curve(
    order: tuple[int, ...], at: tuple[int, ...], costs: tuple[float, ...], expected_r: float
) -> tuple[Vector, Vector]:
    """Mean and variance of log EpochCost, mixed over the grid of r.

    Eq. KG-16 of docs/knowledge-gradient.md.

    Shared: do not modify.

    :param order: all batch sizes, ascending.
    :param at: indices of the measured ones.
    :param costs: theirs [J].
    """
    measured = list(at)
    residual = _conditioning(order, at, TREND_SD)
    y = np.log(costs)
    curves = np.log1p(expected_r * np.exp(R_SD * _R_GRID)[:, None] / np.asarray(order, float))
    # only the shape is known of other jobs, so the level is free
    curves += (y.mean() - curves[:, measured].mean(1))[:, None]
    off = y - curves[:, measured]
    log_weights = -0.5 * _R_GRID * _R_GRID - 0.5 * np.einsum(
        "ki,ij,kj->k", off, residual.precision, off
    )
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    means = curves + off @ residual.gain
    mean = weights @ means
    variance = residual.variance + weights @ (means - mean) ** 2
    # Taken as exact here: of_next_run() adds how much the runs of a size vary (KG-21).
    mean[measured] = y
    variance[measured] = 0.0
    return mean, variance


def _around(
    expected: Vector, order: tuple[int, ...], at: tuple[int, ...], costs: Mapping[int, float]
) -> tuple[Vector, Vector]:
    """Mean and variance of log EpochCost around another device's curve.

    Eq. KG-20 of docs/knowledge-gradient.md.
    """
    measured = list(at)
    residual = _conditioning(order, at, TREND_ELSEWHERE_SD)
    y = np.log([costs[order[i]] for i in at])
    mean = expected + (y - expected[measured]) @ residual.gain
    variance = residual.variance.copy()
    mean[measured] = y
    variance[measured] = 0.0
    return mean, variance


class _Conditioning(NamedTuple):
    """What knowing the cost of some batch sizes implies for all, whatever these costs are.

    Shared: do not modify.
    """

    precision: Vector
    gain: Vector
    variance: Vector


@lru_cache(maxsize=256)
def _conditioning(sizes: tuple[int, ...], at: tuple[int, ...], trend_sd: float) -> _Conditioning:
    """Condition the Gaussian process of the deviation from the curve.

    Eq. KG-17 of docs/knowledge-gradient.md.
    """
    x = np.log2(np.asarray(sizes, float))
    measured = list(at)
    centred = x - x[measured].mean()
    cov: Vector = (
        LEVEL_SD**2 + trend_sd**2 * np.outer(centred, centred) + OWN_SD**2 * np.eye(len(x))
    )
    precision = np.asarray(np.linalg.inv(cov[np.ix_(measured, measured)]), np.float64)
    gain = precision @ cov[measured]
    return _Conditioning(
        precision,
        gain,
        # Rounding may leave a variance below 0, which has no root.
        np.maximum(cov.diagonal() - np.einsum("ij,ij->j", gain, cov[measured]), 0.0),
    )
