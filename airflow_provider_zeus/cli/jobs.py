"""``airflow zeus jobs``: lists the jobs of the log and changes their live settings."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_zeus.cli.runs import source_text
from airflow_provider_zeus.cli.shell import (
    command,
    confirmed,
    known,
    note,
    of_all_jobs,
    opened,
    or_dash,
    os_user,
    print_data,
    say,
    show,
)
from airflow_provider_zeus.errors import JobSpecError, StoreError
from airflow_provider_zeus.model.groups import known_sum
from airflow_provider_zeus.model.job_checks import check_new_id
from airflow_provider_zeus.model.run_numbers import RunNumbers
from airflow_provider_zeus.model.trial import EXCLUDED, Trial, timed
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.reports.dataset import runs_of
from airflow_provider_zeus.reports.export_rows import cost_of
from airflow_provider_zeus.reports.job_remarks import NEWEST, remarks
from airflow_provider_zeus.store.live_settings import ZEUS_CHOOSES, copy_settings, write_settings
from airflow_provider_zeus.store.pending import drain
from airflow_provider_zeus.store.variables.airflow import SETTINGS, AirflowVariables, variable_key
from airflow_provider_zeus.units import SHORT_TASKS, at_least, counted, energy_text, time_text


@command
def list_jobs(args: Namespace) -> int:
    """List jobs with their newest run; the status is 1 if one is left out, as its log is damaged.

    With ``--measured`` those alone measured from outside, which are left out otherwise.
    """
    with opened(args) as store:
        measured = store.outside_jobs()
        jobs = measured
        if not args.measured:
            # A site may measure hundreds of tasks from outside, which would bury its few jobs.
            jobs = sorted({*store.jobs()} - {*measured})
        logs, status = of_all_jobs(
            store, lambda job_id: (store.trials(job_id), store.settings(job_id)), jobs
        )
        identity = store.identity
    figures = [_figures(job_id, log, settings) for job_id, (log, settings) in logs.items()]
    if print_data(figures, args.output):
        return status
    plain = args.output == "plain"
    rows = [_cells(job_id, log, settings) for job_id, (log, settings) in logs.items()]
    show(rows, empty=f"No job in {identity} yet.", plain=plain)
    if args.measured:
        note(SHORT_TASKS, plain=plain)
    elif measured:
        tasks = counted(len(measured), "task")
        note(f"{tasks} measured from outside: airflow zeus jobs list --measured", plain=plain)
    for job_id, (log, _) in logs.items():
        for remark in remarks(log[-NEWEST:]):
            kind = "warning: " if remark.is_warning else ""
            note(f"{job_id}: {kind}{remark.text}", plain=plain)
    return status


def _cells(job_id: str, log: Sequence[Trial], settings: dict[str, Any]) -> dict[str, str]:
    shown = ", ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
    cells = dict.fromkeys(("last state", "batch size", "energy", "time", "source"), "-")
    if log:
        last = log[-1]
        run = [trial for trial in log if trial.recurrence == last.recurrence]
        cells = {
            "last state": last.state.text,
            "batch size": or_dash(last.batch_size, str),
            "energy": _sum_of(run, "energy_j", energy_text),
            "time": _sum_of(run, "time_s", time_text),
            "source": source_text(run),
        }
    return {"job": job_id, "runs": str(len(runs_of(log))), **cells, "settings": shown or "-"}


def _sum_of(run: Sequence[Trial], name: str, text: Callable[[float], str]) -> str:
    """A figure of all attempts of a run, marked if it lacks one. ``text`` writes it."""
    sources = {trial.observation.energy_source for trial in timed(run)}
    # Two sources err in different ways: a sum of both would be the figure of neither.
    if len(sources) > 1:
        return "-"
    figures = [getattr(trial.observation, name) for trial in run]
    amount = known_sum(figures)
    if amount is None:
        return "-"
    if None in figures:
        return at_least(text(amount))
    return text(amount)


def _figures(job_id: str, log: Sequence[Trial], settings: dict[str, Any]) -> dict[str, Any]:
    names = ("last_state", "last_batch_size", "last_cost", "cost_unit", "energy_source")
    figures = dict[str, Any].fromkeys(names)
    if log:
        last = log[-1]
        cost, unit = cost_of(last)
        figures = {
            "last_state": last.state.value,
            "last_batch_size": last.batch_size,
            "last_cost": cost,
            "cost_unit": unit,
            "energy_source": last.observation.energy_source,
        }
    return {
        "job": job_id,
        "runs": len(runs_of(log)),
        "attempts": len(log),
        **figures,
        "settings": settings,
        "remarks": [remark.text for remark in remarks(log[-NEWEST:])],
    }


@command
def pin(args: Namespace) -> None:
    """Train with one batch size from the next run on.

    Raises JobSpecError if the job does not have it.
    """
    job_id, sizes = _with_sizes(args)
    # A pin to another size would stop the job at its next run.
    if args.batch_size not in sizes:
        raise JobSpecError.of(
            "BATCH_SIZE",
            args.batch_size,
            f"not in batch_sizes {list(sizes)} of {job_id}",
            "Choose one of them",
        )
    _change(job_id, pin_batch_size=args.batch_size)
    say(f"{job_id} trains with batch size {args.batch_size} from its next run on.")


@command
def pause(args: Namespace) -> None:
    """Pause exploration from the next run on.

    Raises JobSpecError if the job has no batch sizes to explore.
    """
    job_id, sizes = _with_sizes(args)
    if not sizes:
        problem = "its runs have no batch size, so there is nothing to pause"
        raise JobSpecError.of(
            "JOB", job_id, problem, 'To set no power limit, give its task mode="measure"'
        )
    _change(job_id, pause_exploration=True)
    say(f"{job_id} explores no other batch size from its next run on.")


@command
def resume(args: Namespace) -> None:
    """Let Zeus choose the batch size again: end a pin and a pause."""
    job_id = _change(_known(args), **ZEUS_CHOOSES)
    say(f"Zeus chooses the batch size of {job_id} again, from its next run on.")


@command
def exclude(args: Namespace) -> None:
    """Let a run teach nothing, or teach again. Raises StoreError if the log has no such run."""
    with opened(args) as store:
        job_id = known(store, args.job)
        log = store.trials(job_id)
        before = set(store.settings(job_id).get(EXCLUDED, ()))
    numbers = RunNumbers(log)
    # All attempts of the run: one that is left out would still teach.
    run = {trial.number for trial in log if numbers.run(trial) == args.number}
    if not run:
        raise StoreError(f"{job_id} has no run {args.number}. See 'airflow zeus runs {job_id}'.")
    after = before | run
    does = "teaches nothing"
    if args.undo:
        after = before - run
        does = "teaches again"
    # The check of a setting refuses an empty list, and None removes the setting.
    _change(job_id, excluded=sorted(after) or None)
    say(
        f"Run {args.number} of {job_id} {does}, from the next run on. What it cost and saved "
        "counts as before."
    )


@command
def reset(args: Namespace) -> int:
    """Let a job learn anew, by a ``job_version`` that no earlier trial has. The log is kept."""
    job_id = _known(args)
    question = f"Forget what the runs of {job_id} taught? They stay in the log. [y/N] "
    if not confirmed(question, yes=args.yes):
        return 1
    # A time is in no earlier version, and tells people when.
    version = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    _change(job_id, job_version=version)
    say(
        f"{job_id} starts again with its next run (job_version {version}); its older runs teach "
        "nothing now."
    )
    return 0


@command
def rename(args: Namespace) -> None:
    """Give the history and the live settings of a job to another name.

    The settings are in a Variable, so this is three steps: copy them, rename in the log, delete
    those of the old name. A rename that was cut off in between works, and the same command finishes
    it. Costs of the old name that wait to be stored come first: later they would be stored under it
    again.
    """
    variables = AirflowVariables()
    old = args.old
    new = args.new
    check_new_id("NEW", new)
    with opened(args) as store:
        if store.jobs(old):  # people name a job by its DAG
            old = known(store, old)
        drain(store, variables, old, state_dir=ZeusConfig.read().state_dir)
        jobs = store.jobs()
        is_renamed = old not in jobs and new in jobs
        # the command was cut off after the log was renamed: only the settings are left
        done = is_renamed and bool(variables.get(variable_key(SETTINGS, old)))
        if not done:
            known(store, old)
        copied = copy_settings(variables, old, new)
        message = (
            f"The live settings of {old} are now those of {new}; its runs had this name already."
        )
        try:
            if not done:
                count = store.rename(old, new)
                verb = "is" if count == 1 else "are"
                message = f"{counted(count, 'attempt')} of {old} {verb} now of {new}."
        except StoreError as error:
            # if it may be stored after all, the settings must be under both names
            if copied and not error.unsure:
                variables.delete(variable_key(SETTINGS, new))
            raise
    # Deleted last: as long as they are there, a rename that was cut off can be finished.
    variables.delete(variable_key(SETTINGS, old))
    say(message)


def _with_sizes(args: Namespace) -> tuple[str, Sequence[int]]:
    """A job and the batch sizes of its newest trial that can be read."""
    with opened(args) as store:
        job_id = known(store, args.job)
        log = store.trials(job_id)
    if not log:
        return job_id, ()
    return job_id, log[-1].spec.get("batch_sizes") or ()


def _known(args: Namespace) -> str:
    with opened(args) as store:
        return known(store, args.job)


def _change(job_id: str, **changes: object) -> str:
    """Change live settings of a job (None removes one), and return its name. Raises StoreError."""
    write_settings(AirflowVariables(), job_id, changes, by=f"cli: {os_user()}")
    return job_id
