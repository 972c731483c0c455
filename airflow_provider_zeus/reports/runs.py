"""Trials grouped into scheduled runs: what each run spent, and what of it left no model. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from airflow_provider_zeus.model.cost import Weights, observed_cost
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.reports.dataset import Dataset
from airflow_provider_zeus.reports.slice_epochs import RunId

ENERGY, TIME = Weights(1.0, 1.0), Weights(0.0, 1.0)  # a "cost" that is the energy [J] alone, the time [s] alone
RUNNING = "of a run that has not ended"
ELSEWHERE = "of a run that another device or energy source measured"
NO_TIME = "of a run whose attempts reported no time"
DIED = "that failed before they reported anything: what they spent is not known"


@dataclass(frozen=True)
class RunTrials:
    """The tries and attempts of one scheduled run, in order of number."""

    trials: tuple[Trial, ...]

    @cached_property
    def id(self) -> RunId:
        """The scheduled run."""
        return self.trials[0].recurrence

    @cached_property
    def kept(self) -> bool:
        """Whether the run left a model, below its target or not, or kept an earlier one."""
        return self.not_needed or any(map(self._keeps, self.trials))

    @cached_property
    def not_needed(self) -> bool:
        """Whether the run trained nothing since the model of an earlier one is still good."""
        return any(t.state is State.NOT_NEEDED for t in self.trials)

    @property
    def _trained(self) -> list[Trial]:
        """Its trials without the one that found the earlier model good: that one trained nothing."""
        return [t for t in self.trials if t.state is not State.NOT_NEEDED]

    @cached_property
    def samples_per_epoch(self) -> float | None:
        """Size of the run's slice; None where no loader counted it."""
        for o in (t.observation for t in reversed(self.trials)):
            if size := o.samples_per_epoch or (o.samples / o.epochs if o.samples and o.epochs else None):
                return size
        return None

    def spent(self, weights: Weights) -> float | None:
        """Cost of the whole run, profiling included; None where an attempt's is not known."""
        return total(observed_cost(t.observation, weights) for t in self._trained)

    def exploration(self, weights: Weights) -> float | None:
        """The part that left no model: attempts given up, below target or failed, and the excess of profiling."""
        parts: list[float | None] = []
        for trial in self._trained:
            o = trial.observation
            if not self._keeps(trial):
                parts.append(observed_cost(o, weights))
            elif o.excess_s is None and o.excess_j is None:  # nothing was profiled
                parts.append(0.0)
            else:
                known = weights.eta == 0 or o.excess_j is not None
                parts.append(weights.cost(o.excess_j, o.excess_s or 0.0) if known else None)
        return total(parts)

    def _keeps(self, trial: Trial) -> bool:
        """Whether an attempt left a model: one below its target has left none where another attempt followed it."""
        if not trial.state.kept_model:
            return False
        start, attempt = trial.key.ti_id, trial.key.attempt
        followed = any(t.key.ti_id == start and t.key.attempt > attempt for t in self.trials)
        return trial.state is State.CONVERGED or not followed


def total(values: Iterable[float | None]) -> float | None:
    """The sum; None where one of the values is None."""
    found = list(values)
    return None if None in found else math.fsum(v for v in found if v is not None)


def recurrences(log: Dataset) -> tuple[list[RunTrials], dict[str, int]]:
    """(Runs that have ended and were measured on one device, oldest first; reason -> how many trials it leaves out).

    A trial without a run id is grouped with the others of its task instance. A try that failed before it trained spent
    nothing that could be measured: it is no part of its run and is counted as left out. A run that was not needed spent
    nothing on training; what its check drew is not measured.
    """
    groups: dict[tuple[str, ...], list[Trial]] = {}
    for trial in log.trials:
        groups.setdefault(trial.recurrence, []).append(trial)
    left_out, found = dict(log.left_out), []
    for group in groups.values():
        idle = [t for t in group if t.state is State.NOT_NEEDED]
        measured = [t for t in group if t not in idle and (t.observation.time_s is not None or t.state.kept_model)]
        why, gone = DIED, len(group) - len(measured) - len(idle)
        if any(t.state is State.RUNNING for t in group):
            why, gone = RUNNING, len(group)
        elif not (measured or idle) or any(t.observation.time_s is None for t in measured):
            why, gone = NO_TIME, len(group)
        elif any(t.observation.where != log.where for t in measured):
            why, gone = ELSEWHERE, len(group)
        else:
            found.append(RunTrials((*measured, *idle)))
        if gone:
            left_out[why] = left_out.get(why, 0) + gone
    return found, left_out
