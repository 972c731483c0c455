"""``VariableStore``: the trial log in Airflow Variables, for an installation without a separate database.

Variables have no compare-and-swap: of two concurrent writes one is lost. So the store accepts only jobs whose
recurrences cannot overlap, and reads each Variable again after it has written it.
"""

from __future__ import annotations

import json
import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import Observation, PowerPoint, ProfileSample, State, Trial, TrialKey, Where
from airflow_provider_zeus.signals.prices import J_PER_KWH
from airflow_provider_zeus.store import moving, rules, service
from airflow_provider_zeus.store.base import (
    FRESH_S,
    RETRY_S,
    AskAnswer,
    AskRequest,
    History,
    PeriodSum,
    Profile,
    Report,
    Unreadable,
    VariablePort,
)
from airflow_provider_zeus.store.live_settings import read_settings, variable_key
from airflow_provider_zeus.store.reported_figures import finite, resolved
from airflow_provider_zeus.store.rows import DAMAGE
from airflow_provider_zeus.store.variables.document import Beat
from airflow_provider_zeus.store.variables.log import VariableTrialService

log = logging.getLogger(__name__)

JOBS = "zeus-jobs"  # names of the jobs: a task on Airflow 3.2 cannot list Variables
REMEDY = "Set max_active_tis_per_dag=1 on the training task, or define Connection zeus_default to PostgreSQL."


T = TypeVar("T")


class VariableStore:
    """The trial log in Variables; see :class:`~airflow_provider_zeus.store.base.Store` for what each method does.

    Keeps the newest 500 trials of a job. Raises StoreError when a Variable cannot be read, is damaged, or holds another
    text after it was written.

    :param overlap_possible: whether two recurrences of a job may run at once; ``ask`` answers only where it is False.
    :param now: clock [s since the epoch]; default the host's.
    """

    def __init__(
        self, port: VariablePort, *, overlap_possible: bool | None = None, now: Callable[[], float] | None = None
    ) -> None:
        self._port = port
        self._overlap_possible = overlap_possible
        self._now = now or time.time
        self._unreadable: dict[Unreadable, None] = {}

    @property
    def identity(self) -> str:
        """Location of the log, for people."""
        return "Airflow Variables zeus-log:<job>"

    def ask(self, request: AskRequest) -> AskAnswer:
        """Open the next trial of a recurrence. Raises StoreError where another recurrence may be running."""
        if self._overlap_possible is not False:
            raise StoreError(f"The Variable store refuses: recurrences of {request.job_id!r} could overlap. {REMEDY}")
        settings = self.settings(request.job_id, request.job.batch_sizes)
        with self._open_log(request.job_id) as log:
            self._refuse_overlap(log, request)
            self._list_job(request.job_id)
            return service.ask(log, request, settings)

    def begin(self, key: TrialKey, previous: TrialKey, *, lease_s: float = 90.0) -> Trial:
        """Write the row of the next attempt of ``previous``'s decision."""
        with self._open_log(self._job_of(previous)) as log:
            return service.begin(log, key, previous, lease_s)

    def adopt(self, trial: Trial, *, lease_s: float = 90.0) -> Trial:
        """Write the open row of a trial that began while the store could not be asked."""
        self._list_job(trial.job_id)
        with self._open_log(trial.job_id) as log:
            return service.adopt(log, trial, lease_s)

    def heartbeat(self, key: TrialKey, report: Report, *, lease_s: float = 90.0) -> str | None:
        """Renew the lease and write partial sums, under the trial's own key."""
        beat, news = self._beat(key), report.observation
        if beat and beat.attempt == key.attempt and not rules.another_start(beat.report.observation, news):
            report = finite(resolved(beat.report.observation, report))
            self._write(_beat_key(key), beat.with_news(report, self._now(), lease_s).to_json())
            return None
        with self._open_log(self._job_of(key)) as log:  # closed, or the beat belongs to another attempt
            return service.heartbeat(log, key, report, lease_s)

    def tell(self, key: TrialKey, state: State, report: Report, *, reason: str | None = None) -> Trial:
        """Close a trial."""
        with self._open_log(self._job_of(key)) as log:
            return service.tell(log, key, state, report, reason)

    def close_trial(self, job_id: str, number: int, *, by: str) -> Trial:
        """Close an open trial by hand."""
        with self._open_log(job_id) as log:
            return service.close_trial(log, job_id, number, by)

    def reap(self, job_id: str) -> list[Trial]:
        """Close the trials of a job whose lease expired; none while a trial runs, whose heartbeat could be lost."""
        now = self._now()
        if any(not rules.expired(t, now) for t in self._load(job_id).open_trials()):
            return []
        with self._open_log(job_id) as log:
            return service.reap(log)

    def trials(self, job_id: str, *, last: int | None = None) -> list[Trial]:
        """The newest 500 trials of a job in order of number, or the ``last`` of them."""
        log = self._load(job_id).log
        return [rules.read_state(t, self._now()) for t in log[max(len(log) - last, 0) if last is not None else 0 :]]

    def recurrence(self, dag_id: str, run_id: str) -> list[Trial]:
        """Every trial of one DAG run, in order of job and number."""
        found = [t for job_id in self.jobs() for t in self.trials(job_id)]
        return [t for t in found if (t.origin.dag_id, t.origin.run_id) == (dag_id, run_id)]

    def runs(self, dag_id: str, job_id: str, *, last: int, skip: int = 0) -> list[Trial]:
        """Every trial that a job has in the newest ``last`` runs of one DAG, in order of number."""
        found = [t for t in self.trials(job_id) if t.origin.dag_id == dag_id]
        newest = list(dict.fromkeys(t.origin.run_id for t in reversed(found)))[skip : skip + last]
        return [t for t in found if t.origin.run_id in newest]

    def pieces(self, dag_id: str, job_id: str, *, last: int, skip: int = 0) -> Iterator[list[Trial]]:
        """The trials of :meth:`runs` in one piece: there are 500 at most."""
        yield self.runs(dag_id, job_id, last=last, skip=skip)

    def version(self, dag_id: str, job_id: str, *, last: int) -> Hashable:
        """None: heartbeats are in other Variables."""
        return None

    def latest(self, *, last: int) -> list[Trial]:
        """Of every job in every DAG the trials whose numbers are among its ``last`` newest."""
        every = [t for job_id in self.jobs() for t in self.trials(job_id)]
        ends = {(t.origin.dag_id, t.job_id): t.number for t in every}
        found = [t for t in every if t.number > ends[t.origin.dag_id, t.job_id] - last]
        return sorted(found, key=lambda t: (t.origin.dag_id, t.job_id, t.number))

    def sums(self, bounds: Sequence[float]) -> list[PeriodSum]:
        """Sums over all jobs by period: period i begins at ``bounds[i]`` and ends before ``bounds[i + 1]``."""
        return _sums((t for job_id in self.jobs() for t in self.trials(job_id)), bounds)

    def jobs(self, dag_id: str | None = None) -> list[str]:
        """Job ids in the log, sorted; with ``dag_id`` those with a trial of that DAG."""
        every = sorted(_read(JOBS, self._port.get(JOBS), _names) or [])
        return every if dag_id is None else [job for job in every if self.runs(dag_id, job, last=1)]

    def profile(self, job_id: str, device: Where, job_version: str) -> list[ProfileSample]:
        """What one version of a job measured on one device: sums per (batch size, power limit)."""
        return list(self._load(job_id).profile(device, job_version))

    def profiles(self, job_id: str) -> list[Profile]:
        """What a job measured, for each device and version of the job."""
        log = self._load(job_id)
        found = ((where, version, log.profile(where, version)) for where, version in log.samples)
        return [each for each in found if each[2]]

    def take_in(self, histories: Sequence[History]) -> list[Trial]:
        """Write the trials that the log does not hold yet, job by job; return them as written."""
        written: list[Trial] = []
        for history in histories:  # what refuses one of them refuses all
            moving.check_closed(self._load(history.job_id).open_trials())
            others = {t.key: t for job in self.jobs() if job != history.job_id for t in self._load(job).log}
            moving.check_elsewhere(history, others.get)
        for history in histories:
            self._list_job(history.job_id)
            with self._open_log(history.job_id) as log:
                written += moving.take_in(log, history)
        return written

    def rename(self, old: str, new: str, *, merge: bool = False) -> int:
        """Move the trials of a job to another name. After an end in between, the same call finishes it."""
        for job_id in (old, new):
            self.reap(job_id)
        source, target = self._load(old), self._load(new)
        if not (old != new and {old, new} <= {*self.jobs()} and _was_moved(source, target)):
            open_trials = [*source.open_trials(), *target.open_trials()]
            own, others = (len(log.log) + len(log.unread) for log in (source, target))
            moving.check_rename(old, new, open_trials=open_trials, own=own, others=others, merge=merge)
            self._write(variable_key("zeus-log", new), source.renamed(target).to_json())
            self._list_job(new)
        self._port.delete(variable_key("zeus-log", old))
        self._write(JOBS, json.dumps([job for job in self.jobs() if job != old]))
        return len(source.log)

    def points(self, key: TrialKey) -> list[PowerPoint]:
        """Power over time of one of the newest 20 trials, at most 100 points; empty for older ones."""
        log = self._load(self._job_of(key))
        trial, beat = log.find(key), log.beats.get(key)
        stored = log.points.get(trial.number, []) if trial else []
        return [*stored, *(beat.report.points if beat else ())]

    def settings(self, job_id: str, batch_sizes: Sequence[int] | None = None) -> dict[str, Any]:
        """Usable live settings of a job."""
        return read_settings(self._port.get, job_id, batch_sizes)

    def signal(self, name: str) -> tuple[str | None, bool]:
        """The series kept under a name, and whether the caller is to ask for it now; two at once may both ask."""
        key, now = variable_key("zeus-signal", name), self._now()
        asked_at, series = _read(key, self._port.get(key), _kept_series) or (0.0, None)
        due = not now - FRESH_S < asked_at <= now
        if due:
            self._port.set(key, json.dumps([now - FRESH_S + RETRY_S, series]))
        return series, due

    def kept_signal(self, name: str) -> str | None:
        """The series kept under a name, for one who asks no service."""
        key = variable_key("zeus-signal", name)
        return (_read(key, self._port.get(key), _kept_series) or (0.0, None))[1]

    def keep_signal(self, name: str, series: str | None) -> None:
        """Keep a series; None: there was no answer."""
        key, now = variable_key("zeus-signal", name), self._now()
        if series is None:
            _, series = _read(key, self._port.get(key), _kept_series) or (0.0, None)
            now -= FRESH_S - RETRY_S
        self._port.set(key, json.dumps([now, series]))

    @property
    def unreadable(self) -> list[Unreadable]:
        """Trials that this object left out of its answers."""
        return list(self._unreadable)

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _refuse_overlap(self, log: VariableTrialService, request: AskRequest) -> None:
        closing = [t.key for t, _ in rules.stale(log.open_trials(), request, log.now)]
        for trial in log.open_trials():
            if trial.key.ti_id != request.ti_id and trial.key not in closing:
                raise StoreError(
                    f"The Variable store refuses: trial {trial.number} of {request.job_id!r} is still running in run "
                    f"{trial.origin.run_id!r}. {REMEDY}"
                )

    def _job_of(self, key: TrialKey) -> str:
        beat = self._beat(key)
        if beat:
            return beat.job_id
        for job_id in self.jobs():
            if self._load(job_id).find(key):
                return job_id
        raise service.unknown(key)

    @contextmanager
    def _open_log(self, job_id: str) -> Iterator[VariableTrialService]:
        """Read the log, yield it for changes, and write it; then write the beats of trials that opened or closed."""
        log = self._load(job_id)
        before = log.to_json()
        log.now = self._now()
        yield log
        text = log.to_json()
        if text != before:
            self._write(variable_key("zeus-log", job_id), text)
        for trial_key, beat in log.beating.items():
            self._write(_beat_key(trial_key), beat.to_json())
        for trial in log.closed:
            last = self._beat(trial.key)
            if last and last.attempt == trial.key.attempt:  # it may already belong to the next attempt
                self._port.delete(_beat_key(trial.key))

    def _load(self, job_id: str) -> VariableTrialService:
        key = variable_key("zeus-log", job_id)
        log = _read(key, self._port.get(key), VariableTrialService.from_json) or VariableTrialService(job_id)
        beats = {t.key: self._beat(t.key) for t in log.open_trials()}
        log.apply_beats({k: beat for k, beat in beats.items() if beat and beat.attempt == k.attempt})
        self._unreadable |= dict.fromkeys(damage for _, damage in log.unread)
        return log

    def _beat(self, key: TrialKey) -> Beat | None:
        """The beat of a task instance; None where it is damaged: the next heartbeat rewrites it."""
        text = self._port.get(_beat_key(key))
        try:
            return _read(_beat_key(key), text, Beat.from_json)
        except StoreError as error:
            log.warning("%s", error)
            return None

    def _list_job(self, job_id: str) -> None:
        jobs = self.jobs()
        if job_id not in jobs:
            self._write(JOBS, json.dumps(sorted([*jobs, job_id])))

    def _write(self, key: str, text: str) -> None:
        try:
            self._port.set(key, text)
            found = self._port.get(key)
        except StoreError as error:  # the answer may be lost although the text was written
            raise StoreError(str(error), passing=error.passing, unsure=True) from error
        if found != text:
            raise StoreError(
                f"Variable {key!r} holds another text after it was written: another process wrote it, or it is "
                f"defined in the environment or a secrets backend. {REMEDY}"
            )


def _was_moved(source: VariableTrialService, target: VariableTrialService) -> bool:
    """Whether an earlier rename was cut off after it had written the trials of ``source`` into ``target``."""
    left = {t.key for t in source.log}
    return not source.unread and (not left or not left.isdisjoint(t.key for t in target.log))


def _names(text: str) -> list[str]:
    names = json.loads(text)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("not a list of names")
    return names


def _kept_series(text: str) -> tuple[float, str | None]:
    asked_at, series = json.loads(text)
    if not isinstance(asked_at, int | float) or not isinstance(series, str | None):
        raise ValueError("not a time and a series")
    return float(asked_at), series


def _beat_key(key: TrialKey) -> str:
    return variable_key("zeus-beat", key.ti_id)


def _read(key: str, text: str | None, parse: Callable[[str], T]) -> T | None:
    try:
        return None if text is None else parse(text)
    except DAMAGE as error:
        raise StoreError(
            f"Variable {key!r} does not hold what this version writes ({error}). Where another version wrote it, use "
            "that one, or export the log with it and delete the Variable; where it is damaged, repair or delete it."
        ) from error


def _sums(trials: Iterable[Trial], bounds: Sequence[float]) -> list[PeriodSum]:
    """As :func:`airflow_provider_zeus.store.sql.pages.sums`."""
    groups: dict[tuple[int, str, str, str], list[Trial]] = {}
    for t in trials:
        if bounds[0] <= t.opened_at < bounds[-1]:
            key = bisect_right(bounds, t.opened_at) - 1, t.origin.dag_id, t.job_id, t.observation.energy_source or ""
            groups.setdefault(key, []).append(t)
    return [
        PeriodSum(
            dag_id=dag_id,
            job_id=job_id,
            source=source or None,
            period=period,
            runs=len({(t.origin.run_id or t.key.ti_id, t.origin.task_id, t.origin.map_index) for t in found}),
            energy_j=_sum(t.observation.energy_j for t in found),
            time_s=_sum(t.observation.time_s for t in found),
            gpu_s=_sum(_gpu_s(t.observation) for t in found),
            unknown=sum(t.observation.time_s is None and t.state is not State.NOT_NEEDED for t in found),
            paid=_sum(_times(o.energy_j, o.price_per_kwh) for o in _seen(found)),
            paid_j=_sum(o.energy_j for o in _seen(found) if o.price_per_kwh is not None),
            currencies=_ends({o.price_currency for o in _seen(found) if o.price_currency}),
            g_co2e=_sum(_times(o.energy_j, o.g_co2e_per_kwh) for o in _seen(found)),
            g_co2e_j=_sum(o.energy_j for o in _seen(found) if o.g_co2e_per_kwh is not None),
            start_saved=_sum(_times(o.energy_j, _less(o.price_at_once, o.price_per_kwh)) for o in _seen(found)),
            start_saved_g=_sum(_times(o.energy_j, _less(o.g_co2e_at_once, o.g_co2e_per_kwh)) for o in _seen(found)),
        )
        for (period, dag_id, job_id, source), found in sorted(groups.items())
    ]


def _sum(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def _seen(trials: Iterable[Trial]) -> list[Observation]:
    return [t.observation for t in trials]


def _times(energy_j: float | None, per_kwh: float | None) -> float | None:
    return None if energy_j is None or per_kwh is None else energy_j * per_kwh / J_PER_KWH


def _less(at_once: float | None, at_the_time: float | None) -> float | None:
    return None if at_once is None or at_the_time is None else at_once - at_the_time


def _ends(names: set[str]) -> tuple[str, ...]:
    """The first and the last one, as SQL tells them."""
    return tuple(sorted({min(names), max(names)})) if names else ()


def _gpu_s(o: Observation) -> float | None:
    return None if o.time_s is None else o.time_s * (o.device_count or 1)
