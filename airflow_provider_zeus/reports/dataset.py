"""The part of a trial log that reports read: each trial once, of this job version, with finite figures.

Sources are never mixed: joules and seconds come from the trials of one ``where`` (device model, count, energy source),
the newest by default. Epochs do not depend on the GPU (Eq. 6): the trials of all devices count for them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, reduce
from typing import Any

from airflow_provider_zeus.model.cost import Weights, observed_cost
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import LOST, DeviceInfo, Observation, Phase, State, Trial, Where, newest_device
from airflow_provider_zeus.optimizer.belief import Belief, prior
from airflow_provider_zeus.optimizer.learn import learn, same_target, with_rates

RunId = tuple[str, ...]  # of a scheduled run of one task and map index


@dataclass(frozen=True)
class Dataset:
    """Trials in order of number, and how many were left out of them, by reason."""

    job: ZeusJob
    trials: tuple[Trial, ...]
    where: Where | None  # None: no trial has named its device yet
    left_out: dict[str, int]
    lessons: tuple[Trial, ...]  # all that the policy learns from: also runs that are left out of the figures
    settings: Mapping[str, Any] = field(default_factory=dict)  # live ones
    folded: Belief | None = None  # what was learned from the lessons, where that is known already

    @property
    def device(self) -> DeviceInfo | None:
        """The device of ``where`` as ``choose`` expects it, with the MAXPOWER [W] that its newest trial reported."""
        if self.where is None:
            return None
        powers_w = [t.observation.max_power_w for t in self.here() if t.observation.max_power_w is not None]
        model, count, source = self.where
        max_power_w = powers_w[-1] if powers_w else None
        return DeviceInfo(model=model, count=count, energy_source=source, max_power_w=max_power_w)

    def here(self) -> tuple[Trial, ...]:
        """The trials whose figures may be added and compared: those of ``where``."""
        return tuple(t for t in self.trials if t.observation.where == self.where) if self.where else ()

    def newest_limit_w(self, batch_size: int) -> float | None:
        """The power limit [W] of the newest run of a batch size that left a model here; None: none was read."""
        runs = (t for t in reversed(self.here()) if t.batch_size == batch_size and t.state.kept_model)
        return next((w for t in runs if (w := t.observation.power_limit_w)), None)

    def of_target(self) -> Dataset:
        """Without the runs to another target, whose epochs and totals do not compare. What was learned stays."""
        same = tuple(t for t in self.trials if same_target(t, self.job))
        gone = len(self.trials) - len(same)
        if not gone:
            return self
        return replace(self, trials=same, left_out={**self.left_out, "of another target": gone})

    def belief(self) -> Belief:
        """What the job's policy has learned: the belief that its next run is decided with."""
        return reduce(learn, self.lessons, prior(self.job, self.settings)) if self.folded is None else self.folded

    def at(self, job: ZeusJob, recosted: Callable[[Trial], Trial]) -> Dataset:
        """The same trials, their energy and time replaced by ``recosted``, under a job that weighs them differently.

        Their epochs and states stay as they are, and so does what was learned from these.
        """
        lessons = tuple(map(recosted, self.lessons))
        by_number = {t.number: t for t in lessons}
        trials = tuple(by_number[t.number] for t in self.trials)  # they are lessons, too
        folded = None if self.folded is None else with_rates(replace(self.folded, job=job), lessons)
        return replace(self, job=job, trials=trials, lessons=lessons, folded=folded)


def as_dataset(
    trials: Iterable[Trial], job: ZeusJob, where: Where | None = None, settings: Mapping[str, Any] | None = None
) -> Dataset:
    """Take from a log what may be read for ``job``; odd trials are left out and counted, nothing is raised.

    Left out are: a second row of one trial (the row stored last stays), a state or phase that this version does not
    know, a run that was measured without a batch size, one whose slice of data was empty, one that did not use its
    batch size (``Observation.bypassed``), another ``job_version``. A figure that is not finite, or is below 0 where it
    cannot be, counts as missing. Old trials of another policy, another eta or another batch-size list stay: they are
    re-costed.

    :param settings: live settings, of which those of excluded trials count; default: those of the newest decision.
    """
    rows = sorted(trials, key=lambda t: (t.number, t.told_seq or 0))
    once = list({t.number: t for t in rows}.values())
    readable = [t for t in once if t.state in frozenset(State) and t.planned.phase in frozenset(Phase)]
    known = [replace(t, observation=_finite(t.observation)) for t in readable]
    sized = [t for t in known if t.planned.phase is not Phase.MEASURED]
    trained = [t for t in sized if t.state is not State.NO_DATA]
    used = [t for t in trained if t.observation.bypassed is None]
    own = [t for t in used if t.spec["job_version"] == job.job_version]
    steps: list[tuple[str, Sequence[Trial], Sequence[Trial]]] = [
        ("written twice", rows, once),
        ("in a state or phase that this version does not know", once, known),
        ("that were measured before the job named batch sizes", known, sized),
        ("whose slice of data was empty", sized, trained),
        ("not seen to use the chosen batch size", trained, used),
        ("of another job_version", used, own),
    ]
    left_out = {why: len(before) - len(after) for why, before, after in steps if len(after) < len(before)}
    devices = Counter(t.observation.where for t in own if t.observation.where is not None)
    if where is None:
        where = newest_device(own)
    others = sum(n for device, n in devices.items() if device != where)
    if others:
        left_out["on another device or by another energy source, for joules and seconds"] = others
    if settings is None:
        settings = next((t.decision.settings for t in reversed(once) if t.decision.settings is not None), {})
    return Dataset(job, tuple(own), where, left_out, tuple(known), settings)


def _finite(o: Observation) -> Observation:
    """The observation with every figure missing that is not finite, or is below 0 where it cannot be."""
    # Profiling below the chosen limit draws less than the same samples there; a price of the hour may be below 0.
    signed = {"metric", "target_value", "excess_j", "excess_s", "price_per_kwh", "price_at_once"}
    gone = {
        f.name: None
        for f in fields(o)
        if isinstance(value := getattr(o, f.name), int | float)
        and not (math.isfinite(value) and (value >= 0 or f.name in signed))
    }
    return replace(o, **gone) if gone else o  # type: ignore[arg-type]


def runs_of(trials: Iterable[Trial]) -> list[list[Trial]]:
    """The trials of each run, task and map index; runs in the order in which their first trial was opened.

    Those of a run are in order of number, but for tries whose result was lost: they are written last, and come first
    here. So what a run ends with is its last trial.
    """
    runs: dict[RunId, list[Trial]] = {}
    for trial in sorted(trials, key=lambda t: t.number):
        runs.setdefault((trial.job_id, *trial.recurrence), []).append(trial)
    return [sorted(run, key=lambda t: t.reason != LOST) for run in runs.values()]


ENERGY, TIME = Weights(1.0, 1.0), Weights(0.0, 1.0)  # a "cost" that is the energy [J] alone, the time [s] alone


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
        """The part that left no model: attempts given up, below target or failed, and the excess of profiling.

        At least 0: below the chosen limit profiling may draw less than training would have, and that is no cost.
        """
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
        found = total(parts)
        return None if found is None else max(found, 0.0)

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


def gpu_s_of(seen: Iterable[Observation]) -> float:
    """Time of all devices [s]: that of each attempt by its own number of them; an unknown one counts as 0."""
    return math.fsum(o.spent[1] for o in seen)


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
        why = "that failed before they reported anything: what they spent is not known"
        gone = len(group) - len(measured) - len(idle)
        if any(t.state is State.RUNNING for t in group):
            why, gone = "of a run that has not ended", len(group)
        elif not (measured or idle) or any(t.observation.time_s is None for t in measured):
            why, gone = "of a run whose attempts reported no time", len(group)
        elif any(t.observation.where != log.where for t in measured):
            why, gone = "of a run that another device or energy source measured", len(group)
        else:
            found.append(RunTrials((*measured, *idle)))
        if gone:
            left_out[why] = left_out.get(why, 0) + gone
    return found, left_out
