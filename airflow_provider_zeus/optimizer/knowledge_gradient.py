"""Policy ``"knowledge_gradient"``: the value of what a run would teach decides what is tried and when it is given up.

A knowledge-gradient policy (Frazier, Powell, Dayanik 2008) with correlated beliefs, a cost of its own for each
measurement, and measurements that may be cut off. For each candidate b and each cost c at which it could be given up::

    net(b, c) = sum over outcomes below c of P (H gain - cost) - P(above c) (c + C_inc) + C_inc

``gain`` is how much cheaper than the incumbent the best batch size would be *under the belief after that outcome*,
``H`` how many recurrences will use the answer, ``C_inc`` the incumbent's cost. The best (b, c) runs where it beats what
the incumbent's own run teaches. So one number says what to try and when to give up, and the incumbent is never stopped.
Deterministic. Equations and sources: ``docs/knowledge-gradient.md``. Needs numpy; imported lazily.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from airflow_provider_zeus.optimizer.surrogate import Indices, Surrogate, Vector, normal_cdf

HORIZON = 16.0  # recurrences that will use an answer
SECOND_LOOK, FIRST_LOOK_AT = 2.2, 32  # at recurrence 32, 64, 128 ... the horizon counts 2.2 x
RELIABILITY_RUNS = 5  # newest complete runs whose share of successes counts

_GRID = np.linspace(-3.0, 3.0, 25)  # outcomes, in predictive standard deviations
_WEIGHTS = np.exp(-0.5 * _GRID * _GRID) / np.exp(-0.5 * _GRID * _GRID).sum()
_UP_TO = _WEIGHTS.cumsum()  # chance of this outcome or a cheaper one

_LOOKS = np.array([-1.5, -0.75, 0.0, 0.75, 1.5])  # EpochCosts that a look may find, in standard deviations
_LOOK_WEIGHTS = np.exp(-0.5 * _LOOKS * _LOOKS) / np.exp(-0.5 * _LOOKS * _LOOKS).sum()


class Outlook(NamedTuple):
    """What a decision knows, over the surrogate's batch sizes: log EpochCost and its variance, which may be the best,
    and the chance that a complete run reaches the target.
    """

    surrogate: Surrogate
    log_epoch_cost: Vector
    epoch_cost_variance: Vector  # 0 where it was measured
    open_after: Vector  # (size, the one that ran): log factor on the cost of what may run then
    trusted: Sequence[bool]  # of those that converged and may run: what may be the incumbent
    chance: Vector  # that a complete run reaches the target
    max_epochs: float
    age: int  # recurrences since the last change
    beta: float  # nothing is worth more than beta x the incumbent's cost (section 4.4)

    @property
    def log_cost(self) -> Vector:
        """Believed log of Epochs(b) x EpochCost(b)."""
        mean: Vector = self.log_epoch_cost + self.surrogate.mean
        return mean

    def incumbent(self) -> tuple[int, int | None]:
        """(index of the trusted size with the lowest believed cost per success, and of the one that comes next).

        The second one is None where it is not likelier to reach the target than to miss it.
        """
        s = self.surrogate
        z = (math.log(self.max_epochs + 0.5) - s.mean) / np.sqrt(s.run_variance)
        each = zip(self.trusted, self.log_cost.tolist(), self.chance.tolist(), z.tolist(), strict=True)
        known = [(i, cost, chance * normal_cdf(v)) for i, (trusted, cost, chance, v) in enumerate(each) if trusted]
        first, *others = sorted([(cost - math.log(max(success, 1e-6)), i, success) for i, cost, success in known])
        return first[1], others[0][1] if others and others[0][2] > 0.5 else None

    def horizon(self) -> float:
        """How often the answer of an experiment will be used, H."""
        second_look = self.age >= FIRST_LOOK_AT and self.age & (self.age - 1) == 0
        return HORIZON * (SECOND_LOOK if second_look else 1.0)


@dataclass(frozen=True, slots=True)
class Choice:
    """What to run: index of a batch size, its net value [J], and the cost at which it is given up [J] (inf: never)."""

    index: int
    net: float
    give_up_at: float


def best(outlook: Outlook, incumbent: int, within: Sequence[bool]) -> Choice:
    """The candidate with the highest net value; the incumbent where nothing beats it."""
    rows = [i for i, near in enumerate(within) if near and i != incumbent]
    rows.append(incumbent)
    net, stop = _with_looks(outlook, incumbent, np.array(rows))
    row = int(net.argmax())
    if net[-1] >= net[row]:
        return Choice(incumbent, float(net[-1]), math.inf)
    return Choice(rows[row], float(net[row]), float(stop[row]))


def _net(
    outlook: Outlook, incumbent: int, rows: Indices, costs: Vector | None = None, variance: Vector | None = None
) -> tuple[Vector, Vector]:
    """(net value [J], cost at which to give up [J]) of each of ``rows``; of the incumbent what its own run teaches.

    The incumbent, where it is among them, is the last one.

    :param costs: log EpochCosts that a row supposes, (rows, sizes); what is believed where left out.
    :param variance: and how uncertain the row's own is, (rows,); not at all where left out.
    """
    s, horizon, each = outlook.surrogate, outlook.horizon(), np.arange(len(rows))
    log_cost = s.mean + (outlook.log_epoch_cost if costs is None else costs)
    own_cost = log_cost.take(rows) if costs is None else log_cost[each, rows]
    run_variance, shift = s.run_variance.take(rows), s.cov.take(rows, 1)
    if variance is not None:
        run_variance += variance
        shift[rows, each] += variance
    sd = np.sqrt(run_variance)
    shift /= sd
    usable = outlook.open_after.take(rows, 1)  # (size, row): of a size that may not run the cost is infinite
    np.add(usable.T, log_cost, out=usable.T)
    moved = shift[..., None] * _GRID  # (size, row, outcome): belief after that outcome, less before
    logs = np.empty((3, len(rows), len(_GRID)))  # (row, outcome): of the incumbent and the cheapest then, of the run
    np.add(log_cost[..., incumbent, None], moved[incumbent], out=logs[0])
    moved += usable[..., None]
    np.minimum.reduce(moved, 0, out=logs[1])
    np.add(own_cost[:, None], sd[:, None] * _GRID, out=logs[2])
    then, cheapest, cost = np.exp(logs, out=logs)
    gain = then - cheapest
    incumbent_cost = np.exp(log_cost[..., incumbent])
    reliable = outlook.chance.take(rows)[:, None]
    chance = reliable * _WEIGHTS
    value = (chance * (horizon * gain - cost)).cumsum(1)
    value -= (1.0 - reliable * _UP_TO) * (cost + incumbent_cost[..., None])
    allowed = cost <= outlook.beta * incumbent_cost[..., None]
    allowed[:, 0] = True
    stop = np.where(allowed, value, -np.inf).argmax(1)
    net = value[each, stop] + incumbent_cost
    if rows[-1] == incumbent:
        net[-1] = horizon * chance[-1].dot(gain[-1])
    return net, cost[each, stop]


def _with_looks(outlook: Outlook, incumbent: int, rows: Indices) -> tuple[Vector, Vector]:
    """:func:`_net` where an EpochCost may be unknown: the first epoch of such a run tells it, and may end the run."""
    variance = outlook.epoch_cost_variance.take(rows)
    unknown = variance.nonzero()[0]
    if not len(unknown):
        return _net(outlook, incumbent, rows)
    looks = unknown[unknown < len(rows) - 1]  # the incumbent runs to its end
    tried = rows[looks]
    found = outlook.log_epoch_cost[tried, None] + np.sqrt(variance[looks, None]) * _LOOKS
    supposed, n = np.repeat(tried, len(_LOOKS)), found.size
    net, stop = _net(
        outlook,
        incumbent,
        np.concatenate((supposed, rows)),
        _supposing(outlook, supposed, found.ravel(), len(rows)),
        np.concatenate((np.zeros(n), variance)),
    )
    values, net, stop = net[:n].reshape(found.shape), net[n:], stop[n:]
    net[looks] = np.maximum(values, net[-1] - np.exp(found)) @ _LOOK_WEIGHTS
    return net, stop


def _supposing(outlook: Outlook, tried: Indices, log_epoch_cost: Vector, others: int = 0) -> Vector:
    """Log EpochCosts were that of each of ``tried`` known to be this, and of so many ``others`` behind them."""
    costs = np.repeat(outlook.log_epoch_cost[None, :], len(tried) + others, 0)
    costs[np.arange(len(tried)), tried] = log_epoch_cost
    return costs


def dearest_epoch(outlook: Outlook, incumbent: int, tried: int) -> float:
    """EpochCost [J] of ``tried`` above which it would no longer be tried, once it is measured; within some per cent.

    What is measured within the run's first seconds settles what its prediction left open.
    """
    own, row = _with_looks(outlook, incumbent, np.array([incumbent]))[0], np.array([tried])
    low, high = (float(outlook.log_epoch_cost[tried]) + side for side in (-2.0, 2.0))
    for _ in range(6):
        middle = (low + high) / 2
        net, _ = _net(outlook, incumbent, row, _supposing(outlook, row, np.array([middle])))
        low, high = (middle, high) if net[0] > own[0] else (low, middle)
    return math.exp((low + high) / 2)
