"""Operations on the log of one job, the same for each store: ask, begin, adopt, tell, close, reap,
take in.

Each reads the rows that it is about, lets :mod:`~airflow_provider_zeus.store.rules` decide what
they become, and writes them. A heartbeat, a late one too, is in
:mod:`~airflow_provider_zeus.store.heartbeat`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.errors import StoreError, UnknownTrialError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.partial_sums import Report, merged, resolved
from airflow_provider_zeus.model.trial import (
    BY_HAND,
    REDELIVERED,
    Lineage,
    Origin,
    PowerPoint,
    Previous,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.optimizer.policy import choose, decision_seed, prior
from airflow_provider_zeus.optimizer.situation import Situation
from airflow_provider_zeus.store import rules
from airflow_provider_zeus.store.base import (
    AskAnswer,
    AskRequest,
    HistoryPart,
    JobHead,
    JobProfile,
    TakenIn,
)
from airflow_provider_zeus.store.sql import checkpoints, measurements, moving, outside_sums, trials

if TYPE_CHECKING:
    import sqlalchemy as sa


@dataclass(slots=True)
class JobLog:
    """The log of one job within one transaction, which holds the lock of the job's row."""

    connection: sa.Connection
    job_id: str
    seq: int  # shows a checkpoint that a later closing has made invalid
    newest: int
    now: float  # the store's clock: those of hosts differ

    def find(self, key: TrialKey) -> Trial | None:
        """The trial of a key; None if there is none that can be read."""
        trial = trials.find(self.connection, key)
        if isinstance(trial, Trial):
            return trial
        return None

    def open_trials(self) -> list[Trial]:
        """Trials whose row says ``running``, in order of number."""
        return trials.open_trials(self.connection, self.job_id)

    def add(self, trial: Trial, beside: Container[TrialKey] = ()) -> Trial:
        """Write a new row, and return it.

        :param beside: keys that other rows have; instead of one of them the row gets the next one
            of its task instance.
        """
        if trial.key in beside:
            trial = replace(trial, key=trials.next_key(self.connection, trial.key.ti_id))
        trials.insert(self.connection, trial)
        self.newest = trial.number
        if trial.is_outside:
            outside_sums.add(self.connection, trial)
        return trial

    def put(self, trial: Trial, before: Trial, news: Report | None = None) -> Trial:
        """Write an existing row with the measurements of a report, and return it.

        ``before``: as the log has it.
        """
        trials.update(self.connection, trial)
        # It was closed, or opened again: the policy learns something else from it.
        if trial.told_seq != before.told_seq:
            self.seq += 1
            checkpoints.forget_checkpoints(self.connection, trial)
        if trial.is_outside:
            outside_sums.add(self.connection, trial, before)
        if news is not None:
            measurements.add(self.connection, trial, news)
        return trial


def ask(
    log: JobLog, request: AskRequest, settings: Mapping[str, Any], *, fresh: bool = True
) -> AskAnswer:
    """Close stale trials.

    Return the open trial of this task instance's try, or choose and open the next one.

    :param fresh: whether the live settings were read for this decision: later ones may then go by
        them.
    """
    read_now = dict(settings) if fresh else None
    if request.pinned_by is not None:
        size = request.job.default_batch_size
        settings = {**settings, "pin_batch_size": size, "pinned_by": request.pinned_by}
    running = log.open_trials()
    for stale, reason in rules.stale(running, request, log.now):
        # In the same transaction as the decision: no other request may see a dead run as alive.
        running.remove(stale)
        abandon(log, stale, reason)
    job = request.job.with_settings(settings)
    oldest_open = min((trial.number for trial in running), default=None)
    belief = checkpoints.belief_of(
        log.connection, log.job_id, prior(job, settings), oldest_open=oldest_open
    )
    # A worker whose device cannot be read trains where the last run did, as far as one can know.
    device = request.device or belief.last_device()
    own = trials.of_task_instance(log.connection, request.ti_id)
    # A repeated question gets its old decision, and with it the profile of its own version.
    again = rules.redelivered(own, request.job_id)
    version = again.job_version if again else job.job_version
    earlier = _left_a_model(log, request.origin, job)
    where = device.where if device else None
    profile = measurements.profile(log.connection, log.job_id, where, job_version=version)
    if again:
        trial = _redeliver(log, again, request.lease_s)
    else:
        situation = Situation(
            job=job,
            belief=belief,
            device=device,
            profiles=profile,
            running=running,
            # From job and number alone, so that the decision can be replayed from the log.
            seed=decision_seed(request.job_id, log.newest + 1),
            settings=settings,
            run_type=request.origin.run_type,
            runs_left=request.runs_left,
            finish_by_s=request.finish_by_s,
            now_s=log.now,
            lineage=_lineage(log, request.origin, job, earlier),
            recurrence=request.origin.recurrence(request.ti_id),
        )
        trial = log.add(_opened(log, request, situation, settings=read_now))
    indexes = trials.map_indexes(log.connection, log.job_id, request.origin)
    return AskAnswer(
        trial=trial,
        profile=profile,
        limits_found_w=trials.limits(log.connection, log.job_id, log.newest),
        previous=_previous(earlier),
        numbers=trials.try_numbers(log.connection, trial),
        redelivered=again is not None,
        after_killed=trials.state_before(log.connection, trial) == State.ABANDONED.value,
        shared_with=sorted(indexes - {request.origin.map_index}),
    )


def _opened(
    log: JobLog, request: AskRequest, situation: Situation, settings: Mapping[str, Any] | None
) -> Trial:
    """Choose, and return the new row: running, with the first attempt of its decision.

    :param settings: live settings that were read for this decision; None: they are older.
    """
    decision = replace(choose(situation), settings=settings)
    return Trial(
        job_id=request.job_id,
        number=log.newest + 1,
        key=trials.next_key(log.connection, request.ti_id),
        origin=request.origin,
        spec=situation.job.to_dict(),
        decision=decision,
        planned=decision.attempts[0],
        state=State.RUNNING,
        asked_after_seq=log.seq,
        opened_at=log.now,
        lease_until=log.now + request.lease_s,
        lease_s=request.lease_s,
        lineage=situation.lineage or Lineage(),
    )


def _previous(trained: Sequence[Trial]) -> Previous | None:
    """The value that the newest run with a model returned. ``trained``: newest first."""
    if not trained:
        return None
    newest, *_ = trained
    unneeded = [*takewhile(lambda trial: trial.state is State.NOT_NEEDED, trained)]
    return Previous(returned=newest.observation.returned, not_needed=len(unneeded))


def _left_a_model(log: JobLog, origin: Origin, job: ZeusJob) -> list[Trial]:
    """The newest trials before a run that left a model, newest first.

    Empty for a run that does not teach, since its slice may be old, or if the newest is of another
    version of the job.
    """
    if origin.run_type not in job.learn_from:
        return []
    source = trials.left_a_model(
        log.connection,
        log.job_id,
        origin,
        run_types=job.learn_from,
        most=job.retrain_every or 1,
        newest_number=log.newest,
    )
    # A new version of a job may have another network, whose weights would not load.
    for newest in source[:1]:
        if newest.job_version != job.job_version:
            return []
    return source


def _lineage(log: JobLog, origin: Origin, job: ZeusJob, earlier: Sequence[Trial]) -> Lineage:
    """The earlier model that a run may start from; empty if there is none, or its value was not
    kept.
    """
    if not earlier or not job.chooses_start:
        return Lineage()
    trained, *_ = earlier
    if trained.observation.returned is None:
        return Lineage()
    passed_on = trained.lineage
    if trained.state is State.NOT_NEEDED and passed_on.from_ti_id is not None:
        origin_key = TrialKey(passed_on.from_ti_id, passed_on.from_attempt or 1)
        first = log.find(origin_key)
        if first is None:  # its row is gone, but not the model
            return Lineage.after(trained, (passed_on.from_age or 0) + 1)
        trained = first
    age = 1 + trials.runs_between(log.connection, origin, job.learn_from, trained)
    return Lineage.after(trained, age)


def _redeliver(log: JobLog, trial: Trial, lease_s: float) -> Trial:
    """The open trial of a request that is repeated; a row of its own once a start has reported to
    that trial.
    """
    if trial.observation.start_id is None:
        return log.put(rules.renewed(trial, log.now, lease_s), trial)
    # Two starts drew energy twice: each needs a row of its own.
    abandon(log, trial, REDELIVERED)
    again = rules.another_row(trial, number=log.newest + 1, now=log.now, lease_s=lease_s)
    return log.add(again, [trial.key])


def abandon(log: JobLog, trial: Trial, reason: str) -> Trial:
    """Close an open trial without a result."""
    return log.put(rules.abandon(trial, reason, log.now, seq=log.seq + 1), trial)


def close_trial(log: JobLog, job_id: str, number: int, by: str) -> Trial:
    """Close an open trial by hand. Raises StoreError if no trial of this number is open."""
    for trial in log.open_trials():
        if trial.number == number:
            return abandon(log, trial, f"{BY_HAND} by {by}")
    raise StoreError(
        f"This attempt of {job_id} is not open: it has ended, or the log has none of this number. "
        f"See 'airflow zeus runs {job_id}'."
    )


def reap(log: JobLog) -> list[Trial]:
    """Close the open trials whose lease expired; return them."""
    expired = [trial for trial in log.open_trials() if rules.expired(trial, log.now)]
    return [abandon(log, trial, rules.LEASE_EXPIRED) for trial in expired]


def begin(
    log: JobLog, key: TrialKey, previous: TrialKey, lease_s: float, batch_size: int | None = None
) -> Trial:
    """Write the row of the attempt after ``previous`` unless it exists; under another key if
    ``key`` is taken.
    """
    rows = _rows_beside(log, key)
    if previous not in rows:
        raise UnknownTrialError.of(previous.ti_id, previous.attempt)
    before = rows[previous]
    planned = before.following(batch_size)
    if planned is None:
        raise StoreError(
            f"Attempt {previous.attempt} of task instance {previous.ti_id} is the last one of its "
            "decision; ask again instead of beginning another one."
        )
    row = rules.another_row(before, number=log.newest + 1, now=log.now, lease_s=lease_s)
    row = replace(row, key=key, planned=planned)
    own = rules.row_of_attempt(row, rows)
    if own is not None:
        return own
    return log.add(row, rows)


def adopt(log: JobLog, trial: Trial, lease_s: float) -> Trial:
    """Write the row of a trial that began while the store could not be reached, unless it exists.

    A request whose answer was lost has left an open row under the same key. No start will use it,
    so it is closed.
    """
    rows = _rows_beside(log, trial.key)
    # A trial with a number was answered, so nothing of it was lost.
    lost = None if trial.number else rows.get(trial.key)
    if lost is not None and not rules.same_attempt(lost, trial):
        is_unused = lost.observation.start_id is None
        if is_unused and lost.state is State.RUNNING:
            abandon(log, lost, "its answer was lost: the run trained at the default batch size")
    row = rules.another_row(trial, number=log.newest + 1, now=log.now, lease_s=lease_s)
    # It was decided without the log, so it must not seem to have known other trials.
    row = replace(row, asked_after_seq=0, opened_at=trial.opened_at or log.now)
    own = rules.row_of_attempt(row, rows, trial.observation.start_id)
    if own is not None:
        return own
    return log.add(row, rows)


def _rows_beside(log: JobLog, key: TrialKey) -> dict[TrialKey, Trial]:
    """The rows of a key's task instance. One with this key that cannot be read is deleted: its run
    writes it again.
    """
    rows = {row.key: row for row in trials.of_task_instance(log.connection, key.ti_id)}
    if key not in rows:
        trials.delete(log.connection, key)
    return rows


def tell(log: JobLog, key: TrialKey, state: State, report: Report, reason: str | None) -> Trial:
    """Close a trial. Idempotent."""
    before = trial_of_start(log, key, report)
    news = resolved(before.observation, report)
    observation = merged(before.observation, report.observation)
    trial = rules.closed(before, state, observation, reason, now=log.now, seq=log.seq + 1)
    if trial is before:
        return trial
    return log.put(trial, before, news)


def trial_of_start(log: JobLog, key: TrialKey, report: Report) -> Trial:
    """The row that this start of the plan writes to: a second start under one key gets a row of its
    own.
    """
    start_id = report.observation.start_id
    rows = {row.key: row for row in trials.of_start(log.connection, key, start_id)}
    if key not in rows:
        raise UnknownTrialError.of(key.ti_id, key.attempt)
    held = rows[key]
    if not rules.another_start(held.observation, start_id):
        return held
    for own in rows.values():
        if own is not held and own.planned == held.planned:
            return own
    again = rules.another_row(held, number=log.newest + 1, now=log.now, lease_s=held.lease_s)
    return log.add(again, rows)


def take_in(log: JobLog, parts: Iterable[HistoryPart]) -> TakenIn:
    """Write the missing parts of a job's history; return how many trials are new, and how
    many it held.

    Trials keep their numbers. A profile of a device that the log has measured itself stays as it
    is. Raises StoreError as :meth:`.Store.take_in`.
    """
    # A run that trains here would write to rows that move under it.
    moving.check_closed(log.open_trials())
    before = replace(log)
    days: set[outside_sums.Day] = set()
    new = 0
    present = 0
    for part in parts:
        if isinstance(part, JobHead):
            # Counters never step back: a checkpoint is compared with them.
            log.seq = max(log.seq, part.told_seq)
            log.newest = max(log.newest, part.last_number)
            # An event that this log tells already would begin a second time.
            if part.events and trials.events_text(log.connection, log.job_id) is None:
                trials.hold_events(log.connection, log.job_id, None, held=part.events)
            days = outside_sums.take_in(log.connection, log.job_id, part.days)
        elif isinstance(part, JobProfile):
            _take_in_profile(log, part)
        else:
            for trial, points in zip(part.trials, part.points, strict=True):
                if not _take_in_trial(log, trial, points, before):
                    present += 1
                    continue
                new += 1
                day = outside_sums.day_of(trial)
                is_counted = (day.dag_id, day.begin_s) in days
                if trial.is_outside and not is_counted:
                    outside_sums.add(log.connection, trial)
    return TakenIn(new, present)


def _take_in_profile(log: JobLog, profile: JobProfile) -> None:
    device = profile.where
    version = profile.job_version
    if not measurements.profile(log.connection, log.job_id, device, job_version=version):
        measurements.add_profile(log.connection, log.job_id, device, version, new=profile.samples)


def _take_in_trial(log: JobLog, trial: Trial, points: Sequence[PowerPoint], before: JobLog) -> bool:
    """Write a closed trial, and whether it is new. ``before``: the log as it was before the history
    came.
    """
    if moving.holds(log.connection, trial):
        return False
    if trials.row_id(log.connection, trial.job_id, trial.number) is not None:
        raise StoreError(
            f"Row {trial.number} of {trial.job_id!r} is another one in this log, which has a "
            "history of its own. Give the job another name in one of the two logs first (airflow "
            "zeus jobs rename)."
        )
    # It counts as closed now: a checkpoint without it is no longer valid.
    if (trial.told_seq or 0) <= before.seq:
        trial = replace(trial, told_seq=log.seq + 1)
    trials.insert(log.connection, trial)
    # A checkpoint after it was learned without this trial.
    if trial.number <= before.newest:
        checkpoints.forget_checkpoints(log.connection, trial)
    measurements.add_points(log.connection, trial.key, points)
    log.seq = max(log.seq, trial.told_seq or 0)
    log.newest = max(log.newest, trial.number)
    return True
