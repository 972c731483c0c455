"""``airflow zeus reap``: what dead processes left behind."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from airflow_provider_zeus.cli.shell import command, opened
from airflow_provider_zeus.store.base import Store


@command
def reap(args: Namespace) -> int:
    """Restore limits, tell kept costs, close expired trials; 1 where a cost could not be told."""
    from airflow_provider_zeus.operators.recurrence import Settings
    from airflow_provider_zeus.power.record import restore_orphans

    state_dir = Settings.read().state_dir
    served = restore_orphans(state_dir)  # first: it needs no store
    print(f"Power limits in {state_dir}: {_count(served, 'orphaned record')} served.")
    with opened(args) as store:
        return _of_store(store, state_dir)


def _of_store(store: Store, state_dir: Path) -> int:
    from airflow_provider_zeus.store.airflow_variables import AirflowVariables
    from airflow_provider_zeus.store.untold import drain, kept

    port = AirflowVariables()
    told = drain(store, port, None, state_dir=state_dir)  # before the leases: what is told is not abandoned
    left = kept(port, state_dir)
    print(f"Costs not yet told: {_count(told, 'cost')} told to {store.identity}, {len(left)} left.")
    for where in left:
        print(f"  left: {where}")
    closed = [trial for job_id in store.jobs() for trial in store.reap(job_id)]
    print(f"Expired trials: {_count(len(closed), 'trial')} closed as abandoned.")
    for trial in closed:
        print(f"  {trial.job_id}: trial {trial.number} of run {trial.origin.run_id or '-'}")
    return 1 if left else 0


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
