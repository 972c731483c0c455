"""What a question and a report do to the log of one job: the same for every store.

A :class:`Book` is that log inside one transaction (SQL) or one read and write (Variable). The rules themselves are in
:mod:`~airflow_provider_zeus.store.ledger`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.policy import Belief, choose, decision_seed
from airflow_provider_zeus.optimizer.trial import (
    Attempt,
    Observation,
    PowerPoint,
    ProfileSample,
    State,
    Trial,
    TrialKey,
    Where,
)
from airflow_provider_zeus.store import ledger
from airflow_provider_zeus.store.base import Asked, AskRequest, Report


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
        """Every trial of one try of a task."""

    def belief(self, job: ZeusJob, oldest_open: int | None) -> Belief:
        """The fold of the log in order of number."""

    def profile(self, device: Where | None, job_version: str) -> tuple[ProfileSample, ...]:
        """Sums per (batch size, limit) of one version of the job on one device."""

    def limits_found(self) -> Mapping[str, tuple[float, float]]:
        """GPU uuid -> (power limit found, left behind) [W], where the newest trial has not given it back."""

    def add(self, trial: Trial) -> None:
        """Write a new row."""

    def put(self, trial: Trial, *, closed: bool = False) -> None:
        """Write a row that is there; ``closed``: what it teaches has changed."""

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
        trial = _handed_out_again(book, again, own, request.lease_s)
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
        attempt = max((t.key.attempt for t in own), default=0) + 1
        trial = ledger.opened(request, job, decision, number=number, attempt=attempt, seq=book.seq, now=book.now)
        book.add(trial)
    return Asked(
        trial=trial,
        profile=profile,
        profile_device=device,
        limits_found_w=book.limits_found(),
        redelivered=again is not None,
    )


def _handed_out_again(book: Book, trial: Trial, own: Sequence[Trial], lease_s: float) -> Trial:
    """The open trial of a question that comes twice; once a start has reported to it, a row of its own beside it."""
    if trial.observation.start_id is None:
        trial = ledger.renewed(trial, book.now, lease_s)
        book.put(trial)
        return trial
    _abandon(book, trial, ledger.REDELIVERED)
    again = ledger.repeated(trial, _free_key(own), number=book.newest + 1, now=book.now, lease_s=lease_s)
    book.add(again)
    return again


def _free_key(own: Sequence[Trial]) -> TrialKey:
    return TrialKey(own[0].key.ti_id, max(t.key.attempt for t in own) + 1)


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
    book.put(closed, closed=True)
    return closed


def reap(book: Book) -> list[Trial]:
    """Close the open trials whose lease expired."""
    expired = [t for t in book.open_trials() if ledger.expired(t, book.now)]
    return [_abandon(book, trial, ledger.LEASE_EXPIRED) for trial in expired]


def begin(book: Book, key: TrialKey, previous: TrialKey, planned: Attempt | None, lease_s: float) -> Trial:
    """Write the row of the attempt after ``previous`` or of a peek of its decision, unless it is there; under another
    key where ``key`` is taken.
    """
    before = _known(book, previous)
    trial = ledger.next_of(before, key, planned, number=book.newest + 1, now=book.now, lease_s=lease_s)
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
        mine = replace(trial, key=_free_key(own))
        book.add(mine)
    return mine


def heartbeat(book: Book, key: TrialKey, report: Report, lease_s: float) -> None:
    """Renew the lease and write partial sums of an open trial."""
    trial = _of_start(book, key, report)
    if trial.state is State.RUNNING:
        report = resolved(trial.observation, report)
        trial = ledger.beaten(trial, report.observation, book.now, lease_s)
        book.put(trial)
        _extras(book, trial, report)


def tell(book: Book, key: TrialKey, state: State, report: Report, reason: str | None) -> Trial:
    """Close a trial, once."""
    before = _of_start(book, key, report)
    trial = ledger.settled(before, state, report.observation, reason, now=book.now, seq=book.seq + 1)
    if trial is not before:
        book.seq += 1
        book.put(trial, closed=True)
        _extras(book, trial, resolved(before.observation, report))
    return trial


def resolved(held: Observation, report: Report) -> Report:
    """The report with the samples and points of those heartbeats before it that were not stored.

    A heartbeat is stored whole, and those after it hold what it brought or come after it too. So what is ``held`` says
    which was the last one that was stored. Each of them says another sum than the one before.
    """
    lost: list[Report] = []
    for beat in reversed(report.unsure):
        if ledger.merged(held, beat.observation) == held:
            break
        lost.insert(0, beat)
    profile = [sample for each in (*lost, report) for sample in each.profile]
    points = [point for each in (*lost, report) for point in each.points]
    return replace(report, profile=profile, points=points, unsure=())


def _extras(book: Book, trial: Trial, report: Report) -> None:
    report = ledger.finite(report)
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
    lease_s = max(trial.lease_until - book.now, 0.0)
    trial = ledger.repeated(trial, _free_key(own), number=book.newest + 1, now=book.now, lease_s=lease_s)
    book.add(trial)
    return trial


def _known(book: Book, key: TrialKey) -> Trial:
    trial = book.find(key)
    if trial is None:
        raise unknown(key)
    return trial


def unknown(key: TrialKey) -> StoreError:
    """The error of a key that the log does not hold."""
    return StoreError(f"No trial {key.ti_id}, attempt {key.attempt}, in the log: ask for one before reporting to it.")
