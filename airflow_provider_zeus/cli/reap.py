"""``airflow zeus reap``: cleans up after processes that died."""

from __future__ import annotations

from argparse import Namespace

from airflow_provider_zeus.cli.shell import command, opened, say
from airflow_provider_zeus.units import counted


@command
def reap(args: Namespace) -> int:
    """Restore power limits, store pending costs, close expired trials; exit status 1 where a cost is left."""
    from airflow_provider_zeus.operators.config import ZeusConfig
    from airflow_provider_zeus.power.limits.record import restore_orphans
    from airflow_provider_zeus.store.open import store_url
    from airflow_provider_zeus.store.pending import drain, pending_places
    from airflow_provider_zeus.store.sql.migrate import missing_file
    from airflow_provider_zeus.store.variables.airflow import AirflowVariables

    state_dir = ZeusConfig.read().state_dir
    restored = restore_orphans(state_dir)  # first: it needs no store
    say(f"Power limits in {state_dir}: {counted(restored, 'orphaned record')} restored.")
    url, variables = store_url(args.conn_id), AirflowVariables()
    path = None if url is None else missing_file(url)
    if path is not None:
        say(f"There is no trial log yet at {path}, which the first run of a job creates: no trial is open.")
        return _report_costs(0, str(path), pending_places(variables, state_dir))
    with opened(args) as store:
        stored = drain(store, variables, None, state_dir=state_dir)  # before the leases: a stored trial is not expired
        status = _report_costs(stored, store.identity, pending_places(variables, state_dir))
        closed = [trial for job_id in store.jobs() for trial in store.reap(job_id)]
    say(f"Expired trials: {counted(len(closed), 'trial')} closed as abandoned.")
    for trial in closed:
        say(f"  {trial.job_id}: trial {trial.number} of run {trial.origin.run_id or '-'}")
    return status


def _report_costs(stored: int, identity: str, left: list[str]) -> int:
    """Print how many pending costs were stored and which are left; return the exit status."""
    say(f"Pending costs: {counted(stored, 'cost')} stored in {identity}, {len(left)} left.")
    for where in left:
        say(f"  left: {where}")
    return 1 if left else 0
