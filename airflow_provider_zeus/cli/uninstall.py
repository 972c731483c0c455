"""``airflow zeus uninstall --dry-run``: what lies where, and how to take it away. It removes nothing itself."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from airflow_provider_zeus.cli.shell import command, say
from airflow_provider_zeus.errors import JobSpecError, StoreError, UndefinedConnectionError

Step = tuple[str, str, str]  # what, where it lies, how to take it away


@command
def uninstall(args: Namespace) -> None:
    """Say what is to be removed, in the order in which it is."""
    if not args.dry_run:
        remedy = "call it with --dry-run, which says what lies where and how to take it away"
        raise JobSpecError.of("airflow zeus uninstall", "", "it removes nothing itself", remedy)
    for number, (what, where, how) in enumerate(_steps(args.conn_id), 1):
        say(f"{number}. {what}: {where}")
        say(f"   -> {how}")


def _steps(conn_id: str) -> Iterator[Step]:
    from airflow_provider_zeus.store.open import state_dir

    yield _dags(conn_id)
    yield _costs(state_dir())
    yield _log(conn_id)
    yield _variables()
    yield _folder(state_dir())
    yield _models()
    yield _sidecar()
    yield (
        "Connections",
        "those of the types zeus and zeus_signal",
        "airflow connections list, then airflow connections delete CONN_ID",
    )
    yield "settings", "section [zeus] of airflow.cfg, variables AIRFLOW__ZEUS__...", "delete them on every host"
    yield (
        "package",
        "every host of Airflow, and the images that train",
        "pip uninstall airflow-provider-zeus, then restart Airflow's servers",
    )


def _dags(conn_id: str) -> Step:
    from airflow_provider_zeus.store.open import open_store

    how = "take @task.zeus, the Zeus operators and ZeusTrial out of them; to wait with that, set [zeus] enabled = False"
    try:
        store = open_store(conn_id, create=False)
        try:
            found = sorted({trial.origin.dag_id for trial in store.latest(last=1)})
        finally:
            store.close()
    except UndefinedConnectionError:  # misspelt
        raise
    except StoreError as error:
        return "DAGs", f"not known ({error})", how
    return "DAGs", f"{_named(found)} in the log", how


def _costs(folder: Path) -> Step:
    from airflow_provider_zeus.store.pending import pending_places
    from airflow_provider_zeus.store.variables.airflow import AirflowVariables

    how = "airflow zeus reap on every host: it stores these costs, and gives back power limits of dead trainings"
    try:
        return "untold costs", _named(pending_places(AirflowVariables(), folder)), how
    except StoreError as error:
        return "untold costs", f"not known ({error})", how


def _log(conn_id: str) -> Step:
    from airflow_provider_zeus.store.open import store_url

    keep = "airflow zeus export --output trials.csv keeps its figures"
    try:
        url = store_url(conn_id)
    except StoreError as error:
        return "trial log", f"not known ({error})", keep
    if url is None:
        return "trial log", "Airflow Variables", f"{keep}; then delete the Variables below"
    from airflow_provider_zeus.store.sql.engine import file_of, read_url, shown
    from airflow_provider_zeus.store.sql.schema import VERSION_TABLE, metadata

    parsed = read_url(url)
    file = file_of(parsed)
    if file is not None:
        there = "" if file.exists() else ", not there yet"
        return "trial log", f"{file}{there}", f"{keep}; then rm -f {file} {file}-wal {file}-shm {file}-journal"
    tables = ", ".join([*(table.name for table in reversed(metadata.sorted_tables)), VERSION_TABLE])
    return "trial log", shown(parsed), f"{keep}; then DROP TABLE {tables};"


def _variables() -> Step:
    from airflow_provider_zeus.store.variables.airflow import AirflowVariables

    how = "airflow variables delete KEY"
    try:
        return "Variables", _named(AirflowVariables().keys("zeus-")), how
    except StoreError as error:
        return "Variables", f"not known ({error})", how


def _folder(folder: Path) -> Step:
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    where = f"{folder}, {len(files)} files" if folder.is_dir() else f"{folder}, not there"
    return "state folder of this host", where, f"rm -r {folder}, on every host that trains, after 'airflow zeus reap'"


def _models() -> Step:
    from airflow.sdk import conf

    root = conf.get("zeus", "attempt_root", fallback="").strip()
    where = root or "folders zeus-attempt-... in the folder for temporary files of each host that trains"
    return "kept models", where, "they are yours: remove those that no task reads any more"


def _sidecar() -> Step:
    from airflow.sdk import conf

    socket = conf.get("zeus", "power_socket", fallback="").strip()
    where = f"zeus-power-sidecar on hosts with GPUs, {f'socket {socket}' if socket else 'where it was set up'}"
    how = "stop it, which gives back the limits that it set; then rm -r /run/zeus /run/zeus-limits"
    return "power sidecar", where, how


def _named(found: list[str]) -> str:
    return ", ".join(found) or "none"
