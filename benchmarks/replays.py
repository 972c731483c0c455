"""Many replays on all cores: which policies there are by name,
and what a benchmark keeps of each replay.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import patch

from airflow_provider_zeus.model.job_checks import POLICIES
from airflow_provider_zeus.model.trial import PlannedAttempt
from airflow_provider_zeus.optimizer import thompson
from airflow_provider_zeus.optimizer.arms import BETA
from airflow_provider_zeus.optimizer.knowledge_gradient import acquisition
from benchmarks.command import on_all_cores
from benchmarks.parts.literal import Parts, literal
from benchmarks.quality.choosers import CHOOSERS
from benchmarks.quality.goodput import POLLUX, pair_on, pollux
from benchmarks.report import Ratio, mean_ci, ratio_of
from benchmarks.simulation.driver import default, grid_search, replay
from benchmarks.simulation.environment import Environment, Log, Run
from benchmarks.simulation.scenario import Epoch, Scenario
from benchmarks.simulation.traces import Traces

OURS, PAPERS = POLICIES
FLOOR = 0.3  # C*: the least that either regret counts as in a ratio


class NeverStopped(Environment):
    """Every attempt runs to its target or to ``max_epochs``."""

    def attempt(self, planned: PlannedAttempt) -> Run:
        """Run one attempt; its bounds do not count."""
        return self.train(planned.batch_size)


class OneLimitPerRun(Environment):
    """No profiling inside a run: the first runs of a batch size take one power limit each,
    the highest first.

    As in ``benchmarks.parts.literal`` the policy learns EpochCost at the best limit;
    what a run cost beyond it is paid.
    """

    def __init__(self, scenario: Scenario, seed: int, *, free_looks: bool = False) -> None:
        super().__init__(scenario, seed, free_looks=free_looks)
        self.tried: dict[int, int] = {}  # limits, by batch size

    def attempt(self, planned: PlannedAttempt) -> Run:
        """Run one attempt at the next limit that its batch size has not seen."""
        b = planned.batch_size
        points = self.scenario.pair.points[planned.batch_size]
        tried = self.tried.setdefault(b, 0)
        if tried == len(points):
            return super().attempt(planned)
        self.tried[b] = tried + 1
        point = points[-1 - tried]
        best = self.scenario.arms[b].epoch
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


UPSTREAM = "upstream"  # the public code's algorithm; a test holds it against that code itself
ABLATIONS = {
    "no_early_stopping": Parts(early_stopping=False),
    "no_pruning": Parts(pruning=False),
    "no_jit_profiling": Parts(jit=False),
}
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
    beta: float = BETA
    audit: float = 0.0  # of the job of one of the package's policies

    @property
    def pair(self) -> str:
        """``workload/gpu``."""
        return f"{self.workload}/{self.gpu}"


@dataclass(slots=True)
class Replays:
    """What is kept, one entry per seed, in their order.

    Energies and times are multiples of the default run's mean.
    """

    recurrences: int = 0
    expected_regret: list[list[float]] = field(default_factory=list)  # after each recurrence, in C*
    eta_last5: list[float] = field(default_factory=list)
    tta_last5: list[float] = field(default_factory=list)
    cum_energy: list[float] = field(default_factory=list)
    energy: list[list[float]] = field(default_factory=list)  # of all recurrences so far, after each
    time: list[list[float]] = field(default_factory=list)
    attempts: int = 0  # most of one recurrence
    # of the model kept in each recurrence
    batch_sizes: list[list[int]] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)  # expected cost of all runs [J]
    below_target: list[list[int]] = field(default_factory=list)  # recurrences, from 0
    vs_default: list[list[float]] = field(
        default_factory=list
    )  # expected cost of all recurrences so far over that of always the default, after each
    overdraft: list[float] = field(default_factory=list)
    runs_without_model: int = 0
    runs_below_target: int = 0

    def add(self, scenario: Scenario, log: Log) -> None:
        """Keep one replay."""
        run = scenario.default_run
        self.recurrences += len(log)
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
        self.vs_default.append(log.vs_default())
        self.overdraft.append(log.overdraft())
        self.runs_without_model += log.runs_without_model
        self.runs_below_target += log.runs_below_target

    def join(self, other: Replays) -> None:
        """Take in the replays of other seeds."""
        for name in _PER_SEED:
            getattr(self, name).extend(getattr(other, name))
        for name in ("recurrences", "runs_without_model", "runs_below_target"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.attempts = max(self.attempts, other.attempts)


_PER_SEED = tuple(f.name for f in fields(Replays) if f.default_factory is list)


def run_policy(
    policy: str,
    scenario: Scenario,
    recurrences: int,
    seed: int,
    *,
    beta: float = BETA,
    audit: float = 0.0,
) -> Log:
    """One replay.

    :param beta: threshold of early stopping, of our policies and the paper's.
    :param audit: of the job of one of our policies.
    """
    when = scenario, recurrences, seed
    if policy in POLICIES:
        with patch.object(thompson, "BETA", beta), patch.object(acquisition, "BETA", beta):
            job = scenario.job(policy=policy, audit=audit)
            return replay(scenario, job, recurrences, seed)
    if policy in OURS_WITHOUT:
        return without(policy, *when)
    if policy == UPSTREAM or policy in ABLATIONS:
        return literal(*when, parts=ABLATIONS.get(policy), beta=beta)
    if policy in POLLUX:
        return pollux(*when, POLLUX[policy])
    return {**CHOOSERS, "default": default, "grid_search": grid_search}[policy](*when)


@cache
def _scenario(folder: Path, workload: str, gpu: str, eta: float) -> Scenario:
    return Scenario(pair_on(_traces(folder), workload, gpu), eta)


@cache
def _traces(folder: Path) -> Traces:
    return Traces(folder)


def _work(folder: Path, part: tuple[Task, Sequence[int]]) -> Replays:
    task, seeds = part
    scenario = _scenario(folder, task.workload, task.gpu, task.eta)
    found = Replays()
    gc.freeze()  # what the imports left is not gone through again and again
    for seed in seeds:
        log = run_policy(
            task.policy,
            scenario,
            scenario.pair.recurrences,
            seed,
            beta=task.beta,
            audit=task.audit,
        )
        found.add(scenario, log)
    return found


def run_tasks(folder: Path, tasks: Sequence[Task], jobs: int | None = None) -> dict[Task, Replays]:
    """Replays by task, on ``jobs`` processes (default: every core), the slow ones first."""
    parts = [(task, seeds) for task in tasks for seeds in chunks(task.seeds)]
    parts.sort(key=lambda part: part[0].policy not in POLICIES)
    found = {task: Replays() for task in tasks}
    for (task, _), replays in zip(
        parts, on_all_cores(partial(_work, folder), parts, jobs), strict=True
    ):
        found[task].join(replays)
    return found


def chunks(seeds: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
    """Seeds by the task."""
    return (seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK))


def spent_by(log: Log) -> float:
    """Expected cost of all runs of a replay; unlike in regret,
    a run below target is not charged for a repeat.
    """
    return math.fsum(run.expected_cost for runs in log.runs for run in runs)


Found = Mapping[str, Mapping[str, Replays]]  # by scenario and policy


def spent(found: Replays, since: int = 0) -> list[float]:
    """Expected regret from the recurrence ``since`` on, from 0, one figure per seed [C*]."""
    return [curve[-1] - (curve[since - 1] if since else 0.0) for curve in found.expected_regret]


def ratio_between(found: Mapping[str, Replays], since: int = 0, *, ours: str = OURS) -> Ratio:
    """Our regret since a recurrence over that of the paper's policy."""
    return ratio_of(spent(found[ours], since), spent(found[PAPERS], since), FLOOR)


def below_after(found: Replays, shift: int) -> dict[str, Any]:
    """Recurrences below target from ``shift`` on: [mean, half of ci95] per seed,
    and of these ``again``.

    Again: after the first recurrence since the shift that reached the target.
    """
    below = []
    again = []
    for missed, sizes in zip(found.below_target, found.batch_sizes, strict=True):
        since = {t for t in missed if t >= shift}
        found_at = next((t for t in range(shift, len(sizes)) if t not in since), len(sizes))
        below.append(float(len(since)))
        again.append(float(sum(t > found_at for t in since)))
    return {"below": mean_ci(below), "again": mean_ci(again)}


def ratios_to_upstream(results: Mapping[Task, Replays]) -> dict[str, Ratio]:
    """Our expected regret at the end as a multiple of upstream's, per pair."""
    ends = {(t.pair, t.policy): spent(found) for t, found in results.items()}
    return {
        pair: ratio_of(end, ends[pair, UPSTREAM])
        for (pair, policy), end in ends.items()
        if policy == OURS
    }
