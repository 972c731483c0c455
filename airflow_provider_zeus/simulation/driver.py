"""Replay of recurrences through the product's own ``prior``, ``learn`` and ``choose``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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
from airflow_provider_zeus.optimizer.policy import choose, decision_seed, learn, prior
from airflow_provider_zeus.simulation.environment import Environment, Run
from airflow_provider_zeus.simulation.log import Log
from airflow_provider_zeus.simulation.scenario import SOURCE, Scenario

SLICE = 1_000_000  # samples per epoch
_ORIGIN = Origin(run_type="scheduled")


def replay(
    scenario: Scenario,
    job: ZeusJob,
    recurrences: int,
    seed: int = 0,
    shifts: Mapping[int, Scenario] | None = None,
) -> Log:
    """Replay ``job`` under its policy.

    :param shifts: recurrence (from 0) -> scenario that holds from then on.
    """
    env, log, device = Environment(scenario, seed), Log(), scenario.device
    writer = Writer(job, scenario)
    belief = prior(job)
    for t in range(recurrences):
        if shifts and t in shifts:
            env.scenario = shifts[t]
        decision = choose(job, belief, device=device, seed=decision_seed(writer.job_id, writer.number + 1, seed))
        runs: list[Run] = []
        chances = decision.chances
        for attempt in chances:
            run = env.attempt(attempt)
            runs.append(run)
            trial = writer.open(decision, attempt, len(runs), ti_id=f"{t}")
            belief = learn(belief, writer.close(trial, run))
            if run.reached:
                break
        final = attempt is chances[-1]
        kept = run.reached or not attempt.bounded
        log.add(env.scenario, runs, final=final, kept=kept)
    return log


class Writer:
    """Makes the rows that the store would hold."""

    def __init__(self, job: ZeusJob, scenario: Scenario) -> None:
        self.job_id = job.job_id or scenario.pair.name
        self.number = 0  # of the newest row
        self._spec, self._max_epochs = job.to_dict(), scenario.pair.max_epochs
        self._gpu, self._max_power_w = scenario.pair.gpu, scenario.pair.max_power_w

    def open(self, decision: Decision, planned: PlannedAttempt, attempt: int, ti_id: str | None = None) -> Trial:
        """Return the row of a run that begins; the attempts of one recurrence share its ``ti_id``."""
        self.number += 1
        return Trial(
            job_id=self.job_id,
            number=self.number,
            key=TrialKey(ti_id or str(self.number), attempt),
            origin=_ORIGIN,
            spec=self._spec,
            decision=decision,
            planned=planned,
            state=State.RUNNING,
        )

    def close(self, trial: Trial, run: Run) -> Trial:
        """Return the row of a run that has ended."""
        state = State.CONVERGED
        if not run.reached:
            cut_short = trial.planned.bounded and run.epochs < self._max_epochs
            state = State.GIVEN_UP if cut_short else State.EXHAUSTED
        seen = Observation(
            epochs=run.epochs,
            samples=round(run.epochs * SLICE),
            samples_per_epoch=float(SLICE),
            energy_j=run.energy_j,
            time_s=run.time_s,
            excess_j=run.excess.energy_j,
            excess_s=run.excess.time_s,
            power_limit_w=run.limit_w,
            device_model=self._gpu,
            device_count=1,
            max_power_w=self._max_power_w,
            energy_source=SOURCE,
        )
        return replace(trial, state=state, observation=seen)
