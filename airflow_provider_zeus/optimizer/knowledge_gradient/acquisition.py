"""Acquisition function of the policy ``"knowledge_gradient"``: what a run is worth, and when it should be given up.

A knowledge-gradient policy (Frazier, Powell, Dayanik 2009) with correlated beliefs, a different cost for each
measurement, and measurements that may be cut off. For each candidate b and each cost c at which its run could be given
up, :func:`net_value` computes::

    net(b, c) = sum over outcomes X <= c of P(X) (H gain(X) - X) - P(X > c) (c + C_inc) + C_inc

``gain`` is how much cheaper than the incumbent the best batch size would be under the posterior *after* that outcome,
``H`` the number of recurrences that will use the answer, ``C_inc`` the incumbent's cost. What the recurrence is
expected to cost beyond its allowance counts :data:`LOSS_AVERSION` times more. The pair (b, c) with the highest net
value runs if it exceeds the value of the incumbent's own run. So one number decides what to try and when to give up,
and the incumbent is never stopped. Deterministic. All equations: ``docs/knowledge-gradient.md``. Needs numpy; imported
lazily.
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

HORIZON = 30.0  # recurrences that will use the answer of an experiment, where so many are left
LOSS_AVERSION = 6.0  # how many joules saved make up for one lost beyond the allowance
OCTAVES = 1.0  # distance of a candidate from a batch size that has converged; its neighbours in the list always count
BEYOND_FACTOR = 1.4  # factor on the believed cost of a batch size that becomes available only after one more run
CAUTION = 0.7  # sd of a size's difference from the default that count against it
BISECTION_WIDTH, BISECTION_STEPS = 2.0, 6  # of dearest_epoch: log EpochCost on each side, and halvings


class NormalGrid(NamedTuple):
    """The standard normal distribution on a grid."""

    z: Vector  # points
    p: Vector  # probability of each
    cumulative: Vector  # probability of this point or a lower one

    @classmethod
    def of(cls, z: Vector) -> Self:
        """Probabilities in proportion to the density at each point."""
        density = np.exp(-0.5 * z * z)
        p = density / density.sum()
        return cls(z, p, p.cumsum())


_OUTCOMES = NormalGrid.of(np.linspace(-3.0, 3.0, 25))  # log cost of a run
_EPOCH_COSTS = NormalGrid.of(np.array([-1.5, -0.75, 0.0, 0.75, 1.5]))  # log EpochCost that a first epoch may show


class Predictions(NamedTuple):
    """What a decision is computed from: predicted Epochs, EpochCost and success of each batch size of ``gp``."""

    gp: GaussianProcess
    log_epoch_cost: Vector
    epoch_cost_variance: Vector  # of its logarithm
    unmeasured: NDArray[np.bool_]  # whether no run on this device has shown it
    log_factors: Vector  # (size, the size that converged): log factor on the cost of what may run afterwards
    trusted: Sequence[bool]  # whether it may be the incumbent
    success: Vector  # probability that a complete run reaches the target
    caution: Vector  # log cost that counts against a size as the incumbent; 0 where the default cannot be it
    max_epochs: float
    horizon: float  # recurrences that will use the answer of an experiment
    allowance: float  # expected cost [J] of the next recurrence above which a try counts as a loss
    most_cost: Vector | None = None  # (size,) [J] at which a try is given up for want of time; None: no deadline

    @property
    def log_cost(self) -> Vector:
        """Median log cost of a run to the target. Eq. KG-1 of docs/knowledge-gradient.md."""
        cost: Vector = self.log_epoch_cost + self.gp.mean
        return cost

    def incumbent(self) -> int:
        """Index of the incumbent. Eq. KG-22 of docs/knowledge-gradient.md."""
        z = (math.log(self.max_epochs + 0.5) - self.gp.mean) / np.sqrt(self.gp.run_variance)
        within = [0.5 * math.erfc(-v / math.sqrt(2.0)) for v in z.tolist()]  # P(its epochs are enough)
        success = [q * p for q, p in zip(self.success.tolist(), within, strict=True)]
        log_costs = enumerate((self.log_cost + self.caution).tolist())
        ranked = [(cost - math.log(max(success[i], 1e-6)), i) for i, cost in log_costs if self.trusted[i]]
        return min(ranked)[1]


class RunOutcomes(NamedTuple):
    """Predicted outcomes of one run of each candidate, and what each outcome would change."""

    log_cost: Vector  # (size,), or (candidate, size) where each candidate supposes its own EpochCosts
    cost: Vector  # (candidate, outcome): of the run [J]
    shift: Vector  # (size, candidate, outcome): posterior minus present log cost


@dataclass(frozen=True, slots=True)
class Choice:
    """What to run: index of a batch size, its net value [J], and the cost at which it is given up [J] (inf: never)."""

    index: int
    net: float
    give_up_at: float


def best(predictions: Predictions, incumbent: int, in_reach: Sequence[bool]) -> Choice:
    """The candidate with the highest net value; the incumbent where no candidate exceeds it."""
    candidates = [i for i, near in enumerate(in_reach) if near and i != incumbent]
    candidates.append(incumbent)
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
    """Predictive distribution of one run of each candidate. Eq. KG-24 of docs/knowledge-gradient.md.

    :param log_epoch_costs: (candidate, size) that each candidate supposes; default: the predicted ones.
    :param epoch_cost_variance: (candidate,) variance of the candidate's own log EpochCost; default: the predicted one.
    """
    gp, each = predictions.gp, np.arange(len(candidates))
    log_cost = gp.mean + (predictions.log_epoch_cost if log_epoch_costs is None else log_epoch_costs)
    own_log_cost = log_cost.take(candidates) if log_epoch_costs is None else log_cost[each, candidates]
    variance, covariance = gp.run_variance.take(candidates), gp.cov.take(candidates, 1)
    if epoch_cost_variance is None:
        epoch_cost_variance = predictions.epoch_cost_variance.take(candidates)
    variance += epoch_cost_variance
    covariance[candidates, each] += epoch_cost_variance
    sd = np.sqrt(variance)
    covariance /= sd
    shift = covariance[..., None] * _OUTCOMES.z
    return RunOutcomes(log_cost, np.exp(own_log_cost[:, None] + sd[:, None] * _OUTCOMES.z), shift)


def gain(predictions: Predictions, incumbent: int, candidates: Indices, runs: RunOutcomes) -> Vector:
    """What each outcome would save per later recurrence [J]. Eq. KG-25 of docs/knowledge-gradient.md."""
    incumbent_then = np.exp(runs.log_cost[..., incumbent, None] + runs.shift[incumbent])
    usable = predictions.log_factors.take(candidates, 1)  # infinite for a size that may not run then
    np.add(usable.T, runs.log_cost, out=usable.T)
    saved: Vector = incumbent_then - np.exp(np.minimum.reduce(runs.shift + usable[..., None], 0))
    return saved


def value_if_given_up_at(
    horizon: float | Vector, success: Vector, gains: Vector, costs: Vector, incumbent_cost: Vector
) -> Vector:
    """Value [J] of a run that is given up above each outcome's cost. Eq. KG-26 of docs/knowledge-gradient.md.

    Arrays are (candidate, outcome), ``success``, ``incumbent_cost`` and a horizon of each candidate (candidate, 1).
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
    """(net value [J], cost at which to give up [J]). Eqs. KG-27 and KG-28 of docs/knowledge-gradient.md.

    :param candidates: indices of batch sizes. Where the incumbent is among them it is the last one, and its net value
        is what its own run teaches.
    :param log_epoch_costs: as in :func:`run_outcomes`.
    :param epoch_cost_variance: as in :func:`run_outcomes`.
    """
    success = predictions.success.take(candidates)[:, None]
    runs = run_outcomes(predictions, candidates, log_epoch_costs, epoch_cost_variance)
    gains = gain(predictions, incumbent, candidates, runs)
    incumbent_cost = np.exp(runs.log_cost[..., incumbent])
    horizon: Vector = np.full((len(candidates), 1), predictions.horizon)
    value = value_if_given_up_at(horizon, success, gains, runs.cost, incumbent_cost[..., None])
    allowed = runs.cost <= BETA * incumbent_cost[..., None]
    if predictions.most_cost is not None:
        allowed &= runs.cost <= predictions.most_cost.take(candidates)[:, None]
    allowed[:, 0] = True
    expected = -value_if_given_up_at(0.0, success, gains, runs.cost, incumbent_cost[..., None])
    over = np.maximum(expected - predictions.allowance, 0.0)
    value -= LOSS_AVERSION * (over - np.maximum(incumbent_cost[..., None] - predictions.allowance, 0.0))
    each, stop = np.arange(len(candidates)), np.where(allowed, value, -np.inf).argmax(1)
    net = value[each, stop] + incumbent_cost
    if candidates[-1] == incumbent:
        net[-1] = predictions.horizon * (success[-1] * _OUTCOMES.p).dot(gains[-1])
    return net, runs.cost[each, stop]


def _net_value_unmeasured(predictions: Predictions, incumbent: int, candidates: Indices) -> tuple[Vector, Vector]:
    """:func:`net_value` where an EpochCost may be unmeasured. Eq. KG-29 of docs/knowledge-gradient.md.

    The first epoch of such a run measures it, and the run may end there. The incumbent is the last candidate.
    """
    variance = predictions.epoch_cost_variance.take(candidates)
    unmeasured = predictions.unmeasured.take(candidates).nonzero()[0]
    if not len(unmeasured):
        return net_value(predictions, incumbent, candidates)
    unmeasured = unmeasured[unmeasured < len(candidates) - 1]  # the incumbent is never stopped
    tried = candidates[unmeasured]
    shown = predictions.log_epoch_cost[tried, None] + np.sqrt(variance[unmeasured, None]) * _EPOCH_COSTS.z
    supposed, n = np.repeat(tried, len(_EPOCH_COSTS.z)), shown.size
    net, give_up_at = net_value(
        predictions,
        incumbent,
        np.concatenate((supposed, candidates)),
        _supposing(predictions, supposed, shown.ravel(), len(candidates)),
        np.concatenate((np.zeros(n), variance)),
    )
    values, net, give_up_at = net[:n].reshape(shown.shape), net[n:], give_up_at[n:]
    net[unmeasured] = np.maximum(values, net[-1] - np.exp(shown)) @ _EPOCH_COSTS.p
    return net, give_up_at


def _supposing(predictions: Predictions, tried: Indices, log_epoch_costs: Vector, unchanged: int = 0) -> Vector:
    """Log EpochCosts (row, size) if that of ``tried[row]`` were ``log_epoch_costs[row]``; then ``unchanged`` rows."""
    costs = np.repeat(predictions.log_epoch_cost[None, :], len(tried) + unchanged, 0)
    costs[np.arange(len(tried)), tried] = log_epoch_costs
    return costs


def dearest_epoch(predictions: Predictions, incumbent: int, tried: int) -> float:
    """EpochCost [J] above which a first epoch ends the try. Eq. KG-30 of docs/knowledge-gradient.md.

    Found by bisection, within a few per cent. So the attempt can decide after its profile without the posterior.
    """
    own, candidate = _net_value_unmeasured(predictions, incumbent, np.array([incumbent]))[0], np.array([tried])
    predicted = float(predictions.log_epoch_cost[tried])
    low, high = predicted - BISECTION_WIDTH, predicted + BISECTION_WIDTH
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        supposed = _supposing(predictions, candidate, np.array([middle]))
        net, _ = net_value(predictions, incumbent, candidate, supposed, np.zeros(1))
        low, high = (middle, high) if net[0] > own[0] else (low, middle)
    return math.exp((low + high) / 2)


# ------------------------------------------------------------------ which batch sizes may be tried
@lru_cache(maxsize=256)
def in_reach(sizes: tuple[int, ...], feasible: frozenset[int], converged: frozenset[int]) -> tuple[bool, ...]:
    """Whether each batch size may be tried next: it is in reach of one that converged.

    Infeasible ones are removed first, so that they block no neighbour. Eq. KG-19 of docs/knowledge-gradient.md.

    :param sizes: ascending.
    """
    fitting, factor = [b for b in sizes if b in feasible], 2.0**OCTAVES * (1 + 1e-9)
    near: set[int] = set()
    for i, b in enumerate(fitting):
        if b in converged:
            near.update(fitting[max(i - 1, 0) : i + 2])
            near.update(other for other in fitting if b <= other * factor and other <= b * factor)
    return tuple(b in near for b in sizes)


@lru_cache(maxsize=256)
def log_factors_after(sizes: tuple[int, ...], feasible: frozenset[int], converged: frozenset[int]) -> Vector:
    """Log factor on the cost of each size after another has converged. Eq. KG-20 of docs/knowledge-gradient.md.

    Shape (size, the size that converged). Shared: do not modify.
    """
    factors = np.full((len(sizes), len(sizes)), np.inf)
    for i, b in enumerate(sizes):
        if b not in converged:
            factors[np.array(in_reach(sizes, feasible, frozenset({b}))), i] = math.log(BEYOND_FACTOR)
        factors[i, i] = 0.0
    factors[[b in converged for b in sizes]] = 0.0
    return factors
