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
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from airflow_provider_zeus.optimizer.belief import Runs
from airflow_provider_zeus.optimizer.drift import JUMP

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


@dataclass(frozen=True, slots=True)
class Surrogate:
    """Posterior of log Epochs: mean, covariance, and the run-to-run variance around it."""

    sizes: tuple[int, ...]
    mean: Vector  # (n,)
    cov: Vector  # (n, n)
    noise: Vector  # (n,) variance of one run

    @property
    def run_variance(self) -> Vector:
        """Predictive variance of the next run's log Epochs."""
        variance: Vector = self.cov.diagonal() + self.noise
        return variance


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
    mean, shape = _prior(order, default, h)
    cov = h.level**2 + shape
    groups = [reached, *(runs for runs, _ in before)]
    arms = [_Arm.of(g, place[b], runs[b]) for g, runs in enumerate(groups) for b in sorted(runs) if b in place]
    noise = _noise(len(order), arms, h)
    if arms:
        at = [arm.place for arm in arms]
        across = cov.take(at, 0)
        seen = across.take(at, 1)
        for group, (_, jumps) in enumerate(before, start=1):
            these = [i for i, arm in enumerate(arms) if arm.group == group]
            apart = np.ix_(these, these)
            seen[apart] += h.level**2 + jumps / JUMP**2 * (seen[apart] - h.level**2)
        seen.flat[:: len(at) + 1] += [noise[arm.place] / arm.runs for arm in arms]
        gain = np.linalg.solve(seen, across)
        mean, cov = mean + ([arm.mean for arm in arms] - mean.take(at)) @ gain, cov - across.T @ gain
    for b, epochs, beside in stopped:
        if b in place:
            bound = math.log(max(epochs, 0.5)) - hardness(mean, [(place[m], e) for m, e in beside if m in place])
            mean, cov = _above(mean, cov, place[b], bound, noise[place[b]], P_FAIL if epochs >= most else 0.0)
    return Surrogate(order, mean, cov, np.array(noise))


def hardness(mean: Vector, runs: Beside, *, whole: bool = False) -> float:
    """By how much log Epochs of a slice exceeds the usual, told by its (index, epochs) runs.

    Half of the run-to-run variance is taken for the slice's; ``whole``: what its runs took, as it was.
    """
    excess = sum([math.log(epochs) - float(mean[i]) for i, epochs in runs])
    return excess / max(len(runs) + (not whole), 1)


class _Arm(NamedTuple):
    """Runs of one batch size and group that reached the target: mean of log Epochs, and the squares around it."""

    group: int
    place: int
    runs: int
    mean: float
    squares: float

    @classmethod
    def of(cls, group: int, place: int, times: Mapping[float, int]) -> Self:
        logs = [(math.log(epochs), n) for epochs, n in sorted(times.items())]
        runs = sum([n for _, n in logs])
        mean = sum([v * n for v, n in logs]) / runs
        return cls(group, place, runs, mean, sum([(v - mean) ** 2 * n for v, n in logs]))


def _noise(n: int, arms: Sequence[_Arm], h: Hyperparameters) -> list[float]:
    """Run-to-run variance: half each size's own, half pooled; a scaled-inverse-chi-squared prior on both."""
    squares, runs = [h.noise_runs * h.noise**2] * n, [h.noise_runs] * n
    for arm in arms:
        squares[arm.place] += arm.squares
        runs[arm.place] += arm.runs - 1
    every = (sum([arm.squares for arm in arms]) + h.noise_runs * h.noise**2) / (
        sum([arm.runs - 1 for arm in arms]) + h.noise_runs
    )
    return [(1.0 - h.pooled) * s / r + h.pooled * every for s, r in zip(squares, runs, strict=True)]


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
