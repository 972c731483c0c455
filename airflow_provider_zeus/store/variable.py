"""``VariableStore``: the trial log in Airflow Variables, for an installation without a database of its own.

Variables have no compare-and-swap: two writers at once lose one's words. So it holds only jobs whose recurrences
cannot overlap, refuses a question where they might, and reads again whatever it wrote.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.optimizer.baseline import COMPLETE
from airflow_provider_zeus.optimizer.trial import PowerPoint, ProfileSample, State, Trial, TrialKey, Where
from airflow_provider_zeus.store import book, ledger
from airflow_provider_zeus.store.base import Asked, AskRequest, Report, Unreadable
from airflow_provider_zeus.store.figures import finite, resolved
from airflow_provider_zeus.store.rows import DAMAGE
from airflow_provider_zeus.store.settings import read_settings, variable_key
from airflow_provider_zeus.store.variable_log import Beat, VariableBook

log = logging.getLogger(__name__)

JOBS = "zeus-jobs"  # names of the jobs: a task on Airflow 3.2 cannot list Variables
REMEDY = "Set max_active_tis_per_dag=1 on the training task, or define Connection zeus_default to PostgreSQL."


T = TypeVar("T")


class VariablePort(Protocol):
    """What the store needs of Airflow's Variables. Every method raises StoreError when they cannot be reached."""

    def get(self, key: str) -> str | None:
        """Text of a Variable; None only where there surely is none."""

    def set(self, key: str, text: str) -> None:
        """Write a Variable."""

    def delete(self, key: str) -> None:
        """Delete a Variable; nothing where there is none."""

    def keys(self, prefix: str) -> list[str]:
        """Keys that begin with ``prefix``. Raises StoreError where they cannot be listed (a task on Airflow 3.2)."""


class VariableStore:
    """The trial log in Variables; see :class:`~airflow_provider_zeus.store.base.Store` for what each method does.

    Keeps the newest 500 trials of a job. Raises StoreError when a Variable cannot be read, holds something else, or
    did not survive its writing.

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
        """Where the log lies, for people."""
        return "Airflow Variables zeus-log:<job>"

    def ask(self, request: AskRequest) -> Asked:
        """Open the next trial of a recurrence. Raises StoreError where another recurrence may be running."""
        if self._overlap_possible is not False:
            raise StoreError(f"The Variable store refuses: recurrences of {request.job_id!r} could overlap. {REMEDY}")
        settings = self.settings(request.job_id, request.job.batch_sizes)
        with self._book(request.job_id) as log:
            self._refuse_overlap(log, request)
            self._list(request.job_id)
            return book.ask(log, request, settings)

    def begin(self, key: TrialKey, previous: TrialKey, *, lease_s: float = 90.0) -> Trial:
        """Write the row of the next attempt of ``previous``'s decision."""
        with self._book(self._job_of(previous)) as log:
            return book.begin(log, key, previous, lease_s)

    def adopt(self, trial: Trial, *, lease_s: float = 90.0) -> Trial:
        """Write the open row of a trial that began while the store could not be asked."""
        self._list(trial.job_id)
        with self._book(trial.job_id) as log:
            return book.adopt(log, trial, lease_s)

    def heartbeat(self, key: TrialKey, report: Report, *, lease_s: float = 90.0) -> str | None:
        """Renew the lease and write partial sums, under the trial's own key."""
        beat, news = self._beat(key), report.observation
        if beat and beat.attempt == key.attempt and not ledger.another_start(beat.report.observation, news):
            report = finite(resolved(beat.report.observation, report))
            self._write(_beat_key(key), beat.with_news(report, self._now(), lease_s).to_json())
            return None
        with self._book(self._job_of(key)) as log:  # closed, or another one's beat lies there
            return book.heartbeat(log, key, report, lease_s)

    def tell(self, key: TrialKey, state: State, report: Report, *, reason: str | None = None) -> Trial:
        """Close a trial."""
        with self._book(self._job_of(key)) as log:
            return book.tell(log, key, state, report, reason)

    def close_trial(self, job_id: str, number: int, *, by: str) -> Trial:
        """Close an open trial by hand."""
        with self._book(job_id) as log:
            return book.close_trial(log, job_id, number, by)

    def reap(self, job_id: str) -> list[Trial]:
        """Close the trials of a job whose lease expired; none while a trial runs, whose words this could lose."""
        now = self._now()
        if any(not ledger.expired(t, now) for t in self._load(job_id).open_trials()):
            return []
        with self._book(job_id) as log:
            return book.reap(log)

    def trials(self, job_id: str, *, last: int | None = None) -> list[Trial]:
        """The newest 500 trials of a job in order of number, or the ``last`` of them."""
        log = self._load(job_id).log
        return [ledger.read_state(t, self._now()) for t in log[max(len(log) - last, 0) if last is not None else 0 :]]

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
        """None: heartbeats lie in Variables of their own."""
        return None

    def latest(self, *, last: int) -> list[Trial]:
        """Of every job in every DAG the trials whose numbers are among its ``last`` newest."""
        every = [t for job_id in self.jobs() for t in self.trials(job_id)]
        ends = {(t.origin.dag_id, t.job_id): t.number for t in every}
        found = [t for t in every if t.number > ends[t.origin.dag_id, t.job_id] - last]
        return sorted(found, key=lambda t: (t.origin.dag_id, t.job_id, t.number))

    def jobs(self, dag_id: str | None = None) -> list[str]:
        """Job ids in the log, sorted; with ``dag_id`` those with a trial of that DAG."""
        every = sorted(_read(JOBS, self._port.get(JOBS), _names) or [])
        return every if dag_id is None else [job for job in every if self.runs(dag_id, job, last=1)]

    def complete(self, job_id: str, batch_size: int, *, last: int) -> list[Trial]:
        """The ``last`` newest trials of one batch size that ended with a model."""
        found = [t for t in self.trials(job_id) if t.batch_size == batch_size and t.state in COMPLETE]
        return found[max(len(found) - last, 0) :]

    def profile(self, job_id: str, device: Where, job_version: str) -> list[ProfileSample]:
        """What one version of a job measured on one device: sums per (batch size, power limit)."""
        return list(self._load(job_id).profile(device, job_version))

    def points(self, key: TrialKey) -> list[PowerPoint]:
        """Power over time of one of the newest 20 trials, at most 100 points; empty for older ones."""
        log = self._load(self._job_of(key))
        trial, beat = log.find(key), log.beats.get(key)
        told = log.points.get(trial.number, []) if trial else []
        return [*told, *(beat.report.points if beat else ())]

    def settings(self, job_id: str, batch_sizes: Sequence[int] | None = None) -> dict[str, Any]:
        """Live settings of a job that can be used."""
        return read_settings(self._port.get, job_id, batch_sizes)

    @property
    def unreadable(self) -> list[Unreadable]:
        """Trials that the answers of this object left out."""
        return list(self._unreadable)

    def close(self) -> None:
        """Nothing is held open."""

    def _refuse_overlap(self, log: VariableBook, request: AskRequest) -> None:
        closing = [t.key for t, _ in ledger.stale(log.open_trials(), request, log.now)]
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
        raise book.unknown(key)

    @contextmanager
    def _book(self, job_id: str) -> Iterator[VariableBook]:
        """Read the log, let it be changed, write it, and only then the heartbeat keys of what opened and closed."""
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
            self._drop_beat(trial.key)

    def _load(self, job_id: str) -> VariableBook:
        key = variable_key("zeus-log", job_id)
        log = _read(key, self._port.get(key), VariableBook.from_json) or VariableBook(job_id)
        beats = {t.key: self._beat(t.key) for t in log.open_trials()}
        log.overlay({k: beat for k, beat in beats.items() if beat and beat.attempt == k.attempt})
        self._unreadable |= dict.fromkeys(damage for _, damage in log.unread)
        return log

    def _beat(self, key: TrialKey) -> Beat | None:
        """What lies under the key of a task instance; None where that is damaged: the next heartbeat mends it."""
        text = self._port.get(_beat_key(key))
        try:
            return _read(_beat_key(key), text, Beat.from_json)
        except StoreError as error:
            log.warning("%s", error)
            return None

    def _drop_beat(self, key: TrialKey) -> None:
        beat = self._beat(key)
        if beat and beat.attempt == key.attempt:  # the next attempt's may lie there already
            self._port.delete(_beat_key(key))

    def _list(self, job_id: str) -> None:
        jobs = self.jobs()
        if job_id not in jobs:
            self._write(JOBS, json.dumps(sorted([*jobs, job_id])))

    def _write(self, key: str, text: str) -> None:
        try:
            self._port.set(key, text)
            found = self._port.get(key)
        except StoreError as error:  # the answer to a writing may be lost, and what was written be there
            raise StoreError(str(error), passing=error.passing, unsure=True) from error
        if found != text:
            raise StoreError(
                f"Variable {key!r} did not survive its writing: another process wrote it, or it is defined in the "
                f"environment or a secrets backend. {REMEDY}"
            )


def _names(text: str) -> list[str]:
    names = json.loads(text)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("not a list of names")
    return names


def _beat_key(key: TrialKey) -> str:
    return variable_key("zeus-beat", key.ti_id)


def _read(key: str, text: str | None, parse: Callable[[str], T]) -> T | None:
    try:
        return None if text is None else parse(text)
    except DAMAGE as error:
        raise StoreError(
            f"Variable {key!r} does not hold what this version writes ({error}); repair it, or delete it to start anew."
        ) from error
