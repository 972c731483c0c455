"""``open_store()`` opens the trial log, for tasks, the api-server and the CLI."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
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
SETTINGS_S = 3.0  # a task need not wait longer: it goes by the last known ones


def open_store(
    conn_id: str = DEFAULT_CONN_ID,
    *,
    create: bool = True,
    keeps_file_open: bool = True,
    overlap_possible: bool | None = None,
    now: Callable[[], float] | None = None,
) -> Store:
    """Open the trial log that Connection ``conn_id`` names; without ``zeus_default``, ``zeus.db``
    of this host.

    A PostgreSQL database is migrated by ``airflow zeus db upgrade`` only.

    :param create: create or migrate an SQLite file if all tasks run on this host; False (the UI):
        raise StoreError while there is none.
    :param keeps_file_open: False in a process that lives on, such as a server: between two calls it
        leaves no newer rows beside an SQLite file.
    :param overlap_possible: whether two recurrences of the job may run at once; the Variable store
        allows ``ask`` only if it is False.
    :param now: clock [s since the epoch], for tests.

    Raises StoreError with a remedy: the Connection cannot be read or is not usable, another one
    than ``zeus_default`` is not defined (UndefinedConnectionError), there is no ``zeus_default``
    and the executor runs tasks on other hosts, or the database cannot be reached or has another
    schema.
    """
    url = store_url(conn_id)
    if url is None:
        from airflow_provider_zeus.store.variables.store import VariableStore

        return VariableStore(
            AirflowVariables(),
            conn_id=conn_id,
            overlap_possible=overlap_possible,
            turns=embedded_path(),
            now=now,
        )
    from airflow.sdk import conf

    from airflow_provider_zeus.store.sql.store import SqlStore

    # Before the log is opened: other users' tasks have to write a new file and those beside it.
    share_with(conf.get("zeus", "shared_group", fallback="").strip())
    is_file = url.startswith("sqlite")
    return SqlStore(
        url,
        create=create and is_file and runs_here(),
        keeps_file_open=keeps_file_open,
        now=now,
        read_setting=_setting_in_time if supervisor() else AirflowVariables().get,
    )


def _setting_in_time(name: str) -> str | None:
    """A live setting, from Airflow's API. Raises TimeoutError."""
    return bounded(lambda: AirflowVariables().get(name), SETTINGS_S)


def store_url(conn_id: str) -> str | None:
    """Database URL of the trial log; None if Airflow's Variables hold it.

    Raises StoreError as open_store() does.
    """
    connection = find_connection(conn_id)
    if connection is None:
        # Probably misspelt: a file would split the log without a word.
        if conn_id != DEFAULT_CONN_ID:
            raise UndefinedConnectionError(
                f"There is no Connection {conn_id!r}: correct its name (zeus_conn_id of the task, "
                "or "
                f"--conn-id), or define it to a PostgreSQL database and run '{UPGRADE} --conn-id "
                f"{conn_id}' once."
            )
        if not runs_here():
            raise StoreError(
                f"There is no Connection {DEFAULT_CONN_ID!r}, and tasks run on other hosts, which "
                f"share no file: define it to a PostgreSQL database and run '{UPGRADE}' once."
            )
        return f"sqlite:///{embedded_path()}"
    from airflow.sdk.log import mask_secret

    # Airflow's logs mask the password's own field, and these stand in others.
    for password in passwords(connection):
        mask_secret(password)
    if is_variable_store(connection, conn_id):
        return None
    return database_url(connection, conn_id)


def find_connection(conn_id: str) -> Any:
    """A Connection; None if it does not exist. Raises StoreError for any other answer.

    Airflow's look-up also says "not defined" if a backend failed, and the log would then split over
    two places. So an absence is checked a second time in a way that shows errors.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        try:
            return BaseHook.get_connection(conn_id)
        except AirflowNotFoundException:
            return _looked_up_again(conn_id)
    except Exception as error:  # a secrets backend may raise anything; callers handle one kind
        raise ConnectionLookupError(
            f"Connection {conn_id!r} cannot be looked up ({type(error).__name__}): check that "
            "Airflow's "
            "API and database can be reached and that the Connection is well-formed."
        ) from None


def _looked_up_again(conn_id: str) -> Any:
    """A Connection that Airflow does not find; None if it does not exist."""
    from airflow.sdk import BaseHook

    from airflow_provider_zeus import airflow_compat  # the module: a task needs one name of the two

    if supervisor():
        question = airflow_compat.GetConnection(conn_id=conn_id)
        if asked_again(question, "CONNECTION_NOT_FOUND") is not None:
            return BaseHook.get_connection(conn_id)  # a backend had failed for a moment only
    else:  # a CLI outside of the server context has not looked here
        connection = airflow_compat.MetastoreBackend().get_connection(conn_id)
        if connection is not None:
            return connection
    name = f"AIRFLOW_CONN_{conn_id.upper()}"
    if os.environ.get(name):  # Airflow treats one that it cannot read as absent
        raise StoreError(f"{name} is no Connection")
    return None


def embedded_path() -> Path:
    """Path of the trial log of this host: ``$AIRFLOW_HOME/zeus.db``."""
    return airflow_home() / "zeus.db"


def state_dir() -> Path:
    """``[zeus] state_dir``: the folder of locks, records of changed power limits, and pending
    results.
    """
    from airflow.sdk import conf

    return Path(conf.get("zeus", "state_dir", fallback="") or airflow_home() / "zeus")


def runs_here() -> bool:
    """Whether every task runs on this host: a test run, or local executors only."""
    from airflow.sdk import conf

    executors = conf.get("core", "executor", fallback="") or "LocalExecutor"
    if is_test_run():
        return True
    here = r"(^|[.:=])(Local|Sequential)Executor(:|$)"
    names = executors.replace(";", ",").split(",")
    return all(patterns.search(here, name.strip()) for name in names)


def is_variable_store(connection: Any, conn_id: str) -> bool:
    """Whether Airflow's Variables hold the log. Raises StoreError for an unknown store."""
    if not isinstance(connection.extra_dejson, Mapping):
        raise _wrong(conn_id, "extra", "...", "no JSON object")
    chosen = connection.extra_dejson.get("store") or "sql"
    # Another type's extra is read by that type's own hook: a "store" in it is not meant for us.
    if connection.conn_type != "zeus":
        return False
    if chosen not in ("sql", "variable"):
        raise _wrong(conn_id, "extra store", "...", "there is no such store, only sql and variable")
    return bool(chosen == "variable")


def database_url(connection: Any, conn_id: str) -> str:
    """Database URL of a Connection (types zeus, postgres, sqlite), with its password.

    Raises StoreError.
    """
    from airflow_provider_zeus.store.sql.engine import parsed_url

    try:
        extra = connection.extra_dejson
        kind = connection.conn_type
        host = connection.host or ""
        if extra.get("sqlalchemy_url"):
            place = f"Connection {conn_id!r}: extra sqlalchemy_url"
            url = parsed_url(str(extra["sqlalchemy_url"]), place)
        elif kind == "sqlite" and host:
            if not host.startswith("/"):
                raise _wrong(conn_id, "host", "...", "not the absolute path of a file")
            return f"sqlite:///{host}"
        elif kind not in ("zeus", "postgres", "postgresql"):
            is_name = patterns.fullmatch("[a-z_]{0,30}", str(kind or ""))
            shown = kind if is_name else "..."
            raise _wrong(conn_id, "conn_type", shown, "no run log is kept there")
        elif host or extra.get("host"):
            url = _url_of_fields(connection, conn_id, host)
        else:
            raise _wrong(conn_id, "host", host, "it names no database")
        if url.get_backend_name() == "postgresql":
            _check_length(conn_id, "login", url.username)
            _check_length(conn_id, "schema", url.database)
        return url.render_as_string(hide_password=False)
    except (TypeError, ValueError, AttributeError):
        # The error itself may repeat the password that it could not read.
        raise StoreError(
            f"Connection {conn_id!r}: its fields cannot be put together as the URL of a database. "
            f"{REMEDY}."
        ) from None


def _check_length(conn_id: str, field: str, name: str | None) -> None:
    """Raise StoreError if PostgreSQL would cut a name, and report its beginning."""
    longest = 63  # PostgreSQL's NAMEDATALEN - 1, unless it was built with another
    if name is not None and len(name.encode()) > longest:
        problem = f"longer than {longest} bytes, so no name in PostgreSQL"
        raise _wrong(conn_id, field, "...", problem)


def _url_of_fields(connection: Any, conn_id: str, host: str) -> sa.URL:
    """URL of the form's fields; ``host`` may be a name, a folder with a Unix socket, or a URL
    without some fields.
    """
    import sqlalchemy as sa

    from airflow_provider_zeus.store.sql.engine import parsed_url

    if "://" in host:
        url = parsed_url(host, f"Connection {conn_id!r}: host")
    elif host.startswith("/"):
        url = sa.URL.create("postgresql", query={"host": host})
    elif not patterns.fullmatch(r"[\w.:,%\[\]-]*", host, MOST_LINE):
        # A password before an @ would be shown as a part of the host.
        problem = "not the name of a host; user and password have fields of their own"
        raise _wrong(conn_id, "host", "...", problem)
    else:
        url = sa.URL.create("postgresql", host=host or None)
    if url.get_backend_name() != "postgresql":
        return url
    fields = {
        "username": connection.login,
        "password": connection.password,
        "port": connection.port,
        "database": connection.schema,
    }
    # The URL is what its author wrote last, so the form only fills gaps.
    missing = {name: value for name, value in fields.items() if value and not getattr(url, name)}
    url = url.set(**missing)
    # Options of the PostgreSQL client, for example sslmode or connect_timeout: all are passed on,
    # so that the client refuses a misspelt one instead of connecting without the required
    # encryption.
    options = dict(connection.extra_dejson)
    query = options.pop("sqlalchemy_query", None) or {}
    # These are ours or of Airflow's own hook: the client would refuse them.
    for no_option in ("store", "sqlalchemy_url", "sqlalchemy_scheme", "cursor"):
        options.pop(no_option, None)
    texts: dict[str, str] = {}
    for name, value in {**query, **options}.items():
        if name not in url.query and value not in (None, ""):
            texts[name] = str(int(value) if isinstance(value, bool) else value)
    return url.update_query_dict(texts)


def passwords(connection: Any) -> list[str]:
    """Passwords in other fields than ``password``: as ``user:password@`` or as options of the
    client.
    """
    extra = connection.extra_dejson
    options: dict[Any, Any] = {}
    if isinstance(extra, Mapping):
        query = extra.get("sqlalchemy_query")
        options = {**extra, **(query if isinstance(query, Mapping) else {})}
    texts = [connection.host, connection.login, connection.schema, connection.extra]
    secrets: list[str] = []
    for text in (*texts, *options.values()):
        if isinstance(text, str):
            secrets += filter(None, _in_text(text))
    # Any option whose name says "pass" may hold one, in whatever client.
    for name, value in options.items():
        if value and "pass" in str(name):
            secrets.append(str(value))
    # A URL holds it quoted, and a driver's error repeats it as it is.
    return [*secrets, *(unquote(secret) for secret in secrets if "%" in secret)]


def _in_text(text: str) -> Iterator[str]:
    """Possible passwords in a text, some of them empty: in addresses, and behind ``password=``."""
    for word in text.replace('"', " ").replace("'", " ").split():
        yield _in_address(word)
        for option in word.split("&"):
            _, _, behind = option.partition("pass")
            _, _, secret = behind.partition("=")
            yield secret


def _in_address(word: str) -> str:
    """The password of ``user:password@``, at the beginning of a word or after ``//``; empty if
    there is none.
    """
    login, _, _ = word.rpartition("@")
    end = 0
    for part in login.split(":"):
        path, slash, user = part.rpartition("/")
        is_first = path.endswith("/") if slash else end == 0
        end += len(part) + 1
        is_user = is_first and "@" not in user
        if is_user and not login.startswith("//", end):
            return login[end:]
    return ""


def _wrong(conn_id: str, field: str, value: object, problem: str) -> StoreError:
    return StoreError(f"Connection {conn_id!r}: {field} = {value!r}: {problem}. {REMEDY}.")
