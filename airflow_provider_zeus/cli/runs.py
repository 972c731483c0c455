"""``airflow zeus runs``: shows the runs of a job, a line for each attempt."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from itertools import chain
from typing import Any

from airflow_provider_zeus.cli.shell import (
    command,
    known,
    note,
    number_text,
    opened,
    or_dash,
    print_data,
    show,
)
from airflow_provider_zeus.model.energy_source import NOT_MEASURED
from airflow_provider_zeus.model.groups import newest_known
from airflow_provider_zeus.model.run_numbers import RunNumbers
from airflow_provider_zeus.model.trial import UNSEEN, Origin, State, Trial, timed
from airflow_provider_zeus.reports.dataset import runs_of
from airflow_provider_zeus.reports.export_rows import cost_of
from airflow_provider_zeus.reports.job_remarks import bypassed, of_ended
from airflow_provider_zeus.units import energy_text, time_text


@command
def runs(args: Namespace) -> None:
    """Show the runs of a job."""
    with opened(args) as store:
        job_id = known(store, args.job)
        log = store.trials(job_id)
    numbers = RunNumbers(log)
    of_job = runs_of(log)
    empty = f"No run of {job_id} yet."
    if args.run is not None:
        empty = f"No run {args.run!r} in the log of {job_id}."
        of_job = [
            run for run in of_job if args.run in (run[0].origin.run_id, str(numbers.run(run[0])))
        ]
    # A job of years has thousands of runs, and a terminal some fifty lines.
    last = args.last or 20
    trials = list(chain.from_iterable(of_job[-last:]))
    # A cell is rounded and has a unit: a program cannot compute with it.
    if print_data([_figures(trial, numbers) for trial in trials], args.output):
        return
    plain = args.output == "plain"
    show(_rows(trials, numbers, why=args.why), empty=empty, plain=plain)
    # What a training has not finished may still change.
    ended = [trial for trial in trials if trial.state is not State.RUNNING]
    untaught = bypassed(trials)
    if untaught:
        note(untaught, plain=plain)
    for remark in of_ended(ended, numbers):
        note(remark.text, plain=plain)


def _rows(trials: Sequence[Trial], numbers: RunNumbers, *, why: bool) -> list[dict[str, str]]:
    """The table. A column that shows nothing new in any row is left out."""
    rows = [_cells(trial, numbers) for trial in trials]
    # A column of the same cell in each row would make the lines of a terminal break.
    origins = [trial.origin for trial in trials]
    is_shown = {
        "why": why,
        "map index": any(origin.map_index >= 0 for origin in origins),
        "start": any(trial.planned.start is not None for trial in trials),
        # Most slices are named by their run, whose column tells the name already.
        "slice": any((origin.data_slice or "") not in origin.run_id for origin in origins),
    }
    return [{name: cell for name, cell in row.items() if is_shown.get(name, True)} for row in rows]


def _cells(trial: Trial, numbers: RunNumbers) -> dict[str, str]:
    o = trial.observation
    origin = trial.origin
    state = trial.state.text
    if o.bypassed is not None:
        # Such a run looks like any other, yet nothing was learned from it.
        state += " (untaught)"
    if UNSEEN in o.reasons:
        state += " (batch size not seen)"
    why = trial.planned.why
    if trial.reason:
        why += f" Ended: {trial.reason}"
    return {
        "attempt": numbers.attempt(trial),
        "DAG run": origin.run_id or "-",
        "map index": or_dash(_map_index(origin), str),
        "slice": origin.data_slice or "-",
        "batch size": or_dash(trial.batch_size, str),
        "start": o.start or "-",
        "phase": trial.planned.phase.text,
        "state": state,
        "epochs": number_text(o.epochs),
        "energy": or_dash(o.energy_j, energy_text),
        "time": or_dash(o.time_s, time_text),
        "limit": number_text(o.power_limit_w, " W"),
        "source": source_text([trial]),
        "why": why,
    }


def source_text(trials: Sequence[Trial]) -> str:
    """The newest energy source of trials; a dash if none of them told what it took."""
    measured = timed(trials)
    if not measured:
        return "-"
    return newest_known(trial.observation.energy_source for trial in measured) or NOT_MEASURED


def _map_index(origin: Origin) -> int | None:
    """None if the task is not mapped."""
    if origin.map_index < 0:
        return None
    return origin.map_index


def _figures(trial: Trial, numbers: RunNumbers) -> dict[str, Any]:
    o = trial.observation
    origin = trial.origin
    cost, unit = cost_of(trial)
    generations = None
    # A job that chooses no start has no generations, and 0 would claim a cold start.
    if trial.planned.start:
        generations = trial.generations
    started_from = None
    if trial.generations:
        started_from = trial.lineage.from_ti_id
    return {
        "run": numbers.run(trial),
        "attempt": numbers.attempt(trial),
        "trial": trial.number,
        "dag_id": origin.dag_id,
        "run_id": origin.run_id,
        "task_id": origin.task_id,
        "map_index": _map_index(origin),
        "run_type": origin.run_type,
        "data_slice": origin.data_slice,
        "batch_size": trial.batch_size,
        "start": o.start,
        "planned_start": trial.planned.start,
        "generations": generations,
        "started_from": started_from,
        "phase": trial.planned.phase.value,
        "state": trial.state.value,
        "reason": trial.reason,
        "epochs": o.epochs,
        "energy_j": o.energy_j,
        "time_s": o.time_s,
        "cost": cost,
        "cost_unit": unit,
        "power_limit_w": o.power_limit_w,
        "energy_source": o.energy_source,
        "missing": dict(o.reasons),
        "why": trial.planned.why,
    }
