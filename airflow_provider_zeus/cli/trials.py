"""``airflow zeus trials`` shows the trials of a job, ``worth`` what its retrainings bought; ``close`` closes one."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import asdict
from typing import Any

from airflow_provider_zeus.cli.shell import (
    command,
    confirmed,
    known,
    number_text,
    opened,
    or_dash,
    os_user,
    print_data,
    say,
    show,
)
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.trial import UNSEEN, State, Trial
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.export_rows import cost_of
from airflow_provider_zeus.reports.job_remarks import of_ended
from airflow_provider_zeus.reports.worth import worth as bought
from airflow_provider_zeus.units import energy_text, time_text


@command
def trials(args: Namespace) -> None:
    """Show the trials of a job."""
    with opened(args) as store:
        job_id = known(store, args.job)
        if args.run is None:
            found = store.trials(job_id, last=args.last or 20)
        else:
            found = [t for t in store.trials(job_id) if t.origin.run_id == args.run][-(args.last or 0) :]
    if print_data([_figures(t) for t in found], args.output):
        return
    empty = f"No trial of run {args.run!r} in the log of {job_id}." if args.run else f"No trial of {job_id} yet."
    mapped = any(t.origin.map_index >= 0 for t in found)
    plain = args.output == "plain"
    show([_cells(t, why=args.why, mapped=mapped) for t in found], empty=empty, plain=plain)
    for remark in of_ended([t for t in found if t.state is not State.RUNNING]):
        say(remark.text, file=sys.stderr if plain else None)


def _cells(trial: Trial, *, why: bool, mapped: bool) -> dict[str, str]:
    """``mapped``: show the map index."""
    seen = trial.observation
    cells = {
        "trial": str(trial.number),
        "run": trial.origin.run_id or "-",
        **({"map index": "-" if trial.origin.map_index < 0 else str(trial.origin.map_index)} if mapped else {}),
        "slice": trial.origin.data_slice or "-",
        "batch size": "-" if trial.batch_size is None else str(trial.batch_size),
        **({"start": seen.start or "-"} if trial.planned.start else {}),
        "phase": trial.planned.phase.text,
        "state": trial.state.text
        + " (untaught)" * (seen.bypassed is not None)
        + " (batch size not seen)" * (UNSEEN in seen.reasons),
        "epochs": number_text(seen.epochs),
        "energy": or_dash(seen.energy_j, energy_text),
        "time": or_dash(seen.time_s, time_text),
        "limit": number_text(seen.power_limit_w, " W"),
        "source": seen.energy_source or "none",
    }
    ended = f" Ended: {trial.reason}" if trial.reason else ""
    return cells | ({"why": f"{trial.planned.why}{ended}"} if why else {})


def _figures(trial: Trial) -> dict[str, Any]:
    seen, (cost, unit) = trial.observation, cost_of(trial)
    return {
        "trial": trial.number,
        "dag_id": trial.origin.dag_id,
        "run_id": trial.origin.run_id,
        "task_id": trial.origin.task_id,
        "map_index": trial.origin.map_index if trial.origin.map_index >= 0 else None,
        "run_type": trial.origin.run_type,
        "data_slice": trial.origin.data_slice,
        "batch_size": trial.batch_size,
        "start": seen.start,
        "planned_start": trial.planned.start,
        "generations": trial.generations if trial.planned.start else None,
        "started_from": trial.lineage.from_ti_id if trial.generations else None,
        "phase": trial.planned.phase.value,
        "state": trial.state.value,
        "reason": trial.reason,
        "epochs": seen.epochs,
        "energy_j": seen.energy_j,
        "time_s": seen.time_s,
        "cost": cost,
        "cost_unit": unit,
        "power_limit_w": seen.power_limit_w,
        "energy_source": seen.energy_source,
        "missing": dict(seen.reasons),
        "why": trial.planned.why,
    }


@command
def worth(args: Namespace) -> int:
    """Say what the last retrainings of a job bought. Raises JobSpecError: no such job."""
    with opened(args) as store:
        job_id = known(store, args.job)
        trials = store.trials(job_id)
    job = trials[-1].job
    if not job.chooses_size:
        say("This job names no metric: no run tells what it bought.")
        return 0
    log = as_dataset(trials, job)
    found = bought(log, log.belief().changes, args.last)
    if print_data({"job": job_id, **({"missing": found} if isinstance(found, str) else asdict(found))}, args.output):
        return 0
    say(f"Not known: {found}." if isinstance(found, str) else found.said())
    return 0


@command
def close(args: Namespace) -> int:
    """Close an open trial. Raises JobSpecError: no such job or trial, or the trial has ended."""
    with opened(args) as store:
        job_id, number = known(store, args.job), args.trial
        found = {t.number: t for t in store.trials(job_id)}
        trial = found.get(number)
        if trial is None:
            remedy = f"Its newest one is {max(found, default=0)}; see 'airflow zeus trials {job_id}'"
            raise JobSpecError.of("TRIAL", number, f"{job_id} has no such trial that can be read", remedy)
        if trial.state is not State.RUNNING and trial.closed_at is not None:
            problem = f"it is closed already ({trial.state.text}{f', {trial.reason}' if trial.reason else ''})"
            raise JobSpecError.of("TRIAL", number, problem, "Only an open trial can be closed")
        what = (
            f"trial {trial.number} of {trial.job_id} (run {trial.origin.run_id or '-'}, batch size {trial.batch_size})"
        )
        if not args.yes and not confirmed(f"Close {what} permanently? [y/N] "):
            say("Nothing was changed.")
            return 1
        closed = store.close_trial(trial.job_id, trial.number, by=os_user())
    say(f"Closed {what}: {closed.reason}.")
    return 0
