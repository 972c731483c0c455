"""``open_store()`` opens the trial log, for tasks, the api-server and the CLI."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_provider_zeus import patterns
from airflow_provider_zeus.airflow_compat import airflow_home, is_test_run, supervisor
from airflow_provider_zeus.errors import ConnectionLookupError, StoreError, UndefinedConnectionError
from airflow_provider_zeus.patience import bounded
from airflow_provider_zeus.patterns import MOST_LINE
from airflow_provider_zeus.private_files import share_with
from airflow_provider_zeus.store.base import UPGRADE
from airflow_provider_zeus.store.variables.airflow import AirflowVariables, asked_again

if TYPE_CHECKING:
    import sqlalchemy as sa

    from airflow_provider_zeus.store.sql.store import Store

DEFAULT_CONN_ID = "zeus_default"
REMEDY = (
    "Use type zeus with host, schema, login and password of a PostgreSQL database, "
    'or with extra {"store": "variable"} for Airflow Variables'
)
SETTINGS_S = 3.0  # for Airflow's API to return live settings; a task runs without them


def open_store(
    conn_id: str = DEFAULT_CONN_ID,
    *,
    create: bool = True,
    keeps_file_open: bool = True,
    overlap_possible: bool | None = None,
    now: Callable[[], float] | None = None,
) -> Store:
    """Open the trial log that Connection ``conn_id`` names; without ``zeus_default``, ``zeus.db`` of this host.

    A PostgreSQL database is migrated by ``airflow zeus db upgrade`` only.

    :param create: create or migrate an SQLite file where all tasks run on this host; False (the UI): raise StoreError
        while there is none.
    :param keeps_file_open: False in a process that lives on, such as a server: between two calls it leaves no newer
        rows beside an SQLite file.
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

        return VariableStore(
            AirflowVariables(), conn_id=conn_id, overlap_possible=overlap_possible, turns=embedded_path(), now=now
        )
    from airflow.sdk import conf

    from airflow_provider_zeus.store.sql.store import SqlStore

    share_with(conf.get("zeus", "shared_group", fallback="").strip())  # an SQLite file, and the files beside it
    create = create and url.startswith("sqlite") and runs_here()
    read = AirflowVariables().get
    return SqlStore(
        url,
        create=create,
        keeps_file_open=keeps_file_open,
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

    executors = conf.get("core", "executor", fallback="") or "LocalExecutor"
    here = r"(^|[.:=])(Local|Sequential)Executor(:|$)"
    return is_test_run() or all(patterns.search(here, part.strip()) for part in executors.replace(";", ",").split(","))


def is_variable_store(connection: Any, conn_id: str) -> bool:
    """Whether Airflow's Variables hold the log. Raises StoreError for an unknown store."""
    if not isinstance(connection.extra_dejson, Mapping):
        raise _wrong(conn_id, "extra", "...", "no JSON object")
    chosen = connection.extra_dejson.get("store") or "sql"
    if connection.conn_type == "zeus" and chosen not in ("sql", "variable"):
        raise _wrong(conn_id, "extra store", "...", "there is no such store, only sql and variable")
    return bool(connection.conn_type == "zeus" and chosen == "variable")


def database_url(connection: Any, conn_id: str) -> str:
    """Database URL of a Connection (types zeus, postgres, sqlite), with its password. Raises StoreError."""
    from airflow_provider_zeus.store.sql.engine import parsed_url

    try:
        extra, kind, host = connection.extra_dejson, connection.conn_type, connection.host or ""
        if extra.get("sqlalchemy_url"):
            url = parsed_url(str(extra["sqlalchemy_url"]), f"Connection {conn_id!r}: extra sqlalchemy_url")
        elif kind == "sqlite" and host and not host.startswith("/"):
            raise _wrong(conn_id, "host", "...", "not the absolute path of a file")
        elif kind == "sqlite" and host:
            return f"sqlite:///{host}"
        elif kind not in ("zeus", "postgres", "postgresql"):
            kind = kind if patterns.fullmatch("[a-z_]{0,30}", str(kind or "")) else "..."
            raise _wrong(conn_id, "conn_type", kind, "no trial log is kept there")
        elif host or extra.get("host"):
            url = _url_of_fields(connection, conn_id, host)
        else:
            raise _wrong(conn_id, "host", host, "it names no database")
        longest = 63  # bytes of a PostgreSQL name: of a longer one the server would report the beginning
        for field, name in (("login", url.username), ("schema", url.database)):
            if url.get_backend_name() == "postgresql" and len((name or "").encode()) > longest:
                raise _wrong(conn_id, field, "...", f"longer than {longest} bytes, so no name in PostgreSQL")
        return url.render_as_string(hide_password=False)
    except (TypeError, ValueError, AttributeError):  # an extra that is no text, a character that no URL allows
        raise StoreError(
            f"Connection {conn_id!r}: its fields cannot be put together as the URL of a database. {REMEDY}."
        ) from None


def _url_of_fields(connection: Any, conn_id: str, host: str) -> sa.URL:
    """URL of the form's fields; ``host`` may be a name, a folder with a Unix socket, or a URL without some fields."""
    import sqlalchemy as sa

    from airflow_provider_zeus.store.sql.engine import parsed_url

    if "://" in host:
        url = parsed_url(host, f"Connection {conn_id!r}: host")
    elif host.startswith("/"):
        url = sa.URL.create("postgresql", query={"host": host})
    elif not patterns.fullmatch(r"[\w.:,%\[\]-]*", host, MOST_LINE):  # names, addresses, several of them
        raise _wrong(conn_id, "host", "...", "not the name of a host; user and password have fields of their own")
    else:
        url = sa.URL.create("postgresql", host=host or None)
    if url.get_backend_name() != "postgresql":
        return url
    url = url.set(
        username=url.username or connection.login or None,
        password=url.password or connection.password or None,
        port=url.port or connection.port or None,
        database=url.database or connection.schema or None,
    )
    # Options of the PostgreSQL client, sslmode or connect_timeout: all are passed on, so that the client refuses a
    # misspelt one instead of connecting without the required encryption.
    others = ("store", "sqlalchemy_url", "sqlalchemy_scheme", "sqlalchemy_query", "cursor")
    extra = connection.extra_dejson
    given = {**(extra.get("sqlalchemy_query") or {}), **{k: v for k, v in extra.items() if k not in others}}
    known = {*url.query, *(k for k, v in given.items() if v in (None, ""))}
    return url.update_query_dict(
        {k: str(int(v) if isinstance(v, bool) else v) for k, v in given.items() if k not in known}
    )


def passwords(connection: Any) -> list[str]:
    """Passwords in other fields than ``password``: as ``user:password@`` or as options of the client."""
    extra = connection.extra_dejson if isinstance(connection.extra_dejson, Mapping) else {}
    given = {**extra, **(extra["sqlalchemy_query"] if isinstance(extra.get("sqlalchemy_query"), Mapping) else {})}
    texts = [connection.host, connection.login, connection.schema, connection.extra, *given.values()]
    found = []
    for text in (text for text in texts if isinstance(text, str)):
        for word in text.replace('"', " ").replace("'", " ").split():
            found.append(_in_address(word))
            found += [option.partition("pass")[2].partition("=")[2] for option in word.split("&")]
    found = [secret for secret in found if secret]
    found += [str(value) for name, value in given.items() if "pass" in str(name) and value]
    return [*found, *(unquote(each) for each in found if "%" in each)]


def _in_address(word: str) -> str:
    """The password of ``user:password@``, at the beginning of a word or after ``//``; empty if there is none."""
    login = word.rpartition("@")[0]
    end = 0  # of the part that has been looked at
    for part in login.split(":"):
        path, slash, user = part.rpartition("/")
        is_user = path.endswith("/") if slash else end == 0
        end += len(part) + 1
        if is_user and "@" not in user and not login.startswith("//", end):
            return login[end:]
    return ""


def _wrong(conn_id: str, field: str, value: object, problem: str) -> StoreError:
    return StoreError(f"Connection {conn_id!r}: {field} = {value!r}: {problem}. {REMEDY}.")
