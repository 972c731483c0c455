"""Joint draws of the curve and of the difficulty of every slice, after all runs. Needs numpy; imported lazily.

The filter of ``slice_filter.py`` knows a slice by the runs up to it. Here the later ones count, too: the curve c and
the newest difficulty are drawn from the filter's last state, then the difficulties before it, one after the other, each
given the next (forward filtering, backward sampling: Carter & Kohn, *Biometrika* 81(3), 1994).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from airflow_provider_zeus.optimizer.knowledge_gradient.gp import LEVEL_SD, Indices, Vector, prior
from airflow_provider_zeus.optimizer.knowledge_gradient.slice_filter import (
    CORRELATION,
    State,
    after_change,
    initial,
    next_slice,
    observe_run,
)
from airflow_provider_zeus.optimizer.slices import Slice

UNLIKELY = -4.0  # log weight, against the best pair's, below which a pair of the grid is not drawn from
_JITTER = 1e-9  # so that the covariance of a curve that is known exactly has an inverse


class Paths(NamedTuple):
    """Draws of log Epochs(slice, b) = curve + difficulty + noise."""

    curve: Vector  # (draw, stretch, size); a change of the data begins a stretch of slices
    stretch: Indices  # (slice,)
    difficulty: Vector  # (draw, slice)
    noise_sd: Vector  # (draw,)


class _Filtered(NamedTuple):
    """The filter after each slice, for the pairs of the grid that still count after the last one."""

    states: Sequence[State]
    jumps: Mapping[int, Vector]  # slice: what a change of the data before it added to the covariance of c


def sample_paths(
    sizes: tuple[int, ...],
    default: int,
    max_epochs: float,
    slices: Sequence[Slice],
    skipped: Sequence[bool],
    jumps: Mapping[int, float],
    rng: np.random.Generator,
    draws: int,
) -> Paths:
    """Draw from the posterior after all slices (at least one).

    :param sizes: ascending, the default among them.
    :param skipped: slices whose runs say nothing about batch sizes.
    :param jumps: number of the first trial after a change of the data -> its jump of log Epochs.
    """
    filtered = _filtered(sizes, default, max_epochs, slices, skipped, jumps)
    last = filtered.states[-1]
    weight = last.weight * (last.log_weight > last.log_weight.max() + UNLIKELY)
    counts = rng.multinomial(draws, weight / weight.sum())
    parts = [_of_pair(filtered, last, j, n, rng) for j, n in enumerate(counts.tolist()) if n]
    curve, difficulty = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    stretch = np.cumsum([i in filtered.jumps for i in range(len(slices))])
    return Paths(curve, stretch, difficulty, np.repeat(np.sqrt(last.noise), counts))


def _filtered(
    sizes: tuple[int, ...],
    default: int,
    max_epochs: float,
    slices: Sequence[Slice],
    skipped: Sequence[bool],
    jumps: Mapping[int, float],
) -> _Filtered:
    index, (mean, shape) = {b: i for i, b in enumerate(sizes)}, prior(sizes, default)
    state, states, added = initial(mean, LEVEL_SD**2 + shape), [], {}
    for i, item in enumerate(slices):
        state = next_slice(state) if i else state
        jump = next((jumps[run.number] for run in item.runs if run.number in jumps), None)
        if jump is not None and i:
            before, state = state.cov[0], after_change(state, LEVEL_SD**2 + jump**2 * shape)
            added[i] = (state.cov[0] - before)[:-1, :-1]
        for run in () if skipped[i] else item.runs:
            state = observe_run(state, index[run.batch_size], run, max_epochs)
        states.append(state)
    return _Filtered(states, added)


def _of_pair(filtered: _Filtered, last: State, j: int, draws: int, rng: np.random.Generator) -> tuple[Vector, Vector]:
    """(curve, difficulty) drawn for one pair of the grid."""
    noise, variance = last.noise[j], last.difficulty[j]
    at = [int(np.flatnonzero((s.noise == noise) & (s.difficulty == variance))[0]) for s in filtered.states]
    mean = np.stack([s.mean[i] for s, i in zip(filtered.states, at, strict=True)])
    cov = np.stack([s.cov[i] for s, i in zip(filtered.states, at, strict=True)])
    n = len(mean)
    on_curve = np.linalg.solve(cov[:, :-1, :-1] + _JITTER * np.eye(cov.shape[1] - 1), cov[:, :-1, -1:])[..., 0]
    left = np.maximum(cov[:, -1, -1] - (on_curve * cov[:, :-1, -1]).sum(1), 0.0)  # variance of s where c is known
    x = _normal(mean[-1], cov[-1], draws, rng)
    stretch = len(filtered.jumps)
    curve, difficulty = np.empty((draws, stretch + 1, cov.shape[1] - 1)), np.zeros((draws, n))
    curve[:, stretch], difficulty[:, -1] = x[:, :-1], x[:, -1]
    for t in range(n - 2, -1, -1):
        added = filtered.jumps.get(t + 1)
        if added is not None:
            x = _before_jump(mean[t], cov[t], added, variance, x, rng)
            stretch -= 1
            curve[:, stretch] = x[:, :-1]
        elif variance:
            expected = mean[t, -1] + (x[:, :-1] - mean[t, :-1]) @ on_curve[t]
            next_variance = CORRELATION**2 * left[t] + variance * (1.0 - CORRELATION**2)
            gain = CORRELATION * left[t] / next_variance
            sd = np.sqrt(max(left[t] * (1.0 - gain * CORRELATION), 0.0))
            x[:, -1] = expected + gain * (x[:, -1] - CORRELATION * expected) + sd * rng.standard_normal(draws)
        difficulty[:, t] = x[:, -1]
    return curve, difficulty


def _before_jump(
    mean: Vector, cov: Vector, added: Vector, variance: float, after: Vector, rng: np.random.Generator
) -> Vector:
    """Draws of curve and difficulty before a change of the data, given those after it."""
    step = np.ones(len(mean))
    step[-1] = CORRELATION
    predicted = cov * step[:, None] * step
    predicted[:-1, :-1] += added
    predicted[-1, -1] += variance * (1.0 - CORRELATION**2)
    gain = np.linalg.solve(predicted + _JITTER * np.eye(len(mean)), step[:, None] * cov).T
    rest = cov - gain @ (step[:, None] * cov)
    found: Vector = _normal(mean, rest, len(after), rng) + (after - step * mean) @ gain.T
    return found


def _normal(mean: Vector, cov: Vector, draws: int, rng: np.random.Generator) -> Vector:
    values, vectors = np.linalg.eigh((cov + cov.T) / 2)
    found: Vector = mean + (rng.standard_normal((draws, len(mean))) * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return found
