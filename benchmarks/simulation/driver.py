"""Replay of recurrences through the product's own ``prior``, ``learn`` and ``choose``,
or by the paper's baselines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    Decision,
    Observation,
    Origin,
    PlannedAttempt,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.policy import choose, decision_seed, learn, prior
from airflow_provider_zeus.optimizer.situation import Situation
from benchmarks.simulation.environment import Environment, Log, Run
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import PowerMeasurement

SLICE = 1_000_000  # samples per epoch


class Slice(NamedTuple):
    """The data of one recurrence."""

    ti_id: str
    samples_per_epoch: int
    key: str | None


def replay(
    scenario: Scenario,
    job: ZeusJob,
    recurrences: int,
    seed: int = 0,
    shifts: Mapping[int, Scenario] | None = None,
    *,
    env: Environment | None = None,
    slices: Sequence[Slice] = (),
    learn: Callable[[Belief, Trial], Belief] = learn,
    choose: Callable[[Situation], Decision] = choose,
) -> Log:
    """Replay ``job`` under its policy.

    :param shifts: recurrence (from 0) -> scenario that holds from then on.
    :param env: the trainings; default: those of the scenario and seed.
    :param slices: the data of each recurrence; default: equal ones, without a name.
    :param learn: stands for the policy's own, as ``choose`` does.
    """
    env = env or Environment(scenario, seed)
    log = Log()
    device = scenario.device
    writer = Writer(job, scenario)
    belief = prior(job)
    for t in range(recurrences):
        if shifts and t in shifts:
            env.scenario = shifts[t]
        data = slices[t] if slices else Slice(f"{t}", SLICE, None)
        own_seed = decision_seed(writer.job_id, writer.number + 1, seed)
        decision = choose(Situation(job, belief, device=device, seed=own_seed))
        runs: list[Run] = []
        for attempt in decision.attempts:
            run = env.attempt(attempt)
            runs.append(run)
            trial = writer.open(decision, attempt, len(runs), ti_id=data.ti_id, data_slice=data.key)
            belief = learn(belief, writer.close(trial, run, data.samples_per_epoch))
            if run.reached:
                break
        kept = run.reached or not attempt.bounded
        log.add(env.scenario, runs, final=attempt is decision.attempts[-1], kept=kept)
    return log


class Writer:
    """Makes the rows that the store would hold."""

    def __init__(self, job: ZeusJob, scenario: Scenario) -> None:
        self.job_id = job.job_id or scenario.pair.name
        self.number = 0  # of the newest row
        self._spec, self._max_epochs = job.to_dict(), scenario.pair.max_epochs
        self._gpu, self._max_power_w = scenario.pair.gpu, scenario.pair.max_power_w

    def open(
        self,
        decision: Decision,
        planned: PlannedAttempt,
        attempt: int,
        ti_id: str | None = None,
        data_slice: str | None = None,
    ) -> Trial:
        """Return the row of a run that begins;
        the attempts of one recurrence share its ``ti_id``.
        """
        self.number += 1
        return Trial(
            job_id=self.job_id,
            number=self.number,
            key=TrialKey(ti_id or str(self.number), attempt),
            origin=Origin(run_type="scheduled", data_slice=data_slice),
            spec=self._spec,
            decision=decision,
            planned=planned,
            state=State.RUNNING,
        )

    def close(self, trial: Trial, run: Run, samples_per_epoch: int = SLICE) -> Trial:
        """Return the row of a run that has ended."""
        state = State.CONVERGED
        if not run.reached:
            cut_short = trial.planned.bounded and run.epochs < self._max_epochs
            state = State.GIVEN_UP if cut_short else State.EXHAUSTED
        seen = Observation(
            epochs=run.epochs,
            samples=round(run.epochs * samples_per_epoch),
            samples_per_epoch=float(samples_per_epoch),
            energy_j=run.energy_j,
            time_s=run.time_s,
            excess_j=run.excess.energy_j,
            excess_s=run.excess.time_s,
            power_limit_w=run.limit_w,
            device_model=self._gpu,
            device_count=1,
            max_power_w=self._max_power_w,
            energy_source="simulated",
        )
        return replace(trial, state=state, observation=seen)


# ------------------------------------------------------------------ the paper's baselines (section
# 6.1)
Config = tuple[int, PowerMeasurement]


def default(scenario: Scenario, recurrences: int, seed: int = 0) -> Log:
    """Replay the default batch size at full power."""
    env = Environment(scenario, seed)
    log = Log()
    b = scenario.pair.default_batch_size
    point = scenario.full_power(b)
    for _ in range(recurrences):
        log.add(scenario, [env.train_at(b, point)])
    return log


def grid_search(
    scenario: Scenario, recurrences: int, seed: int = 0, sizes: Sequence[int] | None = None
) -> Log:
    """Replay one configuration per recurrence, then the cheapest one found.

    Drops batch sizes that miss the target.

    A recurrence whose configuration misses continues with the next one,
    so that it ends with a model.

    :param sizes: batch sizes in the order in which they are searched; default: all, ascending.
    """
    env = Environment(scenario, seed)
    log = Log()
    dropped: set[int] = set()
    todo = grid(scenario, dropped, sizes)
    best: Config = (
        scenario.pair.default_batch_size,
        scenario.full_power(scenario.pair.default_batch_size),
    )
    best_cost = math.inf
    for _ in range(recurrences):
        runs: list[Run] = []
        exploring = True
        while exploring:
            config = next(todo, None)
            exploring = config is not None
            b, point = config or best
            run = env.train_at(b, point)
            runs.append(run)
            if run.reached:
                if exploring and run.cost < best_cost:
                    best = (b, point)
                    best_cost = run.cost
                break
            dropped.add(b)
        log.add(scenario, runs, final=not exploring)
    return log


def grid(
    scenario: Scenario, dropped: set[int], sizes: Sequence[int] | None = None
) -> Iterator[Config]:
    """Yield ``sizes`` in their order (default: ascending),
    each with its limits in descending order.

    Skips the ``dropped`` ones.
    """
    for b in scenario.pair.batch_sizes if sizes is None else sizes:
        for point in reversed(scenario.pair.points[b]):
            if b not in dropped:
                yield b, point
