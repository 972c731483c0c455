"""``airflow zeus reap``: what dead processes left behind."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from airflow_provider_zeus.cli.shell import command, opened, say
from airflow_provider_zeus.store.base import Store


@command
def reap(args: Namespace) -> int:
    """Restore limits, tell kept costs, close expired trials; 1 where a cost could not be told."""
    from airflow_provider_zeus.operators.recurrence import Settings
    from airflow_provider_zeus.power.record import restore_orphans

    state_dir = Settings.read().state_dir
    served = restore_orphans(state_dir)  # first: it needs no store
    say(f"Power limits in {state_dir}: {_count(served, 'orphaned record')} served.")
    if (path := _no_log_yet(args.conn_id)) is not None:
        say(f"There is no trial log yet at {path}, which the first run of a job makes: no trial is open.")
        return _told(0, str(path), _kept(state_dir))
    with opened(args) as store:
        return _of_store(store, state_dir)


def _no_log_yet(conn_id: str) -> Path | None:
    from airflow_provider_zeus.store.open import store_url
    from airflow_provider_zeus.store.sql_migrate import missing_file

    url = store_url(conn_id)
    return None if url is None else missing_file(url)


def _of_store(store: Store, state_dir: Path) -> int:
    from airflow_provider_zeus.store.airflow_variables import AirflowVariables
    from airflow_provider_zeus.store.untold import drain

    told = drain(
        store, AirflowVariables(), None, state_dir=state_dir
    )  # before the leases: what is told is not abandoned
    status = _told(told, store.identity, _kept(state_dir))
    closed = [trial for job_id in store.jobs() for trial in store.reap(job_id)]
    say(f"Expired trials: {_count(len(closed), 'trial')} closed as abandoned.")
    for trial in closed:
        say(f"  {trial.job_id}: trial {trial.number} of run {trial.origin.run_id or '-'}")
    return status


def _kept(state_dir: Path) -> list[str]:
    from airflow_provider_zeus.store.airflow_variables import AirflowVariables
    from airflow_provider_zeus.store.untold import kept

    return kept(AirflowVariables(), state_dir)


def _told(told: int, identity: str, left: list[str]) -> int:
    say(f"Costs not yet told: {_count(told, 'cost')} told to {identity}, {len(left)} left.")
    for where in left:
        say(f"  left: {where}")
    return 1 if left else 0


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
