"""``airflow zeus repair``: cleans up after processes that died, or ends one trial by hand.

Four steps, none of which needs another one: restore power limits, store pending costs, close expired trials, name the
models that nobody took over.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

from airflow_provider_zeus.cli.checks_host import orphans
from airflow_provider_zeus.cli.shell import command, confirmed, known, message_of, of_all_jobs, opened, os_user, say
from airflow_provider_zeus.cli.upkeep import size_text
from airflow_provider_zeus.errors import JobSpecError, ZeusError
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.power.limits.record import restore_orphans
from airflow_provider_zeus.private_files import share_with
from airflow_provider_zeus.store.open import state_dir, store_url
from airflow_provider_zeus.store.pending import drain, pending_places
from airflow_provider_zeus.store.sql.migrate import missing_file
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from airflow_provider_zeus.training.attempt_dir import kept_by_the_dead


@command
def repair(args: Namespace) -> int:
    """Run all steps, or close one trial. The exit status is 1 if something is left to repair."""
    if args.close is not None:
        return _close(args)
    folder = state_dir()
    steps: dict[str, Callable[[], bool]] = {
        "Power limits": partial(_restore_limits, folder),  # first: it needs no store
        # before the expired trials: a trial whose result comes is not abandoned
        "Pending costs": partial(_store_costs, args, folder),
        "Expired trials": partial(_close_expired, args),
        "Kept models": _name_kept_models,
    }
    done = [_tried(name, step) for name, step in steps.items()]
    return 0 if all(done) else 1


def _tried(name: str, step: Callable[[], bool]) -> bool:
    """Run one step; whether nothing is left of it. An error is printed, since it must not stop the other steps."""
    try:
        return step()
    except BrokenPipeError:  # of "| head"
        raise
    except ZeusError as error:  # its message names the remedy
        problem = message_of(error)
    except Exception as error:
        problem = f"the step itself failed: {type(error).__name__}: {error}. Report this as a bug."
    say(f"{name}: {problem}", file=sys.stderr)
    return False


def _restore_limits(folder: Path) -> bool:
    """Restore the power limits that dead trainings of this host left behind."""
    from airflow.sdk import conf

    share_with(conf.get("zeus", "shared_group", fallback="").strip())  # a record may be that of another user
    restored = restore_orphans(folder)
    records, invalid = orphans(folder)
    say(f"Power limits: {restored} restored by the records in {folder}.")
    for name in records:
        say(f"  left: {name}: see the log above; run this command as the owner of the record")
    for name in invalid:
        say(f"  ignored: {name}: it is no limit record; remove it")
    return not records


def _store_costs(args: Namespace, folder: Path) -> bool:
    """Store the costs that were kept while the store could not be reached."""
    variables = AirflowVariables()
    missing = _missing_log(args)
    if missing is not None:
        stored = 0
        where = f"{missing}, which the first run of a job creates"
    else:
        with opened(args) as store:
            stored = drain(store, variables, None, state_dir=folder)
            where = store.identity
    say(f"Pending costs: {stored} stored in {where}.")
    left = pending_places(variables, folder)
    for place in left:
        say(f"  left: {place}")
    return not left


def _close_expired(args: Namespace) -> bool:
    """Close the trials whose lease expired."""
    if _missing_log(args) is not None:
        say("Expired trials: 0 closed as abandoned; there is no trial log yet.")
        return True
    with opened(args) as store:
        closed_of_job, status = of_all_jobs(store, store.reap)
    closed = [trial for trials in closed_of_job.values() for trial in trials]
    say(f"Expired trials: {len(closed)} closed as abandoned.")
    for trial in closed:
        say(f"  {trial.job_id}: trial {trial.number} of run {trial.origin.run_id or '-'}")
    return status == 0


def _name_kept_models() -> bool:
    """Name the folders of models that were kept, and whose process was killed before its task had their path."""
    from airflow.sdk import conf

    root = Path(conf.get("zeus", "attempt_root", fallback="").strip() or tempfile.gettempdir())
    folders = kept_by_the_dead(root)
    say(f"Kept models: {len(folders)} in {root} whose process was killed after they were kept.")
    for folder in folders:
        say(f"  {folder.path}: {size_text(folder.size_bytes)}; use it, or remove it and {folder.path}.lock")
    return True


def _missing_log(args: Namespace) -> Path | None:
    """Path of a trial log that no run has created yet. Raises StoreError."""
    url = store_url(args.conn_id)
    return None if url is None else missing_file(url)


def _close(args: Namespace) -> int:
    """Close the trial that ``--close`` names. Raises JobSpecError: no such job or trial, or the trial has ended."""
    job, number = args.close
    with opened(args) as store:
        job_id = known(store, job)
        trial = _open_trial(job_id, store.trials(job_id), number)
        what = f"trial {trial.number} of {job_id} (run {trial.origin.run_id or '-'}, batch size {trial.batch_size})"
        if not args.yes and not confirmed(f"Close {what} permanently? [y/N] "):
            say("Nothing was changed.")
            return 1
        closed = store.close_trial(job_id, trial.number, by=os_user())
    say(f"Closed {what}: {closed.reason}.")
    return 0


def _open_trial(job_id: str, trials: list[Trial], number: str) -> Trial:
    """The trial of this number. Raises JobSpecError: there is none, or it is closed."""
    of_number = {str(trial.number): trial for trial in trials}
    trial = of_number.get(number)
    if trial is None:
        newest = max((trial.number for trial in trials), default=0)
        remedy = f"Its newest one is {newest}; see 'airflow zeus trials {job_id}'"
        raise JobSpecError.of("TRIAL", number, f"{job_id} has no such trial that can be read", remedy)
    if trial.state is not State.RUNNING and trial.closed_at is not None:
        reason = f", {trial.reason}" if trial.reason else ""
        problem = f"it is closed already ({trial.state.text}{reason})"
        raise JobSpecError.of("TRIAL", number, problem, "Only an open trial can be closed")
    return trial
