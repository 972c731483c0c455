"""``airflow zeus plan``: what the next run of a job would do, when and why. It asks for nothing and changes nothing."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.cli.shell import command, known, opened, print_data, say
from airflow_provider_zeus.errors import SignalError
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Phase, State
from airflow_provider_zeus.operators.config import next_of
from airflow_provider_zeus.operators.schedule import durations, trials_for_durations, window
from airflow_provider_zeus.optimizer.policy import measured
from airflow_provider_zeus.reports.budget_figures import budget_spent
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.job_remarks import of_ended
from airflow_provider_zeus.reports.next_run import NextDecision, Upcoming, next_rung, upcoming
from airflow_provider_zeus.reports.savings import saving
from airflow_provider_zeus.signals.forecast import WAITS
from airflow_provider_zeus.signals.prices import in_force
from airflow_provider_zeus.signals.reading import ReadOnlyKeeper, planned_start
from airflow_provider_zeus.units import energy_text, time_text

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store


@command
def plan(args: Namespace) -> None:
    """Show what the next run of a job would do, as its log stands."""
    with opened(args) as store:
        job_id = known(store, args.job)
        trials = store.trials(job_id, last=1)
        job = trials[-1].job if trials else None
        if job is not None and not job.chooses_size:
            spent = budget_spent(lambda last: store.trials(job_id, last=last), job, in_force(), time.time())
            _measured(args, job, job_id, trials[-1].origin.dag_id, spent.get("budget_spent"))
            return
        found, figures, job = _next_run(store, job_id)
        starts, when = _scheduled(figures["dag_id"])
        wait = may_wait(job, starts, store, job_id, now_s=time.time())
    data = {"job": job_id, **figures, "starts": starts and starts.isoformat(), "wait": wait and wait.as_json()}
    if print_data(data | _as_json(found), args.output):
        return
    lines = {"job": job_id, "starts": when}
    lines |= {"wait": wait.text} if wait else {}
    lines |= _texts(found)
    if figures["settings"]:
        lines["settings"] = ", ".join(f"{name}={json.dumps(value)}" for name, value in figures["settings"].items())
    if figures["running"]:
        numbers = ", ".join(map(str, figures["running"]))
        lines["open now"] = f"trial {numbers}; a run that ends before the next one begins may change this plan"
    if figures["remarks"]:
        lines["newest run"] = " ".join(figures["remarks"])
    for name, text in lines.items():
        say(f"{name:<11} {text}")


def _measured(args: Namespace, job: ZeusJob, job_id: str, dag_id: str, spent: str | None) -> None:
    """The plan of a job that chooses no batch size; ``spent``: which budget is used up."""
    why = measured(job).attempts[0].why if spent is None else f"{spent}."
    starts, when = _scheduled(dag_id)
    data: dict[str, Any] = {"job": job_id, "starts": starts and starts.isoformat(), "attempts": [], "why": why}
    if print_data({**data, "to_save": next_rung(job)}, args.output):
        return
    for name, text in (("job", job_id), ("starts", when), ("why", why), ("to save", next_rung(job))):
        say(f"{name:<11} {text}")


def _next_run(store: Store, job_id: str) -> tuple[Upcoming, dict[str, Any], ZeusJob]:
    """The next decision, what it depends on besides the log, and the job as that run has it."""
    trials, live = store.trials(job_id, last=1000), store.settings(job_id)
    job, switched = next_of(trials[-1].job.with_settings(live))
    log = as_dataset(trials, job)
    profiles = store.profile(job_id, log.where, job.job_version)
    prices = in_force()
    spent = budget_spent(lambda last: store.trials(job_id, last=last), job, prices, time.time())
    decided = NextDecision.of(log, profiles=profiles, trials=trials, settings={**live, **spent, **switched})
    base = saving(log, profiles=profiles, decided=decided).base
    found = upcoming(log, base, decided, profiles=profiles)
    running = [t.number for t in trials if t.state is State.RUNNING]
    noted = [remark.text for remark in of_ended([t for t in trials if t.state is not State.RUNNING])]
    return found, {"dag_id": trials[-1].origin.dag_id, "settings": live, "running": running, "remarks": noted}, job


def _scheduled(dag_id: str) -> tuple[datetime | None, str]:
    """When Airflow creates the next run of a DAG, and in words; None: no schedule, paused, or not known."""
    from sqlalchemy.exc import SQLAlchemyError

    from airflow_provider_zeus.airflow_compat import DagModel, create_session

    try:
        with create_session() as session:
            dag = session.get(DagModel, dag_id)
            after: datetime | None = None if dag is None or dag.is_paused else dag.next_dagrun_create_after
    except SQLAlchemyError:  # this host has no access to Airflow's own database: the rest of the plan holds
        after = None
    if after is None:
        return None, f"not known: DAG {dag_id} has no schedule, is paused, or is not in this Airflow's database"
    return after, f"{after:%Y-%m-%d %H:%M %Z}, by the schedule of {dag_id}"


def _texts(found: Upcoming) -> Mapping[str, str]:
    first, *after = found.attempts
    batch_size, limit = str(first.batch_size), "" if found.limit_w is None else f" at {found.limit_w:g} W"
    if after and first.phase is not Phase.AUDIT:
        missed = "it is given up" if first.bounded else "it misses the target"
        batch_size += f"; {after[-1].batch_size} where {missed}"
    started = {} if first.start is None else {"start": "; ".join(f"{a.batch_size} {a.start}" for a in found.attempts)}
    expected = f"not known: {found.epochs.reason}"
    if found.epochs.value is not None:
        expected = f"{_expected(found)}, of a run of {found.batch_size}{limit}"
    lines = {"batch size": batch_size, **started, "phase": first.phase.text, "why": first.why, "expected": expected}
    if found.room_s is not None:
        room = f"decided as if it had as long until its deadline as the newest run had, {time_text(found.room_s)}"
        most = "" if found.time_95_s is None else f"; 95 % of such runs end within {time_text(found.time_95_s)}"
        lines["deadline"] = f"{room}{most} at full power" if most else room
    return lines


def _expected(found: Upcoming) -> str:
    parts = []
    for name, each, text in (("energy", found.energy_j, energy_text), ("time", found.time_s, time_text)):
        if each.value is None:
            parts.append(f"{name} not known ({each.reason})")
        elif each.low is None or each.high is None or each.low == each.high:
            parts.append(text(each.value))
        else:
            parts.append(f"{text(each.value)} ({text(each.low)} to {text(each.high)})")
    return ", ".join(parts)


def _as_json(found: Upcoming) -> dict[str, Any]:
    def figures(each: Estimate) -> dict[str, Any]:
        return {"value": each.value, "low": each.low, "high": each.high, "missing": each.reason}

    return {
        "attempts": [
            {"batch_size": a.batch_size, "phase": a.phase.value, "why": a.why, "bound_cost": a.bound_cost}
            | ({} if a.start is None else {"start": a.start.value})
            for a in found.attempts
        ],
        "batch_size": found.batch_size,
        "limit_w": found.limit_w,
        "epochs": figures(found.epochs),
        "energy_j": figures(found.energy_j),
        "time_s": figures(found.time_s),
        "time_95_s": found.time_95_s,
        "room_s": found.room_s,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class MayWait:
    """A window after the scheduled start. ``until``: the start by the series in the log; None: not known."""

    within_s: float
    signal: str
    until: datetime | None
    text: str

    def as_json(self) -> dict[str, Any]:
        """As ``-o json`` has it."""
        until = None if self.until is None else self.until.isoformat()
        return {"within_s": self.within_s, "signal": self.signal, "until": until}


def may_wait(job: ZeusJob, starts: datetime | None, store: Store, job_id: str, *, now_s: float) -> MayWait | None:
    """The wait of the next run; None for a job that never waits. No service is asked.

    :param job: as that run has it.
    :param starts: when the schedule begins it; None: not known.
    """
    if job.start_within is None:
        return None
    signal, within_s = str(job.start_signal), window(job).total_seconds()
    most = f"at most {time_text(within_s)} for a cheaper start by {signal}"
    if job.finish_by is not None:
        most += ", and no longer than its deadline lets it"
    until, then = None, "it is planned when the run begins"
    took = durations(trials_for_durations(store, job_id))
    if took is None:
        then = "it starts at once: no run has shown yet how long it takes"
    elif starts is not None and job.finish_by is None:
        begins_s = max(starts.timestamp(), now_s)
        try:
            keeper, ends_s = ReadOnlyKeeper(store.kept_signal), starts.timestamp() + within_s
            found, _ = planned_start(signal, begins_s, ends_s, took[0], keeper)
            until = datetime.fromtimestamp(found.at_s, UTC)
            would = f"start at {until:%Y-%m-%d %H:%M} UTC" if found.reason == WAITS else "not wait"
            then = f"as its series stands it would {would}"
        except SignalError:
            then = f"no series of these hours is in the log; {then}"
    return MayWait(within_s=within_s, signal=signal, until=until, text=f"{most}; {then}")
