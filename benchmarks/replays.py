"""Many replays on all cores: which policies there are by name, and what a benchmark keeps of each replay."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import accumulate
from pathlib import Path

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job_checks import POLICIES
from airflow_provider_zeus.model.trial import PlannedAttempt
from airflow_provider_zeus.simulation.driver import default, grid_search, replay
from airflow_provider_zeus.simulation.environment import Environment, Log, Run
from airflow_provider_zeus.simulation.scenario import Epoch, Scenario
from airflow_provider_zeus.simulation.traces import Traces
from benchmarks.command import on_all_cores
from benchmarks.parts.literal import Parts, literal
from benchmarks.quality.choosers import CHOOSERS
from benchmarks.quality.goodput import POLLUX, pair_on, pollux

OURS = POLICIES[0]


class NeverStopped(Environment):
    """Every attempt runs to its target or to ``max_epochs``."""

    def attempt(self, planned: PlannedAttempt) -> Run:
        """Run one attempt; its bounds do not count."""
        return self.train(planned.batch_size)


class OneLimitPerRun(Environment):
    """No profiling inside a run: the first runs of a batch size take one power limit each, the highest first.

    As in ``benchmarks.parts.literal`` the policy learns EpochCost at the best limit; what a run cost beyond it is paid.
    """

    def __init__(self, scenario: Scenario, seed: int, *, free_looks: bool = False) -> None:
        super().__init__(scenario, seed, free_looks=free_looks)
        self.tried: dict[int, int] = {}  # limits, by batch size

    def attempt(self, planned: PlannedAttempt) -> Run:
        """Run one attempt at the next limit that its batch size has not seen."""
        b, points = planned.batch_size, self.scenario.pair.points[planned.batch_size]
        tried = self.tried.setdefault(b, 0)
        if tried == len(points):
            return super().attempt(planned)
        self.tried[b] = tried + 1
        point, best = points[-1 - tried], self.scenario.arms[b].epoch
        cost = self.scenario.epoch(point).cost
        bounds = [math.inf if x is None else x for x in (planned.bound_cost, planned.bound_epochs)]
        run = self.train_at(b, point, bound_cost=min(bounds[0], bounds[1] * cost))
        self.profiled.add(b)
        spent = (run.energy_j, run.time_s, run.cost)
        at_best = (best.energy_j, best.time_s, best.cost)
        excess = Epoch(*(x - run.epochs * y for x, y in zip(spent, at_best, strict=True)))
        return run._replace(epoch_cost=best.cost, excess=excess)


OURS_WITHOUT = {"ours_no_early_stopping": NeverStopped, "ours_no_jit_profiling": OneLimitPerRun}


def without(part: str, scenario: Scenario, recurrences: int, seed: int) -> Log:
    """Replay the default policy without a part of :data:`OURS_WITHOUT`."""
    env = OURS_WITHOUT[part](scenario, seed)
    return replay(scenario, scenario.job(policy=OURS), recurrences, seed, env=env)


UPSTREAM = "upstream"  # upstream's algorithm, which benchmarks/upstream.py holds against its own code
ABLATIONS = {
    "no_early_stopping": Parts(early_stopping=False),
    "no_pruning": Parts(pruning=False),
    "no_jit_profiling": Parts(jit=False),
}
NAMES = (*POLICIES, UPSTREAM, "grid_search", "default", *ABLATIONS, *OURS_WITHOUT, *CHOOSERS, "pollux")
LAST = 5  # recurrences, as in Figure 6
CHUNK = 5  # seeds per task


@dataclass(frozen=True, slots=True)
class Task:
    """Replays of one policy on one pair."""

    workload: str
    gpu: str
    policy: str
    seeds: tuple[int, ...]
    eta: float = 0.5
    beta: float = 2.0

    @property
    def pair(self) -> str:
        """``workload/gpu``."""
        return f"{self.workload}/{self.gpu}"


@dataclass(slots=True)
class Replays:
    """What is kept, one entry per seed, in their order. Energies and times are multiples of the default run's mean."""

    seconds: float = 0.0
    recurrences: int = 0
    regret: list[list[float]] = field(default_factory=list)  # after each recurrence, in C*
    expected_regret: list[list[float]] = field(default_factory=list)
    eta_last5: list[float] = field(default_factory=list)
    tta_last5: list[float] = field(default_factory=list)
    cum_energy: list[float] = field(default_factory=list)
    energy: list[list[float]] = field(default_factory=list)  # of all recurrences so far, after each
    time: list[list[float]] = field(default_factory=list)
    attempts: int = 0  # most of one recurrence
    batch_sizes: list[list[int]] = field(default_factory=list)  # of the model kept in each recurrence
    spent: list[float] = field(default_factory=list)  # expected cost of all runs [J]
    below_target: list[list[int]] = field(default_factory=list)  # recurrences, from 0
    runs_without_model: int = 0
    runs_below_target: int = 0

    def add(self, scenario: Scenario, log: Log) -> None:
        """Keep one replay."""
        run = scenario.default_run
        self.recurrences += len(log)
        self.regret.append(log.regret())
        self.expected_regret.append(log.expected_regret())
        self.eta_last5.append(statistics.fmean(log.energy_j[-LAST:]) / run.energy_j)
        self.tta_last5.append(statistics.fmean(log.time_s[-LAST:]) / run.time_s)
        self.cum_energy.append(statistics.fmean(log.energy_j) / run.energy_j)
        self.energy.append([e / run.energy_j for e in accumulate(log.energy_j)])
        self.time.append([t / run.time_s for t in accumulate(log.time_s)])
        self.attempts = max(self.attempts, *log.attempts)
        self.batch_sizes.append(log.batch_size)
        self.spent.append(spent_by(log))
        self.below_target.append([t for t, runs in enumerate(log.runs) if not runs[-1].reached])
        self.runs_without_model += log.runs_without_model
        self.runs_below_target += log.runs_below_target

    def join(self, other: Replays) -> None:
        """Take in the replays of other seeds."""
        for name in _PER_SEED:
            getattr(self, name).extend(getattr(other, name))
        for name in ("seconds", "recurrences", "runs_without_model", "runs_below_target"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.attempts = max(self.attempts, other.attempts)


_PER_SEED = tuple(f.name for f in fields(Replays) if f.default_factory is list)


def run_policy(policy: str, scenario: Scenario, recurrences: int, seed: int, beta: float = 2.0) -> Log:
    """One replay. Raises JobSpecError where there is no policy of that name."""
    if policy in POLICIES:
        return replay(scenario, scenario.job(policy=policy, beta=beta), recurrences, seed)
    if policy in OURS_WITHOUT:
        return without(policy, scenario, recurrences, seed)
    if policy in CHOOSERS:
        return CHOOSERS[policy](scenario, recurrences, seed)
    if policy == "default":
        return default(scenario, recurrences, seed)
    if policy == "grid_search":
        return grid_search(scenario, recurrences, seed)
    if policy == UPSTREAM or policy in ABLATIONS:
        return literal(scenario, recurrences, seed, parts=ABLATIONS.get(policy), beta=beta)
    if policy in POLLUX:
        return pollux(scenario, recurrences, seed, POLLUX[policy])
    raise JobSpecError.of("policies", policy, "is unknown", f"Use some of {', '.join(NAMES)}")


@cache
def _scenario(folder: Path, workload: str, gpu: str, eta: float) -> Scenario:
    return Scenario(pair_on(_traces(folder), workload, gpu), eta)


@cache
def _traces(folder: Path) -> Traces:
    return Traces(folder)


def _work(folder: Path, task: Task) -> Replays:
    scenario, found = _scenario(folder, task.workload, task.gpu, task.eta), Replays()
    gc.freeze()  # what the imports left is not gone through again and again
    start = time.process_time()
    for seed in task.seeds:
        found.add(scenario, run_policy(task.policy, scenario, scenario.pair.recurrences, seed, task.beta))
    found.seconds = time.process_time() - start
    return found


def _work_on(work: tuple[Path, Task, Task]) -> tuple[Task, Replays]:
    folder, whole, part = work
    return whole, _work(folder, part)


def run_tasks(folder: Path, tasks: Sequence[Task], jobs: int | None = None) -> dict[Task, Replays]:
    """Replays by task, on ``jobs`` processes (default: every core), the slow ones first."""
    parts = [(folder, task, replace(task, seeds=seeds)) for task in tasks for seeds in chunks(task.seeds)]
    parts.sort(key=lambda part: part[1].policy not in POLICIES)
    found = {task: Replays() for task in tasks}
    for task, replays in on_all_cores(_work_on, parts, jobs):
        found[task].join(replays)
    return found


def chunks(seeds: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
    """Seeds by the task."""
    return (seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK))


def spent_by(log: Log) -> float:
    """Expected cost of all runs of a replay; unlike in regret, a run below target is not charged for a repeat."""
    return math.fsum(run.expected_cost for runs in log.runs for run in runs)
