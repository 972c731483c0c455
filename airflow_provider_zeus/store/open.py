"""``open_store()`` opens the trial log, for tasks, the api-server and the CLI."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.airflow_compat import airflow_home, is_test_run, supervisor
from airflow_provider_zeus.errors import ConnectionLookupError, StoreError, UndefinedConnectionError
from airflow_provider_zeus.patience import bounded
from airflow_provider_zeus.private_files import share_with
from airflow_provider_zeus.store.base import UPGRADE
from airflow_provider_zeus.store.connection_url import database_url, is_variable_store, passwords
from airflow_provider_zeus.store.variables.airflow import AirflowVariables, asked_again

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

DEFAULT_CONN_ID = "zeus_default"
SETTINGS_S = 3.0  # for Airflow's API to return live settings; a task runs without them


def open_store(
    conn_id: str = DEFAULT_CONN_ID,
    *,
    create: bool = True,
    overlap_possible: bool | None = None,
    now: Callable[[], float] | None = None,
) -> Store:
    """Open the trial log that Connection ``conn_id`` names; without ``zeus_default``, ``zeus.db`` of this host.

    A PostgreSQL database is migrated by ``airflow zeus db upgrade`` only.

    :param create: create or migrate an SQLite file where all tasks run on this host; False (the UI): raise StoreError
        while there is none.
    :param overlap_possible: whether two recurrences of the job may run at once; the Variable store allows ``ask`` only
        where it is False.
    :param now: clock [s since the epoch], for tests.

    Raises StoreError with a remedy: the Connection cannot be read or is not usable, another one than ``zeus_default``
    is not defined (UndefinedConnectionError), there is no ``zeus_default`` and the executor runs tasks on other hosts,
    or the database cannot be reached or has another schema.
    """
    url = store_url(conn_id)
    if url is None:
        from airflow_provider_zeus.store.variables.store import VariableStore

        return VariableStore(AirflowVariables(), conn_id=conn_id, overlap_possible=overlap_possible, now=now)
    from airflow.sdk import conf

    from airflow_provider_zeus.store.sql.store import SqlStore

    share_with(conf.get("zeus", "shared_group", fallback="").strip())  # an SQLite file, and the files beside it
    create = create and url.startswith("sqlite") and runs_here()
    read = AirflowVariables().get
    return SqlStore(
        url,
        create=create,
        now=now,
        read_setting=(lambda name: bounded(partial(read, name), SETTINGS_S)) if supervisor() else read,
    )


def store_url(conn_id: str) -> str | None:
    """Database URL of the trial log; None where Airflow's Variables hold it. Raises StoreError as open_store() does."""
    connection = find_connection(conn_id)
    if connection is None:
        if conn_id != DEFAULT_CONN_ID:  # probably misspelt: a file would split the log without a word
            raise UndefinedConnectionError(
                f"There is no Connection {conn_id!r}: correct its name (zeus_conn_id of the task, or --conn-id), or "
                f"define it to a PostgreSQL database and run '{UPGRADE} --conn-id {conn_id}' once."
            )
        if not runs_here():
            raise StoreError(
                f"There is no Connection {DEFAULT_CONN_ID!r}, and tasks run on other hosts, which share no file: "
                f"define it to a PostgreSQL database and run '{UPGRADE}' once."
            )
        return f"sqlite:///{embedded_path()}"
    from airflow.sdk.log import mask_secret

    for password in passwords(connection):  # in other fields, which Airflow does not know: masked in its logs
        mask_secret(password)
    if is_variable_store(connection, conn_id):
        return None
    return database_url(connection, conn_id)


def find_connection(conn_id: str) -> Any:
    """A Connection; None where it does not exist. Raises StoreError for any other answer.

    Airflow's look-up also says "not defined" where a backend failed, and the log would then split over two places. So
    an absence is checked a second time in a way that shows errors.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    from airflow_provider_zeus import airflow_compat  # its names are imported when they are needed

    try:
        try:
            return BaseHook.get_connection(conn_id)
        except AirflowNotFoundException:
            if supervisor():
                answer = asked_again(airflow_compat.GetConnection(conn_id=conn_id), "CONNECTION_NOT_FOUND")
                found = None if answer is None else BaseHook.get_connection(conn_id)  # the failure was temporary
            else:  # a CLI outside of the server context has not looked here
                found = airflow_compat.MetastoreBackend().get_connection(conn_id)
            if found is None and os.environ.get(name := f"AIRFLOW_CONN_{conn_id.upper()}"):
                raise StoreError(f"{name} is no Connection") from None  # Airflow treats it as absent
            return found
    except Exception as error:  # of Airflow, of HTTP, of its database, of a secrets backend
        raise ConnectionLookupError(
            f"Connection {conn_id!r} cannot be looked up ({type(error).__name__}): check that Airflow's API and "
            "database can be reached and that the Connection is well-formed."
        ) from None


def embedded_path() -> Path:
    """Path of the trial log of this host: ``$AIRFLOW_HOME/zeus.db``."""
    return airflow_home() / "zeus.db"


def state_dir() -> Path:
    """``[zeus] state_dir``: the folder of locks, records of changed power limits, and pending results."""
    from airflow.sdk import conf

    return Path(conf.get("zeus", "state_dir", fallback="") or airflow_home() / "zeus")


def runs_here() -> bool:
    """Whether every task runs on this host: a test run, or local executors only."""
    from airflow.sdk import conf

    parts = re.split("[,;]", conf.get("core", "executor", fallback="") or "LocalExecutor")
    here = r"(^|[.:=])(Local|Sequential)Executor(:|$)"
    return is_test_run() or all(re.search(here, part.strip()) for part in parts)
