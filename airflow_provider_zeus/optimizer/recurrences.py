"""Trials put together to the scheduled runs that they belong to: what each spent, and what of it left no model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_zeus.optimizer.cost import Weights, observed_cost
from airflow_provider_zeus.optimizer.evidence import Evidence
from airflow_provider_zeus.optimizer.trial import Observation, State, Trial

ENERGY, TIME = Weights(1.0, 1.0), Weights(0.0, 1.0)  # a "cost" that is the energy [J], the time [s] alone
KEPT = (State.CONVERGED, State.EXHAUSTED)
RUNNING = "of a run that has not ended"
ELSEWHERE = "of a run that another device or energy source measured"
UNTOLD = "of a run whose attempts told no time"
DIED = "that died before they told anything: what they spent is not known"


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The tries and attempts of one scheduled run, in order of number."""

    trials: tuple[Trial, ...]

    @property
    def kept(self) -> bool:
        """Whether a model came out, below its target or not."""
        return any(map(self._keeps, self.trials))

    @property
    def samples_per_epoch(self) -> float | None:
        """Size of its slice; None where no loader told it."""
        told = [_size(t.observation) for t in reversed(self.trials)]
        return next((size for size in told if size), None)

    def spent(self, weights: Weights) -> float | None:
        """Cost of all of it, profiling included; None where an attempt's is not known."""
        costs = [observed_cost(t.observation, weights) for t in self.trials]
        return None if None in costs else math.fsum(c for c in costs if c is not None)

    def exploration(self, weights: Weights) -> float | None:
        """The part that left no model: attempts given up, missed or dead, and the excess of profiling."""
        total = 0.0
        for trial in self.trials:
            part = _excess(trial.observation, weights)
            if not self._keeps(trial):
                part = observed_cost(trial.observation, weights)
            if part is None:
                return None
            total += part
        return total

    def _keeps(self, trial: Trial) -> bool:
        """Whether it left a model: one that missed its target has left none where another attempt followed it."""
        if trial.state not in KEPT:
            return False
        start, attempt = trial.key.ti_id, trial.key.attempt
        followed = any(t.key.ti_id == start and t.key.attempt > attempt for t in self.trials)
        return trial.state is State.CONVERGED or not followed


def recurrences(log: Evidence) -> tuple[list[Recurrence], dict[str, int]]:
    """Scheduled runs that are over and measured on one device, oldest first; and how many trials are left out, and why.

    A trial that no run id names stands with the others of its task instance. A try that died before it trained spent
    nothing that could be measured: it is no part of its run, and counted as left out.
    """
    groups: dict[tuple[str, ...], list[Trial]] = {}
    for trial in log.trials:
        o = trial.origin
        key = (o.dag_id, o.run_id, o.task_id, str(o.map_index)) if o.run_id else (trial.key.ti_id,)
        groups.setdefault(key, []).append(trial)
    left_out, found = dict(log.left_out), []
    for group in groups.values():
        measured = [t for t in group if t.observation.time_s is not None or t.state in KEPT]
        why_not = _why_not(group, measured, log)
        if why_not is None:
            found.append(Recurrence(tuple(measured)))
        why, gone = (DIED, len(group) - len(measured)) if why_not is None else (why_not, len(group))
        if gone:
            left_out[why] = left_out.get(why, 0) + gone
    return found, left_out


def _why_not(group: Sequence[Trial], measured: Sequence[Trial], log: Evidence) -> str | None:
    if any(t.state is State.RUNNING for t in group):
        return RUNNING
    if not measured or any(t.observation.time_s is None for t in measured):
        return UNTOLD
    return ELSEWHERE if any(t.observation.where != log.where for t in measured) else None


def _size(o: Observation) -> float | None:
    return o.samples_per_epoch or (o.samples / o.epochs if o.samples and o.epochs else None)


def _excess(o: Observation, weights: Weights) -> float | None:
    """Cost of what profiling drew beyond training [J]; 0 where nothing was profiled."""
    if o.excess_s is None and o.excess_j is None:
        return 0.0
    if weights.eta > 0 and o.excess_j is None:
        return None
    return weights.cost(o.excess_j, o.excess_s or 0.0)
