"""A Kalman filter of log Epochs over batch sizes. Needs numpy; imported lazily.

A run of batch size b needs ``log Epochs(b) = c(b) + e + noise``. ``c`` is a Gaussian process over
the batch sizes (``gp.py``), and all runs on one slice share e. The standard deviations of e and of
the noise are unknown: the filter runs once for each pair of a grid, and each pair is weighted by
how well it predicted the runs so far. That the data have changed for good before one of the newest
slices is a hypothesis beside them, with its own weight: noise and a lasting change compete for the
same runs (Adams & MacKay, *Bayesian Online Changepoint Detection*, 2007). No hypothesis is final
before :data:`KEPT` slices have passed: one that later slices refute loses. Equations:
``docs/knowledge-gradient.md``. Arrays are (hypothesis, batch size); variances are of natural
logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from airflow_provider_zeus.optimizer.knowledge_gradient.gp import P_FAIL, Vector, mills_ratio
from airflow_provider_zeus.optimizer.slices import Slice, SliceRun

NOISE_SDS = (0.12, 0.17, 0.24, 0.24)  # how much runs vary is not known before some have run
SLICE_SDS = (0.0, 0.0, 0.0, 0.4)  # nor is how much the runs on one slice have in common
JUMP = 0.7  # a change that lasts is larger than one of a slice
HAZARD = 1 / 200  # most jobs run for months without a change
KEPT = 12  # each one more makes a decision slower, and a change shows within some runs
# A hypothesis this unlikely only makes each decision slower.
DROPPED_BELOW = -12.0
UNCHANGED = -1


class State(NamedTuple):
    """Mean and covariance of c, and the log weight, for each hypothesis that still counts.

    A noise counts once for each slice before which the data may have changed for the last time.
    """

    mean: Vector
    cov: Vector
    log_weight: Vector
    noise: Vector
    shared: Vector  # a hard slice is hard for all its runs
    # KG-13 adds up the hypotheses with one last change of the data; UNCHANGED: with none.
    since: Vector

    @property
    def weight(self) -> Vector:
        """Posterior probability of each hypothesis."""
        weight: Vector = np.exp(self.log_weight - self.log_weight.max())
        weight /= weight.sum()
        return weight

    @property
    def curve(self) -> Vector:
        """Mean of c over all hypotheses (size,)."""
        curve: Vector = self.weight @ self.mean
        return curve

    @property
    def first(self) -> int:
        """The oldest last change that still counts."""
        return int(self.since.min())


def initial(mean: Vector, cov: Vector) -> State:
    """The state before the first slice. Eq. KG-4 of docs/knowledge-gradient.md.

    :param mean: of the prior of c (size,).
    :param cov: of it (size, size).
    """
    noise = np.square(NOISE_SDS)
    n = len(noise)
    return State(
        mean=np.tile(mean, (n, 1)),
        cov=np.tile(cov, (n, 1, 1)),
        log_weight=np.zeros(n),
        noise=noise,
        shared=np.square(SLICE_SDS),
        since=np.full(n, float(UNCHANGED)),
    )


def with_change(state: State, shape: Vector, parent: int, i: int, hazard: float) -> State:
    """The state before slice i, with the hypothesis that the data have changed before it.

    The whole curve is in doubt then. Eqs. KG-11 and KG-12 of docs/knowledge-gradient.md.

    :param shape: prior covariance of the curve without its level (size, size).
    :param parent: the last change before that one.
    :param hazard: its prior probability.
    """
    from_parent = state.since == parent
    log_weight = state.log_weight + np.where(from_parent, math.log(1.0 - hazard), 0.0)
    # KG-11: after a change the shape is in doubt, too, by twice the sd that it began with.
    doubt = JUMP**2 + 4.0 * shape
    changed = those(state, from_parent)
    changed = changed._replace(
        cov=changed.cov + doubt,
        log_weight=changed.log_weight + math.log(hazard),
        since=np.full_like(changed.since, i),
    )
    same = state._replace(log_weight=log_weight)
    return State(*(np.concatenate(parts) for parts in zip(same, changed, strict=True)))


def last_change(state: State, i: int) -> int:
    """The slice before which the data have changed for the last time, as it counts after slice i.

    The oldest hypothesis counts until a later change is likelier than not. A change that only slice
    i shows does not count yet: it may be an accident. Eq. KG-13 of docs/knowledge-gradient.md.
    """
    first = state.first
    later = (state.since > first) & (state.since < i)
    weight = state.weight
    if weight[later].sum() <= 0.5:
        return first
    slices = {int(k) for k in state.since[later]}
    return max(slices, key=lambda k: float(weight[state.since == k].sum()))


def still_open(state: State, believed: int, i: int) -> State:
    """The hypotheses that may still win after slice i: likely enough, and recent enough.

    Once the believed change is :data:`KEPT` slices old, all older ones are settled.
    """
    recent = state.since > i - KEPT
    oldest = state.first
    if believed <= i - KEPT:
        oldest = believed
    likely = state.log_weight > state.log_weight.max() + DROPPED_BELOW
    counts = recent | (state.since == oldest)
    return those(state, (likely & counts) | (state.since == believed))


def those(state: State, which: NDArray[np.bool_]) -> State:
    """Some of the hypotheses."""
    if which.all():
        return state
    return State(*(part[which] for part in state))


def on_slice(state: State) -> State:
    """The state of c + e on a slice, with e as a last entry."""
    hypotheses, n = state.mean.shape
    mean = np.zeros((hypotheses, n + 1))
    mean[:, :n] = state.mean
    cov = np.zeros((hypotheses, n + 1, n + 1))
    cov[:, :n, :n] = state.cov
    # e has mean 0 and nothing in common with c: its variance is in every entry
    cov += state.shared[:, None, None]
    return state._replace(mean=mean, cov=cov)


def off_slice(state: State) -> State:
    """The state of c alone again: e, the last entry, is taken out of the others."""
    mean = state.mean - state.mean[:, -1:]
    with_e = state.cov[:, -1:]
    cov = state.cov - with_e - with_e.swapaxes(1, 2) + with_e[:, :, -1:]
    return state._replace(mean=mean[:, :-1], cov=cov[:, :-1, :-1])


def products(a: Vector, b: Vector) -> Vector:
    """Outer product of each hypothesis."""
    return a[:, :, None] * b[:, None, :]


def observe(state: State, i: int, log_epochs: float) -> State:
    """Condition on a run of size i that reached its target.

    Eq. KG-6 of docs/knowledge-gradient.md.
    """
    covariance = state.cov[:, i]
    rounding = math.exp(-2.0 * log_epochs) / 12.0  # epochs are counted whole (KG-6)
    variance = covariance[:, i] + state.noise + rounding
    deviation = log_epochs - state.mean[:, i]
    gain = covariance / variance[:, None]
    evidence = -0.5 * (deviation * deviation / variance + np.log(variance))
    return state._replace(
        mean=state.mean + gain * deviation[:, None],
        cov=state.cov - products(gain, covariance),
        log_weight=state.log_weight + evidence,
    )


def observe_above(state: State, i: int, bound: float, p_fail: float) -> State:
    """Condition on a run of size i with log Epochs above ``bound``.

    Eqs. KG-7, KG-8 of docs/knowledge-gradient.md.

    :param p_fail: probability that the run diverged by chance and shows nothing about Epochs.
    """
    covariance = state.cov[:, i]
    variance = covariance[:, i] + state.noise
    sd = np.sqrt(variance)
    z = (bound - state.mean[:, i]) / sd
    ratio = np.array([mills_ratio(v) for v in z.tolist()])
    ordinary = (1.0 - p_fail) * np.array([0.5 * math.erfc(v / math.sqrt(2.0)) for v in z.tolist()])
    # a bound far above the prediction may leave no probability, and its logarithm is needed
    total = np.maximum(ordinary + p_fail, 1e-300)
    w = ordinary / total
    gain = covariance / variance[:, None]
    shift = gain * (sd * ratio)[:, None]
    cov = state.cov - (w * ratio * (ratio - z))[:, None, None] * products(gain, covariance)
    if p_fail:
        cov += (w * (1.0 - w))[:, None, None] * products(shift, shift)
    return state._replace(
        mean=state.mean + w[:, None] * shift, cov=cov, log_weight=state.log_weight + np.log(total)
    )


def observe_run(
    state: State, i: int, run: SliceRun, may_fail: bool, *, one_is_most: bool = False
) -> State:
    """Condition on the epochs of a run of size i: a lower bound unless it reached its target.

    :param may_fail: whether the size may be one that fails whatever was predicted for it.
    :param one_is_most: one epoch is an upper bound: a part of it might have been enough.
    """
    # A run may be given up within its first epoch, and 0 has no logarithm.
    log_epochs = math.log(max(run.epochs, 0.5))
    if not run.reached:
        return observe_above(state, i, log_epochs, p_fail=P_FAIL if may_fail else 0.0)
    if one_is_most and run.epochs <= 1:
        # An upper bound is a lower one of the mirrored belief; ln 1 = 0 stays in its place.
        turned = observe_above(state._replace(mean=-state.mean), i, 0.0, p_fail=0.0)
        return turned._replace(mean=-turned.mean)
    return observe(state, i, log_epochs)


def observe_slice(
    state: State,
    index: Mapping[int, int],
    item: Slice,
    max_epochs: float,
    out_of_reach: float,
    reached: frozenset[int],
    *,
    one_is_most: bool = False,
) -> State:
    """Condition on the runs of one slice. Eq. KG-10 of docs/knowledge-gradient.md.

    If none reached the target, the slice itself may be out of reach: then its runs show nothing.

    :param index: of each batch size.
    :param out_of_reach: the probability of that before its runs are known.
    :param reached: batch sizes that reached the target before. Of any other one, a run that was
        given up may be one that fails, too:
        else a size that always fails would condemn those behind it.
    """
    after = on_slice(state)
    for run in item.runs:
        may_fail = run.missed(max_epochs) or run.batch_size not in reached
        after = observe_run(after, index[run.batch_size], run, may_fail, one_is_most=one_is_most)
    after = off_slice(after)
    if not item.missed:
        return after
    in_reach = (1.0 - out_of_reach) * np.exp(after.log_weight - state.log_weight)
    total = in_reach + out_of_reach
    w = in_reach / total
    shift = after.mean - state.mean
    spread = (w * (1.0 - w))[:, None, None] * products(shift, shift)
    return state._replace(
        mean=state.mean + w[:, None] * shift,
        cov=state.cov + w[:, None, None] * (after.cov - state.cov) + spread,
        log_weight=state.log_weight + np.log(total),
    )


def mixed(state: State) -> tuple[Vector, Vector, float]:
    """Mean (size,) and covariance of c, and a slice's and a run's variance, over all hypotheses.

    Eq. KG-14 of docs/knowledge-gradient.md.
    """
    weight = state.weight
    mean = state.curve
    off = state.mean - mean
    within = (weight @ state.cov.reshape(len(weight), -1)).reshape(state.cov.shape[1:])
    between = (weight[:, None] * off).T @ off
    return mean, within + between, float(weight @ (state.noise + state.shared))
