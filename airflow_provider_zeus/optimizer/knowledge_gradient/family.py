"""What the jobs of a family tell each other: the shape of log Epochs over log2 of the batch size. Pure; needs numpy.

The curve of job j is ``c_j(b) = level_j + g(b) + d_j(b)``: g is the family's, d_j the job's own, and both share the
prior of a shape (``gp.py``) by the unknown share ``far`` that is d_j's. A job tells its posterior over its prior, in
information form: so what its prior said is not counted once for each member, and its level drops out. What the others
told is a prior of its own curve, once for each share and once as if they were no relatives; its runs weigh these by how
well each predicted them. Equations: ``docs/knowledge-gradient.md``.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from airflow_provider_zeus.model.family import Family, Told
from airflow_provider_zeus.optimizer.knowledge_gradient.gp import LEVEL_SD, Vector, prior
from airflow_provider_zeus.optimizer.knowledge_gradient.slice_filter import State

FAR = (0.05, 0.15, 0.4)  # share of a curve's prior variance that is a job's own: each as likely
P_NO_FAMILY = 0.5  # prior probability that what the others tell does not concern a job
P_STRANGER = 0.1  # prior probability that one member is no relative of the others
MOST_TOLD = 20.0  # x the precision of the prior that a job may tell of any direction of its curve
MOST_SD = 3.0  # sd of the prior by which what a job tells may lie off the prior's mean
MOST_GROWTH = 0.4  # log2 by which an epoch's cost may rise where the size doubles, by what others tell
REACHED_BY = 2  # members that a size takes: whose targets it has reached, to be in reach of others; who try it now
LEAST_TOLD = 1e-3  # x the precision of the prior: a job that has learnt less tells nothing


def told(
    sizes: tuple[int, ...],
    default: int,
    curve: tuple[Vector, Vector],
    reached: Iterable[int],
    device: str,
    eta: float,
    epoch_costs: Mapping[int, float],
) -> Told:
    """What a job tells its family, however little.

    Eqs. KG-35 and KG-36 of docs/knowledge-gradient.md.

    :param curve: posterior mean and covariance of c.
    :param device: on which these EpochCosts [J] were measured.
    """
    (mean, cov), (neutral, shape) = curve, prior(sizes, default)
    before, after = _contrasts(shape), _contrasts(cov)
    root = np.linalg.cholesky(shape)  # in units of the prior no direction of the curve is nearer than another
    learnt, directions = np.linalg.eigh(root.T @ (after - before) @ root)
    kept = learnt > LEAST_TOLD  # a mixture may know less of a direction than the prior: then it tells nothing of it
    learnt, directions = learnt[kept], directions[:, kept]
    off = directions.T @ root.T @ (after @ (mean - neutral)) / learnt
    learnt = np.minimum(learnt, MOST_TOLD)
    back = np.linalg.solve(root.T, directions)
    precision = (back * learnt) @ back.T
    shift = precision @ neutral + back @ (learnt * np.clip(off, -MOST_SD, MOST_SD))
    costs = dict(sorted(epoch_costs.items()))
    return Told(
        sizes=sizes,
        precision=_short(precision.ravel()),
        shift=_short(shift),
        reached=tuple(sorted(reached)),
        device=device,
        eta=eta,
        cost_sizes=tuple(costs),
        costs=_short(costs.values()),
    )


def heard(
    sizes: tuple[int, ...],
    default: int,
    device: str,
    eta: float,
    others: Sequence[Told],
    tries: Collection[int] = (),
) -> Family | None:
    """What the other members tell a job; None where there are none. Eq. KG-39 of docs/knowledge-gradient.md.

    :param device: EpochCosts of this one count, at this eta.
    :param tries: size of each of their runs that tries one now.
    """
    if not others:
        return None
    union = tuple(sorted({*sizes, *(b for each in others for b in each.sizes)}))
    mean, shape = prior(union, default)
    at, (precision, shift) = [union.index(b) for b in sizes], _on(union, others)
    shift = shift - precision @ mean  # of what lies off the mean
    own_mean, own_shape = mean[at], shape[np.ix_(at, at)]
    neutral = np.linalg.inv(own_shape + LEVEL_SD**2)
    log_weights, precisions, shifts = [math.log(P_NO_FAMILY)], [], []
    for found, off, cov in zip(*_family_curves(precision, shift, shape), strict=True):
        curve, theirs = own_mean + off[at], np.linalg.inv(cov[np.ix_(at, at)] + LEVEL_SD**2)
        twice = own_mean @ neutral @ own_mean - curve @ theirs @ curve
        twice += np.linalg.slogdet(theirs)[1] - np.linalg.slogdet(neutral)[1]
        log_weights.append(math.log((1.0 - P_NO_FAMILY) / len(FAR)) + float(found + 0.5 * twice))
        precisions.append(_short((theirs - neutral).ravel()))
        shifts.append(_short(theirs @ curve - neutral @ own_mean))
    like = [each for each in others if (each.device, each.eta) == (device, eta)]
    costs = _cost_curve([dict(zip(each.cost_sizes, each.costs, strict=True)) for each in like])
    reached, trying = Counter(b for each in others for b in each.reached), Counter(tries)
    return Family(
        members=len(others),
        sizes=sizes,
        log_weights=_short(log_weights),
        precisions=tuple(precisions),
        shifts=tuple(shifts),
        reached=tuple(b for b in sizes if reached[b] >= REACHED_BY),
        tried=tuple(b for b in sizes if trying[b] >= REACHED_BY),
        cost_sizes=tuple(costs),
        costs=_short(costs.values()),
    )


def log_epochs(family: Family, default: int) -> dict[int, float]:
    """The curve that relatives tell, at no level: mean over the hypotheses that they are some."""
    mean, shape = prior(family.sizes, default)
    neutral, n = np.linalg.inv(shape + LEVEL_SD**2), len(mean)
    told = zip(family.precisions, family.shifts, strict=True)
    curves = [np.linalg.solve(neutral + np.reshape(flat, (n, n)), neutral @ mean + to) for flat, to in told]
    weights = np.exp(np.array(family.log_weights[1:]) - max(family.log_weights[1:]))
    return dict(zip(family.sizes, np.average(curves, 0, weights).tolist(), strict=True))


def _on(union: Sequence[int], others: Sequence[Told]) -> tuple[Vector, Vector]:
    """Precision (member, size, size) and shift (member, size) of each member, over the sizes of all."""
    precision, shift = np.zeros((len(others), len(union), len(union))), np.zeros((len(others), len(union)))
    index = {b: i for i, b in enumerate(union)}
    for i, each in enumerate(others):
        at, n = [index[b] for b in each.sizes], len(each.sizes)
        precision[i][np.ix_(at, at)] = np.reshape(each.precision, (n, n))
        shift[i, at] = each.shift
    return precision, shift


def _family_curves(precision: Vector, shift: Vector, shape: Vector) -> tuple[Vector, Vector, Vector]:
    """By ``FAR``: log evidence against strangers, mean and covariance of another member's curve, off the prior's mean.

    Each member counts by the probability that it is a relative: how well the others predict it, against how well the
    prior does. Eqs. KG-37 and KG-38 of docs/knowledge-gradient.md. Arrays are over (share of d, member, size).
    """
    n, far = len(shape), np.array(FAR)[:, None, None, None]
    own, common = far * shape, (1.0 - far) * shape
    told = np.broadcast_to(np.dstack([precision, shift[..., None]]), (len(FAR), len(shift), n, n + 1))
    solved = np.linalg.solve(np.eye(n) + precision @ own, told)
    of_g, to_g = solved[..., :n], solved[..., n]  # what each member tells of g, through its own deviation
    alone, kin = _evidence(precision, shift, shape)[0], np.ones((len(FAR), len(shift)))
    for _ in range(2 if len(shift) > 1 else 0):
        each_of, each_to = kin[..., None, None] * of_g, kin[..., None] * to_g
        rest, rest_to = each_of.sum(1, keepdims=True) - each_of, each_to.sum(1, keepdims=True) - each_to
        _, g, cov = _evidence(rest, rest_to, common)
        pulled = (precision @ g[..., None])[..., 0]
        predicted = _evidence(precision, shift - pulled, cov + own)[0] + (g * (shift - 0.5 * pulled)).sum(-1)
        odds = math.log(P_STRANGER / (1.0 - P_STRANGER)) + alone - predicted
        kin = 1.0 / (1.0 + np.exp(np.minimum(odds, 700.0)))
    whole, whole_to = (kin[..., None, None] * of_g).sum(1), (kin[..., None] * to_g).sum(1)
    found, g, cov = _evidence(whole, whole_to, common[:, 0])
    return found + (kin * (_evidence(precision, shift, own)[0] - alone)).sum(1), g, cov + own[:, 0]


def _evidence(precision: Vector, shift: Vector, cov: Vector) -> tuple[Vector, Vector, Vector]:
    """(Log evidence, posterior mean and covariance) of what has mean 0 and this covariance; arrays may be stacked."""
    met = np.eye(cov.shape[-1]) + cov @ precision
    after: Vector = np.asarray(np.linalg.solve(met, np.broadcast_to(cov, met.shape)), float)
    mean = (after @ shift[..., None])[..., 0]
    found: Vector = 0.5 * ((shift * mean).sum(-1) - np.linalg.slogdet(met)[1])
    return found, mean, after


def joined(state: State, family: Family) -> State:
    """The state with what the family tells: each pair once for each hypothesis.

    Eq. KG-40 of docs/knowledge-gradient.md.
    """
    n = len(family.sizes)
    parts = [state._replace(log_weight=state.log_weight + family.log_weights[0])]
    for log_weight, flat, to in zip(family.log_weights[1:], family.precisions, family.shifts, strict=True):
        precision, shift = np.reshape(flat, (n, n)), np.array(to)
        mean, cov, across = state.mean[:, :n], state.cov[:, :n, :n], state.cov[:, :, :n]
        pulled = mean @ precision
        met, off = np.eye(n) + precision @ cov, (shift - pulled)[..., None]
        gain, pull = np.linalg.solve(met, np.broadcast_to(precision, met.shape)), np.linalg.solve(met, off)
        found = mean @ shift - 0.5 * (pulled * mean).sum(1) - 0.5 * np.linalg.slogdet(met)[1]
        found = found + 0.5 * (off * (cov @ pull)).sum((1, 2))
        parts.append(
            state._replace(
                mean=state.mean + (across @ pull)[..., 0],
                cov=state.cov - across @ gain @ across.transpose(0, 2, 1),
                log_weight=state.log_weight + log_weight + found,
            )
        )
    return State(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _cost_curve(told: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """EpochCost of each size against that of the size which most members have measured: the median of theirs.

    A step is overhead and work: an epoch of twice the size costs at least half as much. One third more is the most that
    is believed.
    """
    counts = Counter(b for costs in told for b in costs)
    if not counts:
        return {}
    base = max(counts, key=lambda b: (counts[b], b))
    told, found = [costs for costs in told if base in costs], {}
    for b in sorted({b for costs in told for b in costs}):
        ratio = statistics.median(costs[b] / costs[base] for costs in told if b in costs)
        low, high = sorted((base / b, (b / base) ** MOST_GROWTH))
        found[b] = min(max(ratio, low), high)
    return found


def _contrasts(cov: Vector) -> Vector:
    """Precision of all differences between sizes, whatever the level."""
    inverse = np.linalg.inv(cov)
    rows = inverse.sum(0)
    found: Vector = inverse - np.outer(rows, rows) / rows.sum()
    return found


def _short(values: Iterable[float]) -> tuple[float, ...]:
    """Rounded, since rows and decisions hold them: to seven digits."""
    return tuple(float(f"{v:.7g}") for v in values)
