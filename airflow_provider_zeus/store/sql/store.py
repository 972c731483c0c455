"""``TrialLog``: the trial log in tables. ``SqlStore``: those of PostgreSQL, or of an SQLite file on one host."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import sqlalchemy as sa

from airflow_provider_zeus.model.trial import PowerPoint, ProfileSample, State, Trial, TrialKey, Where
from airflow_provider_zeus.reports.months import PeriodSum
from airflow_provider_zeus.store import heartbeat, moving, rules, service
from airflow_provider_zeus.store.base import AskAnswer, AskRequest, History, Profile, Report, Unreadable
from airflow_provider_zeus.store.live_settings import ReadText, read_settings
from airflow_provider_zeus.store.service import JobLog
from airflow_provider_zeus.store.sql import checkpoints, measurements, pages, rename, signals
from airflow_provider_zeus.store.sql import trials as sql_trials
from airflow_provider_zeus.store.sql.engine import engine_of, forget, read_url, shown, transaction
from airflow_provider_zeus.store.sql.migrate import check

_CLOCK = sa.select(sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double))


Scope = Sequence[str] | TrialKey | None  # jobs, or the trial, that a transaction is about; None: every job


class TrialLog(ABC):
    """The trial log; see :class:`~airflow_provider_zeus.store.base.Store` for what each method does.

    :param now: clock [s since the epoch]; None: the database's on PostgreSQL, the host's elsewhere.
    :param read_setting: returns the text of a Variable with live settings; None: there are none.
    """

    def __init__(self, now: Callable[[], float] | None, read_setting: ReadText | None) -> None:
        self._clock = now
        self._read_setting = read_setting
        self._unreadable: dict[Unreadable, None] = {}

    @abstractmethod
    def _transaction(self, of: Scope, *, write: bool = False) -> AbstractContextManager[sa.Connection]:
        """One transaction on tables that hold all of ``of``, committed at the end."""

    def ask(self, request: AskRequest) -> AskAnswer:
        """Open the next trial of a recurrence, or return its open one."""
        settings = read_settings(self._read_setting, request.job_id, request.job.batch_sizes)  # before the lock
        job = request.job.with_settings(settings)
        with self._transaction([request.job_id]) as connection:
            new = checkpoints.learn_ahead(connection, request.job_id, job)
            last = sql_trials.row_id(connection, request.job_id, new[-1][0]) if new else None
        with self._open_log(request.job_id) as log:
            if new and sql_trials.row_id(log.connection, request.job_id, new[-1][0]) == last:  # no rename came between
                checkpoints.write(log.connection, request.job_id, job, new)
            return service.ask(log, request, settings)

    def begin(self, key: TrialKey, previous: TrialKey, *, lease_s: float = 90.0) -> Trial:
        """Write the row of the next attempt of ``previous``'s decision."""
        with self._open_log_of(previous) as log:
            return service.begin(log, key, previous, lease_s)

    def adopt(self, trial: Trial, *, lease_s: float = 90.0) -> Trial:
        """Write the open row of a trial that began while the store could not be asked."""
        with self._open_log(trial.job_id) as log:
            return service.adopt(log, trial, lease_s)

    def heartbeat(self, key: TrialKey, report: Report, *, lease_s: float = 90.0) -> str | None:
        """Renew the lease and write partial sums."""
        with self._open_log_of(key) as log:
            return heartbeat.heartbeat(log, key, report, lease_s)

    def tell(self, key: TrialKey, state: State, report: Report, *, reason: str | None = None) -> Trial:
        """Close a trial."""
        with self._open_log_of(key) as log:
            return service.tell(log, key, state, report, reason)

    def close_trial(self, job_id: str, number: int, *, by: str) -> Trial:
        """Close an open trial by hand."""
        with self._open_log(job_id) as log:
            return service.close_trial(log, job_id, number, by)

    def reap(self, job_id: str) -> list[Trial]:
        """Close the trials of a job whose lease expired."""
        with self._transaction([job_id]) as connection:  # mostly there are none: then no lock is needed
            now = self._now(connection)
            if not any(rules.expired(t, now) for t in sql_trials.open_trials(connection, job_id)):
                return []
        with self._open_log(job_id) as log:
            return service.reap(log)

    def trials(self, job_id: str, *, last: int | None = None) -> list[Trial]:
        """The log of a job in order of number, or its ``last`` newest trials."""
        with self._transaction([job_id]) as connection:
            found = sql_trials.log(connection, job_id) if last is None else sql_trials.newest(connection, job_id, last)
            return self._read(connection, found)

    def recurrence(self, dag_id: str, run_id: str) -> list[Trial]:
        """Every trial of one DAG run, in order of job and number."""
        with self._transaction(None) as connection:
            return self._read(connection, sql_trials.of_run(connection, dag_id, run_id))

    def runs(self, dag_id: str, job_id: str, *, last: int, skip: int = 0) -> list[Trial]:
        """Every trial that a job has in the newest ``last`` runs of one DAG, in order of number."""
        with self._transaction([job_id]) as connection:
            return self._read(connection, sql_trials.of_runs(connection, dag_id, job_id, last, skip))

    def pieces(self, dag_id: str, job_id: str, *, last: int, skip: int = 0) -> Iterator[list[Trial]]:
        """The trials of :meth:`runs` in pieces; no connection is held between two pieces."""
        with self._transaction([job_id]) as connection:
            portions = pages.numbers(connection, dag_id, job_id, last, skip)
        for numbers in portions:
            with self._transaction([job_id]) as connection:
                piece = self._read(connection, pages.numbered(connection, job_id, numbers))
            yield piece

    def version(self, dag_id: str, job_id: str, *, last: int) -> Hashable:
        """A value that changes with each change of what :meth:`runs` and :meth:`profile` return."""
        with self._transaction([job_id]) as connection:
            return pages.version(connection, dag_id, job_id, last, self._now(connection))

    def latest(self, *, last: int) -> list[Trial]:
        """Of every job in every DAG the trials whose numbers are among its ``last`` newest."""
        with self._transaction(None) as connection:
            return self._read(connection, sql_trials.latest(connection, last))

    def sums(self, bounds: Sequence[float]) -> list[PeriodSum]:
        """Sums over all jobs by period: period i begins at ``bounds[i]`` and ends before ``bounds[i + 1]``."""
        with self._transaction(None) as connection:
            return pages.sums(connection, bounds)

    def jobs(self, dag_id: str | None = None) -> list[str]:
        """Job ids in the log, sorted; with ``dag_id`` those with a trial of that DAG."""
        with self._transaction(None) as connection:
            return sql_trials.job_ids(connection, dag_id)

    def profile(self, job_id: str, device: Where, job_version: str) -> list[ProfileSample]:
        """What one version of a job measured on one device: sums per (batch size, power limit)."""
        with self._transaction([job_id]) as connection:
            return list(measurements.profile(connection, job_id, device, job_version))

    def points(self, key: TrialKey) -> list[PowerPoint]:
        """Power over time of one trial, at most 500 points."""
        with self._transaction(key) as connection:
            return measurements.points(connection, key)

    def profiles(self, job_id: str) -> list[Profile]:
        """What a job measured, for each device and version of the job."""
        with self._transaction([job_id]) as connection:
            return measurements.profiles(connection, job_id)

    def take_in(self, histories: Sequence[History]) -> list[Trial]:
        """Write the trials that the log does not hold yet, all or none; return them as written."""
        written: list[Trial] = []
        with self._transaction([h.job_id for h in histories], write=True) as connection:
            for history in sorted(histories, key=lambda h: h.job_id):  # each writer locks in this order
                with self._locked(connection, history.job_id) as log:
                    written += service.take_in(log, history)
        return written

    def rename(self, old: str, new: str, *, merge: bool = False) -> int:
        """Move the trials of a job to another name, in one transaction."""
        with self._transaction([old, new], write=True) as connection:
            now, logs = self._now(connection), {}
            for job in sorted({old, new}):  # each writer locks in this order
                logs[job] = JobLog(connection, job, *sql_trials.lock_job(connection, job), now)
                service.reap(logs[job])
            own, others = (len(sql_trials.numbers(connection, job)) for job in (old, new))
            running = [t for log in logs.values() for t in log.open_trials()]
            moving.check_rename(old, new, open_trials=running, own=own, others=others, merge=merge)
            rename.merge(connection, old, new, counted={job: (log.seq, log.newest) for job, log in logs.items()})
        return own

    def settings(self, job_id: str) -> dict[str, Any]:
        """Usable live settings of a job."""
        return read_settings(self._read_setting, job_id)

    def signal(self, name: str) -> tuple[str | None, bool]:
        """The series kept under a name, and whether the caller is to ask for it now."""
        with self._transaction([]) as connection:  # mostly it is fresh: then no lock is needed
            found = signals.read(connection, name, self._now(connection))
        if not found[1]:
            return found
        with self._transaction([], write=True) as connection:
            return signals.claim(connection, name, self._now(connection))

    def kept_signal(self, name: str) -> str | None:
        """The series kept under a name, for one who asks no service."""
        with self._transaction([]) as connection:
            return signals.read(connection, name, self._now(connection))[0]

    def keep_signal(self, name: str, series: str | None) -> None:
        """Keep a series; None: there was no answer."""
        with self._transaction([], write=True) as connection:
            signals.keep(connection, name, series, self._now(connection))

    @property
    def unreadable(self) -> list[Unreadable]:
        """Trials that this object left out of its answers."""
        return list(self._unreadable)

    def _read(self, connection: sa.Connection, found: Iterable[sql_trials.Found]) -> list[Trial]:
        now, trials = self._now(connection), []
        for each in found:
            if isinstance(each, Unreadable):
                self._unreadable[each] = None
            else:
                trials.append(rules.read_state(each, now))
        return trials

    def _now(self, connection: sa.Connection) -> float:
        if self._clock is not None:
            return self._clock()
        return float(connection.scalar(_CLOCK) or 0) if connection.dialect.name == "postgresql" else time.time()

    @contextmanager
    def _open_log(self, job_id: str) -> Iterator[JobLog]:
        with self._transaction([job_id], write=True) as connection, self._locked(connection, job_id) as log:
            yield log

    @contextmanager
    def _open_log_of(self, key: TrialKey) -> Iterator[JobLog]:
        with self._transaction(key, write=True) as connection:
            found = sql_trials.lock_job_of(connection, key)
            if found is None:
                raise service.unknown(key)
            with self._locked(connection, found[0], found[1]) as log:
                yield log

    @contextmanager
    def _locked(
        self, connection: sa.Connection, job_id: str, counted: tuple[int, int] | None = None
    ) -> Iterator[JobLog]:
        counted = counted or sql_trials.lock_job(connection, job_id)
        log = JobLog(connection, job_id, *counted, self._now(connection))
        yield log
        if (log.seq, log.newest) != counted:
            sql_trials.count_job(connection, job_id, seq=log.seq, newest=log.newest)


class SqlStore(TrialLog):
    """The trial log in a database.

    Raises StoreError when the database cannot be reached or its tables are of another version.

    :param url: database URL; a password in it is never shown.
    :param create: create or migrate the tables (an embedded file); otherwise they must exist.
    """

    def __init__(
        self,
        url: str,
        *,
        create: bool = False,
        now: Callable[[], float] | None = None,
        read_setting: ReadText | None = None,
    ) -> None:
        super().__init__(now, read_setting)
        parsed = read_url(url)
        self._engine = engine_of(parsed)
        self._identity = shown(parsed)
        check(self._engine, create=create)

    @property
    def identity(self) -> str:
        """Location of the log, for people: without user and password."""
        return self._identity

    def _transaction(self, of: Scope, *, write: bool = False) -> AbstractContextManager[sa.Connection]:
        return transaction(self._engine, write=write)

    def close(self) -> None:
        """Release connections."""
        forget(self._engine)
