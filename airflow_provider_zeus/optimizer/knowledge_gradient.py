"""Policy ``"knowledge_gradient"``: the value of what a run would teach decides what is tried and when it is given up.

A knowledge-gradient policy (Frazier, Powell, Dayanik 2008) with correlated beliefs, a cost of its own for each
measurement, and measurements that may be cut off. For each candidate b and each cost c at which it could be given up::

    net(b, c) = sum over outcomes below c of P (H gain - cost) - P(above c) (c + C_inc) + C_inc

``gain`` is how much cheaper than the incumbent the best batch size would be *under the belief after that outcome*,
``H`` how many recurrences will use the answer, ``C_inc`` the incumbent's cost. The best (b, c) runs where it beats what
the incumbent's own run teaches. So one number says what to try and when to give up, and the incumbent is never stopped.
Deterministic. Equations and sources: ``docs/policy.md``. Needs numpy; imported lazily.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from airflow_provider_zeus.optimizer.surrogate import Surrogate, Vector, normal_cdf

P_FAIL = 0.05  # prior chance that a batch size never tried does not reach the target at all
HORIZON, HORIZON_MOST = 12.0, 24.0  # recurrences that will use an answer: 12, and one more for each since the change
SECOND_LOOK, FIRST_LOOK_AT = 3.0, 16  # at recurrence 16, 32, 64 ... the horizon counts threefold
OCTAVES = 1.0  # candidates lie so near to a batch size that has converged, or are its neighbours in the list
RELIABILITY_RUNS = 5  # newest complete runs whose share of successes counts

_GRID = np.linspace(-3.0, 3.0, 25)  # outcomes, in predictive standard deviations
_WEIGHTS = np.exp(-0.5 * _GRID * _GRID) / np.exp(-0.5 * _GRID * _GRID).sum()

_LOOKS = np.array([-1.5, -0.75, 0.0, 0.75, 1.5])  # EpochCosts that a look may find, in standard deviations
_LOOK_WEIGHTS = np.exp(-0.5 * _LOOKS * _LOOKS) / np.exp(-0.5 * _LOOKS * _LOOKS).sum()

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a decision knows, over the surrogate's batch sizes: log EpochCost and its variance, which may run, which
    converged, and the share of complete runs that reached the target.
    """

    surrogate: Surrogate
    log_epoch_cost: Vector
    epoch_cost_variance: Vector  # 0 where it was measured
    feasible: Mask
    converged: Mask
    reliability: Vector
    max_epochs: float
    age: int  # recurrences since the last change

    @property
    def log_cost(self) -> Vector:
        """Believed log of Epochs(b) x EpochCost(b)."""
        mean: Vector = self.log_epoch_cost + self.surrogate.mean
        return mean

    def incumbent(self) -> int:
        """Index of the size with the lowest believed cost per success, among those that converged and may run."""
        s = self.surrogate
        inside = normal_cdf((math.log(self.max_epochs + 0.5) - s.mean) / s.run_sd)
        per_success = self.log_cost - np.log(np.maximum(inside, 1e-6) * self.reliability)
        return int(np.where(self.converged & self.feasible, per_success, np.inf).argmin())

    def horizon(self) -> float:
        """How often the answer of an experiment will be used, H."""
        steps = min(HORIZON + self.age, HORIZON_MOST)
        second_look = self.age >= FIRST_LOOK_AT and self.age & (self.age - 1) == 0
        return steps * (SECOND_LOOK if second_look else 1.0)


@dataclass(frozen=True, slots=True)
class Choice:
    """What to run: index of a batch size, its net value [J], and the cost at which it is given up [J] (inf: never)."""

    index: int
    net: float
    give_up_at: float


def candidates(sizes: Sequence[int], converged: Collection[int]) -> list[bool]:
    """Per batch size (ascending): whether it is within reach of one that converged."""
    reach, last = [False] * len(sizes), len(sizes) - 1
    factor = 2.0**OCTAVES * (1 + 1e-9)
    for i, b in enumerate(sizes):
        if b in converged:
            for j in range(max(i - 1, 0), min(i + 1, last) + 1):
                reach[j] = True
            for j, other in enumerate(sizes):
                if b <= other * factor and other <= b * factor:
                    reach[j] = True
    return reach


def best(outlook: Outlook, incumbent: int, within: Mask) -> Choice:
    """The candidate with the highest net value; the incumbent where nothing beats it."""
    rows = np.union1d(np.flatnonzero(within & outlook.feasible), [incumbent])
    net, stop = _net(outlook, incumbent, rows)
    place = int(np.flatnonzero(rows == incumbent)[0])
    for row, b in enumerate(rows):
        if outlook.epoch_cost_variance[b] > 0 and b != incumbent:
            net[row] = net[place] + _after_a_look(outlook, incumbent, int(b))
    row = int(net.argmax())
    if row == place:
        return Choice(incumbent, float(net[row]), math.inf)
    return Choice(int(rows[row]), float(net[row]), float(stop[row]))


def _net(outlook: Outlook, incumbent: int, rows: NDArray[np.intp]) -> tuple[Vector, Vector]:
    """(net value [J], cost at which to give up [J]) of each of ``rows``; of the incumbent what its own run teaches."""
    s, horizon, each = outlook.surrogate, outlook.horizon(), np.arange(len(rows))
    sd = np.sqrt(s.run_sd[rows] ** 2 + outlook.epoch_cost_variance[rows])
    shift = s.cov[rows] / sd[:, None]
    shift[each, rows] += outlook.epoch_cost_variance[rows] / sd
    after = outlook.log_cost + shift[:, None, :] * _GRID[:, None]  # (row, outcome, size): belief after that outcome
    usable = np.tile(outlook.converged & outlook.feasible, (len(rows), 1))
    usable[each, rows] = True
    cheapest = np.where(usable[:, None, :], after, np.inf).min(2)
    gain = np.exp(after[:, :, incumbent]) - np.exp(cheapest)
    cost = np.exp(outlook.log_cost[rows, None] + sd[:, None] * _GRID)
    incumbent_cost = math.exp(outlook.log_cost[incumbent])
    chance = np.where(outlook.converged[rows], 1.0, 1.0 - P_FAIL)[:, None] * _WEIGHTS
    value = (chance * (horizon * gain - cost)).cumsum(1) - (1.0 - chance.cumsum(1)) * (cost + incumbent_cost)
    stop = value.argmax(1)
    net = value[each, stop] + incumbent_cost
    own = rows == incumbent
    net[own] = horizon * (chance[own] * gain[own]).sum(1)
    return net, cost[each, stop]


def _measured(outlook: Outlook, b: int, log_epoch_cost: float) -> Outlook:
    known, variance = outlook.log_epoch_cost.copy(), outlook.epoch_cost_variance.copy()
    known[b], variance[b] = log_epoch_cost, 0.0
    return replace(outlook, log_epoch_cost=known, epoch_cost_variance=variance)


def _advantage(outlook: Outlook, incumbent: int, b: int, log_epoch_cost: float) -> float:
    """Net value [J] of trying b over the incumbent's run, were its EpochCost known to be this."""
    net, _ = _net(_measured(outlook, b, log_epoch_cost), incumbent, np.array([b, incumbent]))
    return float(net[0] - net[1])


def _after_a_look(outlook: Outlook, incumbent: int, b: int) -> float:
    """Net value [J] over the incumbent's run, of a size of unknown EpochCost: its first epoch tells, and may end it."""
    mean, sd = float(outlook.log_epoch_cost[b]), math.sqrt(outlook.epoch_cost_variance[b])
    points = [mean + z * sd for z in _LOOKS]
    values = [max(_advantage(outlook, incumbent, b, u), -math.exp(u)) for u in points]
    return float(np.dot(_LOOK_WEIGHTS, values))


def dearest_epoch(outlook: Outlook, incumbent: int, tried: int) -> float:
    """EpochCost [J] of ``tried`` above which it would no longer be tried, once it is measured; within some per cent.

    What is measured within the run's first seconds settles what its prediction left open.
    """
    middle = float(outlook.log_epoch_cost[tried])
    low, high = middle - 2.0, middle + 2.0
    for _ in range(6):
        middle = (low + high) / 2
        low, high = (middle, high) if _advantage(outlook, incumbent, tried, middle) > 0 else (low, middle)
    return math.exp((low + high) / 2)
