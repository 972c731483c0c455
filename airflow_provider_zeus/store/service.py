"""Operations on the log of one job, the same for each store: ask, begin, adopt, tell, close, reap, take in.

What a heartbeat does, a late one too, is in :mod:`~airflow_provider_zeus.store.heartbeat`, and the rules for a single
trial are in :mod:`~airflow_provider_zeus.store.rules`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.errors import StoreError, UnknownTrialError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Lineage, Origin, PowerPoint, Previous, State, Trial, TrialKey
from airflow_provider_zeus.optimizer.policy import choose, decision_seed, prior
from airflow_provider_zeus.store import rules
from airflow_provider_zeus.store.base import AskAnswer, AskRequest, HistoryPart, JobHead, JobProfile, Report, Unreadable
from airflow_provider_zeus.store.sql import checkpoints, measurements, moving, trials

if TYPE_CHECKING:
    import sqlalchemy as sa


@dataclass(slots=True)
class JobLog:
    """The log of one job within one transaction, which holds the lock of the job's row."""

    connection: sa.Connection
    job_id: str
    seq: int  # number of closings so far
    newest: int  # number of the newest trial, 0 when there is none
    now: float  # seconds since the epoch, the store's clock

    def find(self, key: TrialKey) -> Trial | None:
        """The trial of a key; None where there is none that can be read."""
        found = trials.find(self.connection, key)
        return found if isinstance(found, Trial) else None

    def open_trials(self) -> list[Trial]:
        """Trials whose row says ``running``, in order of number."""
        return trials.open_trials(self.connection, self.job_id)

    def add(self, trial: Trial) -> None:
        """Write a new row."""
        trials.insert(self.connection, trial)
        self.newest = trial.number

    def put(self, trial: Trial, *, relearn: bool = False) -> None:
        """Write an existing row; ``relearn``: what the policy learns from it has changed."""
        trials.update(self.connection, trial)
        if relearn:
            checkpoints.forget_checkpoints(self.connection, trial)


def ask(log: JobLog, request: AskRequest, settings: Mapping[str, Any], *, fresh: bool = True) -> AskAnswer:
    """Close stale trials. Return the open trial of this task instance's try, or choose and open the next one.

    :param fresh: whether the live settings were read for this decision: later ones may then go by them.
    """
    known = dict(settings) if fresh else None
    if request.pinned_by is not None:
        settings = {**settings, "pin_batch_size": request.job.default_batch_size, "pinned_by": request.pinned_by}
    running = log.open_trials()
    for stale, reason in rules.stale(running, request, log.now):
        running.remove(stale)
        abandon(log, stale, reason)
    job = request.job.with_settings(settings)
    oldest_open = running[0].number if running else None
    belief = checkpoints.belief_of(log.connection, log.job_id, prior(job, settings), oldest_open=oldest_open)
    device = request.device or belief.last_device()
    own = trials.of_task_instance(log.connection, request.ti_id)
    again = rules.redelivered(own, request.job_id)
    version = rules.version_of(again.spec) if again else job.job_version
    left = _left_a_model(log, request.origin, job)
    profile = measurements.profile(log.connection, log.job_id, device.where if device else None, version)
    if again:
        trial = _redeliver(log, again, request.lease_s)
    else:
        number = log.newest + 1
        seed = decision_seed(request.job_id, number)
        lineage = _lineage(log, request.origin, job, left)
        decision = choose(
            job,
            belief,
            profiles=profile,
            device=device,
            running=running,
            seed=seed,
            settings=settings,
            run_type=request.origin.run_type,
            runs_left=request.runs_left,
            finish_by_s=request.finish_by_s,
            now_s=log.now,
            lineage=lineage,
            recurrence=request.origin.recurrence(request.ti_id),
        )
        attempt = trials.next_attempt(log.connection, request.ti_id)
        decision = replace(decision, settings=known)
        trial = rules.opened(request, job, decision, number=number, attempt=attempt, seq=log.seq, now=log.now)
        trial = replace(trial, lineage=lineage)
        log.add(trial)
        if not job.chooses_size:
            measurements.forget_measured(log.connection, log.job_id, log.now)
    unneeded = [*takewhile(lambda trial: trial.state is State.NOT_NEEDED, left)]
    indexes = trials.map_indexes(log.connection, log.job_id, request.origin)
    return AskAnswer(
        trial=trial,
        profile=profile,
        limits_found_w=trials.limits(log.connection, log.job_id, log.newest),
        previous=Previous(returned=left[0].observation.returned, not_needed=len(unneeded)) if left else None,
        redelivered=again is not None,
        after_killed=trials.state_before(log.connection, trial) == State.ABANDONED.value,
        shared_with=sorted(indexes - {request.origin.map_index}),
    )


def _left_a_model(log: JobLog, origin: Origin, job: ZeusJob) -> list[Trial]:
    """The newest trials before a run that left a model; none for a run that does not teach: its slice may be old."""
    if origin.run_type not in job.learn_from:
        return []
    runs = job.retrain_every or 1
    found = trials.left_a_model(log.connection, log.job_id, origin, job.learn_from, runs, log.newest)
    return found if found and rules.version_of(found[0].spec) == job.job_version else []


def _lineage(log: JobLog, origin: Origin, job: ZeusJob, left: Sequence[Trial]) -> Lineage:
    """The earlier model that a run may start from; empty where there is none, or its value was not kept."""
    if not job.chooses_start or not left or left[0].observation.returned is None:
        return Lineage()
    trained, held = left[0], left[0].lineage
    if trained.state is State.NOT_NEEDED and held.from_ti_id is not None:
        found = log.find(TrialKey(held.from_ti_id, held.from_attempt or 1))
        if found is None:  # pruned
            return Lineage.after(trained, (held.from_age or 0) + 1)
        trained = found
    age = 1 + trials.runs_between(log.connection, origin, job.learn_from, trained)
    return Lineage.after(trained, age)


def _redeliver(log: JobLog, trial: Trial, lease_s: float) -> Trial:
    """The open trial of a request that is repeated; a row of its own once a start has reported to that trial."""
    if trial.observation.start_id is None:
        trial = rules.renewed(trial, log.now, lease_s)
        log.put(trial)
        return trial
    abandon(log, trial, rules.REDELIVERED)
    return _repeated(log, trial, lease_s)


def _repeated(log: JobLog, trial: Trial, lease_s: float) -> Trial:
    """A row of its own for another start of the same attempt."""
    key = TrialKey(trial.key.ti_id, trials.next_attempt(log.connection, trial.key.ti_id))
    again = rules.another_row(replace(trial, key=key), number=log.newest + 1, now=log.now, lease_s=lease_s)
    log.add(again)
    return again


def abandon(log: JobLog, trial: Trial, reason: str) -> Trial:
    """Close an open trial without a result."""
    log.seq += 1
    closed = rules.abandon(trial, reason, log.now, log.seq)
    log.put(closed, relearn=True)
    return closed


def close_trial(log: JobLog, job_id: str, number: int, by: str) -> Trial:
    """Close an open trial by hand. Raises StoreError where no trial of this number is open."""
    trial = next((t for t in log.open_trials() if t.number == number), None)
    if trial is None:
        raise StoreError(
            f"Trial {number} of {job_id} is not open: it has ended, or the log has none of this number. "
            f"See 'airflow zeus trials {job_id}'."
        )
    return abandon(log, trial, f"{rules.BY_HAND} by {by}")


def reap(log: JobLog) -> list[Trial]:
    """Close the open trials whose lease expired; return them."""
    expired = [t for t in log.open_trials() if rules.expired(t, log.now)]
    return [abandon(log, trial, rules.LEASE_EXPIRED) for trial in expired]


def begin(log: JobLog, key: TrialKey, previous: TrialKey, lease_s: float, batch_size: int | None = None) -> Trial:
    """Write the row of the attempt after ``previous`` unless it exists; under another key where ``key`` is taken."""
    before = _known(log, previous)
    trial = replace(before, key=key, planned=rules.following(before, batch_size))
    trial = rules.another_row(trial, number=log.newest + 1, now=log.now, lease_s=lease_s)
    return _found_or_added(log, trial)


def adopt(log: JobLog, trial: Trial, lease_s: float) -> Trial:
    """Write the row of a trial that began while the store could not be reached, unless it exists.

    A request whose answer was lost has left an open row under the same key. No start will use it, so it is closed.
    """
    start_id = trial.observation.start_id
    found = None if trial.number else log.find(trial.key)
    unused = found and found.state is State.RUNNING and found.observation.start_id is None
    if found and unused and not rules.same_attempt(found, trial):
        abandon(log, found, "its answer was lost: the run trained at the default batch size")
    row = rules.another_row(trial, number=log.newest + 1, now=log.now, lease_s=lease_s)
    row = replace(row, asked_after_seq=0, opened_at=trial.opened_at or log.now)  # its decision knew no other trial
    return _found_or_added(log, row, start_id)


def _found_or_added(log: JobLog, trial: Trial, start_id: str | None = None) -> Trial:
    """The row of the same attempt of the same decision. Where another start has taken the key, a row with a new key."""
    found = trials.find(log.connection, trial.key)
    if isinstance(found, Unreadable):  # its run writes it again
        trials.delete(log.connection, trial.key)
    if not isinstance(found, Trial):
        log.add(trial)
        return trial
    if rules.same_attempt(found, trial):
        return found
    own = trials.of_task_instance(log.connection, trial.key.ti_id)
    displaced = [t for t in own if t.key.attempt > trial.key.attempt and rules.same_attempt(t, trial)]
    mine = next((t for t in displaced if t.observation.start_id in (None, start_id)), None)
    if mine is None:
        mine = replace(trial, key=TrialKey(trial.key.ti_id, trials.next_attempt(log.connection, trial.key.ti_id)))
        log.add(mine)
    return mine


def tell(log: JobLog, key: TrialKey, state: State, report: Report, reason: str | None) -> Trial:
    """Close a trial. Idempotent."""
    before = trial_of_start(log, key, report)
    trial = rules.closed(before, state, report.observation, reason, now=log.now, seq=log.seq + 1)
    if trial is not before:
        log.seq += 1
        log.put(trial, relearn=True)
        measurements.add(log.connection, trial, rules.resolved(before.observation, report))
    return trial


def trial_of_start(log: JobLog, key: TrialKey, report: Report) -> Trial:
    """The row that this start of the plan writes to: a second start under one key gets a row of its own."""
    trial = _known(log, key)
    if not rules.another_start(trial.observation, report.observation):
        return trial
    own = trials.of_task_instance(log.connection, key.ti_id)
    start_id = report.observation.start_id
    found = next((t for t in own if t.observation.start_id == start_id and t.planned == trial.planned), None)
    if found:
        return found
    return _repeated(log, trial, trial.lease_s)


def _known(log: JobLog, key: TrialKey) -> Trial:
    trial = log.find(key)
    if trial is None:
        raise UnknownTrialError.of(key.ti_id, key.attempt)
    return trial


def take_in(log: JobLog, parts: Iterable[HistoryPart]) -> tuple[int, int]:
    """Write what the log does not hold of a job's history; return how many trials are new, and how many it held.

    Trials keep their numbers. A profile of a device that the log has measured itself stays as it is. Raises StoreError
    as :meth:`.Store.take_in`.
    """
    moving.check_closed(log.open_trials())
    before, new, held = replace(log), 0, 0
    for part in parts:
        if isinstance(part, JobHead):
            log.seq = max(log.seq, part.told_seq)
            log.newest = max(log.newest, part.last_number)
            if part.events and trials.events_text(log.connection, log.job_id) is None:
                trials.hold_events(log.connection, log.job_id, None, part.events)
        elif isinstance(part, JobProfile):
            _take_in_profile(log, part)
        else:
            for trial, points in zip(part.trials, part.points, strict=True):
                is_new = _take_in_trial(log, trial, points, before)
                new += is_new
                held += not is_new
    return new, held


def _take_in_profile(log: JobLog, profile: JobProfile) -> None:
    device, version = profile.where, profile.job_version
    if not measurements.profile(log.connection, log.job_id, device, version):
        measurements.add_profile(log.connection, log.job_id, device, version, profile.samples)


def _take_in_trial(log: JobLog, trial: Trial, points: Sequence[PowerPoint], before: JobLog) -> bool:
    """Write a closed trial, and whether it is new. ``before``: the log as it was before the history came."""
    if moving.holds(log.connection, trial):
        return False
    if trials.row_id(log.connection, trial.job_id, trial.number) is not None:
        raise StoreError(
            f"Trial {trial.number} of {trial.job_id!r} is another one in this log, which has a history of its own. "
            "Give the job another name in one of the two logs first (airflow zeus jobs rename)."
        )
    if (trial.told_seq or 0) <= before.seq:  # it counts as closed now: a checkpoint without it is no longer valid
        trial = replace(trial, told_seq=log.seq + 1)
    trials.insert(log.connection, trial)
    if trial.number <= before.newest:
        checkpoints.forget_checkpoints(log.connection, trial)
    measurements.add_points(log.connection, trial.key, points)
    log.seq = max(log.seq, trial.told_seq or 0)
    log.newest = max(log.newest, trial.number)
    return True
