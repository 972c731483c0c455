"""What a question and a report do to the log of one job: the same for every store.

A :class:`Book` is that log inside one transaction (SQL) or one read and write (Variable). The rules themselves are in
:mod:`~airflow_provider_zeus.store.ledger`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from airflow_provider_zeus.errors import StoreError, UnknownTrialError
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.policy import Belief, choose, decision_seed
from airflow_provider_zeus.optimizer.trial import PowerPoint, ProfileSample, State, Trial, TrialKey, Where
from airflow_provider_zeus.store import ledger
from airflow_provider_zeus.store.base import Asked, AskRequest, Report
from airflow_provider_zeus.store.figures import finite, resolved


class Book(Protocol):
    """The log of one job, locked."""

    now: float  # seconds since the epoch, the store's clock
    seq: int  # closings so far
    newest: int  # number of the newest trial, 0 when there is none

    def find(self, key: TrialKey) -> Trial | None:
        """The trial of a key."""

    def open_trials(self) -> list[Trial]:
        """Trials whose row says ``running``, in order of number."""

    def of_task_instance(self, ti_id: str) -> list[Trial]:
        """Every trial of one try of a task that can be read."""

    def next_attempt(self, ti_id: str) -> int:
        """The number after the highest attempt of one try of a task."""

    def of_run(self, dag_id: str, run_id: str) -> list[Trial]:
        """The trials of one DAG run."""

    def belief(self, job: ZeusJob, oldest_open: int | None) -> Belief:
        """The fold of the log in order of number."""

    def profile(self, device: Where | None, job_version: str) -> tuple[ProfileSample, ...]:
        """Sums per (batch size, limit) of one version of the job on one device."""

    def limits_found(self) -> Mapping[str, tuple[float, float]]:
        """GPU uuid -> (power limit found, left behind) [W], where the newest trial has not given it back."""

    def add(self, trial: Trial) -> None:
        """Write a new row."""

    def put(self, trial: Trial, *, relearn: bool = False) -> None:
        """Write a row that is there; ``relearn``: what it teaches has changed."""

    def add_samples(self, trial: Trial, samples: Iterable[ProfileSample]) -> None:
        """Append profile samples measured on the trial's device, of its version of the job."""

    def add_points(self, key: TrialKey, points: Sequence[PowerPoint]) -> None:
        """Append power points."""


def ask(book: Book, request: AskRequest, settings: Mapping[str, Any]) -> Asked:
    """Close what nobody came back for; give the open trial of this key again, or decide and open the next."""
    running = _still_open(book, request)
    job = request.job.with_settings(settings)
    belief = book.belief(job, min((t.number for t in running), default=None))
    device = request.device or belief.last_device()
    own = book.of_task_instance(request.ti_id)
    again = ledger.redelivered(own, request.job_id)
    version = ledger.version_of(again.spec) if again else job.job_version
    profile = book.profile(device.where if device else None, version)
    if again:
        trial = _handed_out_again(book, again, request.lease_s)
    else:
        number = book.newest + 1
        seed = decision_seed(request.job_id, number, job.seed)
        decision = choose(
            job,
            belief,
            profiles=profile,
            device=device,
            running=running,
            seed=seed,
            settings=settings,
            run_type=request.origin.run_type,
        )
        attempt = book.next_attempt(request.ti_id)
        trial = ledger.opened(request, job, decision, number=number, attempt=attempt, seq=book.seq, now=book.now)
        book.add(trial)
    return Asked(
        trial=trial,
        profile=profile,
        profile_device=device,
        limits_found_w=book.limits_found(),
        redelivered=again is not None,
    )


def _handed_out_again(book: Book, trial: Trial, lease_s: float) -> Trial:
    """The open trial of a question that comes twice; once a start has reported to it, a row of its own beside it."""
    if trial.observation.start_id is None:
        trial = ledger.renewed(trial, book.now, lease_s)
        book.put(trial)
        return trial
    _abandon(book, trial, ledger.REDELIVERED)
    return _repeated(book, trial, lease_s)


def _repeated(book: Book, trial: Trial, lease_s: float) -> Trial:
    """A row of its own for another start of the same attempt."""
    key = _free_key(book, trial.key)
    again = ledger.repeated(trial, key, number=book.newest + 1, now=book.now, lease_s=lease_s)
    book.add(again)
    return again


def _free_key(book: Book, key: TrialKey) -> TrialKey:
    return TrialKey(key.ti_id, book.next_attempt(key.ti_id))


def _still_open(book: Book, request: AskRequest) -> list[Trial]:
    """Open trials, after those were closed that this question ends."""
    running = book.open_trials()
    for trial, reason in ledger.stale(running, request, book.now):
        running.remove(trial)
        _abandon(book, trial, reason)
    return running


def _abandon(book: Book, trial: Trial, reason: str) -> Trial:
    book.seq += 1
    closed = ledger.abandon(trial, reason, book.now, book.seq)
    book.put(closed, relearn=True)
    return closed


def close_trial(book: Book, job_id: str, number: int, by: str) -> Trial:
    """Close an open trial by hand. Raises StoreError where there is none of this number."""
    trial = next((t for t in book.open_trials() if t.number == number), None)
    if trial is None:
        raise StoreError(
            f"Trial {number} of {job_id} is not open: it has ended, or the log has none of this number. "
            f"See 'airflow zeus trials {job_id}'."
        )
    return _abandon(book, trial, f"{ledger.BY_HAND} by {by}")


def reap(book: Book) -> list[Trial]:
    """Close the open trials whose lease expired."""
    expired = [t for t in book.open_trials() if ledger.expired(t, book.now)]
    return [_abandon(book, trial, ledger.LEASE_EXPIRED) for trial in expired]


def begin(book: Book, key: TrialKey, previous: TrialKey, lease_s: float) -> Trial:
    """Write the row of the attempt after ``previous``, unless it is there; under another key where ``key`` is taken."""
    before = _known(book, previous)
    trial = ledger.next_of(before, key, number=book.newest + 1, now=book.now, lease_s=lease_s)
    return _there_or_added(book, trial)


def adopt(book: Book, trial: Trial, lease_s: float) -> Trial:
    """Write the row of a trial that began while the store could not be asked, unless it is there.

    A question whose answer was lost has left an open row under the same key, which no start ever takes: it is closed.
    """
    start_id = trial.observation.start_id
    lost = None if trial.number else book.find(trial.key)
    if lost and ledger.never_answered(lost, trial):
        _abandon(book, lost, ledger.ANSWER_LOST)
    trial = ledger.adopted(trial, number=book.newest + 1, now=book.now, lease_s=lease_s)
    return _there_or_added(book, trial, start_id)


def _there_or_added(book: Book, trial: Trial, start_id: str | None = None) -> Trial:
    """The row that runs the same attempt of the same decision under this key; where another trial's lies there, a row
    of its own: another start of the plan took the key.
    """
    there = book.find(trial.key)
    if there is None:
        book.add(trial)
        return trial
    if ledger.same_attempt(there, trial):
        return there
    own = book.of_task_instance(trial.key.ti_id)
    displaced = [t for t in own if t.key.attempt > trial.key.attempt and ledger.same_attempt(t, trial)]
    mine = next((t for t in displaced if t.observation.start_id in (None, start_id)), None)
    if mine is None:
        mine = replace(trial, key=_free_key(book, trial.key))
        book.add(mine)
    return mine


def heartbeat(book: Book, key: TrialKey, report: Report, lease_s: float) -> str | None:
    """Renew the lease and write partial sums; why the trial is no longer its run's, None while it is.

    A trial that was closed because its lease lapsed is open again, unless a later try or start of its task is there.
    One that was taken over, or closed by hand, gets its figures alone; to one that ended nothing is added.
    """
    trial = _of_start(book, key, report)
    if trial.key != key:
        _close_earlier_starts(book, trial)
    report = resolved(trial.observation, report)
    lapsed = trial.state is State.ABANDONED and trial.reason == ledger.LEASE_EXPIRED
    if lapsed:
        trial = _reopened(book, trial)
    if trial.state is State.RUNNING:
        trial = ledger.beaten(trial, report.observation, book.now, lease_s)
        book.put(trial, relearn=lapsed)
        _extras(book, trial, report)
    elif trial.state is State.ABANDONED:
        _keep_figures(book, trial, report)
        return trial.reason
    return None


def _reopened(book: Book, trial: Trial) -> Trial:
    """A trial whose lease lapsed and whose run lives: open again, or with the reason why it is its run's no longer."""
    origin = trial.origin
    others = book.of_task_instance(trial.key.ti_id)
    if origin.dag_id or origin.run_id:
        others += book.of_run(origin.dag_id, origin.run_id)
    why = ledger.taken_over(trial, others)
    if why is not None:
        trial = replace(trial, reason=why)
        book.put(trial)
        return trial
    book.seq += 1
    return ledger.reopened(trial, book.seq)


def _keep_figures(book: Book, trial: Trial, report: Report) -> None:
    """Write what the run of a closed trial still reports."""
    known = ledger.with_figures(trial, report.observation, book.seq + 1)
    if known is not trial:
        book.seq += 1
        book.put(known, relearn=True)
    _extras(book, known, report)


def _close_earlier_starts(book: Book, trial: Trial) -> None:
    """Of two starts under one key the one that came later goes on; the earlier one is told with its next report."""
    for other in book.of_task_instance(trial.key.ti_id):
        if other.state is State.RUNNING and other.number < trial.number and ledger.same_attempt(other, trial):
            _abandon(book, other, ledger.REDELIVERED)


def tell(book: Book, key: TrialKey, state: State, report: Report, reason: str | None) -> Trial:
    """Close a trial, once."""
    before = _of_start(book, key, report)
    trial = ledger.settled(before, state, report.observation, reason, now=book.now, seq=book.seq + 1)
    if trial is not before:
        book.seq += 1
        book.put(trial, relearn=True)
        _extras(book, trial, resolved(before.observation, report))
    return trial


def _extras(book: Book, trial: Trial, report: Report) -> None:
    report = finite(report)
    book.add_samples(trial, report.profile)
    book.add_points(trial.key, report.points)


def _of_start(book: Book, key: TrialKey, report: Report) -> Trial:
    """The row that this start of the plan writes: a second start under one key is an observation of its own."""
    trial = _known(book, key)
    if not ledger.another_start(trial.observation, report.observation):
        return trial
    own = book.of_task_instance(key.ti_id)
    start_id = report.observation.start_id
    there = next((t for t in own if t.observation.start_id == start_id and t.planned == trial.planned), None)
    if there:
        return there
    return _repeated(book, trial, trial.lease_s)


def _known(book: Book, key: TrialKey) -> Trial:
    trial = book.find(key)
    if trial is None:
        raise unknown(key)
    return trial


def unknown(key: TrialKey) -> UnknownTrialError:
    """The error of a key that the log does not hold."""
    return UnknownTrialError(
        f"No trial {key.ti_id}, attempt {key.attempt}, in the log: ask for one before reporting to it."
    )
