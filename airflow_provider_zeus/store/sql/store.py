"""``Store``: the trial log in tables. ``SqlStore``: those of PostgreSQL, or of an SQLite file on
one host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby, islice
from typing import Any, ClassVar, NamedTuple

import sqlalchemy as sa

from airflow_provider_zeus.model.event import Event, Held, Looked
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.period_sum import PeriodSum
from airflow_provider_zeus.model.trial import (
    Phase,
    PowerPoint,
    ProfileSample,
    State,
    Trial,
    TrialKey,
    Where,
    newest_device,
)
from airflow_provider_zeus.model.wire import LATEST_S
from airflow_provider_zeus.optimizer.policy import prior
from airflow_provider_zeus.store import heartbeat, rules, service
from airflow_provider_zeus.store.base import (
    AskAnswer,
    AskRequest,
    HistoryPart,
    RunTrials,
    TakenIn,
    Unreadable,
)
from airflow_provider_zeus.store.live_settings import ReadText, last_known, read_settings
from airflow_provider_zeus.store.service import JobLog
from airflow_provider_zeus.store.sql import (
    checkpoints,
    history,
    measurements,
    moving,
    outside_sums,
    pages,
)
from airflow_provider_zeus.store.sql import trials as sql_trials
from airflow_provider_zeus.store.sql.engine import (
    clock,
    engine_of,
    forget,
    read_url,
    shown,
    transaction,
)
from airflow_provider_zeus.store.sql.migrate import check

# Other runs of the job may end at the same time, each of which makes one more look necessary.
LOOKS = 10
Look = Callable[[Mapping[str, Held], Sequence[Trial], Sequence[ProfileSample]], Looked]


class Series(NamedTuple):
    """The series of a price or a carbon intensity that a transaction is about."""

    name: str


# What a transaction is about, since the Variable store reads no more than that; None: all jobs.
Scope = Sequence[str] | TrialKey | Series | None


class Store(ABC):
    """The trial log.

    Each method is one transaction and raises StoreError (unreachable, unknown schema, refused).

    ``open_store()`` returns one.

    :param now: clock [s since the epoch]; None: the database's on PostgreSQL, the host's elsewhere.
    :param read_setting: returns the text of a Variable with live settings; None: there are none.
    """

    identity: str  # pages show it, so it has no user and password
    takes_outside: ClassVar[bool] = True  # a database takes a great many rows; Variables do not

    def __init__(self, now: Callable[[], float] | None, read_setting: ReadText | None) -> None:
        self._clock = now
        self._read_setting = read_setting
        self._unreadable: dict[Unreadable, None] = {}

    @abstractmethod
    def _transaction(
        self, of: Scope, *, write: bool = False
    ) -> AbstractContextManager[sa.Connection]:
        """One transaction on tables that hold all of ``of``, committed at the end."""

    @abstractmethod
    def close(self) -> None:
        """Release connections."""

    def ask(self, request: AskRequest) -> AskAnswer:
        """Open the next trial of a recurrence; return the open trial of the same try of the task
        if there is one.

        First closes earlier tries of the same task instance, and trials whose lease expired. Then
        learns from the log, chooses, and inserts a row in state ``running``. If a start of the
        plan has already reported to the open trial, that trial is closed as abandoned, and the same
        attempt gets the next key: two starts are two observations.
        """
        settings, fresh = self._settings_for(request)  # before the lock: Airflow may take seconds
        before = prior(request.job.with_settings(settings), settings)
        with self._transaction([request.job_id]) as connection:
            new = checkpoints.learn_ahead(connection, request.job_id, before)
            last = sql_trials.row_id(connection, request.job_id, new[-1][0]) if new else None
        with self._open_log(request.job_id) as log:
            # After a rename in between, these would be the checkpoints of another job.
            if new and sql_trials.row_id(log.connection, request.job_id, new[-1][0]) == last:
                checkpoints.write(log.connection, request.job_id, before, new)
            answer = service.ask(log, request, settings, fresh=fresh)
            self._forget_old(log, answer.trial)
            return answer

    def _settings_for(self, request: AskRequest) -> tuple[dict[str, Any], bool]:
        """(Live settings of the job, whether they were read now); else the last known ones hold."""
        job_id = request.job_id
        sizes = request.job.batch_sizes
        if (settings := read_settings(self._read_setting, job_id, sizes)) is not None:
            return settings, True
        with self._transaction([job_id]) as connection:
            newest = sql_trials.only_trials(sql_trials.newest(connection, job_id, 100))
            return last_known(newest, job_id, sizes, now_s=self._now(connection)), False

    def begin(
        self,
        key: TrialKey,
        previous: TrialKey,
        *,
        lease_s: float = 90.0,
        batch_size: int | None = None,
    ) -> Trial:
        """Write the row of the attempt after ``previous`` in the same decision. Idempotent.

        :param batch_size: of that attempt; None: of the next one in the decision.

        The row gets another key if another start has taken ``key``; send reports to the key of
        the returned row.
        """
        with self._open_log(previous) as log:
            return service.begin(log, key, previous, lease_s, batch_size)

    def adopt(self, trial: Trial, *, lease_s: float = 90.0) -> Trial:
        """Write the open row of a trial that began while the store could not be reached; give it a
        number. Idempotent.

        Send the costs of the run to the key of the returned row.
        """
        with self._open_log(trial.job_id) as log:
            row = service.adopt(log, trial, lease_s)
            self._forget_old(log, row)
            return row

    def _forget_old(self, log: JobLog, trial: Trial) -> None:
        """Delete old power points of a job that chooses no batch size, which teach
        nothing.
        """
        if trial.planned.phase is Phase.MEASURED:
            measurements.forget_measured(log.connection, log.job_id, log.now)

    def heartbeat(self, key: TrialKey, report: Report, *, lease_s: float = 90.0) -> str | None:
        """Renew the lease and write partial sums.

        Return why the trial no longer belongs to its run, or None.

        The lease ends ``lease_s`` from now, or later if the trial was opened with a longer one.
        A trial whose lease expired is reopened. A trial that a later try or start took over, or
        that a person closed, stays closed and gets its figures. A trial that ended does not change.
        Raises UnknownTrialError if the log does not hold it.
        """
        with self._open_log(key) as log:
            return heartbeat.heartbeat(log, key, report, lease_s)

    def tell(
        self, key: TrialKey, state: State, report: Report, *, reason: str | None = None
    ) -> Trial:
        """Close a trial.

        Idempotent; moves ``abandoned`` to its true state, and changes no other closed trial.

        A trial that a person closed gets its figures and stays closed. The reason of a trial says
        so if a later try or start took it over. Raises UnknownTrialError if the log does not
        hold the trial.
        """
        with self._open_log(key) as log:
            return service.tell(log, key, state, report, reason)

    def look(self, job_id: str, look: Look, *, last: int) -> Sequence[Event]:
        """Keep which events hold by the ``last`` newest trials of a job; return those that began.

        No lock is held while it looks. If another run has written events meanwhile, it looks
        again, so that an event begins for one of them.

        :param look: from the events that held, the trials, and the power profile of their device.
        """
        for _ in range(LOOKS):
            with self._transaction([job_id]) as connection:
                before = sql_trials.events_text(connection, job_id)
                trials = self._read(connection, sql_trials.newest(connection, job_id, last))
                if not trials:
                    return ()
                device = newest_device(trials)
                profile: Sequence[ProfileSample] = ()
                if device is not None:
                    version = trials[-1].job_version
                    profile = measurements.profile(connection, job_id, device, job_version=version)
            # Outside of a transaction: it computes for seconds, and notifies nobody yet.
            looked = look(sql_trials.held_events(before), trials, profile)
            with self._transaction([job_id], write=True) as connection:
                if sql_trials.hold_events(connection, job_id, before, held=looked.events):
                    return looked.begun
        return ()  # the looks of later runs find what still holds

    def events(self, job_id: str) -> Mapping[str, Held]:
        """The events of a job that hold, by DAG."""
        with self._transaction([job_id]) as connection:
            return sql_trials.held_events(sql_trials.events_text(connection, job_id))

    def close_trial(self, job_id: str, number: int, *, by: str) -> Trial:
        """Close an open trial by hand: permanently abandoned.

        Raises StoreError if it is not open.
        """
        with self._open_log(job_id) as log:
            return service.close_trial(log, job_id, number, by)

    def reap(self, job_id: str) -> list[Trial]:
        """Close the trials of a job whose lease expired, as the next ``ask`` would; return them.

        Idempotent.
        """
        # Mostly there are none: then the job's runs need not wait for a lock.
        with self._transaction([job_id]) as connection:
            now = self._now(connection)
            if not any(rules.expired(t, now) for t in sql_trials.open_trials(connection, job_id)):
                return []
        with self._open_log(job_id) as log:
            return service.reap(log)

    def trials(self, job_id: str, *, last: int | None = None) -> list[Trial]:
        """The log of a job in order of number; ``last`` limits it to the newest.

        Expired leases read ``abandoned``.
        """
        with self._transaction([job_id]) as connection:
            if last is None:
                return self._read(connection, sql_trials.log(connection, job_id))
            return self._read(connection, sql_trials.newest(connection, job_id, last))

    def recurrence(self, dag_id: str, run_id: str) -> list[Trial]:
        """Every trial of one DAG run, in order of job and number."""
        with self._transaction(None) as connection:
            return self._read(connection, sql_trials.of_run(connection, dag_id, run_id))

    def runs(self, dag_id: str, job_id: str, *, last: int, skip: int = 0) -> list[Trial]:
        """Every trial that a job has in the newest ``last`` runs of one DAG, in order of number.

        Leaves out the newest ``skip`` runs, and trials of other DAGs. The newest run is the one
        with the newest trial.
        """
        with self._transaction([job_id]) as connection:
            return self._read(connection, pages.of_runs(connection, dag_id, job_id, last, skip))

    def pieces(self, dag_id: str, job_id: str, *, last: int) -> Iterator[list[Trial]]:
        """The trials of :meth:`runs`, in pieces that fit into memory.

        No connection is held between two pieces.

        Each piece is one transaction. Trials that are deleted meanwhile are left out.
        """
        with self._transaction([job_id]) as connection:
            # Numbers alone: rows that arrive meanwhile move no piece.
            portions = pages.numbers(connection, dag_id, job_id, last)
        for numbers in portions:
            with self._transaction([job_id]) as connection:
                piece = self._read(connection, pages.numbered(connection, job_id, numbers))
            yield piece

    def version(self, dag_id: str, job_id: str, *, last: int) -> Hashable:
        """A value that is equal only while :meth:`runs` and :meth:`profile` return the same; None:
        not known.
        """
        with self._transaction([job_id]) as connection:
            return pages.version(connection, dag_id, job_id, last, now=self._now(connection))

    def latest(self, *, last: int) -> list[Trial]:
        """The ``last`` newest trials of each job in each DAG, in order of DAG, job and number.

        Without those measured from outside: :meth:`sums` and :meth:`task_sums` have their costs.
        """
        with self._transaction(None) as connection:
            return self._read(connection, pages.latest(connection, last))

    def sums(self, bounds: Sequence[float]) -> list[PeriodSum]:
        """Sums over all jobs, by period, DAG, job and source; those of :meth:`outside_sums` come
        last.

        Period i begins at ``bounds[i]`` and ends before ``bounds[i + 1]`` [s since the epoch,
        ascending].
        """
        with self._counted() as connection:
            return [*pages.sums(connection, bounds), *outside_sums.of_dags(connection, bounds)]

    def outside_sums(self, bounds: Sequence[float]) -> list[PeriodSum]:
        """Sums over the tasks of each DAG measured from outside, by period, DAG and source; periods
        as :meth:`sums`.

        A trial counts in the calendar month (UTC) in which it began, and that in the period in
        which it begins.
        """
        with self._counted() as connection:
            return outside_sums.of_dags(connection, bounds)

    def task_sums(self, dag_id: str, since_s: float) -> list[PeriodSum]:
        """The cost of each job of a DAG from the day of ``since_s`` on, by job and source.

        Tasks measured from outside come last.
        """
        with self._counted() as connection:
            chosen = pages.sums(connection, [since_s, LATEST_S], dag_id)
            return [*chosen, *outside_sums.of_tasks(connection, dag_id, since_s)]

    def _counted(self) -> AbstractContextManager[sa.Connection]:
        """All logs, with the sums of their rows."""
        return self._transaction(None)

    def jobs(self, dag_id: str | None = None) -> list[str]:
        """Job ids in the log, sorted; with ``dag_id`` those with a trial of that DAG."""
        with self._transaction(None) as connection:
            return sql_trials.job_ids(connection, dag_id)

    def outside_jobs(self) -> list[str]:
        """Jobs for whose trials nothing was chosen, sorted."""
        with self._transaction(None) as connection:
            return sql_trials.outside_ids(connection)

    def dags(self, job_id: str) -> set[str]:
        """DAGs with a trial of a job, whether or not Airflow still has them."""
        with self._transaction([job_id]) as connection:
            return sql_trials.dag_ids(connection, job_id)

    def profile(self, job_id: str, device: Where | None, job_version: str) -> list[ProfileSample]:
        """The profile of one version of a job on one device: one sum per (batch size, power limit),
        in that order.

        Empty for a device that is not known.
        """
        if device is None:
            return []
        with self._transaction([job_id]) as connection:
            return list(measurements.profile(connection, job_id, device, job_version))

    def points(self, key: TrialKey) -> list[PowerPoint]:
        """Power over time of one trial, at most 500 points."""
        with self._transaction(key) as connection:
            return measurements.points(connection, key)

    def history(self, job_id: str) -> Iterator[HistoryPart]:
        """All that the log holds of a job, for :meth:`take_in` of another one; runs in the order in
        which they began.

        The runs come in pieces that fit into memory. Each piece is one transaction, and no
        connection is held between two of them. A trial that cannot be read is left out.
        """
        with self._transaction([job_id]) as connection:
            measured = [*history.measured(connection, job_id)]
        yield from measured
        after = history.BEFORE_ALL
        while True:
            with self._transaction([job_id]) as connection:
                firsts = history.first_trials(connection, job_id, after)
                parts = [part for first in firsts for part in self._run_parts(connection, first)]
            if not firsts:
                return
            yield from parts
            after = firsts[-1].number

    def _run_parts(self, connection: sa.Connection, first: sa.Row[Any]) -> Iterator[RunTrials]:
        """The trials of a run, given its first one."""
        of_run = history.trials_of_run(connection, first)
        while rows := [*islice(of_run, RunTrials.MOST)]:
            points = {key: points for key, _, points in rows}
            trials = self._read(connection, [trial for _, trial, _ in rows])
            if trials:
                yield RunTrials(
                    job_id=first.job_id, trials=trials, points=[points[t.key] for t in trials]
                )

    def take_in(self, parts: Iterable[HistoryPart], *, of: Scope = None) -> dict[str, TakenIn]:
        """Write the missing parts of other logs' :meth:`history`.

        Idempotent; all is written or nothing.

        :param of: the jobs of these parts; None: not known before they are read.

        Returns for each job how many trials are new, and how many the log held. Raises StoreError
        if a trial of such a job runs, and if the log has the key or the number of a trial for
        another one.
        """
        counts: dict[str, TakenIn] = {}
        with self._transaction(of, write=True) as connection:
            for job_id, of_job in groupby(parts, key=lambda part: part.job_id):
                counted = sql_trials.lock_job(connection, job_id)
                with self._locked(connection, job_id, counted) as log:
                    counts[job_id] = service.take_in(log, of_job)
        return counts

    def rename(self, old: str, new: str) -> int:
        """Move the trials of a job, with all that they measured, to a name that is free; return how
        many there are.

        Raises StoreError if there is no job ``old``, if the log has trials of ``new``, and
        while a trial runs.
        """
        with self._transaction([old, new], write=True) as connection:
            now = self._now(connection)
            logs = {}
            for job in sorted({old, new}):  # in one order, or two renames could wait for each other
                logs[job] = JobLog(connection, job, *sql_trials.lock_job(connection, job), now)
                service.reap(logs[job])
            own, others = (len(sql_trials.numbers(connection, job)) for job in (old, new))
            running = [t for log in logs.values() for t in log.open_trials()]
            moving.check_rename(old, new, open_trials=running, own=own, others=others)
            moving.rename(connection, old, new, seq=logs[old].seq, newest=logs[old].newest)
        return own

    def settings(self, job_id: str) -> dict[str, Any]:
        """Live settings of a job: eta, job_version, pause_exploration, excluded and others; empty
        when none are set.
        """
        return read_settings(self._read_setting, job_id) or {}

    def signal(self, name: str) -> measurements.KeptSeries:
        """(The series kept under a name, whether the caller is to ask the service now).

        In each :data:`FRESH_S` one caller is to ask; the others take the kept one. If it keeps
        nothing (its process died, say), another one is to ask after :data:`RETRY_S`.
        """
        # Mostly it is fresh: then the tasks of all jobs need not queue for one lock.
        with self._transaction(Series(name)) as connection:
            kept = measurements.kept_series(connection, name, self._now(connection))
        if not kept.is_due:
            return kept
        with self._transaction(Series(name), write=True) as connection:
            return measurements.kept_series(connection, name, self._now(connection), claim=True)

    def kept_signal(self, name: str) -> str | None:
        """The series kept under a name, for one who asks no service; None: there is none."""
        with self._transaction(Series(name)) as connection:
            return measurements.kept_series(connection, name, self._now(connection)).text

    def keep_signal(self, name: str, series: str | None) -> None:
        """Keep a series; None: there was no answer, so that a caller asks again after
        :data:`RETRY_S`.
        """
        with self._transaction(Series(name), write=True) as connection:
            measurements.keep_series(connection, name, series, now=self._now(connection))

    @property
    def unreadable(self) -> list[Unreadable]:
        """Trials that this object left out of its answers because their rows are damaged; each
        once.
        """
        return list(self._unreadable)

    def _read(self, connection: sa.Connection, found: Iterable[sql_trials.Found]) -> list[Trial]:
        now = self._now(connection)
        trials = []
        for trial in found:
            if isinstance(trial, Unreadable):
                self._unreadable[trial] = None
            else:
                trials.append(rules.read_state(trial, now))
        return trials

    def _now(self, connection: sa.Connection) -> float:
        if self._clock is None:
            return clock(connection)
        return self._clock()

    @contextmanager
    def _open_log(self, of: str | TrialKey) -> Iterator[JobLog]:
        """The log of a job, or of a trial's job, under the lock of its row.

        Raises UnknownTrialError.
        """
        scope: Scope = of if isinstance(of, TrialKey) else [of]
        with self._transaction(scope, write=True) as connection:
            if isinstance(of, TrialKey):
                job_id, counted = sql_trials.lock_job_of(connection, of)
            else:
                job_id = of
                counted = sql_trials.lock_job(connection, job_id)
            with self._locked(connection, job_id, counted) as log:
                yield log

    @contextmanager
    def _locked(
        self, connection: sa.Connection, job_id: str, counted: tuple[int, int]
    ) -> Iterator[JobLog]:
        log = JobLog(connection, job_id, *counted, self._now(connection))
        yield log
        # Heartbeats mostly change neither: each would leave one more dead row in PostgreSQL.
        if (log.seq, log.newest) != counted:
            sql_trials.count_job(connection, job_id, seq=log.seq, newest=log.newest)


class SqlStore(Store):
    """The trial log in a database.

    Raises StoreError when the database cannot be reached or its tables are of another version.

    :param url: database URL; a password in it is never shown.
    :param create: create or migrate the tables (``zeus.db``); otherwise they must exist.
    :param keeps_file_open: as :func:`.engine.engine_of`.
    """

    def __init__(
        self,
        url: str,
        *,
        create: bool = False,
        keeps_file_open: bool = True,
        now: Callable[[], float] | None = None,
        read_setting: ReadText | None = None,
    ) -> None:
        super().__init__(now, read_setting)
        parsed = read_url(url)
        self._engine = engine_of(parsed, keeps_file_open=keeps_file_open)
        self.identity = shown(parsed)
        check(self._engine, create=create)

    def _transaction(
        self, of: Scope, *, write: bool = False
    ) -> AbstractContextManager[sa.Connection]:
        return transaction(self._engine, write=write)

    def _forget_old(self, log: JobLog, trial: Trial) -> None:
        """Also the rows of a task that is measured from outside, whose sums stay."""
        if not trial.is_outside:
            super()._forget_old(log, trial)
            return
        before_s = log.now - outside_sums.KEPT_S
        most = outside_sums.FOLDED_AT_ONCE
        outside_sums.fold(log.connection, log.job_id, before_s, most=most)

    def close(self) -> None:
        """Release connections."""
        forget(self._engine)
