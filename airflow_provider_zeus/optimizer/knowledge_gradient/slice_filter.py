"""A Kalman filter of log Epochs over batch sizes and slices of the data. Needs numpy; imported lazily.

The slices of a retraining job differ: on a hard one every batch size needs more epochs. So a run of batch size b on
slice t needs::

    log Epochs(t, b) = c(b) + s(t) + noise

``c`` is a Gaussian process over the batch sizes (``gp.py``), ``s`` the difficulty of the slice, an autoregressive
process; runs of one recurrence share it. The standard deviations of noise and difficulty are unknown: the filter runs
once for each pair of a grid, and the pairs are weighted by how well they predicted the runs so far. That the data have
changed for good before one of the newest slices is a hypothesis beside them, with its own weight: a hard slice, noise
and a lasting change compete for the same runs (Adams & MacKay, *Bayesian Online Changepoint Detection*, 2007).
Equations: ``docs/knowledge-gradient.md``. Arrays are (pair, batch size), with the difficulty as the last entry;
variances are of natural logarithms.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from airflow_provider_zeus.optimizer.knowledge_gradient.gp import P_FAIL, Vector, mills_ratio
from airflow_provider_zeus.optimizer.slices import SliceRun

NOISE_SDS = (0.12, 0.17, 0.24, 0.33)  # grid of the noise: each as likely
SLICE_SDS = (0.12, 0.25, 0.5, 0.9)  # grid of the slices' difficulty, where they differ: each as likely
P_ALIKE = 0.8  # prior probability that all slices are equally hard
CORRELATION = 0.9  # of the difficulties of two consecutive slices
JUMP = 0.7  # sd of a lasting change of log Epochs
HAZARD = 1 / 200  # prior probability that the data change before a slice
KEPT = 12  # newest slices before each of which a change is still looked for
DROPPED_BELOW = -12.0  # log weight, against the best pair of no change, below which a pair counts no longer


def _grid() -> tuple[Vector, Vector, Vector]:
    """Variances of noise and difficulty, log prior probability of each pair. Eq. KG-4 of docs/knowledge-gradient.md."""
    slice_sds, pairs = np.array((0.0, *SLICE_SDS)), 1 + len(SLICE_SDS)
    slices = np.log([P_ALIKE, *[(1.0 - P_ALIKE) / len(SLICE_SDS)] * len(SLICE_SDS)])
    variances = np.repeat(NOISE_SDS, pairs) ** 2, np.tile(slice_sds, len(NOISE_SDS)) ** 2
    return *variances, np.tile(slices - math.log(len(NOISE_SDS)), len(NOISE_SDS))


NOISE, DIFFICULTY, _LOG_PRIOR = _grid()


Mixed = tuple[Vector, Vector, float]  # mean (size + 1,), covariance, noise variance


class State(NamedTuple):
    """Mean and covariance of c and s, and the log weight, for each pair of the grid that still counts.

    A pair counts once as nothing has changed, and once for each slice before which the data may have changed.
    """

    mean: Vector  # (pair, size + 1)
    cov: Vector  # (pair, size + 1, size + 1)
    log_weight: Vector  # (pair,)
    noise: Vector  # (pair,) variance
    difficulty: Vector  # (pair,) variance
    since: Vector  # (pair,) the slice before which the data have changed; -1: they have not

    @property
    def weight(self) -> Vector:
        """Posterior probability of each pair."""
        weight: Vector = np.exp(self.log_weight - self.log_weight.max())
        weight /= weight.sum()
        return weight


def initial(mean: Vector, cov: Vector) -> State:
    """The state before the first slice. ``mean`` (size,) and ``cov`` (size, size) are the prior of c."""
    pairs, n = len(NOISE), len(mean)
    means, covs = np.zeros((pairs, n + 1)), np.zeros((pairs, n + 1, n + 1))
    means[:, :n], covs[:, :n, :n], covs[:, n, n] = mean, cov, DIFFICULTY
    return State(means, covs, _LOG_PRIOR, NOISE, DIFFICULTY, np.full(pairs, -1.0))


def next_slice(state: State) -> State:
    """Predict the next slice. Eq. KG-5 of docs/knowledge-gradient.md."""
    if len(state.log_weight) > 1:
        likely = state.log_weight > state.log_weight[state.since < 0].max() + DROPPED_BELOW
        if not likely.all():
            state = _those(state, likely)
    if not state.difficulty.any():
        return state
    mean, cov = state.mean.copy(), state.cov.copy()
    mean[:, -1] *= CORRELATION
    cov[:, -1] *= CORRELATION
    cov[:, :, -1] *= CORRELATION
    cov[:, -1, -1] += state.difficulty * (1.0 - CORRELATION**2)
    return state._replace(mean=mean, cov=cov)


def after_change(state: State, doubt: Vector) -> State:
    """The state after a lasting change of the data.

    :param doubt: covariance of what it did to the curve (size, size).
    """
    cov = state.cov.copy()
    cov[:, :-1, :-1] += doubt
    return state._replace(cov=cov)


def with_change(state: State, shape: Vector, i: int) -> State:
    """The state before slice i, with the hypothesis that the data have changed before it.

    Eqs. KG-6 and KG-33 of docs/knowledge-gradient.md.

    :param shape: prior covariance of the curve without its level (size, size).
    """
    same = unchanged(state)
    changed = after_change(same, JUMP**2 * (1.0 + shape / 4.0))
    log_weight, since = same.log_weight + math.log(HAZARD), np.full(len(same.since), float(i))
    changed = changed._replace(log_weight=log_weight, since=since)
    same = same._replace(log_weight=same.log_weight + math.log(1.0 - HAZARD))
    earlier = _those(state, state.since > max(i - KEPT, -1))
    return State(*(np.concatenate(parts) for parts in zip(same, earlier, changed, strict=True)))


def unchanged(state: State) -> State:
    """The state by the hypothesis that nothing has changed."""
    return _those(state, state.since < 0)


def _those(state: State, which: NDArray[np.bool_]) -> State:
    return state if which.all() else State(*(part[which] for part in state))


def found_change(state: State, i: int) -> tuple[int, State] | None:
    """(slice before which the data have changed, the state by that hypothesis) after slice i; None: likelier not.

    A change that only slice i shows does not count yet: it may be an accident. Eq. KG-34 of
    docs/knowledge-gradient.md.
    """
    told = (state.since >= 0) & (state.since < i)
    if not told.any():
        return None
    weight = state.weight
    if weight[told].sum() <= 0.5:
        return None
    at = max(set(state.since[told].tolist()), key=lambda k: float(weight[state.since == k].sum()))
    state = _those(state, state.since == at)
    return int(at), state._replace(since=np.full(len(state.since), -1.0))


def observe(state: State, i: int, log_epochs: float) -> State:
    """Condition on a run of size i that reached its target. Eq. KG-7 of docs/knowledge-gradient.md."""
    mean, cov, log_weight, noise = state[:4]
    covariance = cov[:, i] + cov[:, -1]
    rounding = math.exp(-2.0 * log_epochs) / 12.0  # epochs are counted whole
    variance = covariance[:, i] + covariance[:, -1] + noise + rounding
    deviation = log_epochs - mean[:, i] - mean[:, -1]
    gain = covariance / variance[:, None]
    cov = cov - gain[:, :, None] * covariance[:, None, :]
    log_weight = log_weight - 0.5 * (deviation * deviation / variance + np.log(variance))
    return state._replace(mean=mean + gain * deviation[:, None], cov=cov, log_weight=log_weight)


def observe_above(state: State, i: int, bound: float, p_fail: float) -> State:
    """Condition on a run of size i with log Epochs above ``bound``. Eqs. KG-8, KG-9 of docs/knowledge-gradient.md.

    :param p_fail: probability that the run diverged by chance and shows nothing about Epochs.
    """
    covariance = state.cov[:, i] + state.cov[:, -1]
    variance = covariance[:, i] + covariance[:, -1] + state.noise
    sd = np.sqrt(variance)
    z = (bound - state.mean[:, i] - state.mean[:, -1]) / sd
    ratio = np.array([mills_ratio(v) for v in z.tolist()])
    ordinary = (1.0 - p_fail) * np.array([0.5 * math.erfc(v / math.sqrt(2.0)) for v in z.tolist()])
    total = np.maximum(ordinary + p_fail, 1e-300)
    w, gain = ordinary / total, covariance / variance[:, None]
    shift = gain * (sd * ratio)[:, None]
    cov = state.cov - (w * ratio * (ratio - z))[:, None, None] * gain[:, :, None] * covariance[:, None, :]
    if p_fail:
        cov += (w * (1.0 - w))[:, None, None] * shift[:, :, None] * shift[:, None, :]
    return state._replace(mean=state.mean + w[:, None] * shift, cov=cov, log_weight=state.log_weight + np.log(total))


def observe_run(state: State, i: int, run: SliceRun, max_epochs: float, *, one_is_most: bool = False) -> State:
    """Condition on a run of size i: exactly where it reached its target, else on its epochs as a lower bound.

    :param one_is_most: one epoch is an upper bound: a part of it might have been enough.
    """
    log_epochs = math.log(max(run.epochs, 0.5))
    if run.reached and one_is_most and run.epochs <= 1:
        turned = observe_above(state._replace(mean=-state.mean), i, 0.0, 0.0)
        return turned._replace(mean=-turned.mean)
    if run.reached:
        return observe(state, i, log_epochs)
    return observe_above(state, i, log_epochs, P_FAIL if run.missed(max_epochs) else 0.0)


def mixed(state: State) -> Mixed:
    """Mean and covariance of c and s, and noise variance, over all pairs. Eq. KG-11 of docs/knowledge-gradient.md."""
    weight = state.weight
    mean = weight @ state.mean
    off = state.mean - mean
    cov = (weight @ state.cov.reshape(len(weight), -1)).reshape(state.cov.shape[1:]) + (weight[:, None] * off).T @ off
    return mean, cov, float(weight @ state.noise)


def mixed_on_next_slice(state: State, now: Mixed) -> Mixed:
    """:func:`mixed` of :func:`next_slice`, computed from that of this slice."""
    mean, cov, noise = now[0].copy(), now[1].copy(), now[2]
    mean[-1] *= CORRELATION
    cov[-1] *= CORRELATION
    cov[:, -1] *= CORRELATION
    cov[-1, -1] += float(state.weight @ state.difficulty) * (1.0 - CORRELATION**2)
    return mean, cov, noise
