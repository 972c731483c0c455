"""``VariableStore``: the trial log in Airflow Variables, for an installation without a separate
database.

Each call fills the tables of a database in memory from the Variables of the jobs that it is about,
and writes back its changes. Variables have no compare-and-swap: of two concurrent writes one is
lost. So the store accepts only jobs whose recurrences cannot overlap, reads each log again before
it writes it, to see that it is the one it began with, and each Variable after it has written it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_zeus.errors import DamagedLogError, StoreError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.partial_sums import Report, finite
from airflow_provider_zeus.model.trial import State, Trial, TrialKey
from airflow_provider_zeus.patience import T
from airflow_provider_zeus.store import rules, service
from airflow_provider_zeus.store.base import AskAnswer, AskRequest, HistoryPart, RunTrials, TakenIn
from airflow_provider_zeus.store.rows import DAMAGE
from airflow_provider_zeus.store.service import JobLog
from airflow_provider_zeus.store.sql import measurements, moving, outside_sums, schema
from airflow_provider_zeus.store.sql import trials as sql_trials
from airflow_provider_zeus.store.sql.sqlite_file import turn
from airflow_provider_zeus.store.sql.store import Scope, Series, Store
from airflow_provider_zeus.store.variables import tables
from airflow_provider_zeus.store.variables.airflow import (
    AirflowVariables,
    MemoryVariables,
    variable_key,
)
from airflow_provider_zeus.store.variables.document import Beat, LogDocument

log = guarded_log(__name__)

TURN_S = 4.0  # another writer of this host may have been stopped
JOBS = "zeus-jobs"  # names of the jobs: a task on Airflow 3.2 cannot list Variables


@dataclass(slots=True)
class _Loaded:
    """The state of one job as a transaction has read it.

    ``beats``: of open trials, key of the Variable -> text.
    """

    forgotten: int
    text: str | None = None
    rows: tables.Rows = field(default_factory=dict)
    # As it was read: if it is another one by now, its run has just reported.
    beats: dict[str, str | None] = field(default_factory=dict)


class _Stored(NamedTuple):
    """The log of a job as its Variable holds it."""

    text: str | None
    document: LogDocument


class VariableStore(Store):
    """The trial log in Variables.

    Keeps the newest 500 trials of a job. Raises StoreError if a Variable cannot be read, is
    damaged, or holds another text after it was written.

    :param conn_id: Connection that names this store, for the texts of errors.
    :param overlap_possible: whether two recurrences of a job may run at once; ``ask`` answers only
        if it is False.
    :param turns: file beside which writers of this host queue (:func:`.turn`); None: there are no
        others.
    :param now: clock [s since the epoch]; default the host's.
    """

    identity = "Airflow Variables zeus-log:<job>"
    takes_outside = False

    def __init__(
        self,
        port: AirflowVariables,
        *,
        conn_id: str = "zeus_default",
        overlap_possible: bool | None = None,
        turns: Path | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(now, port.get)
        self._turns = turns
        self._port = port
        self._overlap_possible = overlap_possible
        # An empty answer about all jobs raises it: the damaged log may hold what was asked for.
        self._damaged: DamagedLogError | None = None
        postgres = f"let Connection {conn_id!r} name a PostgreSQL database"
        self._remedy = f"Set max_active_tis_per_dag=1 on the training task, or {postgres}."

    def ask(self, request: AskRequest) -> AskAnswer:
        """Open the next trial of a recurrence.

        Raises StoreError if another recurrence may be running.
        """
        decides = request.job.chooses_size  # other jobs learn nothing, so their runs may overlap
        if self._overlap_possible is not False and decides:
            raise StoreError(
                f"The Variable store refuses: runs of {request.job_id!r} could overlap. "
                f"{self._remedy}"
            )
        settings, fresh = self._settings_for(request)
        with self._open_log(request.job_id) as log:
            if decides:
                self._refuse_overlap(log, request)
            answer = service.ask(log, request, settings, fresh=fresh)
            self._forget_old(log, answer.trial)
            return answer

    def _refuse_overlap(self, log: JobLog, request: AskRequest) -> None:
        """Raise StoreError if an attempt of another task instance runs on."""
        open_trials = log.open_trials()
        closing = [trial.key for trial, _ in rules.stale(open_trials, request, log.now)]
        for trial in open_trials:
            # Both would read the document and write it back: the later one wins, and one decision
            # is lost.
            if trial.key.ti_id != request.ti_id and trial.key not in closing:
                raise StoreError(
                    f"The Variable store refuses: an attempt of {request.job_id!r} is still "
                    f"running in DAG run {trial.origin.run_id!r}. {self._remedy}"
                )

    def heartbeat(self, key: TrialKey, report: Report, *, lease_s: float = 90.0) -> str | None:
        """Renew the lease and write partial sums, to a Variable of the open trial's own."""
        name = _beat_key(key.ti_id)
        beat = Beat.read(self._port.get(name))
        now = time.time() if self._clock is None else self._clock()
        later = beat.with_heartbeat(key, report, now, lease_s) if beat else None
        # Without a beat of its own only the log can say whether another start took it over.
        if later is None:
            return super().heartbeat(key, report, lease_s=lease_s)
        self._write(name, later.to_json())
        return None

    def tell(
        self, key: TrialKey, state: State, report: Report, *, reason: str | None = None
    ) -> Trial:
        """Close a trial.

        One that overlaps with others is looked at once more, when the others have written.

        So a row that another run has written over is found, and written again.
        """
        trial = super().tell(key, state, report, reason=reason)
        if self._overlap_possible and trial.batch_size is None:
            time.sleep(1.0)  # longer than from a call's reading of a log to its writing
            trial = super().tell(key, state, report, reason=reason)
        return trial

    def reap(self, job_id: str) -> list[Trial]:
        """Close the trials of a job whose lease expired; none while a trial runs, whose heartbeat
        could be lost.
        """
        if any(trial.state is State.RUNNING for trial in self.trials(job_id)):
            return []
        return super().reap(job_id)

    def pieces(self, dag_id: str, job_id: str, *, last: int) -> Iterator[list[Trial]]:
        """The trials of :meth:`runs` in one piece: there are 500 at most."""
        yield self.runs(dag_id, job_id, last=last)

    def version(self, dag_id: str, job_id: str, *, last: int) -> None:
        """None: finding out would read all trials."""

    def jobs(self, dag_id: str | None = None) -> list[str]:
        """Job ids in the log, sorted; with ``dag_id`` those with a trial of that DAG."""
        if dag_id is None:
            return self._names()
        return self._or_damaged(super().jobs(dag_id))

    def recurrence(self, dag_id: str, run_id: str) -> list[Trial]:
        """Every trial of one DAG run, in order of job and number."""
        return self._or_damaged(super().recurrence(dag_id, run_id))

    @contextmanager
    def _counted(self) -> Iterator[sa.Connection]:
        """All logs, with the sums of their rows: a document keeps none."""
        with self._transaction(None) as connection:
            outside_sums.recount(connection)
            yield connection

    def rename(self, old: str, new: str) -> int:
        """Move the trials of a job to another name.

        After an end in between, the same call finishes it.
        """
        source = _keys(self._read_log(old).document)
        target = _keys(self._read_log(new).document)
        are_both_there = old != new and {old, new} <= {*self._names()}
        # A crash between the two writes leaves the trials under both names.
        is_moved = not source or not source.isdisjoint(target)
        if not are_both_there or not is_moved:
            return super().rename(old, new)
        self._forget(old)
        return len(source)

    def take_in(self, parts: Iterable[HistoryPart], *, of: Scope = None) -> dict[str, TakenIn]:
        """Write the missing parts of other logs' history.

        All of it is in memory meanwhile.
        """
        parts = list(parts)
        # Any job's log may hold a trial's key, and the write below loads those of the parts alone.
        with self._transaction(self._names()) as connection:
            for part in parts:
                if isinstance(part, RunTrials):
                    for trial in part.trials:
                        moving.holds(connection, trial)
        return super().take_in(parts, of=[part.job_id for part in parts])

    def close(self) -> None:
        """Do nothing: there is no connection."""

    @contextmanager
    def _transaction(self, of: Scope, *, write: bool = False) -> Iterator[sa.Connection]:
        waits: AbstractContextManager[None] = nullcontext()
        if write and self._turns:
            waits = turn(self._turns, TURN_S)
        with waits, tables.empty_tables(write=write) as connection:
            if isinstance(of, Series):
                with self._series(connection, variable_key("zeus-signal", of.name), of.name):
                    yield connection
                return
            loaded = {}
            for job_id in dict.fromkeys(self._jobs_of(of)):
                try:
                    loaded[job_id] = self._load(connection, job_id)
                except DamagedLogError as error:
                    if of is not None:
                        raise
                    # One damaged Variable must not hide the other jobs.
                    log.warning("A job is left out: %s", error)
                    # A later answer that finds nothing must not call the log empty.
                    self._damaged = error
            yield connection
            if write:
                self._save(connection, loaded)

    def _jobs_of(self, of: Sequence[str] | TrialKey | None) -> Sequence[str]:
        """The jobs that a transaction is about."""
        if of is None:
            return self._names()
        if isinstance(of, TrialKey):
            return self._job_of(of)
        return of

    @contextmanager
    def _series(self, connection: sa.Connection, key: str, name: str) -> Iterator[None]:
        """The row of a series, of which the Variable gets the changes; two callers at once may
        both ask.
        """
        table = schema.signal
        text = self._port.get(key)
        before = _read(key, text, _kept_series)
        if before is not None:
            asked_at, series = before
            row = {"name": name, "asked_at": asked_at, "series": series}
            connection.execute(sa.insert(table), row)
        yield
        after = connection.execute(sa.select(table.c.asked_at, table.c.series)).one_or_none()
        # A write for nothing could lose another writer's series: Variables have no
        # compare-and-swap.
        if after is not None and tuple(after) != before:
            self._port.set(key, json.dumps([*after]))

    def _job_of(self, key: TrialKey) -> list[str]:
        """The job of a trial; none if no log has it."""
        beat = Beat.read(self._port.get(_beat_key(key.ti_id)))
        if beat:
            return [beat.job_id]
        damaged = None
        for job in self._names():
            try:
                if key in _keys(self._read_log(job).document):
                    return [job]
            except DamagedLogError as error:  # it may have the trial, so "none" would be a guess
                damaged = error
        if damaged is not None:
            raise damaged
        return []

    def _or_damaged(self, found: list[T]) -> list[T]:
        """The result; if it is empty, and a damaged log may hold more, its error is raised."""
        if not found and self._damaged is not None:
            raise self._damaged
        return found

    def _load(self, connection: sa.Connection, job_id: str) -> _Loaded:
        stored = self._read_log(job_id)
        if stored.text is None:
            return _Loaded(0)
        loaded = _Loaded(stored.document.forgotten, stored.text)
        try:
            loaded.rows = tables.load(connection, job_id, stored.document)
        except (*DAMAGE, SQLAlchemyError) as error:
            raise _unusable(variable_key("zeus-log", job_id), error) from error
        for trial in sql_trials.open_trials(connection, job_id):
            name = _beat_key(trial.key.ti_id)
            if name not in loaded.beats:
                # One read of a Variable for all open trials of a task instance: each is a request
                # to the API.
                loaded.beats[name] = self._port.get(name)
            beat = Beat.read(loaded.beats[name])
            if beat and beat.attempt == trial.key.attempt:
                trial = beat.on(trial)
                sql_trials.update(connection, trial)
                measurements.add(connection, trial, finite(beat.report))
        return loaded

    def _save(self, connection: sa.Connection, loaded: dict[str, _Loaded]) -> None:
        """Write the logs that changed: first their names, then the beats of trials that opened or
        closed.
        """
        rows: tables.Rows = {}
        for job in loaded.values():
            rows |= job.rows
        jobs = sql_trials.job_ids(connection)
        there = [job_id for job_id, job in loaded.items() if job.text is not None]
        gone = [job_id for job_id in there if job_id not in jobs]
        changed = {}
        for job_id in jobs:
            before = loaded.get(job_id, _Loaded(0))
            forgotten = before.forgotten + sum(loaded[other].forgotten for other in gone)
            text = tables.dump(connection, job_id, rows, forgotten).to_json()
            if text != (before.text or LogDocument.empty(job_id).to_json()):
                changed[job_id] = text
        # Names first: after a crash in between, a log without its name would never be found.
        if {*changed} - {*self._names()}:
            self._write(JOBS, json.dumps(sorted({*changed, *self._names()})))
        for job_id, text in changed.items():
            self._refuse_changed(job_id, loaded)
            self._write(variable_key("zeus-log", job_id), text)
        for job_id in (*changed, *gone):
            beats = loaded[job_id].beats if job_id in loaded else {}
            self._save_beats(sql_trials.open_trials(connection, job_id), beats)
        for job_id in gone:
            self._refuse_changed(job_id, loaded)
            self._forget(job_id)

    def _save_beats(self, open_trials: Sequence[Trial], before: dict[str, str | None]) -> None:
        """The newest open attempt of a task instance has the beat.

        Its reports are in the log now.
        """
        beats = {_beat_key(trial.key.ti_id): Beat.of(trial).to_json() for trial in open_trials}
        for name, text in beats.items():
            # Else its run has just reported again, and the older beat would undo it.
            if name not in before or self._port.get(name) == before[name]:
                self._write(name, text)
        for name, old_text in before.items():
            if old_text is not None and name not in beats:
                self._port.delete(name)

    def _names(self) -> list[str]:
        return sorted(_read(JOBS, self._port.get(JOBS), _job_names) or [])

    def _read_log(self, job_id: str) -> _Stored:
        key = variable_key("zeus-log", job_id)
        text = self._port.get(key)
        document = _read(key, text, LogDocument.from_json)
        return _Stored(text, document or LogDocument.empty(job_id))

    def _forget(self, job_id: str) -> None:
        self._port.delete(variable_key("zeus-log", job_id))
        self._write(JOBS, json.dumps([job for job in self._names() if job != job_id]))

    def _refuse_changed(self, job_id: str, loaded: dict[str, _Loaded]) -> None:
        """Raises StoreError if another process has written a log since it was loaded: a write would
        drop its rows.
        """
        key = variable_key("zeus-log", job_id)
        if job_id in loaded and self._port.get(key) != loaded[job_id].text:
            problem = f"Another process wrote Variable {key!r} at the same time: try again."
            raise StoreError(problem, passing=True)

    def _write(self, key: str, text: str) -> None:
        try:
            self._port.set(key, text)
            stored = self._port.get(key)
        except StoreError as error:  # the answer may be lost although the text was written
            raise StoreError(str(error), passing=error.passing, unsure=True) from error
        if stored != text:
            raise StoreError(
                f"Variable {key!r} holds another text after it was written: another process wrote "
                "it, "
                f"or it is defined in the environment or a secrets backend. {self._remedy}"
            )


def memory_store() -> VariableStore:
    """The log of a run that is to leave none (``[zeus] enabled = False``)."""
    return VariableStore(MemoryVariables(), overlap_possible=False)


def _keys(document: LogDocument) -> set[TrialKey]:
    """The keys that the trials of a log have, as far as they can be read."""
    keys = set()
    for trial in document.trials:
        if isinstance(trial, dict):
            ti_id = trial.get("ti_id")
            attempt = trial.get("attempt")
            if isinstance(ti_id, str) and isinstance(attempt, int):
                keys.add(TrialKey(ti_id, attempt))
    return keys


def _job_names(text: str) -> list[str]:
    names = json.loads(text)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("not a list of names")
    return names


def _kept_series(text: str) -> tuple[float, str | None]:
    asked_at, series = json.loads(text)
    if not isinstance(asked_at, int | float) or not isinstance(series, str | None):
        raise ValueError("not a time and a series")
    return float(asked_at), series


def _beat_key(ti_id: str) -> str:
    return variable_key("zeus-beat", ti_id)


def _read(key: str, text: str | None, parse: Callable[[str], T]) -> T | None:
    try:
        if text is None:
            return None
        return parse(text)
    except DAMAGE as error:
        raise _unusable(key, error) from error


def _unusable(key: str, error: Exception) -> DamagedLogError:
    problem, *_ = str(error).split("\n")
    return DamagedLogError(
        f"Variable {key!r} does not hold what this version writes ({problem}). Where another "
        "version wrote it, use that one, or export the log with it and delete the Variable; where "
        "it is damaged, repair or delete it."
    )
