"""How a trial changes: the same for each store.

Pure functions, no I/O.

``now`` is seconds since the epoch by the store's clock. ``seq`` is the job's ``told_seq``, which
counts closings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from airflow_provider_zeus.model.size_bounds import truncated
from airflow_provider_zeus.model.trial import (
    BY_HAND,
    REDELIVERED,
    SUPERSEDED,
    Observation,
    Origin,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.store.base import AskRequest

LEASE_EXPIRED = "lease expired"


def read_state(trial: Trial, now: float) -> Trial:
    """The trial as readers see it: ``running`` with an expired lease is ``abandoned``.

    ``lease_until`` is at most one lease length from now.
    """
    if expired(trial, now):
        return replace(trial, state=State.ABANDONED, reason=LEASE_EXPIRED)
    # A clock that was ahead wrote it: readers would wait for a lease that nobody renews.
    if trial.state is State.RUNNING and trial.lease_until > now + trial.lease_s:
        return replace(trial, lease_until=now + trial.lease_s)
    return trial


def stale(open_trials: Iterable[Trial], request: AskRequest, now: float) -> list[tuple[Trial, str]]:
    """Open trials that this request closes, with the reason, in order of number."""
    stale = []
    for trial in sorted(open_trials, key=lambda trial: trial.number):
        is_other_try = trial.key.ti_id != request.ti_id
        # A request that was delayed on its way must not close a newer try.
        if is_other_try and _same_or_later_try(trial.origin, request.origin):
            stale.append((trial, f"{SUPERSEDED} {request.origin.try_number}"))
        elif expired(trial, now):
            stale.append((trial, LEASE_EXPIRED))
    return stale


def expired(trial: Trial, now: float) -> bool:
    """Whether an open trial's lease has expired.

    A lease that ends more than two lengths from now counts as expired, too: a clock that was ahead
    wrote it, and a dead run would count as alive until then. A run that is alive renews it. Clocks
    may differ by up to one length.
    """
    return trial.state is State.RUNNING and not 0 <= trial.lease_until - now <= 2 * trial.lease_s


def _same_or_later_try(old: Origin, new: Origin) -> bool:
    # Outside Airflow nothing says that two requests are of one task instance.
    if not new.dag_id and not new.run_id:
        return False
    return _place(old) == _place(new) and old.try_number <= new.try_number


def _place(origin: Origin) -> tuple[str, str, str, int]:
    """The place that all tries of a task instance share."""
    return origin.dag_id, origin.run_id, origin.task_id, origin.map_index


def taken_over(trial: Trial, others: Iterable[Trial]) -> str | None:
    """Why a trial whose lease expired was taken over: by a later try or start.

    None if there is none.

    :param others: trials of the same task instance or DAG run; older ones and the trial itself are
        ignored.
    """
    tries = []
    asked_again = False
    for other in others:
        if other.job_id != trial.job_id or other.number <= trial.number:
            continue
        if other.key.ti_id == trial.key.ti_id:
            # A later attempt of its own decision takes nothing over: it runs in the same task.
            asked_again |= other.decision != trial.decision
        elif _same_or_later_try(trial.origin, other.origin):
            tries.append(other.origin.try_number)
    if tries:
        return f"{SUPERSEDED} {max(tries)}"
    if asked_again:
        return REDELIVERED
    return None


def abandon(trial: Trial, reason: str, now: float, seq: int) -> Trial:
    """Close an open trial without a result; ``seq`` becomes its ``told_seq``."""
    # A clock that steps back must not make a trial end before it began.
    closed_at = max(now, trial.opened_at)
    return replace(trial, state=State.ABANDONED, reason=reason, told_seq=seq, closed_at=closed_at)


def redelivered(own: Iterable[Trial], job_id: str) -> Trial | None:
    """The open trial of a task instance that repeats its request, the latest attempt; None if all
    are closed.
    """
    running = [trial for trial in own if trial.state is State.RUNNING]
    # If prune has deleted its decision's attempts, nobody knows how its plan goes on.
    whole = [trial for trial in running if trial.planned in trial.decision.in_order]
    of_job = [trial for trial in whole if trial.job_id == job_id]
    return max(of_job, key=lambda trial: trial.key.attempt, default=None)


def another_row(trial: Trial, *, number: int, now: float, lease_s: float) -> Trial:
    """An open row of the same decision, which begins now and has measured nothing."""
    return replace(
        trial,
        number=number,
        state=State.RUNNING,
        reason=None,
        told_seq=None,
        opened_at=now,
        lease_until=now + lease_s,
        lease_s=lease_s,
        closed_at=None,
        observation=Observation(),
    )


def same_attempt(one: Trial, other: Trial) -> bool:
    """Whether both rows run the same attempt of the same decision."""
    # Not by the decision itself: prune may have deleted the attempts of one of them.
    return (one.decision.seed, one.planned) == (other.decision.seed, other.planned)


def row_of_attempt(
    trial: Trial, rows: Mapping[TrialKey, Trial], start_id: str | None = None
) -> Trial | None:
    """The row that a trial has among those of its task instance; None: it has none.

    The call came twice, or its answer was lost. Another start may have taken its key.
    """
    if trial.key not in rows:
        return None
    for row in rows.values():
        may_be_its = row.key == trial.key
        if row.key.attempt > trial.key.attempt:
            may_be_its = row.observation.start_id in (None, start_id)
        if may_be_its and same_attempt(row, trial):
            return row
    return None


def renewed(trial: Trial, now: float, lease_s: float) -> Trial:
    """The trial with a renewed lease. A shorter lease never shortens a longer one."""
    until, length_s = lease_after(trial.lease_until, trial.lease_s, now, lease_s)
    return replace(trial, lease_until=until, lease_s=length_s)


def lease_after(until: float, length_s: float, now: float, lease_s: float) -> tuple[float, float]:
    """(end, length) of a lease of ``length_s`` that ends at ``until``, after a renewal by
    ``lease_s``.
    """
    # min(): a clock that was ahead may have written an end that is years away.
    return max(min(until, now + length_s), now + lease_s), max(length_s, lease_s)


def lapsed(trial: Trial) -> bool:
    """Whether a trial was closed because its lease expired."""
    return trial.state is State.ABANDONED and trial.reason == LEASE_EXPIRED


def after_heartbeat(
    trial: Trial,
    observation: Observation,
    others: Iterable[Trial],
    *,
    now: float,
    seq: int,
    lease_s: float,
) -> Trial:
    """The trial after a heartbeat; the same object when nothing changes.

    A trial that was closed because its lease expired is reopened, unless a later try or start of
    its task exists. A trial that was taken over, or closed by hand, gets only its figures. A trial
    that ended does not change.

    :param observation: with the figures of the heartbeat.
    :param others: as :func:`taken_over` reads them, of a trial whose lease expired.
    """
    if lapsed(trial):
        why = taken_over(trial, others)
        if why is None:
            trial = replace(trial, state=State.RUNNING, reason=None, told_seq=seq, closed_at=None)
        else:
            trial = replace(trial, reason=why)
    if trial.state is State.RUNNING:
        return replace(renewed(trial, now, lease_s), observation=observation)
    if trial.state is State.ABANDONED:
        return with_figures(trial, observation, seq)
    return trial


def with_figures(trial: Trial, observation: Observation, seq: int) -> Trial:
    """A closed trial with the figures that its run still reports; the same object when nothing
    changes.
    """
    if observation == trial.observation:
        return trial
    return replace(trial, observation=observation, told_seq=seq)


def closed(
    trial: Trial,
    state: State,
    observation: Observation,
    reason: str | None,
    *,
    now: float,
    seq: int,
) -> Trial:
    """The closed trial; the same object when nothing changes. ``observation``: after the report.

    ``running`` becomes ``state``. ``abandoned`` becomes its true state; without a new reason it
    keeps the one that says it was taken over. A trial that a person closed gets its figures and
    stays closed. No other trial changes. A long reason is cut. Raises ValueError for
    ``State.RUNNING``, which closes nothing.
    """
    if state is State.RUNNING:
        raise ValueError(
            "tell() closes an attempt: State.RUNNING is not an end; use heartbeat() for partial "
            "sums"
        )
    if trial.state is State.ABANDONED and str(trial.reason).startswith(BY_HAND):
        return with_figures(trial, observation, seq)
    # An abandoned trial may still get its true end: it was paid for.
    ends = {State.RUNNING, State.ABANDONED} - {state}
    if trial.state not in ends:
        return trial
    reason = trial.lost_to if reason is None else truncated(reason)
    return replace(
        trial,
        state=state,
        reason=reason,
        told_seq=seq,
        closed_at=max(now, trial.opened_at),
        observation=observation,
    )


def another_start(held: Observation, start_id: str | None) -> bool:
    """Whether a start of the plan is another one than that of the stored observation."""
    # An older version wrote no id: nothing tells two starts apart then.
    return None not in (held.start_id, start_id) and held.start_id != start_id
