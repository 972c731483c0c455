"""``airflow zeus jobs``: lists the jobs of the log and changes their live settings."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from airflow_provider_zeus.cli.shell import (
    command,
    confirmed,
    known,
    of_all_jobs,
    opened,
    or_dash,
    os_user,
    print_data,
    say,
    show,
)
from airflow_provider_zeus.errors import JobSpecError, StoreError
from airflow_provider_zeus.model.job_checks import check_new_id
from airflow_provider_zeus.model.trial import EXCLUDED, Trial
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.reports.export_rows import cost_of
from airflow_provider_zeus.reports.job_remarks import NEWEST, remarks
from airflow_provider_zeus.store.live_settings import (
    SETTINGS,
    ZEUS_CHOOSES,
    copy_settings,
    variable_key,
    write_settings,
)
from airflow_provider_zeus.store.pending import drain
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from airflow_provider_zeus.units import energy_text, time_text


@command
def list_jobs(args: Namespace) -> int:
    """List jobs with their newest trial; the status is 1 where one is left out, as its log is damaged."""
    with opened(args) as store:
        logs, status = of_all_jobs(store, lambda job_id: (store.trials(job_id), store.settings(job_id)))
        identity = store.identity
    figures = [_figures(job_id, *each) for job_id, each in logs.items()]
    if print_data(figures, args.output):
        return status
    plain = args.output == "plain"
    rows = [_cells(job_id, *each) for job_id, each in logs.items()]
    show(rows, empty=f"No job in {identity} yet.", plain=plain)
    for job_id, (log, _) in logs.items():
        for remark in remarks(log[-NEWEST:]):
            said = f"{job_id}: {'warning: ' * remark.is_warning}{remark.text}"
            say(said, file=sys.stderr if plain else None)
    return status


def _cells(job_id: str, log: Sequence[Trial], settings: dict[str, Any]) -> dict[str, str]:
    last = log[-1] if log else None
    return {
        "job": job_id,
        "trials": str(len(log)),
        "recurrences": str(_recurrences(log)),
        "last state": last.state.text if last else "-",
        "batch size": "-" if last is None or last.batch_size is None else str(last.batch_size),
        "energy": or_dash(last.observation.energy_j, energy_text) if last else "-",
        "time": or_dash(last.observation.time_s, time_text) if last else "-",
        "source": (last.observation.energy_source or "none") if last else "-",
        "settings": ", ".join(f"{name}={json.dumps(value)}" for name, value in settings.items()) or "-",
    }


def _figures(job_id: str, log: Sequence[Trial], settings: dict[str, Any]) -> dict[str, Any]:
    last = log[-1] if log else None
    cost, unit = cost_of(last) if last else (None, None)
    return {
        "job": job_id,
        "trials": len(log),
        "recurrences": _recurrences(log),
        "last_state": last.state.value if last else None,
        "last_batch_size": last.batch_size if last else None,
        "last_cost": cost,
        "cost_unit": unit,
        "energy_source": last.observation.energy_source if last else None,
        "settings": settings,
        "remarks": [remark.text for remark in remarks(log[-NEWEST:])],
    }


def _recurrences(log: Sequence[Trial]) -> int:
    """Number of scheduled runs: all tries and attempts of a task instance are one."""
    origins = [(trial.origin, trial.key.ti_id) for trial in log]
    return len({(o.dag_id, o.run_id, o.task_id, o.map_index) if o.dag_id or o.run_id else ti for o, ti in origins})


@command
def pin(args: Namespace) -> None:
    """Train with one batch size from the next run on. Raises JobSpecError where the job does not have it."""
    job_id, sizes = _with_sizes(args)
    if args.batch_size not in sizes:
        raise JobSpecError.of(
            "BATCH_SIZE", args.batch_size, f"not in batch_sizes {list(sizes)} of {job_id}", "Choose one of them"
        )
    _change(job_id, pin_batch_size=args.batch_size)
    say(f"{job_id} trains with batch size {args.batch_size} from its next run on.")


@command
def pause(args: Namespace) -> None:
    """Pause exploration from the next run on. Raises JobSpecError where the job has no batch sizes to explore."""
    job_id, sizes = _with_sizes(args)
    if not sizes:
        problem = "its runs have no batch size, so there is nothing to pause"
        raise JobSpecError.of("JOB", job_id, problem, 'To set no power limit, give its task mode="measure"')
    _change(job_id, pause_exploration=True)
    say(f"{job_id} explores no other batch size from its next run on.")


@command
def resume(args: Namespace) -> None:
    """Let Zeus choose the batch size again: end a pin and a pause."""
    job_id = _change(_known(args), **ZEUS_CHOOSES)
    say(f"Zeus chooses the batch size of {job_id} again, from its next run on.")


@command
def exclude(args: Namespace) -> None:
    """Let the run of one trial teach nothing, or teach again. Raises StoreError if the log has no such trial."""
    with opened(args) as store:
        job_id = known(store, args.job)
        trials = store.trials(job_id)
        before = set(store.settings(job_id).get(EXCLUDED, ()))
    named = next((trial for trial in trials if trial.number == args.number), None)
    if named is None:
        raise StoreError(f"{job_id} has no trial {args.number}. See 'airflow zeus trials {job_id}'.")
    run = {trial.number for trial in trials if trial.recurrence == named.recurrence}
    after = sorted(before - run if args.undo else before | run)
    _change(job_id, excluded=after or None)
    which = f"{'trial' if len(run) == 1 else 'trials'} {', '.join(map(str, sorted(run)))}"
    what = "teaches again" if args.undo else "teaches nothing"
    say(f"The run of {job_id} with {which} {what}, from the next run on. What it cost and saved counts as before.")


@command
def reset(args: Namespace) -> int:
    """Restart what a job learns, by a ``job_version`` that no earlier trial has. The log is kept."""
    job_id = _known(args)
    if not args.yes and not confirmed(f"Forget what the trials of {job_id} taught? They stay in the log. [y/N] "):
        say("Nothing was changed.")
        return 1
    version = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    _change(job_id, job_version=version)
    say(f"{job_id} starts again with its next run (job_version {version}); its older trials teach nothing now.")
    return 0


@command
def rename(args: Namespace) -> None:
    """Give the history and the live settings of a job to another name.

    The settings are in a Variable, so this is three steps: copy them, rename in the log, delete those of the old name.
    What was cut off in between works, and the same command finishes it. Costs of the old name that wait to be stored
    come first: later they would be stored under it again.
    """
    variables, old, new = AirflowVariables(), args.old, args.new
    check_new_id("NEW", new)
    with opened(args) as store:
        drain(store, variables, old, state_dir=ZeusConfig.read().state_dir)
        jobs = store.jobs()
        done = old not in jobs and new in jobs and bool(variables.get(variable_key(SETTINGS, old)))
        if not done:
            known(store, old)
        copied = copy_settings(variables, old, new)
        try:
            count = None if done else store.rename(old, new)
        except StoreError as error:
            if copied and not error.unsure:
                variables.delete(variable_key(SETTINGS, new))
            raise
    variables.delete(variable_key(SETTINGS, old))
    if count is None:
        say(f"The live settings of {old} are now those of {new}; its trials had this name already.")
    else:
        say(f"{count} trial{'' if count == 1 else 's'} of {old} {'is' if count == 1 else 'are'} now of {new}.")


def _with_sizes(args: Namespace) -> tuple[str, Sequence[int]]:
    """A job and the batch sizes of its newest trial that can be read."""
    with opened(args) as store:
        job_id = known(store, args.job)
        newest = store.trials(job_id)[-1:]
    return job_id, newest[0].spec.get("batch_sizes") or () if newest else ()


def _known(args: Namespace) -> str:
    with opened(args) as store:
        return known(store, args.job)


def _change(job_id: str, **changes: object) -> str:
    """Change live settings of a job (None removes one), and return its name. Raises StoreError."""
    write_settings(AirflowVariables(), job_id, changes, by=f"cli: {os_user()}")
    return job_id
