"""Replayed trainings: draw how many epochs a run needs, compute what it would have cost,
and log its regret (Eq. 9).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from airflow_provider_zeus.model.trial import PlannedAttempt
from benchmarks.simulation.scenario import BatchSizeTruth, Epoch, Scenario
from benchmarks.simulation.traces import PowerMeasurement

CHECK_S = 1.0  # within an epoch a bound is checked once a second
# of the guarantee in README: runs of the default that a job may be behind always the default, and a
# share of its cost
BEHIND = 4.0
GRANTED = 0.02
NOTHING = Epoch(0.0, 0.0, 0.0)
_EPS = 1e-9


class Run(NamedTuple):
    """One replayed training.

    ``excess``: the part of its cost that is profiling's, not the batch size's.
    """

    batch_size: int
    limit_w: float
    epochs: float
    reached: bool
    energy_j: float
    time_s: float
    cost: float  # [J], Eq. 2, profiling included
    epoch_cost: float  # [J], EpochCost(b)
    excess: Epoch
    expected_cost: float  # [J], mean over all runs of this batch size and bound
    chance: float  # that such a run reaches the target


class Environment:
    """The trainings of one seed.

    Assign ``scenario`` for a shift of the data: what was profiled stays profiled.

    The k-th run of a batch size draws the same epochs in every policy (common random numbers).

    :param free_looks: count as the simulator of the paper's authors does. EpochCost is known before
        the first run of a batch size, so a run that cannot end an epoch within its bound costs
        nothing. Without it such a run costs what it trains.
    """

    def __init__(self, scenario: Scenario, seed: int, *, free_looks: bool = False) -> None:
        self.scenario = scenario
        self.free_looks = free_looks
        self.profiled: set[int] = set()
        self.seed = seed
        self._streams: dict[int, random.Random] = {}  # by batch size

    def attempt(self, planned: PlannedAttempt) -> Run:
        """Run one attempt of a decision within its bounds (section 4.4;
        ``training/attempt_checks.py``).
        """
        scale = self.slice_scale(planned)
        bound = math.inf if planned.bound_cost is None else planned.bound_cost * scale
        epochs = math.inf if planned.bound_epochs is None else planned.bound_epochs
        highest = math.inf if planned.max_epoch_cost is None else planned.max_epoch_cost * scale
        return self.train(
            planned.batch_size, bound_cost=bound, bound_epochs=epochs, max_epoch_cost=highest
        )

    def slice_scale(self, planned: PlannedAttempt) -> float:
        """Size of the slice over the one that the bounds in cost assume: 1,
        since all slices are equal here.
        """
        return 1.0

    def train(
        self,
        batch_size: int,
        *,
        bound_cost: float = math.inf,
        bound_epochs: float = math.inf,
        max_epoch_cost: float = math.inf,
    ) -> Run:
        """Train at the power limit of Eq. 7;
        the first run of a batch size profiles for one epoch before that.
        """
        arm = self.scenario.arms[batch_size]
        new = batch_size not in self.profiled
        self.profiled.add(batch_size)
        epoch = arm.epoch
        allowed = self._allowed(min(bound_epochs, bound_cost / epoch.cost))
        if epoch.cost > max_epoch_cost:  # known at once, or as soon as it is profiled
            allowed = min(allowed, 1.0 if new else CHECK_S / epoch.time_s)
        excess = NOTHING
        if new and allowed:
            part = min(allowed, 1.0)
            p = arm.profiling
            excess = Epoch(
                (p.energy_j - epoch.energy_j) * part,
                (p.time_s - epoch.time_s) * part,
                (p.cost - epoch.cost) * part,
            )
        return self._run(arm, arm.limit_w, epoch, allowed, excess)

    def train_at(
        self, batch_size: int, point: PowerMeasurement, *, bound_cost: float = math.inf
    ) -> Run:
        """Train at a given power limit, without profiling."""
        epoch = self.scenario.epoch(point)
        allowed = self._allowed(bound_cost / epoch.cost)
        return self._run(self.scenario.arms[batch_size], point.limit_w, epoch, allowed, NOTHING)

    def needs(self, batch_size: int) -> float:
        """Draw the epochs that the next run of a batch size needs to its target; inf:
        it never reaches it.
        """
        stream = self._streams.get(batch_size)
        if stream is None:
            stream = self._streams[batch_size] = random.Random(f"{self.seed}/{batch_size}")
        epochs = self.scenario.arms[batch_size].epochs
        return epochs[int(stream.random() * len(epochs))]

    def _allowed(self, epochs: float) -> float:
        """Epochs that may be trained: whole ones, checked at each epoch's end;
        a part of one under a bound below it.
        """
        epochs = min(epochs, self.scenario.pair.max_epochs)
        if epochs >= 1 - _EPS:
            return float(math.floor(epochs + _EPS))
        return 0.0 if self.free_looks else epochs

    def _run(
        self, arm: BatchSizeTruth, limit_w: float, epoch: Epoch, allowed: float, excess: Epoch
    ) -> Run:
        needed = self.needs(arm.batch_size)
        epochs = min(needed, allowed)
        mean, chance = arm.run(allowed)
        return Run(
            arm.batch_size,
            limit_w,
            epochs,
            needed <= allowed,
            epoch.energy_j * epochs + excess.energy_j,
            epoch.time_s * epochs + excess.time_s,
            epoch.cost * epochs + excess.cost,
            epoch.cost,
            excess,
            epoch.cost * mean + excess.cost,
            chance,
        )


class Log:
    """One list per figure, one entry per recurrence.

    Costs [J], energies [J], times [s], power limits [W].

    ``expected_cost`` replaces each run's cost by the mean over all runs of the same batch size and
    bound: the same mean over seeds, with less variance.
    """

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.expected_cost: list[float] = []
        self.energy_j: list[float] = []
        self.time_s: list[float] = []
        self.batch_size: list[int] = []  # of the run that was kept
        self.limit_w: list[float] = []
        self.attempts: list[int] = []
        self.best_cost: list[float] = []  # C* at that recurrence
        self.default_cost: list[float] = []  # expected, of a run of the default
        self.runs: list[tuple[Run, ...]] = []
        self.runs_without_model = 0
        self.runs_below_target = 0

    def __len__(self) -> int:
        return len(self.cost)

    def add(
        self,
        scenario: Scenario,
        runs: Sequence[Run],
        *,
        final: bool = True,
        kept: bool = True,
    ) -> None:
        """Add a recurrence of these runs.

        One that ends below target, or without a model, costs one C* more: a repeat.

        :param final: whether the recurrence ends with its last run even if that misses the target.
        :param kept: whether the model of the last run is kept.
        """
        last = runs[-1]
        missed = scenario.best_cost
        self.cost.append(math.fsum([r.cost for r in runs]) + missed * (not last.reached))
        self.expected_cost.append(
            math.fsum([r.expected_cost for r in runs]) + missed * (1.0 - last.chance) * final
        )
        self.energy_j.append(math.fsum([r.energy_j for r in runs]))
        self.time_s.append(math.fsum([r.time_s for r in runs]))
        self.batch_size.append(last.batch_size)
        self.limit_w.append(last.limit_w)
        self.attempts.append(len(runs))
        self.best_cost.append(scenario.best_cost)
        self.default_cost.append(scenario.run_cost(scenario.pair.default_batch_size))
        self.runs.append(tuple(runs))
        self.runs_without_model += not kept
        self.runs_below_target += kept and not last.reached

    def vs_default(self) -> list[float]:
        """Expected cost of the runs of all recurrences so far over that of always the default,
        after each.
        """
        ours = accumulate(math.fsum(run.expected_cost for run in runs) for runs in self.runs)
        default = accumulate(self.default_cost)
        return [cost / of for cost, of in zip(ours, default, strict=True)]

    def overdraft(self) -> float:
        """Most that the recurrences so far ever were behind always the default,
        in runs of the default.

        ``GRANTED`` of what always the default would have cost is subtracted. Recurrences whose
        slice no batch size reaches are left out: a failure of the world.
        Costs are expected ones of the runs that were decided.
        """
        most = 0.0
        ours = 0.0
        default = 0.0
        counted = 0
        for runs, best, cost in zip(self.runs, self.best_cost, self.default_cost, strict=True):
            if math.isinf(best):
                continue
            ours += math.fsum(run.expected_cost for run in runs)
            default += cost
            counted += 1
            most = max(most, (ours - (1.0 + GRANTED) * default) / (default / counted))
        return most

    def regret(self) -> list[float]:
        """Return the cumulative regret after each recurrence, in units of C*."""
        return list(
            accumulate(c / best - 1 for c, best in zip(self.cost, self.best_cost, strict=True))
        )

    def expected_regret(self) -> list[float]:
        """Return the cumulative regret of ``expected_cost``, in units of C*."""
        return list(
            accumulate(
                c / best - 1 for c, best in zip(self.expected_cost, self.best_cost, strict=True)
            )
        )
