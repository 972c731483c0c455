"""The log of one job in memory, read from and written to one JSON document."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Self

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.power_points import thinned
from airflow_provider_zeus.model.size_bounds import MOST_SAMPLES
from airflow_provider_zeus.model.trial import Origin, PowerPoint, ProfileSample, State, Trial, TrialKey, Where, summed
from airflow_provider_zeus.optimizer.policy import Belief, learn, prior
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.store import moving, rules
from airflow_provider_zeus.store.base import Unreadable
from airflow_provider_zeus.store.reported_figures import merged
from airflow_provider_zeus.store.rows import DAMAGE, is_known, points_from_lists, points_to_lists, unreadable
from airflow_provider_zeus.store.variables.document import (
    KEPT_POINTS,
    Beat,
    DeviceSamples,
    LogDocument,
    packed,
    unpacked,
)

KEPT_TRIALS = 500
RETURNED = 2  # newest runs of a map index whose returned value is kept
POINTED = 20  # newest trials that keep their power points and the metric of each epoch

log = logging.getLogger(__name__)


@dataclass(slots=True)
class VariableTrialService:
    """:class:`~airflow_provider_zeus.store.service.TrialService` in memory, read from and written to one text."""

    job_id: str
    now: float = 0.0
    seq: int = 0
    newest: int = 0
    forgotten: int = 0  # older trials that are no longer here
    log: list[Trial] = field(default_factory=list)  # in order of number
    samples: dict[tuple[Where, str], list[ProfileSample]] = field(
        default_factory=dict
    )  # by job version too; oldest first
    points: dict[int, list[PowerPoint]] = field(default_factory=dict)  # by trial number
    beats: dict[TrialKey, Beat] = field(default_factory=dict)  # of open trials
    unread: list[tuple[Any, Unreadable]] = field(default_factory=list)  # damaged trials, written back unchanged
    specs: list[Any] = field(default_factory=list)  # of the damaged trials
    beating: dict[TrialKey, Beat] = field(default_factory=dict)  # to write
    closed: list[Trial] = field(default_factory=list)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote. Raises TypeError or ValueError when it did not."""
        document = LogDocument.from_json(text)
        counters = {name: getattr(document, name) for name in ("job_id", "seq", "newest", "forgotten")}
        service = cls(**counters)
        service._read_trials(document.trials, document.specs)
        for values in document.samples:
            with suppress(*DAMAGE):
                found = DeviceSamples.from_list(values)
                service.samples[found.where, found.job_version] = list(found.samples)
        for values in document.points:
            with suppress(*DAMAGE):
                number, points = values
                if isinstance(number, int):
                    service.points[number] = points_from_lists(points)
        return service

    def _read_trials(self, trials: Sequence[Any], specs: Sequence[Any]) -> None:
        """A damaged trial does not lose the others; it is written back unchanged, since a person may repair it."""
        for data in trials:
            try:
                self.log.append(unpacked(data, self.job_id, specs))
            except DAMAGE as error:
                known = {**data, "job_id": self.job_id} if isinstance(data, dict) else {"job_id": self.job_id}
                self.unread.append((data, unreadable(known, error)))
        self.log.sort(key=lambda trial: trial.number)
        self.specs = list(specs) if self.unread else []

    def to_json(self) -> str:
        """The newest 500 trials, with power points and the metric by epoch the newest 20."""
        self._forget()
        specs: list[Any] = list(self.specs)
        document = LogDocument(
            job_id=self.job_id,
            seq=self.seq,
            newest=self.newest,
            forgotten=self.forgotten,
            trials=[*(data for data, _ in self.unread), *(packed(trial, specs) for trial in self.log)],
            specs=specs,  # after the trials, which add to it
            samples=[
                DeviceSamples.of(device, version, kept).to_list() for (device, version), kept in self.samples.items()
            ],
            points=[[number, points_to_lists(kept)] for number, kept in self.points.items()],
        )
        return document.to_json()

    def _forget(self) -> None:
        more = len(self.log) - KEPT_TRIALS
        if more > 0:
            if not self.forgotten:
                log.warning(
                    "Job %s: the Variable store keeps the newest %d trials and drops older ones from now on; "
                    "use PostgreSQL to keep all.",
                    visible(self.job_id),
                    KEPT_TRIALS,
                )
            del self.log[:more]
            self.forgotten += more
        self.points = {n: kept for n, kept in self.points.items() if n > self.newest - POINTED}
        for i, trial in enumerate(self.log):
            if trial.number <= self.newest - POINTED and trial.observation.epoch_metrics is not None:
                self.log[i] = replace(trial, observation=replace(trial.observation, epoch_metrics=None))
        self._forget_returned()

    def _forget_returned(self) -> None:
        """Keep what the newest runs of each map index returned: the whole log is written at each question."""
        kept: Counter[tuple[int, str]] = Counter()
        began = self._began()
        in_order = sorted(range(len(self.log)), key=lambda i: (_run_began(self.log[i], began), i), reverse=True)
        for i in in_order:
            seen, origin = self.log[i].observation, self.log[i].origin
            if seen.returned is not None and self.log[i].state.left_model:
                kept[origin.map_index, origin.run_type] += 1
                if kept[origin.map_index, origin.run_type] > RETURNED:
                    self.log[i] = replace(self.log[i], observation=replace(seen, returned=None))

    def _began(self) -> dict[tuple[str, str], int]:
        """Number of the first trial of each DAG run."""
        found: dict[tuple[str, str], int] = {}
        for trial in self.log:
            found.setdefault((trial.origin.dag_id, trial.origin.run_id), trial.number)
        return found

    def apply_beats(self, beats: Mapping[TrialKey, Beat]) -> None:
        """Apply the heartbeats of open trials."""
        self.beats = dict(beats)
        for i, trial in enumerate(self.log):
            beat = beats.get(trial.key)
            if beat and trial.state is State.RUNNING:
                seen = merged(trial.observation, beat.report.observation)
                self.log[i] = replace(trial, observation=seen, lease_until=beat.lease_until, lease_s=beat.lease_s)

    def find(self, key: TrialKey) -> Trial | None:
        return next((t for t in self.log if t.key == key), None)

    def open_trials(self) -> list[Trial]:
        return [t for t in self.log if t.state is State.RUNNING]

    def of_task_instance(self, ti_id: str) -> list[Trial]:
        return [t for t in self.log if t.key.ti_id == ti_id]

    def next_attempt(self, ti_id: str) -> int:
        taken = [t.key.attempt for t in self.of_task_instance(ti_id)]
        for data, _ in self.unread:
            attempt = data.get("attempt") if isinstance(data, dict) and data.get("ti_id") == ti_id else None
            taken += [attempt] if isinstance(attempt, int) else []
        return max(taken, default=0) + 1

    def of_run(self, dag_id: str, run_id: str) -> list[Trial]:
        return [t for t in self.log if (t.origin.dag_id, t.origin.run_id) == (dag_id, run_id)]

    def belief(self, job: ZeusJob, oldest_open: int | None) -> Belief:
        return reduce(learn, filter(is_known, self.log), prior(job))

    def profile(self, device: Where | None, job_version: str) -> tuple[ProfileSample, ...]:
        if device is None:
            return ()
        own = {t.key for t in self.log if rules.version_of(t.spec) == job_version}
        here = [b.report for key, b in self.beats.items() if key in own and b.report.observation.where == device]
        kept = self.samples.get((device, job_version), ())
        return summed([*kept, *(s for report in here for s in report.profile)])

    def limits_found(self) -> Mapping[str, tuple[float, float]]:
        seen = ((t.state, t.observation) for t in self.log if t.observation.limit_found_w is not None)
        return rules.limits_left((o.gpu_uuid, state, o.limit_found_w, o.power_limit_w) for state, o in seen)

    def spent(self, begin_s: float, source: str | None) -> tuple[float | None, float]:
        here = [t.observation for t in self.log if t.opened_at >= begin_s and t.observation.energy_source == source]
        energies = [o.energy_j for o in here if o.energy_j is not None]
        return sum(energies) if energies else None, sum(rules.spent_by(o)[1] for o in here)

    def measured(self, source: str | None, most: int) -> list[Trial]:
        ended = [t for t in self.log if t.state.teaches and t.observation.time_s is not None]
        return [t for t in ended if t.observation.energy_source == source][-most:]

    def left_a_model(self, origin: Origin, run_types: Sequence[str], most: int) -> list[Trial]:
        began = self._began()
        found = (t for t in reversed(self.log) if rules.serves_as_previous(t, origin, run_types))
        before = began.get((origin.dag_id, origin.run_id), math.inf) if origin.run_id else math.inf
        return rules.newest_runs(((_run_began(t, began), t) for t in found), before, most)

    def add(self, trial: Trial) -> None:
        for key in [k for k in self.beats if k.ti_id == trial.key.ti_id]:
            self._end_beat(key)  # attempts of one task instance share a key: the new attempt's beat replaces this one
        self.log.append(trial)
        self.newest = trial.number
        self._write_beat(trial)

    def numbers(self) -> Mapping[TrialKey, int]:
        return {t.key: t.number for t in self.log}

    def take_in(self, trial: Trial) -> None:
        if trial.planned not in trial.decision.in_order:  # a pruned trial: here a row names an attempt of its decision
            trial = replace(trial, decision=replace(trial.decision, attempts=(trial.planned,), stand_in=None))
        self.log.append(trial)
        self.log.sort(key=lambda t: t.number)
        self.newest, self.seq = max(self.newest, trial.number), max(self.seq, trial.told_seq or 0)

    def add_profile(self, device: Where, job_version: str, samples: Iterable[ProfileSample]) -> None:
        of = device, job_version
        self.samples[of] = list(summed([*self.samples.get(of, ()), *samples])[:MOST_SAMPLES])

    def renamed(self, target: Self) -> Self:
        """This log as that of the job of ``target``, whose own trials follow. Neither has an open trial.

        Raises StoreError where ``target`` has damaged trials, which cannot get other numbers.
        """
        if target.unread:
            raise StoreError(f"Trials of {target.job_id!r} are damaged: repair or delete them, then try again.")
        both = {**self.samples}
        for of, samples in target.samples.items():
            both[of] = list(summed([*both.get(of, ()), *samples])[:MOST_SAMPLES])
        return replace(
            target,
            seq=self.seq + target.seq,
            newest=self.newest + target.newest,
            forgotten=self.forgotten + target.forgotten,
            log=[
                *(moving.renamed(t, self.job_id, target.job_id) for t in self.log),
                *(moving.later(t, self.newest, self.seq) for t in target.log),
            ],
            samples=both,
            points={**self.points, **{n + self.newest: points for n, points in target.points.items()}},
            unread=self.unread,
            specs=self.specs,
        )

    def put(self, trial: Trial, *, relearn: bool = False) -> None:
        i = next(i for i, t in enumerate(self.log) if t.key == trial.key)
        self.log[i] = trial
        if trial.state is State.RUNNING:
            self._write_beat(trial)
        else:
            self._end_beat(trial.key)
            self.closed.append(trial)

    def _write_beat(self, trial: Trial) -> None:
        """Write lease and figures to the beat of the task instance, unless that belongs to another attempt."""
        if not any(key.ti_id == trial.key.ti_id and key != trial.key for key in self.beats):
            beat = Beat.of(trial, self.beats.get(trial.key))
            self.beats[trial.key] = self.beating[trial.key] = beat

    def _end_beat(self, key: TrialKey) -> None:
        beat, trial = self.beats.pop(key, None), self.find(key)
        if beat and trial:
            self.add_samples(trial, beat.report.profile)
            self.add_points(key, beat.report.points)

    def add_samples(self, trial: Trial, samples: Iterable[ProfileSample]) -> None:
        device = trial.observation.where
        if device is None:
            return
        self.add_profile(device, rules.version_of(trial.spec), samples)

    def add_points(self, key: TrialKey, points: Sequence[PowerPoint]) -> None:
        trial = self.find(key)
        if trial and points:
            self.points[trial.number] = thinned([*self.points.get(trial.number, ()), *points], KEPT_POINTS)


def _run_began(trial: Trial, began: Mapping[tuple[str, str], int]) -> int:
    """Number of the first trial of a trial's run; outside of Airflow each trial is a run."""
    run = trial.origin.dag_id, trial.origin.run_id
    return began[run] if trial.origin.run_id else trial.number
