"""How a trial changes, and what of a report is stored: the same for each store. Pure functions, no I/O.

``now`` is seconds since the epoch by the store's clock. ``seq`` is the job's ``told_seq``, which counts closings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.size_bounds import MOST_SAMPLES, bounded_points, truncated, truncated_observation
from airflow_provider_zeus.model.trial import (
    Decision,
    Observation,
    Origin,
    PlannedAttempt,
    ProfileSample,
    State,
    Trial,
    TrialKey,
    fitting,
)
from airflow_provider_zeus.model.wire import Figure, rules
from airflow_provider_zeus.store.base import AskRequest, Report

LEASE_EXPIRED = "lease expired"
REDELIVERED = "redelivered: another start of the task took its place"
SUPERSEDED = "superseded by try"
BY_HAND = "closed by hand"
_SAMPLE = Figure(low=0)


def version_of(spec: Mapping[str, Any]) -> str:
    """The ``job_version`` that a trial was decided with: a new one starts an empty belief and power profile."""
    return str(spec["job_version"])


def read_state(trial: Trial, now: float) -> Trial:
    """The trial as readers see it: ``running`` with an expired lease is ``abandoned``.

    ``lease_until`` is at most one lease length from now.
    """
    if expired(trial, now):
        return replace(trial, state=State.ABANDONED, reason=LEASE_EXPIRED)
    if trial.state is State.RUNNING and trial.lease_until > now + trial.lease_s:
        return replace(trial, lease_until=now + trial.lease_s)
    return trial


def stale(open_trials: Iterable[Trial], request: AskRequest, now: float) -> list[tuple[Trial, str]]:
    """Open trials that this request closes, with the reason, in order of number."""
    found = []
    for trial in sorted(open_trials, key=lambda t: t.number):
        other_try = trial.key.ti_id != request.ti_id
        if other_try and _same_or_later_try(trial.origin, request.origin):  # a delayed request closes no newer try
            found.append((trial, f"{SUPERSEDED} {request.origin.try_number}"))
        elif expired(trial, now):
            found.append((trial, LEASE_EXPIRED))
    return found


def expired(trial: Trial, now: float) -> bool:
    """Whether an open trial's lease has expired.

    A lease that ends more than two lengths from now counts as expired too: a clock that was ahead wrote it, and a dead
    run would count as alive until then. A run that is alive renews it. Clocks may differ by up to one length.
    """
    return trial.state is State.RUNNING and not 0 <= trial.lease_until - now <= 2 * trial.lease_s


def _same_or_later_try(old: Origin, new: Origin) -> bool:
    same = (old.dag_id, old.run_id, old.task_id, old.map_index) == (new.dag_id, new.run_id, new.task_id, new.map_index)
    known = bool(new.dag_id or new.run_id)  # outside Airflow nothing says that two requests are of one task instance
    return known and same and old.try_number <= new.try_number


def taken_over(trial: Trial, others: Iterable[Trial]) -> str | None:
    """Why a trial whose lease expired was taken over: by a later try or start. None where there is none.

    :param others: trials of the same task instance or DAG run; older ones and the trial itself are ignored.
    """
    newer = [t for t in others if t.number > trial.number and t.job_id == trial.job_id]
    tries = [t for t in newer if t.key.ti_id != trial.key.ti_id and _same_or_later_try(trial.origin, t.origin)]
    if tries:
        return f"{SUPERSEDED} {max(t.origin.try_number for t in tries)}"
    asked_again = any(t.key.ti_id == trial.key.ti_id and t.decision != trial.decision for t in newer)
    return REDELIVERED if asked_again else None


def lost_to(reason: str | None) -> bool:
    """Whether a trial with this reason was taken over by a later try or start, or closed by a person."""
    return (reason or "").startswith((SUPERSEDED, REDELIVERED, BY_HAND))


def abandon(trial: Trial, reason: str, now: float, seq: int) -> Trial:
    """Close an open trial without a result; ``seq`` becomes its ``told_seq``."""
    closed_at = max(now, trial.opened_at)  # a clock that steps back must not make a trial end before it began
    return replace(trial, state=State.ABANDONED, reason=reason, told_seq=seq, closed_at=closed_at)


def redelivered(own: Iterable[Trial], job_id: str) -> Trial | None:
    """The open trial of a task instance that repeats its request, the latest attempt; None when all are closed."""
    still = [t for t in own if t.state is State.RUNNING and t.job_id == job_id and t.planned in t.decision.in_order]
    return max(still, key=lambda t: t.key.attempt, default=None)


def opened(
    request: AskRequest, job: ZeusJob, decision: Decision, *, number: int, attempt: int, seq: int, now: float
) -> Trial:
    """The new row: running, with the first attempt of its decision. ``job`` has the live settings applied."""
    return Trial(
        job_id=request.job_id,
        number=number,
        key=TrialKey(request.ti_id, attempt),
        origin=request.origin,
        spec=job.to_dict(),
        decision=decision,
        planned=decision.attempts[0],
        state=State.RUNNING,
        asked_after_seq=seq,
        opened_at=now,
        lease_until=now + request.lease_s,
        lease_s=request.lease_s,
    )


def following(previous: Trial, batch_size: int | None = None) -> PlannedAttempt:
    """The attempt after ``previous`` in the same decision. Raises StoreError when that was the last one.

    :param batch_size: that it trains with, where that is known; one that the decision lacks fits a small slice.
    """
    attempts = previous.decision.in_order
    position = attempts.index(previous.planned) if previous.planned in attempts else len(attempts)  # pruned
    later = attempts[position + 1 :]
    if batch_size is None or batch_size not in previous.spec["batch_sizes"]:
        if not later:
            raise StoreError(
                f"Trial {previous.key.ti_id}, attempt {previous.key.attempt}, ran the last attempt of its decision; "
                "ask for a new trial instead of beginning another attempt."
            )
        return later[0]
    same = [attempt for attempt in later or attempts if attempt.batch_size == batch_size]
    if not same:
        return fitting(previous.planned, batch_size)
    return same[0] if previous.observation.out_of_memory or same[0] in previous.decision.attempts else same[-1]


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
    return (one.decision.seed, one.planned) == (other.decision.seed, other.planned)  # its attempts may be pruned


def renewed(trial: Trial, now: float, lease_s: float) -> Trial:
    """The trial with a renewed lease. A shorter lease never shortens a longer one."""
    until, length_s = lease_after(trial.lease_until, trial.lease_s, now, lease_s)
    return replace(trial, lease_until=until, lease_s=length_s)


def lease_after(until: float, length_s: float, now: float, lease_s: float) -> tuple[float, float]:
    """(end, length) of a lease of ``length_s`` that ends at ``until``, after a renewal by ``lease_s``."""
    return max(min(until, now + length_s), now + lease_s), max(length_s, lease_s)


def with_figures(trial: Trial, news: Observation, seq: int) -> Trial:
    """A closed trial with the figures that its run still reports; the same object when nothing changes."""
    seen = merged(trial.observation, news)
    return trial if seen == trial.observation else replace(trial, observation=seen, told_seq=seq)


def closed(trial: Trial, state: State, news: Observation, reason: str | None, *, now: float, seq: int) -> Trial:
    """The closed trial; the same object when nothing changes.

    ``running`` becomes ``state``. ``abandoned`` becomes its true state; without a new reason it keeps the one that says
    it was taken over. A trial that a person closed gets its figures and stays closed. No other trial changes. A long
    reason is cut. Raises ValueError for ``State.RUNNING``, which closes nothing.
    """
    if state is State.RUNNING:
        raise ValueError("tell() closes a trial: State.RUNNING is not an end; use heartbeat() for partial sums")
    if trial.state is State.ABANDONED and (trial.reason or "").startswith(BY_HAND):
        return with_figures(trial, news, seq)
    open_ = trial.state is State.RUNNING
    if not open_ and not (trial.state is State.ABANDONED and state is not State.ABANDONED):
        return trial
    return replace(
        trial,
        state=state,
        reason=truncated(reason) if reason is not None else trial.reason if lost_to(trial.reason) else None,
        told_seq=seq,
        closed_at=max(now, trial.opened_at),
        observation=merged(trial.observation, news),
    )


def another_start(held: Observation, news: Observation) -> bool:
    """Whether an observation comes from another start of the plan than the stored one."""
    return None not in (held.start_id, news.start_id) and held.start_id != news.start_id


def merged(old: Observation, new: Observation) -> Observation:
    """The observation after a later report.

    A field that the later report leaves out keeps its value, so a run that dies keeps what its heartbeats reported. A
    field with a reason becomes None. So does a number that is not finite, or negative where it cannot be. Long texts
    are cut: a report may come from any source.
    """
    new = truncated_observation(new)
    missing = dict(new.reasons)
    values: dict[str, Any] = {}
    figures = rules(Observation)
    for name in (f.name for f in fields(Observation)):
        value, rule = getattr(new, name), figures.get(name)
        if value is not None and isinstance(rule, Figure):
            below = rule.part_of and value < -1e-6 * (values[rule.part_of] or 0.0)  # rounding may leave a tiny rest
            if problem := rule.problem(value) or (f"{value:g} was reported, which is below 0" if below else ""):
                value, missing[name] = None, problem
            elif rule.rounded and abs(value) < _SAMPLE.least:
                value = 0.0
        values[name] = getattr(old, name) if value is None and name not in missing else value
    reasons = {**old.reasons, **missing}
    values["out_of_memory"] = old.out_of_memory or new.out_of_memory
    values["reasons"] = {name: why for name, why in reasons.items() if values.get(name) is None}
    return Observation(**values)


def finite(report: Report) -> Report:
    """The report without samples and points that hold a value which cannot be measured; a power or limit may be None.

    At most the newest 1000 samples and 500 points remain.
    """
    samples = tuple([s for s in report.profile if usable(s)][-MOST_SAMPLES:])
    points = [p for p in report.points if not _SAMPLE.problem(p.t_s)]
    points = [replace(p, power_w=_kept(p.power_w), limit_w=_kept(p.limit_w)) for p in points]
    return replace(report, profile=samples, points=bounded_points(points))


def resolved(held: Observation, report: Report) -> Report:
    """The report with the samples and points of the unsure heartbeats that were not stored.

    A heartbeat is stored completely or not at all, and each one has larger sums than the one before. So the newest
    unsure heartbeat whose sums are in ``held`` is the last one that was stored.
    """
    lost: list[Report] = []
    for beat in reversed(report.unsure):
        if merged(held, beat.observation) == held:
            break
        lost.insert(0, beat)
    profile = [sample for each in (*lost, report) for sample in each.profile]
    points = [point for each in (*lost, report) for point in each.points]
    return replace(report, profile=profile, points=points, unsure=())


def usable(s: ProfileSample) -> bool:
    """Whether all values of a profile sample can have been measured."""
    measured = not any(map(_SAMPLE.problem, (s.samples, s.energy_j, s.time_s, s.limit_w, s.steps)))
    seen = (s.capped is None or 0 <= s.capped <= 1) and (s.sm_clock_mhz is None or not _SAMPLE.problem(s.sm_clock_mhz))
    return measured and seen and 0 < s.batch_size <= _SAMPLE.high


def _kept(value: float | None) -> float | None:
    return None if _SAMPLE.problem(value) else value
