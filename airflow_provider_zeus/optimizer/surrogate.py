"""Gaussian-process surrogate of log Epochs over log2 of the batch size: neighbours teach each other.

``log Epochs(b) ~ GP`` over ``x = log2(b / default)`` with a free level, a linear trend, a smooth part and a small part
of the size's own (Rasmussen & Williams, *Gaussian Processes for Machine Learning*, chapter 2). A run that reached its
target is an observation with noise; one that was stopped says only ``Epochs > n`` and is matched by moments, as probit
likelihoods are in chapter 3.6. All arrays are over batch sizes, ascending. Needs numpy; imported lazily.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from airflow_provider_zeus.optimizer.drift import JUMP

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Surrogate:
    """Posterior of log Epochs: mean, covariance, and the run-to-run variance around it."""

    sizes: tuple[int, ...]
    mean: Vector  # (n,)
    cov: Vector  # (n, n)
    noise: Vector  # (n,) variance of one run

    @property
    def run_sd(self) -> Vector:
        """Predictive standard deviation of the next run's log Epochs."""
        return np.sqrt(self.cov.diagonal() + self.noise)


@lru_cache(maxsize=256)
def _prior(sizes: tuple[int, ...], default: int, h: Hyperparameters) -> tuple[Vector, Vector]:
    x = np.log2(np.asarray(sizes, float) / default)
    apart = (x[:, None] - x[None, :]) / h.length
    smooth = h.smooth**2 * np.exp(-0.5 * apart**2)
    shape: Vector = h.trend**2 * np.outer(x, x) + smooth + h.own**2 * np.eye(len(sizes))
    return h.slope * math.log(2.0) * np.maximum(x, 0.0), shape


def fit(
    sizes: Sequence[int],
    default: int,
    reached: Mapping[int, Sequence[float]],
    stopped: Sequence[tuple[int, float, Sequence[tuple[int, float]]]],
    before: Sequence[tuple[Mapping[int, Sequence[float]], float]] = (),
    h: Hyperparameters = Hyperparameters(),
) -> Surrogate:
    """Posterior given the epochs of runs that reached the target, by batch size, and (batch size, epochs, beside) of
    stopped ones. Batch sizes that are not in ``sizes`` are left out. *beside* are (batch size, epochs) of runs that
    reached the target on the same slice of the data: where they took longer than usual, the slice is hard.

    :param before: of each time before a change, the epochs of its runs by batch size, and the squares of the jumps of
        log Epochs since then, summed. Its runs tell the shape at a level of its own; the more that jumped, the less.
    """
    order = tuple(sizes)
    place = {b: i for i, b in enumerate(order)}
    mean, shape = _prior(order, default, h)
    cov = h.level**2 + shape
    groups = [_arms(place, runs) for runs in (reached, *(runs for runs, _ in before))]
    arms = [arm for group in groups for arm in group]
    noise = _noise(len(order), arms, h)
    if arms:
        at = np.array([a.place for a in arms])
        spread = np.diag(noise[at] / np.array([a.runs for a in arms]))
        start = len(groups[0])
        for group, (_, jumps) in zip(groups[1:], before, strict=True):
            these = slice(start, start := start + len(group))
            spread[these, these] += h.level**2 + jumps / JUMP**2 * shape[np.ix_(at[these], at[these])]
        across = cov[at]
        gain = np.linalg.solve(across[:, at] + spread, across)
        mean, cov = mean + (np.array([a.mean for a in arms]) - mean[at]) @ gain, cov - across.T @ gain
    for b, epochs, beside in stopped:
        if b in place:
            bound = math.log(max(epochs, 0.5)) - hardness(mean, [(place[m], e) for m, e in beside if m in place])
            mean, cov = _above(mean, cov, place[b], bound, noise[place[b]])
    return Surrogate(order, mean, cov, noise)


def hardness(mean: Vector, runs: Sequence[tuple[int, float]], *, whole: bool = False) -> float:
    """By how much log Epochs of a slice exceeds the usual, told by its (index, epochs) runs.

    Half of the run-to-run variance is taken for the slice's; ``whole``: what its runs took, as it was.
    """
    excess = sum([math.log(epochs) - float(mean[i]) for i, epochs in runs])
    return excess / max(len(runs) + (not whole), 1)


class _Arm(NamedTuple):
    """Runs of one batch size that reached the target: log Epochs, their mean and the squares around it."""

    place: int
    runs: int
    mean: float
    squares: float

    @classmethod
    def of(cls, place: int, epochs: Sequence[float]) -> _Arm:
        logs = [math.log(e) for e in epochs]
        mean = sum(logs) / len(logs)
        return cls(place, len(logs), mean, sum([(v - mean) ** 2 for v in logs]))


def _arms(place: Mapping[int, int], runs: Mapping[int, Sequence[float]]) -> list[_Arm]:
    return [_Arm.of(place[b], epochs) for b, epochs in runs.items() if b in place and epochs]


def _noise(n: int, arms: Sequence[_Arm], h: Hyperparameters) -> Vector:
    """Run-to-run variance: half each size's own, half pooled; a scaled-inverse-chi-squared prior on both."""
    squares, runs = np.full(n, h.noise_runs * h.noise**2), np.full(n, h.noise_runs)
    for a in arms:
        squares[a.place] += a.squares
        runs[a.place] += a.runs - 1
    every = sum([a.squares for a in arms], start=h.noise_runs * h.noise**2)
    result: Vector = (1.0 - h.pooled) * squares / runs
    return result + h.pooled * every / sum([a.runs - 1 for a in arms], start=h.noise_runs)


def _above(mean: Vector, cov: Vector, i: int, bound: float, noise: float) -> tuple[Vector, Vector]:
    """Condition on one run of size i having log Epochs above ``bound``: moments of the truncated Gaussian."""
    variance = float(cov[i, i] + noise)
    sd = math.sqrt(variance)
    z = (bound - float(mean[i])) / sd
    if z < -4.0:  # it would have passed there anyway
        return mean, cov
    ratio = _mills(z)
    gain = cov[:, i] / variance
    return mean + gain * (sd * ratio), cov - np.outer(gain, cov[i]) * (ratio * (ratio - z))


def _mills(z: float) -> float:
    """Inverse Mills ratio: density over upper tail of the standard normal at z."""
    tail = 0.5 * math.erfc(z / math.sqrt(2.0))
    return math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) / tail if tail > 1e-12 else z + 1.0 / max(z, 1.0)


def normal_cdf(z: Any) -> Vector:
    """Standard normal distribution function, elementwise."""
    return np.array([0.5 * math.erfc(-v / math.sqrt(2.0)) for v in np.atleast_1d(z)])
