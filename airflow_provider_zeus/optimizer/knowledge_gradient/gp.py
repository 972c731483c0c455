"""Gaussian process of log Epochs over log2 of the batch size: runs of one batch size inform its neighbours.

``log Epochs(b) ~ GP`` over ``x = log2(b / default)`` with a free level, a linear trend, a smooth part and a small
deviation of each batch size (Rasmussen & Williams, *Gaussian Processes for Machine Learning*, chapter 2). A run that
reached its target is an observation with noise. A run that was stopped only shows ``Epochs > n``; its likelihood is
approximated by moment matching, as probit likelihoods are in chapter 3.6. All arrays are over batch sizes in ascending
order; variances are of natural logarithms. Needs numpy; imported lazily.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from airflow_provider_zeus.optimizer.changepoint import JUMP
from airflow_provider_zeus.optimizer.run_stats import Runs, RunStats

SLOPE = 0.3  # prior mean of d log Epochs / d log b above the default batch size; 0 below it
TREND_SD = 0.25  # sd of the linear trend, per octave
SMOOTH_SD, LENGTH_OCTAVES = 0.35, 1.85  # sd of the smooth part and its length scale
OWN_SD = 0.05  # sd of a batch size's deviation from its neighbours
LEVEL_SD = 3.0  # sd of the level
NOISE_SD, NOISE_RUNS = 0.25, 4.0  # run-to-run sd expected before any run is repeated; runs this expectation counts as
POOLED_SHARE = 0.5  # share of the run-to-run variance that is common to all batch sizes
P_FAIL = 0.05  # probability that a run never reaches its target, whatever was predicted for it

Vector = NDArray[np.float64]
Indices = NDArray[np.intp]
SliceRuns = Sequence[tuple[int, float]]  # (batch size, epochs) of runs that reached the target on one slice of the data


class GaussianProcess(NamedTuple):
    """Posterior of log Epochs: mean, covariance, and the run-to-run variance around it."""

    sizes: tuple[int, ...]
    mean: Vector  # (n,)
    cov: Vector  # (n, n)
    noise: Vector  # (n,) variance of one run
    run_variance: Vector  # (n,) predictive variance of the next run's log Epochs


@lru_cache(maxsize=256)
def _prior(sizes: tuple[int, ...], default: int) -> tuple[Vector, Vector]:
    """Prior mean (n,) and covariance (n, n). Eqs. KG-2 and KG-3 of docs/knowledge-gradient.md."""
    x = np.log2(np.asarray(sizes, float) / default)
    distance = (x[:, None] - x[None, :]) / LENGTH_OCTAVES
    smooth = SMOOTH_SD**2 * np.exp(-0.5 * distance**2)
    shape: Vector = TREND_SD**2 * np.outer(x, x) + smooth + OWN_SD**2 * np.eye(len(sizes))
    return SLOPE * math.log(2.0) * np.maximum(x, 0.0), LEVEL_SD**2 + shape


def fit(
    sizes: Sequence[int],
    default: int,
    reached: Runs,
    stopped: Sequence[tuple[int, float, SliceRuns]],
    earlier: Sequence[tuple[Runs, float]] = (),
    max_epochs: float = math.inf,
) -> GaussianProcess:
    """Posterior of log Epochs. Eqs. KG-5 and KG-6 of docs/knowledge-gradient.md.

    :param sizes: batch sizes of the result, ascending. Runs of others are ignored.
    :param default: the job's default batch size, where x = 0.
    :param reached: runs since the last change of the data that reached the target.
    :param stopped: (batch size, epochs, runs that reached the target on the same slice) of each run that did not.
    :param earlier: one entry per era before a change: its runs that reached the target, and the sum of the squared
        jumps of log Epochs since then. They inform the shape of the curve, not its level; the larger the jumps, the
        less.
    :param max_epochs: epochs of a complete run: one that missed its target may have diverged by chance.
    """
    order = tuple(sizes)
    index = {b: i for i, b in enumerate(order)}
    mean, cov = _prior(order, default)
    observed: list[int] = []  # index of the batch size of each observation, one era after the other
    stats: list[RunStats] = []
    ends = []
    for runs in (reached, *(runs for runs, _ in earlier)):
        of_era = [b for b in sorted(runs) if b in index]
        observed += [index[b] for b in of_era]
        stats += [runs[b] for b in of_era]
        ends.append(len(observed))
    noise = _noise(len(order), observed, stats)
    if observed:
        cross = cov.take(observed, 0)
        covariance = cross.take(observed, 1)
        for (start, end), (_, jumps) in zip(pairwise(ends), earlier, strict=True):
            same_era = covariance[start:end, start:end]
            same_era += LEVEL_SD**2 + jumps / JUMP**2 * (same_era - LEVEL_SD**2)
        covariance.reshape(-1)[:: len(observed) + 1] += [
            noise[i] / stat.runs for i, stat in zip(observed, stats, strict=True)
        ]
        gain = np.linalg.solve(covariance, cross)
        mean, cov = mean + ([stat.mean for stat in stats] - mean.take(observed)) @ gain, cov - cross.T @ gain
    for b, epochs, same_slice in stopped:
        if b in index:
            others = [(index[other], e) for other, e in same_slice if other in index]
            bound = math.log(max(epochs, 0.5)) - slice_excess(mean, others)
            p_fail = P_FAIL if epochs >= max_epochs else 0.0
            mean, cov = _condition_above(mean, cov, index[b], bound, noise[index[b]], p_fail)
    run_noise = np.array(noise)
    return GaussianProcess(order, mean, cov, run_noise, cov.diagonal() + run_noise)


def slice_excess(mean: Vector, runs: SliceRuns, *, shrink: bool = True) -> float:
    """By how much log Epochs on one slice of the data exceeds its mean. Eq. KG-7 of docs/knowledge-gradient.md.

    :param runs: (index of the batch size, epochs) of the runs that reached the target on this slice.
    :param shrink: attribute half of the run-to-run variance to the slice; False: the plain mean excess.
    """
    excess = sum([math.log(epochs) - float(mean[i]) for i, epochs in runs])
    return excess / max(len(runs) + shrink, 1)


def _noise(n: int, observed: Sequence[int], stats: Sequence[RunStats]) -> list[float]:
    """Run-to-run variance of each of ``n`` batch sizes. Eq. KG-4 of docs/knowledge-gradient.md.

    :param observed: index of the batch size of each of ``stats``.
    """
    prior = NOISE_RUNS * NOISE_SD**2
    squares, runs = [prior] * n, [NOISE_RUNS] * n
    all_squares, all_runs = 0.0, 0
    for i, stat in zip(observed, stats, strict=True):
        squares[i] += stat.squares
        runs[i] += stat.runs - 1
        all_squares += stat.squares
        all_runs += stat.runs - 1
    pooled = POOLED_SHARE * ((all_squares + prior) / (all_runs + NOISE_RUNS))
    return [(1.0 - POOLED_SHARE) * s / r + pooled for s, r in zip(squares, runs, strict=True)]


def _condition_above(
    mean: Vector, cov: Vector, i: int, bound: float, noise: float, p_fail: float
) -> tuple[Vector, Vector]:
    """Condition on one run of size i with log Epochs above ``bound``. Eqs. KG-8 and KG-9 of docs/knowledge-gradient.md.

    :param p_fail: probability that the run diverged by chance and shows nothing about Epochs.
    """
    variance = float(cov[i, i] + noise)
    sd = math.sqrt(variance)
    z = (bound - float(mean[i])) / sd
    if z < -4.0:  # almost certain before: nothing to learn
        return mean, cov
    ratio, gain = _mills_ratio(z), cov[:, i] / variance
    shift = gain * (sd * ratio)
    reduction = gain[:, None] * cov[i] * (ratio * (ratio - z))
    if not p_fail:
        return mean + shift, cov - reduction
    ordinary = (1.0 - p_fail) * 0.5 * math.erfc(z / math.sqrt(2.0))
    ordinary /= ordinary + p_fail
    between = shift[:, None] * shift * (ordinary * (1.0 - ordinary))
    return mean + ordinary * shift, cov - ordinary * reduction + between


def _mills_ratio(z: float) -> float:
    """Density over upper tail of the standard normal at z. Eq. KG-10 of docs/knowledge-gradient.md."""
    tail = 0.5 * math.erfc(z / math.sqrt(2.0))
    return math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) / tail if tail > 1e-12 else z + 1.0 / max(z, 1.0)


def normal_cdf(z: float) -> float:
    """Standard normal distribution function."""
    return 0.5 * math.erfc(-z / math.sqrt(2.0))
