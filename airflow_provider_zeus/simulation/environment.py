"""Where replayed trainings run: draws how many epochs a run needs, and charges what it would have cost."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

from airflow_provider_zeus.optimizer.trial import Attempt
from airflow_provider_zeus.simulation.scenario import Arm, Epoch, Scenario
from airflow_provider_zeus.simulation.traces import Point

CHECK_S = 1.0  # within an epoch a bound is looked at once a second
NOTHING = Epoch(0.0, 0.0, 0.0)
_EPS = 1e-9


class Run(NamedTuple):
    """One training as it was charged. ``excess_*`` is the part that is profiling's, not the batch size's."""

    batch_size: int
    limit_w: float
    epochs: float
    reached: bool
    energy_j: float
    time_s: float
    cost: float  # [J], profiling included
    epoch_cost: float  # [J], EpochCost(b)
    excess: Epoch
    expected_cost: float  # [J], of a run that begins as this one did
    chance: float  # that such a run reaches the target


class Draws:
    """Common random numbers: the k-th run of a batch size draws the same epochs, whoever asked for it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: dict[int, random.Random] = {}

    def next(self, arm: Arm) -> float:
        """Epochs that the next run of this batch size needs to its target; inf: it never reaches it."""
        stream = self._streams.get(arm.batch_size)
        if stream is None:
            stream = self._streams[arm.batch_size] = random.Random(f"{self._seed}/{arm.batch_size}")
        return arm.epochs[int(stream.random() * len(arm.epochs))]


class Environment:
    """The trainings of one seed. Set ``scenario`` anew for a shift of the data: what was profiled stays so.

    ``free_looks``: as upstream's simulator counts. EpochCost is known before the first run of a batch size, so one that
    cannot end an epoch within its bound costs nothing. Without it such a run pays for what it trains.
    """

    def __init__(self, scenario: Scenario, seed: int, *, free_looks: bool = False) -> None:
        self.scenario = scenario
        self.free_looks = free_looks
        self.profiled: set[int] = set()
        self._draws = Draws(seed)

    def attempt(self, planned: Attempt) -> Run:
        """Run one attempt of a decision within its bounds (section 4.4; ``training/bound.py``)."""
        bound = math.inf if planned.bound_cost is None else planned.bound_cost
        epochs = math.inf if planned.bound_epochs is None else planned.bound_epochs
        highest = math.inf if planned.max_epoch_cost is None else planned.max_epoch_cost
        return self.train(planned.batch_size, bound_cost=bound, bound_epochs=epochs, max_epoch_cost=highest)

    def train(
        self,
        batch_size: int,
        *,
        bound_cost: float = math.inf,
        bound_epochs: float = math.inf,
        max_epoch_cost: float = math.inf,
    ) -> Run:
        """Train at the power limit of Eq. 7, in the first run of a batch size after an epoch of profiling."""
        arm = self.scenario.arms[batch_size]
        new = batch_size not in self.profiled
        self.profiled.add(batch_size)
        epoch = arm.epoch
        allowed = self._allowed(min(bound_epochs, bound_cost / epoch.cost))
        if epoch.cost > max_epoch_cost:  # known at once, or as soon as it is profiled
            allowed = min(allowed, 1.0 if new else CHECK_S / epoch.time_s)
        excess = NOTHING
        if new and allowed:
            part, p = min(allowed, 1.0), arm.profiling
            excess = Epoch(*((a - b) * part for a, b in zip(_figures(p), _figures(epoch), strict=True)))
        return self._run(arm, arm.limit_w, epoch, allowed, excess)

    def train_at(self, batch_size: int, point: Point, *, bound_cost: float = math.inf) -> Run:
        """Train at a given power limit, without profiling."""
        epoch = self.scenario.epoch(point)
        allowed = self._allowed(bound_cost / epoch.cost)
        return self._run(self.scenario.arms[batch_size], point.limit_w, epoch, allowed, NOTHING)

    def _allowed(self, epochs: float) -> float:
        """Epochs that may be trained: whole ones, checked at each epoch's end; below one, what the checks in it let."""
        epochs = min(epochs, self.scenario.pair.max_epochs)
        if epochs >= 1 - _EPS:
            return float(math.floor(epochs + _EPS))
        return 0.0 if self.free_looks else epochs

    def _run(self, arm: Arm, limit_w: float, epoch: Epoch, allowed: float, excess: Epoch) -> Run:
        needed = self._draws.next(arm)
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


def _figures(epoch: Epoch) -> tuple[float, float, float]:
    return epoch.energy_j, epoch.time_s, epoch.cost
