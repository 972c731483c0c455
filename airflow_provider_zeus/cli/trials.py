"""``airflow zeus trials``: shows the trials of a job."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from airflow_provider_zeus.cli.shell import (
    command,
    known,
    number_text,
    opened,
    or_dash,
    print_data,
    say,
    show,
)
from airflow_provider_zeus.model.trial import UNSEEN, State, Trial
from airflow_provider_zeus.reports.export_rows import cost_of
from airflow_provider_zeus.reports.job_remarks import of_ended
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
