"""The rules of the trial log that every store keeps (design: "The store"). Pure: trials in, trials out, no I/O.

``now`` is seconds since the epoch by the store's clock. ``seq`` is the job's ``told_seq``: it counts closings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.trial import (
    Attempt,
    Decision,
    Observation,
    Phase,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.store.base import AskRequest, Report

LEASE_EXPIRED = "lease expired"
ANSWER_LOST = "its answer was lost: the run trained at the default batch size"
REDELIVERED = "redelivered: another start of the task took its place"

LimitRow = tuple[str | None, State, float | None, float | None]  # GPU uuid, state, limit found, limit last set [W]


def version_of(spec: Mapping[str, Any]) -> str:
    """The ``job_version`` that a trial was decided with: a new one starts belief and power profiles anew."""
    return str(spec.get("job_version", ""))


def read_state(trial: Trial, now: float) -> Trial:
    """The trial as every reader sees it: ``running`` with an expired lease is ``abandoned``."""
    if expired(trial, now):
        return replace(trial, state=State.ABANDONED, reason=LEASE_EXPIRED)
    return trial


def stale(open_trials: Iterable[Trial], request: AskRequest, now: float) -> list[tuple[Trial, str]]:
    """Open trials that this question closes, with the reason, in order of number."""
    found = []
    for trial in sorted(open_trials, key=lambda t: t.number):
        if _superseded(trial, request):
            found.append((trial, f"superseded by try {request.origin.try_number}"))
        elif trial.key.ti_id == request.ti_id and trial.planned.phase is Phase.PEEK:
            found.append((trial, REDELIVERED))
        elif expired(trial, now):
            found.append((trial, LEASE_EXPIRED))
    return found


def expired(trial: Trial, now: float) -> bool:
    """Whether an open trial's lease is over."""
    return trial.state is State.RUNNING and trial.lease_until < now


def _superseded(trial: Trial, request: AskRequest) -> bool:
    """Whether the request is a later try of the trial's task instance. A question that comes late closes no newer."""
    old, new = trial.origin, request.origin
    same = (old.dag_id, old.run_id, old.task_id, old.map_index) == (new.dag_id, new.run_id, new.task_id, new.map_index)
    known = bool(new.dag_id or new.run_id)  # asked outside Airflow: nothing says that two are one task instance
    return known and same and trial.key.ti_id != request.ti_id and old.try_number <= new.try_number


def abandon(trial: Trial, reason: str, now: float, seq: int) -> Trial:
    """Close an open trial that nobody came back for; ``seq`` becomes its ``told_seq``."""
    return replace(trial, state=State.ABANDONED, reason=reason, told_seq=seq, closed_at=_closing(trial, now))


def redelivered(own: Iterable[Trial], job_id: str) -> Trial | None:
    """The open trial of a task instance that asks again, the latest attempt first; None when all are closed."""
    still = [t for t in own if t.state is State.RUNNING and t.job_id == job_id]
    return max(still, key=lambda t: t.key.attempt, default=None)


def opened(
    request: AskRequest, job: ZeusJob, decision: Decision, *, number: int, attempt: int, seq: int, now: float
) -> Trial:
    """The new row: running, the first attempt of its decision, made with ``job`` (live settings applied)."""
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
    )


def next_of(
    previous: Trial, key: TrialKey, peek: Attempt | None = None, *, number: int, now: float, lease_s: float
) -> Trial:
    """The row of the attempt after ``previous`` in the same decision, or of one of its peeks. Raises StoreError when
    there is none.
    """
    attempts, peeks = previous.decision.in_order, previous.decision.peeks
    following = attempts[attempts.index(previous.planned) + 1 :] if peek is None else [p for p in peeks if p == peek]
    if not following:
        raise StoreError(
            f"Trial {previous.key.ti_id}, attempt {previous.key.attempt}, ran the last attempt of its decision; "
            "ask for a new trial instead of beginning another attempt."
            if peek is None
            else f"Trial {previous.key.ti_id}, attempt {previous.key.attempt}: its decision has no peek at batch size "
            f"{peek.batch_size}; begin one of {[p.batch_size for p in peeks]}."
        )
    return replace(
        previous,
        number=number,
        key=key,
        planned=following[0],
        state=State.RUNNING,
        reason=None,
        told_seq=None,
        opened_at=now,
        lease_until=now + lease_s,
        closed_at=None,
        observation=Observation(),
    )


def adopted(trial: Trial, *, number: int, now: float, lease_s: float) -> Trial:
    """The open row of a trial that began while the store could not be asked; its decision knew no other trial."""
    return replace(
        trial,
        number=number,
        state=State.RUNNING,
        reason=None,
        asked_after_seq=0,
        told_seq=None,
        opened_at=trial.opened_at or now,
        lease_until=now + lease_s,
        closed_at=None,
        observation=Observation(),
    )


def repeated(trial: Trial, key: TrialKey, *, number: int, now: float, lease_s: float) -> Trial:
    """The open row of another start of the same attempt: what was decided and known stays, what was seen does not."""
    again = adopted(replace(trial, key=key), number=number, now=now, lease_s=lease_s)
    return replace(again, asked_after_seq=trial.asked_after_seq, opened_at=now)


def same_attempt(one: Trial, other: Trial) -> bool:
    """Whether both rows run the same attempt of the same decision."""
    return (one.decision, one.planned) == (other.decision, other.planned)


def never_answered(held: Trial, alone: Trial) -> bool:
    """Whether an open row is of a question whose answer was lost, so that ``alone`` runs in its place."""
    open_ = held.state is State.RUNNING and held.observation.start_id is None
    return open_ and not same_attempt(held, alone)


def beaten(trial: Trial, news: Observation, now: float, lease_s: float) -> Trial:
    """An open trial after a heartbeat: lease renewed, partial sums written."""
    return replace(renewed(trial, now, lease_s), observation=merged(trial.observation, news))


def renewed(trial: Trial, now: float, lease_s: float) -> Trial:
    """The trial with its lease prolonged; a clock that stepped back never shortens it."""
    return replace(trial, lease_until=max(trial.lease_until, now + lease_s))


def settled(trial: Trial, state: State, news: Observation, reason: str | None, *, now: float, seq: int) -> Trial:
    """Close a trial. The very same object comes back when nothing changes.

    ``running`` goes to ``state``; ``abandoned`` to its true state, its news used in full; nothing else moves. Raises
    ValueError for ``State.RUNNING``, which closes nothing.
    """
    if state is State.RUNNING:
        raise ValueError("tell() closes a trial: State.RUNNING is not an end; use heartbeat() for partial sums")
    open_ = trial.state is State.RUNNING
    if not open_ and not (trial.state is State.ABANDONED and state is not State.ABANDONED):
        return trial
    return replace(
        trial,
        state=state,
        reason=None if reason is None else _storable(reason),
        told_seq=seq,
        closed_at=_closing(trial, now),
        observation=merged(trial.observation, news),
    )


_LEAST, _MOST = 1e-9, 1e15  # of what is measured, in whatever unit: products of such figures are finite, and not 0
_ANY_SIZE = ("metric", "target_value", "learning_rate")
_DIFFERENCES = ("rest_j", "rest_s", "excess_j", "excess_s")  # so they may be next to nothing by rounding
_NEVER_NEGATIVE = {"epochs", "samples", "samples_per_epoch", "energy_j", "time_s", "max_power_w", "power_limit_w"}


def merged(old: Observation, new: Observation) -> Observation:
    """Later sums over earlier ones.

    What the later report leaves out stays as it was, so that a death keeps what its heartbeats said; what it names a
    reason for is missing. A number that is not finite is missing too, and one below 0 where there can be none.
    """
    said = dict(new.reasons)
    values: dict[str, Any] = {}
    for name in (f.name for f in fields(Observation)):
        value = getattr(new, name)
        problem = _problem(name, value)
        if problem:
            value, said[name] = None, problem
        elif isinstance(value, str):
            value = _storable(value)
        elif name in _DIFFERENCES and value is not None and abs(value) < _LEAST:
            value = 0.0
        values[name] = getattr(old, name) if value is None and name not in said else value
    reasons = {**old.reasons, **{name: _storable(why) for name, why in said.items()}}
    values["out_of_memory"] = old.out_of_memory or new.out_of_memory
    values["reasons"] = {name: why for name, why in reasons.items() if values.get(name) is None}
    return Observation(**values)


def _problem(name: str, value: Any) -> str:
    """Why a figure cannot be kept: a later decision could not be computed with it. Empty where it can."""
    if isinstance(value, tuple):
        return (
            "" if all(isinstance(j, int | float) and 0 <= j <= _MOST for j in value) else "not a list of finite numbers"
        )
    if isinstance(value, str | bool) or not isinstance(value, int | float) or name in _ANY_SIZE:
        return "not a finite number" if isinstance(value, float) and not math.isfinite(value) else ""
    if not math.isfinite(value):
        return "not a finite number"
    if name in _NEVER_NEGATIVE and value < 0:
        return f"{value:g} was told, which is below 0"
    if name == "device_count" and not 0 < value < 10**6:
        return f"{value} was told, which is no count of devices"
    least = 0.0 if name in _DIFFERENCES else _LEAST
    return "" if value == 0 or least <= abs(value) <= _MOST else f"{value:g} was told, which nothing measures"


def _storable(text: str) -> str:
    """The text with ``?`` for what no database takes: NUL, and bytes of a file name that are no UTF-8."""
    return text.replace("\0", "?").encode(errors="replace").decode()


def finite(report: Report) -> Report:
    """The report without samples and points that hold no number where one must be; a power or limit may be None.

    Nor samples below 0.
    """
    samples = [s for s in report.profile if all(map(_measured, (s.samples, s.energy_j, s.time_s, s.limit_w, s.steps)))]
    samples = [s for s in samples if 0 < s.batch_size <= _MOST]
    points = [p for p in report.points if _measured(p.t_s)]
    points = [replace(p, power_w=_kept(p.power_w), limit_w=_kept(p.limit_w)) for p in points]
    return replace(report, profile=samples, points=points)


def _measured(value: float) -> bool:
    return value == 0 or _LEAST <= value <= _MOST


def _kept(value: float | None) -> float | None:
    return value if value is not None and _measured(value) else None


def another_start(held: Observation, news: Observation) -> bool:
    """Whether the news come from another start of the plan than what is held."""
    return None not in (held.start_id, news.start_id) and held.start_id != news.start_id


def limits_left(rows: Iterable[LimitRow]) -> dict[str, tuple[float, float]]:
    """GPU uuid -> (limit found, limit left behind) [W] where the newest trial of ``rows`` that had the GPU's limit in
    its hands has not given it back: it still runs, or died.
    """
    newest = {uuid: (state, found_w, left_w) for uuid, state, found_w, left_w in rows}
    return {
        uuid: (found_w, left_w)
        for uuid, (state, found_w, left_w) in newest.items()
        if uuid is not None
        and state in (State.RUNNING, State.ABANDONED)
        and found_w is not None
        and left_w is not None
        and found_w != left_w
    }


def _closing(trial: Trial, now: float) -> float:
    return max(now, trial.opened_at)  # a clock that stepped back must not make a trial end before it began
