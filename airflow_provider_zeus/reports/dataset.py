"""The part of a trial log that reports read: each trial once, of this job version, with finite
figures.

Sources are never mixed: joules and seconds come from the trials of one ``where`` (device model,
count, energy source), the newest by default. Epochs do not depend on the GPU (Eq. 6): the trials of
all devices count for them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, reduce
from typing import Any

from airflow_provider_zeus.model.cost import Weights, observed_cost
from airflow_provider_zeus.model.groups import grouped, newest_known, of_all
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    LOST,
    DeviceInfo,
    Observation,
    Phase,
    State,
    Trial,
    Where,
    newest_device,
)
from airflow_provider_zeus.optimizer.belief import Belief, prior
from airflow_provider_zeus.optimizer.learn import learn, same_target, with_rates

# Pages end a sentence with each of these: "Left out: 3 attempts written twice."
_TWICE = "written twice"
_UNKNOWN = "in a state or phase that this version does not know"
_WITHOUT_SIZES = "that were measured before the job named batch sizes"
_NO_DATA = "whose slice of data was empty"
_BYPASSED = "not seen to use the chosen batch size"
_OTHER_VERSION = "of another job_version"
_ELSEWHERE = "on another device or by another energy source, for joules and seconds"
_REASONS = (
    _TWICE,
    _UNKNOWN,
    _WITHOUT_SIZES,
    _NO_DATA,
    _BYPASSED,
    _OTHER_VERSION,
    _ELSEWHERE,
)
_FAILED_FIRST = "that failed before they reported anything: what they spent is not known"

RunId = tuple[str, ...]


@dataclass(frozen=True)
class Dataset:
    """Trials in order of number, and how many were left out of them, by reason."""

    job: ZeusJob
    trials: tuple[Trial, ...]
    where: Where | None
    left_out: dict[str, int]
    # A run may teach though its figures do not compare, for example on another device.
    lessons: tuple[Trial, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    folded: Belief | None = None  # learning is the slow part: kept once it is done

    @property
    def device(self) -> DeviceInfo | None:
        """The device of ``where`` as ``choose`` expects it, with the MAXPOWER [W] that its newest
        trial reported.
        """
        if self.where is None:
            return None
        # A device may be moved to another host with another limit: the newest report counts.
        max_power_w = newest_known(trial.observation.max_power_w for trial in self.here())
        model, count, source = self.where
        return DeviceInfo(model=model, count=count, energy_source=source, max_power_w=max_power_w)

    def here(self) -> tuple[Trial, ...]:
        """The trials whose figures may be added and compared: those of ``where``."""
        if not self.where:
            return ()
        return tuple(t for t in self.trials if t.observation.where == self.where)

    def newest_limit_w(self, batch_size: int) -> float | None:
        """The power limit [W] of the newest run of a batch size that left a model here; None: none
        was read.
        """
        for trial in reversed(self.kept(batch_size)):
            if trial.observation.power_limit_w:
                return trial.observation.power_limit_w
        return None

    def kept(self, batch_size: int) -> list[Trial]:
        """The trials of a batch size here that left a model."""
        models = [t for t in self.here() if t.state.kept_model]
        return [t for t in models if t.batch_size == batch_size]

    def has_reached(self, batch_size: int) -> bool:
        """Whether a trial of a batch size has reached the target, on any device."""
        reached = [t for t in self.trials if t.state is State.CONVERGED]
        return any(t.batch_size == batch_size for t in reached)

    def of_target(self) -> Dataset:
        """Without the runs to another target, whose epochs and totals do not compare.

        The belief stays.
        """
        same = tuple(t for t in self.trials if same_target(t, self.job))
        gone = len(self.trials) - len(same)
        if not gone:
            return self
        return replace(self, trials=same, left_out={**self.left_out, "of another target": gone})

    def belief(self) -> Belief:
        """The belief that the next run of the job is decided with: all that its policy has
        learned.
        """
        if self.folded is not None:
            return self.folded
        return reduce(learn, self.lessons, prior(self.job, self.settings))

    def at(self, job: ZeusJob, recosted: Callable[[Trial], Trial]) -> Dataset:
        """The same trials, their energy and time replaced by ``recosted``, under a job that weighs
        them differently.

        Their epochs and states stay as they are, and so does the belief about these.
        """
        lessons = tuple(map(recosted, self.lessons))
        by_number = {t.number: t for t in lessons}
        # both tuples must hold the same trials, or a run would have two costs
        trials = tuple(by_number[t.number] for t in self.trials)  # each trial is a lesson, too
        folded = self.folded
        if folded is not None:
            folded = with_rates(replace(folded, job=job), lessons)
        return replace(self, job=job, trials=trials, lessons=lessons, folded=folded)


def as_dataset(
    trials: Iterable[Trial],
    job: ZeusJob,
    where: Where | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Dataset:
    """The trials of a log that may be read for ``job``; odd ones are left out and counted, nothing
    is raised.

    Left out are: a second row of one trial (the row stored last stays), a state or phase that this
    version does not know, a run that was measured without a batch size, one whose slice of data was
    empty, one that did not use its batch size (``Observation.bypassed``), another ``job_version``.
    A figure that is not finite, or is below 0 although it cannot be, counts as missing. Old trials
    of another policy, another eta or another batch-size list stay: they are re-costed.

    :param settings: live settings, of which those of excluded trials count; default: those of the
        newest decision.
    """
    rows = sorted(trials, key=lambda t: (t.number, t.told_seq or 0))
    # The row of an end replaces an older one of its trial, or the run would count twice.
    once = list({t.number: t for t in rows}.values())
    left_out = Counter(dict.fromkeys(_REASONS, 0))  # else the log would set their order
    left_out[_TWICE] = len(rows) - len(once)
    lessons = []
    own = []
    for row in once:
        # A newer version may know more states than this one.
        is_readable = row.state in frozenset(State) and row.planned.phase in frozenset(Phase)
        if not is_readable:
            left_out[_UNKNOWN] += 1
            continue
        trial = replace(row, observation=_finite(row.observation))
        lessons.append(trial)
        # A trial that does not compare may still teach.
        why_not = _why_not_compared(trial, job)
        if why_not is None:
            own.append(trial)
        else:
            left_out[why_not] += 1
    # The next run will cost what runs on the newest device do.
    if where is None:
        where = newest_device(own)
    # they stay in: their epochs count, since these do not depend on the GPU (Eq. 6)
    elsewhere = [t for t in own if t.observation.where not in (None, where)]
    left_out[_ELSEWHERE] = len(elsewhere)
    if settings is None:
        settings = newest_known(trial.decision.settings for trial in once) or {}
    return Dataset(
        job=job,
        trials=tuple(own),
        where=where,
        left_out=dict(+left_out),  # or a page would tell of 0 attempts left out
        lessons=tuple(lessons),
        settings=settings,
    )


def _why_not_compared(trial: Trial, job: ZeusJob) -> str | None:
    """Why a trial is no part of the figures of a job; None: it is one."""
    if trial.planned.phase is Phase.MEASURED:
        return _WITHOUT_SIZES
    if trial.state is State.NO_DATA:
        return _NO_DATA
    if trial.observation.bypassed is not None:
        return _BYPASSED
    if trial.job_version != job.job_version:
        return _OTHER_VERSION
    return None


# Profiling below the chosen limit draws less than the same samples there; a price of the hour may
# be below 0.
_SIGNED = {"metric", "target_value", "excess_j", "excess_s", "price_per_kwh", "price_at_once"}


def _finite(o: Observation) -> Observation:
    """The observation without the figures that are not finite, or below 0 though they cannot be."""
    gone = [f.name for f in fields(o) if not _is_figure(f.name, getattr(o, f.name))]
    if not gone:
        return o
    nothing: dict[str, Any] = dict.fromkeys(gone)
    return replace(o, **nothing)


def _is_figure(name: str, value: object) -> bool:
    """Whether a value is no number at all, or one that its field may have."""
    if not isinstance(value, int | float):
        return True
    # A meter that went back or a training that lies would make a sum look cheap.
    if value < 0 and name not in _SIGNED:
        return False
    return math.isfinite(value)


def runs_of(trials: Iterable[Trial]) -> list[list[Trial]]:
    """The trials of each run, task and map index; runs in the order in which their first trial was
    opened.

    Those of a run are in order of number, but for tries whose result was lost: they are written
    last, and come first here. So the last trial says how the run ended.
    """
    in_order = sorted(trials, key=lambda t: t.number)
    runs = grouped(in_order, lambda t: (t.job_id, *t.recurrence))
    return [sorted(run, key=lambda t: t.reason != LOST) for run in runs.values()]


OFTEN = 1 / 6  # fewer runs below their target may be bad luck


def often_below(runs: Sequence[Sequence[Trial]]) -> int:
    """How many of the runs left a model below its target; 0 if that is an exception.

    :param runs: that have ended, each with its trials.
    """
    below = sum(run[-1].state is State.EXHAUSTED for run in runs)
    # One such run is chance.
    if below <= 1 or below < OFTEN * len(runs):
        return 0
    return below


# With a MAXPOWER of 1 W a cost of Eq. 2 is the energy [J] alone, or the time [s] alone.
ENERGY = Weights(1.0, 1.0)
TIME = Weights(0.0, 1.0)


@dataclass(frozen=True)
class RunTrials:
    """The tries and attempts of one scheduled run in the order in which they ran, as
    :func:`runs_of` gives them.
    """

    trials: tuple[Trial, ...]

    @cached_property
    def id(self) -> RunId:
        """The scheduled run."""
        return self.trials[0].recurrence

    @cached_property
    def kept(self) -> bool:
        """Whether the run left a model, below its target or not, or kept an earlier one."""
        return self.not_needed or bool(self._models)

    @cached_property
    def not_needed(self) -> bool:
        """Whether the run trained nothing since the model of an earlier one is still good."""
        return any(t.state is State.NOT_NEEDED for t in self.trials)

    @property
    def _trained(self) -> list[Trial]:
        """Its trials without the one that found the earlier model good: that one trained
        nothing.
        """
        return [t for t in self.trials if t.state is not State.NOT_NEEDED]

    @cached_property
    def samples_per_epoch(self) -> float | None:
        """Size of the run's slice; None if no loader counted it."""
        for trial in reversed(self.trials):
            o = trial.observation
            if o.samples_per_epoch:
                return o.samples_per_epoch
            if o.samples and o.epochs:
                return o.samples / o.epochs
        return None

    @cached_property
    def model(self) -> Trial | None:
        """The attempt whose model the run leaves; None if it left none, or kept that of an earlier
        run.
        """
        if not self._models:
            return None
        return self._models[-1]

    @cached_property
    def _models(self) -> list[Trial]:
        """The attempts that left a model, in order: a later one replaces it."""
        return [t for t in self._trained if self._keeps(t)]

    @cached_property
    def failed_tries(self) -> tuple[Trial, ...]:
        """Attempts that failed or were killed, and not by the batch size that was chosen for them.

        That is so at the default, if the same size kept a model later in the run, and if the run
        kept none. What they took is told and compared with nothing: it would have been lost without
        us, too.
        """
        died = [t for t in self._trained if t.state.died]
        return tuple(t for t in died if not self._died_by_its_size(t))

    @cached_property
    def cleared(self) -> tuple[Trial, ...]:
        """Attempts that kept a model which a later try of the run replaced: somebody cleared the
        task.

        Their cost is shown and compared with nothing: somebody asked for it.
        """
        return tuple(self._models[:-1])

    @cached_property
    def compared(self) -> tuple[Trial, ...]:
        """Its attempts without failed and cleared tries: the run is compared by these."""
        aside = {t.key for t in (*self.failed_tries, *self.cleared)}
        return tuple(t for t in self._trained if t.key not in aside)

    def _died_by_its_size(self, trial: Trial) -> bool:
        """Whether another size than that of an attempt that died, not the default, kept the run's
        model after it.
        """
        # The default would have failed without Zeus, too.
        if self.model is None or trial.batch_size == trial.spec.get("default_batch_size"):
            return False
        # A size that works on the same slice shows that the other one was at fault.
        later = self.trials[self.trials.index(trial) + 1 :]
        sizes = {t.batch_size for t in later if self._keeps(t)}
        return bool(sizes) and trial.batch_size not in sizes

    def spent(self, weights: Weights) -> float | None:
        """Cost of the attempts that it is compared by, profiling included; None if that of one is
        not known.
        """
        return total(observed_cost(t.observation, weights) for t in self.compared)

    def exploration(self, weights: Weights) -> float | None:
        """The part of it that left no model: attempts given up, below target or failed by their
        size, and profiling.

        At least 0: below the chosen limit profiling may draw less than training would have, and
        that is no cost.
        """
        parts: list[float | None] = []
        for trial in self.compared:
            o = trial.observation
            if not self._keeps(trial):
                parts.append(observed_cost(o, weights))
                continue
            is_profiled = o.excess_s is not None or o.excess_j is not None
            if not is_profiled:
                parts.append(0.0)
            elif weights.eta != 0 and o.excess_j is None:
                # Energy weighs in this cost, so the seconds alone would be a part of it.
                parts.append(None)
            else:
                parts.append(weights.cost(o.excess_j, o.excess_s or 0.0))
        whole = total(parts)
        if whole is None:
            return None
        return max(whole, 0.0)

    def _keeps(self, trial: Trial) -> bool:
        """Whether an attempt left a model: one below its target has left none if another attempt
        followed it.
        """
        if not trial.state.kept_model:
            return False
        if trial.state is State.CONVERGED:
            return True
        # a retry starts anew: attempts follow each other within a try alone
        own_try = [t for t in self.trials if t.key.ti_id == trial.key.ti_id]
        return all(t.key.attempt <= trial.key.attempt for t in own_try)


def total(values: Iterable[float | None]) -> float | None:
    """The sum; None if one of the values is None."""
    return of_all(math.fsum, list(values))


def gpu_s_of(observations: Iterable[Observation]) -> float:
    """Time of all devices [s]: that of each attempt by its own number of them; an unknown one
    counts as 0.
    """
    return math.fsum(o.spent[1] for o in observations)


def recurrences(log: Dataset) -> tuple[list[RunTrials], dict[str, int]]:
    """(Runs that have ended and were measured on one device, oldest first; reason -> how many
    trials it leaves out).

    A trial without a run id is grouped with the others of its task instance. A try that failed
    before it trained spent nothing that could be measured: it is no part of its run and is counted
    as left out. A run that was not needed spent nothing on training; the energy of its check is not
    measured.
    """
    left_out = Counter(log.left_out)
    runs = []
    for group in runs_of(log.trials):
        idle = [t for t in group if t.state is State.NOT_NEEDED]
        trained = [t for t in group if t.state is not State.NOT_NEEDED]
        measured = [t for t in trained if t.observation.time_s is not None or t.state.kept_model]
        observations = [t.observation for t in measured]
        has_times = all(o.time_s is not None for o in observations)
        is_empty = not measured and not idle
        if any(t.state is State.RUNNING for t in group):
            left_out["of a run that has not ended"] += len(group)
        elif is_empty or not has_times:
            left_out["of a run whose attempts reported no time"] += len(group)
        elif any(o.where != log.where for o in observations):
            left_out["of a run that another device or energy source measured"] += len(group)
        else:
            runs.append(RunTrials((*measured, *idle)))
            failed = len(trained) - len(measured)
            if failed:
                left_out[_FAILED_FIRST] += failed
    return runs, dict(left_out)
