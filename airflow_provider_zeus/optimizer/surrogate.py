"""Gaussian-process surrogate of log Epochs over log2 of the batch size: neighbours teach each other.

``log Epochs(b) ~ GP`` over ``x = log2(b / default)`` with a free level, a linear trend, a smooth part and a small part
of the size's own (Rasmussen & Williams, *Gaussian Processes for Machine Learning*, chapter 2). A run that reached its
target is an observation with noise; one that was stopped says only ``Epochs > n`` and is matched by moments, as probit
likelihoods are in chapter 3.6. All arrays are over batch sizes, ascending. Needs numpy; imported lazily.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from airflow_provider_zeus.optimizer.drift import JUMP
from airflow_provider_zeus.optimizer.reached import Reached, Runs

P_FAIL = 0.05  # chance that a run never reaches its target, whatever was predicted for it

Vector = NDArray[np.float64]
Indices = NDArray[np.intp]
Beside = Sequence[tuple[int, float]]  # (batch size, epochs) of such runs


@dataclass(frozen=True, slots=True, eq=False)  # one is made once: hashed by identity
class Hyperparameters:
    """Of the prior; none is tuned per workload. Standard deviations are of log Epochs."""

    slope: float = 0.3  # prior mean of d log Epochs / d log b above the default batch size; 0 below it
    trend: float = 0.25  # sd of the linear trend, per octave
    smooth: float = 0.35  # sd of the smooth part ...
    length: float = 1.85  # ... and its length scale, octaves
    own: float = 0.05  # sd of a batch size's own deviation
    level: float = 3.0  # sd of the level
    noise: float = 0.25  # run-to-run sd expected before any run is repeated ...
    noise_runs: float = 4.0  # ... and how many observations that expectation is worth
    pooled: float = 0.5  # share of the run-to-run variance that is common to all batch sizes


class Surrogate(NamedTuple):
    """Posterior of log Epochs: mean, covariance, and the run-to-run variance around it."""

    sizes: tuple[int, ...]
    mean: Vector  # (n,)
    cov: Vector  # (n, n)
    noise: Vector  # (n,) variance of one run
    run_variance: Vector  # (n,) predictive variance of the next run's log Epochs


@lru_cache(maxsize=256)
def _prior(sizes: tuple[int, ...], default: int, h: Hyperparameters) -> tuple[Vector, Vector]:
    x = np.log2(np.asarray(sizes, float) / default)
    apart = (x[:, None] - x[None, :]) / h.length
    smooth = h.smooth**2 * np.exp(-0.5 * apart**2)
    shape: Vector = h.trend**2 * np.outer(x, x) + smooth + h.own**2 * np.eye(len(sizes))
    return h.slope * math.log(2.0) * np.maximum(x, 0.0), h.level**2 + shape


def fit(
    sizes: Sequence[int],
    default: int,
    reached: Runs,
    stopped: Sequence[tuple[int, float, Beside]],
    before: Sequence[tuple[Runs, float]] = (),
    most: float = math.inf,
    h: Hyperparameters = Hyperparameters(),
) -> Surrogate:
    """Posterior given the epochs of the runs that reached the target, and (batch size, epochs, beside) of stopped ones.

    Batch sizes that are not in ``sizes`` are left out. *beside* are runs that reached the target on the same slice of
    the data: where they took longer than usual, the slice is hard.

    :param before: of each time before a change, its runs that reached the target, and the squares of the jumps of log
        Epochs since then, summed. They tell the shape at a level of its own; the more that jumped, the less.
    :param most: epochs of a complete run: one that missed its target may have failed, whatever its batch size.
    """
    order = tuple(sizes)
    place = {b: i for i, b in enumerate(order)}
    mean, cov = _prior(order, default, h)
    at: list[int] = []  # the batch size of each arm: of one group after the other, one that ran in it
    arms: list[Reached] = []
    ends = []
    for runs in (reached, *(runs for runs, _ in before)):
        ran = [b for b in sorted(runs) if b in place]
        at += [place[b] for b in ran]
        arms += [runs[b] for b in ran]
        ends.append(len(at))
    noise = _noise(len(order), at, arms, h)
    if at:
        across = cov.take(at, 0)
        seen = across.take(at, 1)
        for (start, end), (_, jumps) in zip(pairwise(ends), before, strict=True):
            same = seen[start:end, start:end]
            same += h.level**2 + jumps / JUMP**2 * (same - h.level**2)
        seen.reshape(-1)[:: len(at) + 1] += [noise[i] / arm.runs for i, arm in zip(at, arms, strict=True)]
        gain = np.linalg.solve(seen, across)
        mean, cov = mean + ([arm.mean for arm in arms] - mean.take(at)) @ gain, cov - across.T @ gain
    for b, epochs, beside in stopped:
        if b in place:
            bound = math.log(max(epochs, 0.5)) - hardness(mean, [(place[m], e) for m, e in beside if m in place])
            mean, cov = _above(mean, cov, place[b], bound, noise[place[b]], P_FAIL if epochs >= most else 0.0)
    spread = np.array(noise)
    return Surrogate(order, mean, cov, spread, cov.diagonal() + spread)


def hardness(mean: Vector, runs: Beside, *, whole: bool = False) -> float:
    """By how much log Epochs of a slice exceeds the usual, told by its (index, epochs) runs.

    Half of the run-to-run variance is taken for the slice's; ``whole``: what its runs took, as it was.
    """
    excess = sum([math.log(epochs) - float(mean[i]) for i, epochs in runs])
    return excess / max(len(runs) + (not whole), 1)


def _noise(n: int, at: Sequence[int], arms: Sequence[Reached], h: Hyperparameters) -> list[float]:
    """Run-to-run variance: half each size's own, half pooled; a scaled-inverse-chi-squared prior on both."""
    start = h.noise_runs * h.noise**2
    squares, runs = [start] * n, [h.noise_runs] * n
    all_squares, all_runs = 0.0, 0
    for i, (_, n_runs, _, around) in zip(at, arms, strict=True):
        squares[i] += around
        runs[i] += n_runs - 1
        all_squares += around
        all_runs += n_runs - 1
    every = h.pooled * ((all_squares + start) / (all_runs + h.noise_runs))
    return [(1.0 - h.pooled) * s / r + every for s, r in zip(squares, runs, strict=True)]


def _above(mean: Vector, cov: Vector, i: int, bound: float, noise: float, fails: float) -> tuple[Vector, Vector]:
    """Condition on one run of size i having log Epochs above ``bound``, or being one of the share that ``fails``.

    Moments of the truncated Gaussian where it was an ordinary run, of what was believed before where it failed, mixed
    by how likely each is: one run that diverged far above its prediction says little of the next one.
    """
    variance = float(cov[i, i] + noise)
    sd = math.sqrt(variance)
    z = (bound - float(mean[i])) / sd
    if z < -4.0:  # it would have passed there anyway
        return mean, cov
    ratio, gain = _mills(z), cov[:, i] / variance
    moved = gain * (sd * ratio)
    narrowed = gain[:, None] * cov[i] * (ratio * (ratio - z))
    if not fails:
        return mean + moved, cov - narrowed
    ordinary = (1.0 - fails) * 0.5 * math.erfc(z / math.sqrt(2.0))
    ordinary /= ordinary + fails
    between = moved[:, None] * moved * (ordinary * (1.0 - ordinary))
    return mean + ordinary * moved, cov - ordinary * narrowed + between


def _mills(z: float) -> float:
    """Inverse Mills ratio: density over upper tail of the standard normal at z."""
    tail = 0.5 * math.erfc(z / math.sqrt(2.0))
    return math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) / tail if tail > 1e-12 else z + 1.0 / max(z, 1.0)


def normal_cdf(z: float) -> float:
    """Standard normal distribution function."""
    return 0.5 * math.erfc(-z / math.sqrt(2.0))
