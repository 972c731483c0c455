"""``airflow zeus uninstall --dry-run``: what lies where, and how to take it away. It removes nothing itself."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing

from airflow_provider_zeus.cli.shell import command, say
from airflow_provider_zeus.errors import JobSpecError, StoreError, UndefinedConnectionError
from airflow_provider_zeus.store.open import open_store, state_dir, store_url
from airflow_provider_zeus.store.pending import pending_places
from airflow_provider_zeus.store.sql.engine import file_of, read_url, shown
from airflow_provider_zeus.store.sql.schema import VERSION_TABLE, metadata
from airflow_provider_zeus.store.variables.airflow import AirflowVariables

Step = tuple[str, str, str]  # what, where it lies, how to take it away


@command
def uninstall(args: Namespace) -> None:
    """Say what is to be removed, in the order in which it is."""
    if not args.dry_run:
        remedy = "call it with --dry-run, which lists what is where and how to remove it"
        raise JobSpecError.of("airflow zeus uninstall", "", "it removes nothing itself", remedy)
    for number, (what, where, how) in enumerate(_steps(args.conn_id), 1):
        say(f"{number}. {what}: {where}")
        say(f"   -> {how}")


def _steps(conn_id: str) -> Iterator[Step]:
    from airflow.sdk import conf

    def jobs_dags() -> str:
        with closing(open_store(conn_id, create=False)) as store:
            found = sorted({trial.origin.dag_id for trial in store.latest(last=1)})
        return f"{', '.join(found) or 'none'} in the log"

    folder = state_dir()
    how = "take @task.zeus, the Zeus operators and ZeusTrial out of them; to wait with that, set [zeus] enabled = False"
    yield "DAGs", _known(jobs_dags), how
    costs = _known(lambda: ", ".join(pending_places(AirflowVariables(), folder)) or "none")
    how = "airflow zeus reap on every host: it stores these costs, and gives back power limits of dead trainings"
    yield "pending costs", costs, how
    yield _log(conn_id)
    variables = _known(lambda: ", ".join(AirflowVariables().keys("zeus-")) or "none")
    yield "Variables", variables, "airflow variables delete KEY"
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    where = f"{folder}, {len(files)} files" if folder.is_dir() else f"{folder}, not there"
    yield "state folder of this host", where, f"rm -r {folder}, on every host that trains, after 'airflow zeus reap'"
    where = conf.get("zeus", "attempt_root", fallback="").strip()
    where = where or "folders zeus-attempt-... in the folder for temporary files of each host that trains"
    yield "kept models", where, "they are yours: remove those that no task reads any more"
    socket = conf.get("zeus", "power_socket", fallback="").strip()
    where = f"zeus-power-sidecar on hosts with GPUs, {f'socket {socket}' if socket else 'where it was set up'}"
    how = "stop it, which gives back the limits that it set; then rm -r /run/zeus /run/zeus-limits"
    yield "power sidecar", where, how
    how = "airflow connections list, then airflow connections delete CONN_ID"
    yield "Connections", "those of the types zeus and zeus_signal", how
    yield "settings", "section [zeus] of airflow.cfg, variables AIRFLOW__ZEUS__...", "delete them on every host"
    how = "pip uninstall airflow-provider-zeus, then restart Airflow's servers"
    yield "package", "every host of Airflow, and the images that train", how


def _known(find: Callable[[], str]) -> str:
    """What is found; where the store cannot be read, why it is not known. Raises UndefinedConnectionError: misspelt."""
    try:
        return find()
    except UndefinedConnectionError:
        raise
    except StoreError as error:
        return f"not known ({error})"


def _log(conn_id: str) -> Step:
    keep = "airflow zeus export --output trials.csv keeps its figures"
    try:
        url = store_url(conn_id)
    except StoreError as error:
        return "trial log", f"not known ({error})", keep
    if url is None:
        return "trial log", "Airflow Variables", f"{keep}; then delete the Variables below"
    parsed = read_url(url)
    file = file_of(parsed)
    if file is not None:
        there = "" if file.exists() else ", not there yet"
        return "trial log", f"{file}{there}", f"{keep}; then rm -f {file} {file}-wal {file}-shm {file}-journal"
    tables = ", ".join([*(table.name for table in reversed(metadata.sorted_tables)), VERSION_TABLE])
    return "trial log", shown(parsed), f"{keep}; then DROP TABLE {tables};"
