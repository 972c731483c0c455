"""``airflow zeus repair``: cleans up after processes that died, or ends one attempt by hand.

Four steps, none of which needs another one: restore power limits, store pending costs, close
expired trials, name the models that nobody took over.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from airflow_provider_zeus.cli.checks_host import orphans
from airflow_provider_zeus.cli.shell import (
    command,
    confirmed,
    known,
    message_of,
    of_all_jobs,
    opened,
    os_user,
    say,
)
from airflow_provider_zeus.cli.upkeep import size_text
from airflow_provider_zeus.errors import JobSpecError, ZeusError
from airflow_provider_zeus.model.run_numbers import RunNumbers
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
    done = [
        _try("Power limits", _restore_limits, folder),  # first: it needs no store
        # before the expired trials: a trial whose result comes is not abandoned
        _try("Pending costs", _store_costs, args, folder),
        _try("Expired attempts", _close_expired, args),
        _try("Kept models", _name_kept_models),
    ]
    return int(not all(done))


def _try(name: str, step: Callable[..., bool], *of: object) -> bool:
    """Run one step; whether nothing is left of it.

    An error is printed, since it must not stop the other steps.
    """
    try:
        return step(*of)
    except BrokenPipeError:  # after "| head" nobody reads what the next steps say
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

    # A record may be another user's, and only this group may open it then.
    share_with(conf.get("zeus", "shared_group", fallback="").strip())
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
    # A log that no run has made yet has nothing to store into, and none may be made here.
    missing = _missing_log(args)
    if missing is not None:
        stored = 0
        where = f"{missing}, which the first run of a job creates"
    else:
        with opened(args) as store:
            stored = drain(store, variables, None, state_dir=folder)
            where = store.identity
    say(f"Pending costs: {stored} stored in {where}.")
    # Looked up again: a cost may have been refused.
    waiting = pending_places(variables, folder)
    for place in waiting:
        say(f"  left: {place}")
    return not waiting


def _close_expired(args: Namespace) -> bool:
    """Close the trials whose lease expired."""
    if _missing_log(args) is not None:
        say("Expired attempts: 0 closed as abandoned; there is no run log yet.")
        return True
    with opened(args) as store:
        # a damaged job must not keep the others from it
        closed, status = of_all_jobs(store, store.reap)
        names = []
        for job_id, trials in closed.items():
            if trials:
                numbers = RunNumbers(store.trials(job_id))
                names += [_named(trial, numbers) for trial in trials]
    say(f"Expired attempts: {len(names)} closed as abandoned.")
    for name in names:
        say(f"  {name}")
    return status == 0


def _name_kept_models() -> bool:
    """Name the folders of models that were kept, and whose process was killed before its task
    had their path.
    """
    from airflow.sdk import conf

    root = Path(conf.get("zeus", "attempt_root", fallback="").strip() or tempfile.gettempdir())
    folders = kept_by_the_dead(root)
    say(f"Kept models: {len(folders)} in {root} whose process was killed after they were kept.")
    for folder in folders:
        size = size_text(folder.size_bytes)
        say(f"  {folder.path}: {size}; use it, or remove it and {folder.path}.lock")
    return True


def _missing_log(args: Namespace) -> Path | None:
    """Path of a trial log that no run has created yet. Raises StoreError."""
    url = store_url(args.conn_id)
    if url is None:
        return None
    return missing_file(url)


def _close(args: Namespace) -> int:
    """Close the attempt that ``--close`` names.

    Raises JobSpecError: no such job or attempt, or it has ended.
    """
    job, attempt = args.close
    with opened(args) as store:
        job_id = known(store, job)
        log = store.trials(job_id)
        # People name an attempt by the number of its run.
        numbers = RunNumbers(log)
        trial = _open_trial(job_id, log, numbers, attempt)
        what = _named(trial, numbers)
        # Its training may still run: then its result would be lost.
        if not confirmed(f"Close {what} permanently? [y/N] ", yes=args.yes):
            return 1
        closed = store.close_trial(job_id, trial.number, by=os_user())
    say(f"Closed {what}: {closed.reason}.")
    return 0


def _named(trial: Trial, numbers: RunNumbers) -> str:
    """An attempt in words, with its DAG run."""
    run = f"DAG run {trial.origin.run_id or '-'}"
    if trial.batch_size is not None:
        run += f", batch size {trial.batch_size}"
    return f"attempt {numbers.attempt(trial)} of {trial.job_id} ({run})"


def _open_trial(job_id: str, trials: Sequence[Trial], numbers: RunNumbers, attempt: str) -> Trial:
    """The trial of an attempt. Raises JobSpecError: there is none, or it is closed."""
    by_attempt = {numbers.attempt(trial): trial for trial in trials}
    trial = by_attempt.get(attempt)
    if trial is None:
        # A mistyped number is mostly near the newest one.
        newest = list(by_attempt)[-1] if by_attempt else "none"
        remedy = f"Its newest one is {newest}; see 'airflow zeus runs {job_id}'"
        problem = f"{job_id} has no such attempt that can be read"
        raise JobSpecError.of("ATTEMPT", attempt, problem, remedy)
    # Closed twice, a later reason would hide the first one.
    if trial.state is not State.RUNNING and trial.closed_at is not None:
        state = trial.state.text
        if trial.reason:
            state += f", {trial.reason}"
        problem = f"it is closed already ({state})"
        raise JobSpecError.of("ATTEMPT", attempt, problem, "Only an open one can be closed")
    return trial
