"""Checks of the versions, the trial log and what waits to be told to it."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from airflow_provider_zeus.cli.finding import Finding, error, ok, warning
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.store.base import named

TESTED = ((3, 2), (3, 3))  # lines of Airflow
_REAP = "run 'airflow zeus reap'"


def versions(airflow: str | None = None) -> Finding:
    """Airflow in a tested line, and what else is installed; ``airflow``: its version, default the installed one."""
    said = airflow or version("apache-airflow-core")
    line = tuple(int(part) for part in said.split(".")[:2])
    found = (
        f"Airflow {said}, Python {platform.python_version()}, airflow-provider-zeus {version('airflow-provider-zeus')}"
        f", torch {_version('torch')}, nvidia-ml-py {_version('nvidia-ml-py')}"
    )
    tested = " and ".join(f"{major}.{minor}" for major, minor in TESTED)
    if not (3, 2) <= line < (4, 0):
        return error("versions", found, f"use Airflow >=3.2,<4 (tested: {tested})")
    if line not in TESTED:
        return warning("versions", f"{found}: this line of Airflow is not tested", f"tested are {tested}")
    return ok("versions", found)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def store(conn_id: str) -> Finding:
    """Which store it is, and whether it can be reached. Raises StoreError."""
    from airflow_provider_zeus.store.open import open_store, runs_here, store_url

    url = store_url(conn_id)
    if url is None:
        variables = open_store(conn_id, create=False)
        return ok("store", f"{variables.identity}, {len(variables.jobs())} jobs: recurrences must not overlap")
    identity, found = _schema_of(url)
    if found is None and url.startswith("sqlite") and runs_here():
        return ok("store", f"{identity}: not there yet, the first run of a job makes it")
    return ok("store", f"{identity} can be reached")


def schema(conn_id: str) -> Finding:
    """Whether the tables are of this version. Raises StoreError."""
    from airflow_provider_zeus.store.open import runs_here, store_url

    url = store_url(conn_id)
    if url is None:
        return ok("schema", "Variables have no tables")
    from airflow_provider_zeus.store.base import UPGRADE
    from airflow_provider_zeus.store.schema import HEAD

    _, found = _schema_of(url)
    if found == HEAD:
        return ok("schema", f"{HEAD}, up to date")
    if found is not None and not (found.isdigit() and int(found) < int(HEAD)):
        said = f"{found}; this host knows up to {HEAD}"
        return error("schema", said, "upgrade airflow-provider-zeus on this host")
    if url.startswith("sqlite") and runs_here():
        said = "no tables yet" if found is None else f"{found}, older than {HEAD}"
        return ok("schema", f"{said}: the next run brings it to {HEAD}")
    said = "no tables of ours" if found is None else f"{found}, older than {HEAD}"
    return error("schema", said, f"run '{UPGRADE}' once")


def trials(conn_id: str) -> Finding:
    """Whether every trial of the log can be read. Reads all of them. Raises StoreError."""
    from airflow_provider_zeus.store.open import open_store, store_url
    from airflow_provider_zeus.store.sql_migrate import missing_file

    url = store_url(conn_id)
    if url is not None and missing_file(url) is not None:
        return ok("trials", "no log yet")
    store = open_store(conn_id, create=False)
    count = sum(len(store.trials(job_id)) for job_id in store.jobs())
    left_out = [f"{named(damage)}: {damage.problem}" for damage in store.unreadable]
    store.close()
    if not left_out:
        return ok("trials", f"all {count} can be read")
    said = f"{len(left_out)} of {count + len(left_out)} cannot be read and count for nothing: {'; '.join(left_out)}"
    return warning("trials", said, "restore these rows from a backup, or delete them")


def _schema_of(url: str) -> tuple[str, str | None]:
    """(where the log lies, revision of its tables or None). Makes no file. Raises StoreError."""
    from airflow_provider_zeus.store.sql_engine import engine_of, forget, read_url, shown
    from airflow_provider_zeus.store.sql_migrate import present_version

    parsed = read_url(url)
    engine = engine_of(parsed)
    try:
        return shown(parsed), present_version(engine)
    finally:
        forget(engine)


def executor(conn_id: str) -> Finding:
    """Whether tasks run where the store can be reached."""
    from airflow.sdk import conf

    from airflow_provider_zeus.store.open import runs_here, store_url

    name = conf.get("core", "executor", fallback="") or "LocalExecutor"
    if runs_here():
        return ok("executor", f"{name}: every task runs on this host, where a file will do")
    try:
        url = store_url(conn_id)
    except StoreError:
        said = f"{name}: tasks run on other hosts, and no store is known that they all reach"
        return error("executor", said, f"define Connection {conn_id!r} to a PostgreSQL database")
    if url is not None and url.startswith("sqlite"):
        said = f"{name}: tasks run on other hosts, and each would write an SQLite file of its own"
        return error("executor", said, f"define Connection {conn_id!r} to a PostgreSQL database")
    return ok("executor", f"{name}: tasks run on other hosts and share the store")


def untold(state_dir: Path) -> Finding:
    """Whether costs wait to be told. Raises StoreError."""
    from airflow_provider_zeus.store.airflow_variables import AirflowVariables
    from airflow_provider_zeus.store.untold import kept

    waiting = kept(AirflowVariables(), state_dir)
    if not waiting:
        return ok("untold costs", "none wait")
    shown = ", ".join(waiting[:3]) + (f" and {len(waiting) - 3} more" if len(waiting) > 3 else "")
    return warning("untold costs", f"{len(waiting)} wait to be told: {shown}", f"{_REAP}, or run the job again")
