"""``airflow zeus close``: closes a trial whose process is known to be gone."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from airflow_provider_zeus.cli.shell import command, confirmed, known, opened, os_user, say
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.trial import State, Trial

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store


@command
def close(args: Namespace) -> int:
    """Close an open trial. Raises JobSpecError: no such job or trial, or the trial has ended."""
    with opened(args) as store:
        trial = _open_trial(store, known(store, args.job), args.trial)
        what = (
            f"trial {trial.number} of {trial.job_id} (run {trial.origin.run_id or '-'}, batch size {trial.batch_size})"
        )
        if not args.yes and not confirmed(f"Close {what} permanently? [y/N] "):
            say("Nothing was changed.")
            return 1
        closed = store.close_trial(trial.job_id, trial.number, by=os_user())
    say(f"Closed {what}: {closed.reason}.")
    return 0


def _open_trial(store: Store, job_id: str, number: int) -> Trial:
    found = {t.number: t for t in store.trials(job_id)}
    trial = found.get(number)
    if trial is None:
        remedy = f"Its newest one is {max(found, default=0)}; see 'airflow zeus trials {job_id}'"
        raise JobSpecError.of("TRIAL", number, f"{job_id} has no such trial that can be read", remedy)
    if trial.state is not State.RUNNING and trial.closed_at is not None:
        said = f"{trial.state.value}" + (f", {trial.reason}" if trial.reason else "")
        raise JobSpecError.of("TRIAL", number, f"it is closed already ({said})", "Only an open trial can be closed")
    return trial
