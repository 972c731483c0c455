"""Acquisition function of the policy ``"knowledge_gradient"``: the value and bound of a run.

A knowledge-gradient policy (Frazier, Powell, Dayanik 2009) with correlated beliefs, a different
cost for each measurement, and measurements that may be cut off. For each candidate b and each cost
c at which its run could be given up, :func:`net_value` computes::

    net(b, c) = sum over outcomes X <= c of P(X) (H gain(X) - X) - P(X > c) (c + C_inc) + C_inc

``gain`` is how much cheaper than the incumbent the best batch size would be under the posterior
*after* that outcome, ``H`` the number of recurrences that will use the answer, ``C_inc`` the
incumbent's cost. What the recurrence is expected to cost beyond its allowance counts
:data:`LOSS_AVERSION` times more. The pair (b, c) with the highest net value runs if it exceeds the
value of the incumbent's own run. So one number decides what to try and when to give up, and the
incumbent is never stopped. Deterministic. All equations: ``docs/knowledge-gradient.md``.
Needs numpy; imported lazily.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from airflow_provider_zeus.optimizer.arms import BETA
from airflow_provider_zeus.optimizer.knowledge_gradient.gp import GaussianProcess, Indices, Vector

HORIZON = 30.0  # data and code change: no answer is used for ever
LOSS_AVERSION = 6.0  # a loss is sure and now, a saving is expected and later
# Far from what has converged a prediction is a guess; neighbours in the list always count.
OCTAVES = 1.0
# KG-34 within 2 / 2^5 = 6 %: each further halving costs one more net value.
BISECTION_WIDTH = 2.0
BISECTION_STEPS = 6


class NormalGrid(NamedTuple):
    """The standard normal distribution on a grid."""

    z: Vector
    p: Vector
    cumulative: Vector

    @classmethod
    def of(cls, z: Vector) -> Self:
        """Probabilities in proportion to the density at each point."""
        density = np.exp(-0.5 * z * z)
        p = density / density.sum()
        return cls(z, p, p.cumsum())


_OUTCOMES = NormalGrid.of(np.linspace(-3.0, 3.0, 25))
# KG-33: a first epoch shows its cost, and a try that is too dear ends there.
_EPOCH_COSTS = NormalGrid.of(np.array([-1.5, -0.75, 0.0, 0.75, 1.5]))


class Predictions(NamedTuple):
    """Predicted Epochs, EpochCost and success of each candidate: a size, or a size and a start.

    ``most_cost``: cost [J] at which its run is given up for want of time.
    """

    gp: GaussianProcess
    log_epoch_cost: Vector
    epoch_cost_variance: Vector  # of the logarithm: costs err by factors
    unmeasured: NDArray[np.bool_]  # a first epoch of these shows its cost, and may end the try
    barred: Vector  # infinite, so that no minimum takes what may not run
    trusted: Sequence[bool]
    success: Vector
    log_miss_cost: Vector  # a run that misses has to be paid again
    max_epochs: float
    horizon: float  # an answer is worth what later runs save by it
    allowance: float  # above it a try is a loss, which weighs more (KG-27, KG-31)
    most_spent: float  # what a job may ever have lost is bounded, however good a try looks
    # A try has to leave the incumbent time enough until the deadline; None without one.
    most_cost: Vector | None = None

    @property
    def log_cost(self) -> Vector:
        """Median log cost of a run to the target. Eq. KG-1 of docs/knowledge-gradient.md."""
        cost: Vector = self.log_epoch_cost + self.gp.mean
        return cost

    def incumbent(self) -> int:
        """Index of the incumbent. Eq. KG-25 of docs/knowledge-gradient.md."""
        z = (math.log(self.max_epochs + 0.5) - self.gp.mean) / np.sqrt(self.gp.run_variance)
        # KG-25: a run that needs more than ``max_epochs`` is paid in vain.
        within = [0.5 * math.erfc(-v / math.sqrt(2.0)) for v in z.tolist()]
        log_costs = (self.log_cost + self.log_miss_cost).tolist()
        ranked = [
            # A floor, since a size far beyond ``max_epochs`` has a chance of 0, and no logarithm.
            (cost - math.log(max(within[i], 1e-6)), i)
            for i, cost in enumerate(log_costs)
            if self.trusted[i]
        ]
        return min(ranked)[1]


class RunOutcomes(NamedTuple):
    """Predicted outcomes of one run of each candidate, and the change of belief after each."""

    # KG-33 supposes several EpochCosts of a candidate in one call: then it is (candidate, size).
    log_cost: Vector
    cost: Vector
    shift: Vector  # one outcome moves the belief of all sizes


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidate to run: its index, net value [J], and cost to give up at [J] (inf: never)."""

    index: int
    net: float
    give_up_at: float


def best(predictions: Predictions, incumbent: int, in_reach: Sequence[bool]) -> Choice:
    """The candidate with the highest net value; the incumbent if no candidate exceeds it."""
    near = [i for i, may_run in enumerate(in_reach) if may_run]
    candidates = [*(i for i in near if i != incumbent), incumbent]
    net, give_up_at = _net_value_unmeasured(predictions, incumbent, np.array(candidates))
    chosen = int(net.argmax())
    if net[-1] >= net[chosen]:
        return Choice(incumbent, float(net[-1]), math.inf)
    return Choice(candidates[chosen], float(net[chosen]), float(give_up_at[chosen]))


def run_outcomes(
    predictions: Predictions,
    candidates: Indices,
    log_epoch_costs: Vector | None = None,
    epoch_cost_variance: Vector | None = None,
) -> RunOutcomes:
    """Predictive distribution of one run of each candidate.

    Eq. KG-28 of docs/knowledge-gradient.md.

    :param log_epoch_costs: (candidate, size) that each candidate supposes; default:
        the predicted ones.
    :param epoch_cost_variance: (candidate,) variance of the candidate's own log EpochCost;
        default: the predicted one.
    """
    gp = predictions.gp
    rows = np.arange(len(candidates))
    if log_epoch_costs is None:
        log_cost = predictions.log_cost
        own_log_cost = log_cost.take(candidates)
    else:
        log_cost = gp.mean + log_epoch_costs
        own_log_cost = log_cost[rows, candidates]
    variance = gp.run_variance.take(candidates)
    covariance = gp.cov.take(candidates, 1)
    if epoch_cost_variance is None:
        epoch_cost_variance = predictions.epoch_cost_variance.take(candidates)
    variance += epoch_cost_variance
    covariance[candidates, rows] += epoch_cost_variance
    sd = np.sqrt(variance)
    covariance /= sd
    shift = covariance[..., None] * _OUTCOMES.z
    return RunOutcomes(log_cost, np.exp(own_log_cost[:, None] + sd[:, None] * _OUTCOMES.z), shift)


def gain(
    predictions: Predictions, incumbent: int, candidates: Indices, runs: RunOutcomes
) -> Vector:
    """Saving of each later recurrence after each outcome [J].

    Eq. KG-29 of docs/knowledge-gradient.md.
    """
    log_cost = runs.log_cost + predictions.log_miss_cost
    incumbent_then = np.exp(log_cost[..., incumbent, None] + runs.shift[incumbent])
    # A size that may not run then is infinitely dear, so that no minimum takes it (KG-23).
    usable = predictions.barred.take(candidates, 1)
    np.add(usable.T, log_cost, out=usable.T)
    saved: Vector = incumbent_then - np.exp(np.minimum.reduce(runs.shift + usable[..., None], 0))
    return saved


def value_if_given_up_at(
    horizon: float, success: Vector, gains: Vector, costs: Vector, incumbent_cost: Vector
) -> Vector:
    """Value [J] of a run that is given up above each outcome's cost.

    Eq. KG-30 of docs/knowledge-gradient.md.

    Arrays are (candidate, outcome); ``success`` and ``incumbent_cost`` (candidate, 1).
    """
    value: Vector = (success * _OUTCOMES.p * (horizon * gains - costs)).cumsum(1)
    value -= (1.0 - success * _OUTCOMES.cumulative) * (costs + incumbent_cost)
    return value


def net_value(
    predictions: Predictions,
    incumbent: int,
    candidates: Indices,
    log_epoch_costs: Vector | None = None,
    epoch_cost_variance: Vector | None = None,
) -> tuple[Vector, Vector]:
    """(net value [J], cost at which to give up [J]).

    Eqs. KG-31 and KG-32 of docs/knowledge-gradient.md.

    :param candidates: indices of batch sizes. If the incumbent is among them it is the last one,
        and its net value is that of the knowledge from its own run.
    :param log_epoch_costs: as in :func:`run_outcomes`.
    :param epoch_cost_variance: as in :func:`run_outcomes`.
    """
    success = predictions.success.take(candidates)[:, None]
    runs = run_outcomes(predictions, candidates, log_epoch_costs, epoch_cost_variance)
    gains = gain(predictions, incumbent, candidates, runs)
    incumbent_cost = np.exp(runs.log_cost[..., incumbent, None])
    value = value_if_given_up_at(
        predictions.horizon, success, gains, costs=runs.cost, incumbent_cost=incumbent_cost
    )
    allowed = runs.cost <= BETA * incumbent_cost
    allowed &= runs.cost + incumbent_cost <= predictions.most_spent
    if predictions.most_cost is not None:
        allowed &= runs.cost <= predictions.most_cost.take(candidates)[:, None]
    # every run needs a bound, even one that is too dear: the lowest cost always is one
    allowed[:, 0] = True
    expected = -value_if_given_up_at(
        0.0, success, gains, costs=runs.cost, incumbent_cost=incumbent_cost
    )
    # only the loss that this run adds to the incumbent's own is weighed (KG-31)
    over = np.maximum(expected - predictions.allowance, 0.0)
    value -= LOSS_AVERSION * (over - np.maximum(incumbent_cost - predictions.allowance, 0.0))
    rows = np.arange(len(candidates))
    stop = np.where(allowed, value, -np.inf).argmax(1)
    net = value[rows, stop] + incumbent_cost[..., 0]
    if candidates[-1] == incumbent:
        net[-1] = predictions.horizon * (success[-1] * _OUTCOMES.p).dot(gains[-1])
    return net, runs.cost[rows, stop]


def _net_value_unmeasured(
    predictions: Predictions, incumbent: int, candidates: Indices
) -> tuple[Vector, Vector]:
    """:func:`net_value` if an EpochCost may be unmeasured.

    Eq. KG-33 of docs/knowledge-gradient.md.

    The first epoch of such a run measures it, and the run may end there.
    The incumbent is the last candidate.
    """
    variance = predictions.epoch_cost_variance.take(candidates)
    unmeasured = predictions.unmeasured.take(candidates).nonzero()[0]
    if not len(unmeasured):
        return net_value(predictions, incumbent, candidates)
    unmeasured = unmeasured[unmeasured < len(candidates) - 1]  # the incumbent is never stopped
    tried = candidates[unmeasured]
    shown = (
        predictions.log_epoch_cost[tried, None]
        + np.sqrt(variance[unmeasured, None]) * _EPOCH_COSTS.z
    )
    supposed = np.repeat(tried, len(_EPOCH_COSTS.z))
    n = shown.size
    net, give_up_at = net_value(
        predictions,
        incumbent,
        np.concatenate((supposed, candidates)),
        log_epoch_costs=_supposing(predictions, supposed, shown.ravel(), unchanged=len(candidates)),
        epoch_cost_variance=np.concatenate((np.zeros(n), variance)),
    )
    values = net[:n].reshape(shown.shape)
    net = net[n:]
    give_up_at = give_up_at[n:]
    net[unmeasured] = np.maximum(values, net[-1] - np.exp(shown)) @ _EPOCH_COSTS.p
    return net, give_up_at


def _supposing(
    predictions: Predictions, tried: Indices, log_epoch_costs: Vector, unchanged: int = 0
) -> Vector:
    """Log EpochCosts (row, size), with ``log_epoch_costs[row]`` for the size ``tried[row]``.

    :param unchanged: further rows, as predicted.
    """
    costs = np.repeat(predictions.log_epoch_cost[None, :], len(tried) + unchanged, 0)
    costs[np.arange(len(tried)), tried] = log_epoch_costs
    return costs


def dearest_epoch(predictions: Predictions, incumbent: int, tried: int) -> float:
    """EpochCost [J] above which a first epoch ends the try.

    Eq. KG-34 of docs/knowledge-gradient.md.

    Found by bisection, within a few per cent.
    So the attempt can decide after its profile without the posterior.
    """
    own = _net_value_unmeasured(predictions, incumbent, np.array([incumbent]))[0]
    candidate = np.array([tried])
    predicted = float(predictions.log_epoch_cost[tried])
    low = predicted - BISECTION_WIDTH
    high = predicted + BISECTION_WIDTH
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        supposed = _supposing(predictions, candidate, np.array([middle]))
        net, _ = net_value(
            predictions,
            incumbent,
            candidate,
            log_epoch_costs=supposed,
            epoch_cost_variance=np.zeros(1),
        )
        if net[0] > own[0]:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


# Cached: each decision asks for the same few sets again, and once for each size (KG-23).
@lru_cache(maxsize=256)
def in_reach(
    sizes: tuple[int, ...],
    feasible: frozenset[int],
    converged: frozenset[int],
    never_reached: frozenset[int] = frozenset(),
) -> tuple[bool, ...]:
    """Whether each batch size may be tried next: it is in reach of one that converged.

    Infeasible ones hide no neighbour, nor does one that ran and never reached its target.
    Eq. KG-22 of docs/knowledge-gradient.md.

    :param sizes: ascending.
    """
    fitting = [b for b in sizes if b in feasible]
    near = _near(fitting, converged)
    near |= _near([b for b in fitting if b not in never_reached], converged)
    return tuple(b in near for b in sizes)


def _near(sizes: Sequence[int], converged: frozenset[int]) -> set[int]:
    """The sizes beside one that converged, and those within :data:`OCTAVES` of one."""
    # Rounding must not put a size that is just so far away out of reach.
    factor = 2.0**OCTAVES * (1 + 1e-9)
    near: set[int] = set()
    for i, b in enumerate(sizes):
        if b in converged:
            near.update(sizes[max(i - 1, 0) : i + 2])
            near.update(other for other in sizes if max(b, other) <= min(b, other) * factor)
    return near


@lru_cache(maxsize=256)
def barred_after(
    sizes: tuple[int, ...], feasible: frozenset[int], converged: frozenset[int]
) -> Vector:
    """Which sizes may not run after another has converged. Eq. KG-23 of docs/knowledge-gradient.md.

    Shape (size, the size that converged). Shared: do not modify.
    """
    barred = np.full((len(sizes), len(sizes)), np.inf)
    for i, b in enumerate(sizes):
        if b not in converged:
            barred[np.array(in_reach(sizes, feasible, frozenset({b}))), i] = 0.0
        barred[i, i] = 0.0
    barred[[b in converged for b in sizes]] = 0.0
    return barred
