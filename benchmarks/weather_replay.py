"""The weeks of the weather table in order, decided by the product's own ``prior``, ``choose`` and ``learn``.

Unlike the replay of the paper's traces, slices differ in size, runs are so short beside profiling that it is walked
second by second, and luck is a slice's own: a slice and batch size draw the same seed whoever trains them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import NamedTuple

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    Decision,
    Observation,
    Origin,
    Phase,
    PlannedAttempt,
    ProfileSample,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.optimizer.policy import choose, decision_seed, learn, prior
from airflow_provider_zeus.simulation.scenario import SOURCE, Epoch, Scenario
from airflow_provider_zeus.simulation.traces import PowerMeasurement
from airflow_provider_zeus.training.profiling.measurement_windows import SETTLE_S
from airflow_provider_zeus.training.profiling.search import LimitMeasurement, Search
from benchmarks.weather_table import Points, Week, pair_of
from benchmarks.weather_table import points as simulated

CHECK_S = 1.0  # within an epoch a bound is looked at once a second
_NOTHING = Epoch(0.0, 0.0, 0.0)
_EPS = 1e-9


class Run(NamedTuple):
    """One training as it was charged: profiling included, ``excess`` is its part."""

    planned: PlannedAttempt
    limit_w: float
    epochs: float
    reached: bool
    spent: Epoch
    excess: Epoch


Runs = list[Run]  # of one recurrence


class Profile:
    """What is measured of one batch size, by the package's own search; nothing here is noisy."""

    def __init__(self, points: Sequence[PowerMeasurement], steps: int, job: ZeusJob, weights: Weights) -> None:
        self.seen: dict[float, LimitMeasurement] = {}
        self._steps = steps  # of an epoch
        self._window_s = {p.limit_w: max(job.profile_s, job.profile_steps * p.time_s / steps) for p in points}
        self._search = Search(tuple(self._window_s), weights, job.profile_s, job.profile_steps)

    def epochs_left(self, points: Sequence[PowerMeasurement]) -> float:
        """Epochs until the profile is complete."""
        return deepcopy(self).walk(points, math.inf)[0]

    def walk(self, points: Sequence[PowerMeasurement], epochs: float) -> tuple[float, float, float]:
        """Go on for at most so many epochs; (epochs, J, s) that it took."""
        at, before_w = {p.limit_w: p for p in points}, None
        trained = energy_j = time_s = 0.0
        while trained < epochs - _EPS and (step := self._search.next_limit(self.seen)) is not None:
            point = at[step.limit_w]
            settle_s = 0.0 if step.limit_w == before_w else SETTLE_S
            part_s = min(settle_s + self._left_s(step.limit_w), (epochs - trained) * point.time_s)
            trained, time_s = trained + part_s / point.time_s, time_s + part_s
            energy_j += part_s * point.power_w
            self._measure(point, part_s - settle_s)
            before_w = step.limit_w
        return trained, energy_j, time_s

    def _left_s(self, limit_w: float) -> float:
        """Of the window under way at a limit, or of the next one."""
        window_s, seen = self._window_s[limit_w], self.seen.get(limit_w, LimitMeasurement())
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


class Trainings:
    """The trainings of one seed. What was profiled stays so."""

    def __init__(self, job: ZeusJob, seed: int) -> None:
        self.job, self.seed = job, seed
        self._profiles: dict[int, Profile] = {}

    def attempt(self, week: Week, truth: Scenario, planned: PlannedAttempt) -> Run:
        """One attempt of a decision within its bounds, which scale with the slice (``training/bound.py``)."""
        b = planned.batch_size
        arm, points = truth.arms[b], truth.pair.points[b]
        steps = math.ceil(week.samples_per_epoch / b)
        profile = self._profiles.setdefault(b, Profile(points, steps, self.job, truth.weights))
        assumed = planned.bound_samples_per_epoch
        scale = week.samples_per_epoch / assumed if assumed else 1.0
        most = min(_or_inf(planned.bound_epochs), _or_inf(planned.bound_cost) * scale / arm.epoch.cost)
        allowed = min(most, truth.pair.max_epochs)
        if allowed >= 1 - _EPS:
            allowed = float(math.floor(allowed + _EPS))
        if arm.epoch.cost > _or_inf(planned.max_epoch_cost) * scale:  # known once it is profiled
            allowed = min(allowed, max(profile.epochs_left(points), CHECK_S / arm.epoch.time_s))
        needed = self._needs(week, b)
        epochs = min(needed, allowed)
        trained, energy_j, time_s = profile.walk(points, epochs)
        excess_j, excess_s = energy_j - trained * arm.epoch.energy_j, time_s - trained * arm.epoch.time_s
        excess = Epoch(excess_j, excess_s, truth.weights.cost(excess_j, excess_s))
        return Run(planned, arm.limit_w, epochs, needed <= allowed, _charge(arm.epoch, epochs, excess), excess)

    def always(self, week: Week, truth: Scenario, point: PowerMeasurement) -> Run:
        """The default to its end at a given power limit, without profiling: a baseline."""
        b = truth.pair.default_batch_size
        planned = PlannedAttempt(batch_size=b, phase=Phase.PINNED, why="Always the default.")
        needed = self._needs(week, b)
        epochs = min(needed, truth.pair.max_epochs)
        return Run(planned, point.limit_w, epochs, math.isfinite(needed), _charge(truth.epoch(point), epochs), _NOTHING)

    def _needs(self, week: Week, batch_size: int) -> float:
        """Epochs to the target: of one of the slice's measured trainings."""
        epochs = week.epochs[batch_size]
        return epochs[int(random.Random(f"{self.seed}/{week.slice_key}/{batch_size}").random() * len(epochs))]


def truths_of(weeks: Sequence[Week], job: ZeusJob, points: Points = simulated) -> list[Scenario]:
    """What each week's batch sizes cost."""
    return [Scenario(pair_of(week, job.default_batch_size, points), job.eta) for week in weeks]


def baselines(weeks: Sequence[Week], job: ZeusJob, seed: int, points: Points = simulated) -> Mapping[str, list[Run]]:
    """Always the default: at full power, as in the demo, and at the limit that is best for it."""
    trainings, full, best = Trainings(job, seed), [], []
    for week, truth in zip(weeks, truths_of(weeks, job, points), strict=True):
        b = job.default_batch_size
        arm, at = truth.arms[b], {p.limit_w: p for p in truth.pair.points[b]}
        full.append(trainings.always(week, truth, truth.full_power(b)))
        best.append(trainings.always(week, truth, at[arm.limit_w]))
    return {"full power": full, "best limit": best}


def replay(
    weeks: Sequence[Week],
    job: ZeusJob,
    seed: int,
    points: Points = simulated,
    truths: Sequence[Scenario] | None = None,
) -> list[Runs]:
    """The runs of each week. ``truths``: what each week's batch sizes cost; default: by ``points``."""
    job_id = job.job_id or "weather"
    trainings, belief, number, log = Trainings(job, seed), prior(job), 0, []
    for week, truth in zip(weeks, truths or truths_of(weeks, job, points), strict=True):
        decision = choose(job, belief, device=truth.device, seed=decision_seed(job_id, number + 1, seed))
        runs: Runs = []
        for planned in decision.chances:
            runs.append(trainings.attempt(week, truth, planned))
            if runs[-1].reached:
                break
        for attempt, run in enumerate(runs, 1):
            number += 1
            key = TrialKey(week.slice_key, attempt)
            belief = learn(belief, _trial(job, key, number, week, truth, decision, run))
        log.append(runs)
    return log


def _trial(
    job: ZeusJob, key: TrialKey, number: int, week: Week, truth: Scenario, decision: Decision, run: Run
) -> Trial:
    """The row that the store would hold."""
    ended_early = run.planned.bounded and run.epochs < truth.pair.max_epochs
    state = State.GIVEN_UP if ended_early else State.EXHAUSTED
    return Trial(
        job_id=job.job_id or "weather",
        number=number,
        key=key,
        origin=Origin(run_type="scheduled", data_slice=week.slice_key),
        spec=job.to_dict(),
        decision=decision,
        planned=run.planned,
        state=State.CONVERGED if run.reached else state,
        observation=Observation(
            epochs=run.epochs,
            samples=round(run.epochs * week.samples_per_epoch),
            samples_per_epoch=float(week.samples_per_epoch),
            energy_j=run.spent.energy_j,
            time_s=run.spent.time_s,
            excess_j=run.excess.energy_j,
            excess_s=run.excess.time_s,
            power_limit_w=run.limit_w,
            device_model=truth.pair.gpu,
            device_count=1,
            max_power_w=truth.pair.max_power_w,
            energy_source=SOURCE,
        ),
    )


def _charge(epoch: Epoch, epochs: float, more: Epoch = _NOTHING) -> Epoch:
    return Epoch(
        epoch.energy_j * epochs + more.energy_j, epoch.time_s * epochs + more.time_s, epoch.cost * epochs + more.cost
    )


def _or_inf(bound: float | None) -> float:
    return math.inf if bound is None else bound
