"""Trainings of dated slices, for the replay of :mod:`benchmarks.simulation`.

Unlike those of the paper's traces, slices differ in size, runs are so short beside profiling that
it is walked second by second, and luck is a slice's own:
a slice and batch size draw the same seed whoever trains them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import PlannedAttempt, ProfileSample
from airflow_provider_zeus.training.profiling.measurement_windows import SETTLE_S
from airflow_provider_zeus.training.profiling.profiler import WINDOW_STEPS
from airflow_provider_zeus.training.profiling.search import LimitMeasurement, Search
from benchmarks.quality.slice_tables import Points, Week, pair_of
from benchmarks.quality.slice_tables import points as simulated
from benchmarks.simulation import driver
from benchmarks.simulation.environment import CHECK_S, Environment, Log, Run
from benchmarks.simulation.scenario import Epoch, Scenario
from benchmarks.simulation.traces import PowerMeasurement

_EPS = 1e-9


class Profile:
    """What is measured of one batch size, by the package's own search; nothing here is noisy."""

    def __init__(
        self, points: Sequence[PowerMeasurement], steps: int, job: ZeusJob, weights: Weights
    ) -> None:
        self.seen: dict[float, LimitMeasurement] = {}
        self._steps = steps  # of an epoch
        self._window_s = {
            p.limit_w: max(job.profile_s, WINDOW_STEPS * p.time_s / steps) for p in points
        }
        self._search = Search(tuple(self._window_s), weights, job.profile_s, WINDOW_STEPS)

    def epochs_left(self, points: Sequence[PowerMeasurement]) -> float:
        """Epochs until the profile is complete."""
        return deepcopy(self).walk(points, math.inf)[0]

    def walk(self, points: Sequence[PowerMeasurement], epochs: float) -> tuple[float, float, float]:
        """Go on for at most so many epochs; (epochs, J, s) that it took."""
        at = {p.limit_w: p for p in points}
        before_w = None
        trained = energy_j = time_s = 0.0
        while trained < epochs - _EPS and (step := self._search.next_limit(self.seen)) is not None:
            point = at[step.limit_w]
            settle_s = 0.0 if step.limit_w == before_w else SETTLE_S
            part_s = min(settle_s + self._left_s(step.limit_w), (epochs - trained) * point.time_s)
            trained = trained + part_s / point.time_s
            time_s = time_s + part_s
            energy_j += part_s * point.power_w
            self._measure(point, part_s - settle_s)
            before_w = step.limit_w
        return trained, energy_j, time_s

    def _left_s(self, limit_w: float) -> float:
        """Of the window under way at a limit, or of the next one."""
        window_s = self._window_s[limit_w]
        seen = self.seen.get(limit_w, LimitMeasurement())
        return (math.floor(seen.time_s / window_s + _EPS) + 1) * window_s - seen.time_s

    def _measure(self, point: PowerMeasurement, length_s: float) -> None:
        epochs = length_s / point.time_s
        if epochs <= 0:
            return
        piece = ProfileSample(
            batch_size=1,
            limit_w=point.limit_w,
            samples=math.ceil(epochs * 1e9),  # of an epoch: only their ratio to its time matters
            energy_j=epochs * point.energy_j,
            time_s=length_s,
            steps=math.ceil(epochs * self._steps - _EPS),
        )
        self.seen.setdefault(point.limit_w, LimitMeasurement()).add(piece)


class Trainings(Environment):
    """The trainings of one seed. What was profiled stays so."""

    def __init__(
        self, weeks: Sequence[Week], truths: Sequence[Scenario], job: ZeusJob, seed: int
    ) -> None:
        super().__init__(truths[0], seed)
        self._weeks = {week.slice_key: week for week in weeks}
        self._job = job
        self._profiles: dict[int, Profile] = {}

    @property
    def _week(self) -> Week:
        return self._weeks[self.scenario.pair.workload]

    def slice_scale(self, planned: PlannedAttempt) -> float:
        """Size of the slice over the one that the bounds in cost assume
        (``training/attempt_checks.py``).
        """
        assumed = planned.bound_samples_per_epoch
        return self._week.samples_per_epoch / assumed if assumed else 1.0

    def train(
        self,
        batch_size: int,
        *,
        bound_cost: float = math.inf,
        bound_epochs: float = math.inf,
        max_epoch_cost: float = math.inf,
    ) -> Run:
        """Train at the best power limit, once the profile is complete."""
        arm = self.scenario.arms[batch_size]
        points = self.scenario.pair.points[batch_size]
        steps = math.ceil(self._week.samples_per_epoch / batch_size)
        weights = self.scenario.weights
        profile = self._profiles.setdefault(batch_size, Profile(points, steps, self._job, weights))
        allowed = self._allowed(min(bound_epochs, bound_cost / arm.epoch.cost))
        if arm.epoch.cost > max_epoch_cost:  # known once it is profiled
            allowed = min(allowed, max(profile.epochs_left(points), CHECK_S / arm.epoch.time_s))
        trained, energy_j, time_s = profile.walk(points, min(self.needs(batch_size), allowed))
        excess_j = energy_j - trained * arm.epoch.energy_j
        excess_s = time_s - trained * arm.epoch.time_s
        excess = Epoch(excess_j, excess_s, weights.cost(excess_j, excess_s))
        return self._run(arm, arm.limit_w, arm.epoch, allowed, excess)

    def needs(self, batch_size: int) -> float:
        """Epochs to the target: of one of the slice's measured trainings."""
        week = self._week
        epochs = week.epochs[batch_size]
        return epochs[
            int(random.Random(f"{self.seed}/{week.slice_key}/{batch_size}").random() * len(epochs))
        ]


def truths_of(weeks: Sequence[Week], job: ZeusJob, points: Points = simulated) -> list[Scenario]:
    """What each week's batch sizes cost."""
    return [Scenario(pair_of(week, job.default_batch_size, points), job.eta) for week in weeks]


def always(
    weeks: Sequence[Week],
    truths: Sequence[Scenario],
    job: ZeusJob,
    seed: int,
    point_of: Callable[[Scenario], PowerMeasurement],
) -> list[Run]:
    """The default of each week to its end at a given power limit, without profiling: a baseline."""
    trainings = Trainings(weeks, truths, job, seed)
    runs = []
    for truth in truths:
        trainings.scenario = truth
        runs.append(trainings.train_at(truth.pair.default_batch_size, point_of(truth)))
    return runs


def full_power(truth: Scenario) -> PowerMeasurement:
    """Of the default batch size."""
    return truth.full_power(truth.pair.default_batch_size)


def best_limit(truth: Scenario) -> PowerMeasurement:
    """Of the default batch size."""
    b = truth.pair.default_batch_size
    return next(p for p in truth.pair.points[b] if p.limit_w == truth.arms[b].limit_w)


def replay(
    weeks: Sequence[Week],
    truths: Sequence[Scenario],
    job: ZeusJob,
    seed: int,
    *,
    env: Environment | None = None,
    **hooks: Any,
) -> Log:
    """The runs of each week.

    :param truths: what each week's batch sizes cost.
    :param env: the trainings; default: those of the weeks and the seed.
    """
    slices = [
        driver.Slice(week.slice_key, week.samples_per_epoch, week.slice_key) for week in weeks
    ]
    every = dict(enumerate(truths))
    env = env or Trainings(weeks, truths, job, seed)
    return driver.replay(truths[0], job, len(weeks), seed, every, env=env, slices=slices, **hooks)
