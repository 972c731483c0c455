"""Engines of the SQL store: one per process and URL, and what a driver's error means for its user."""

from __future__ import annotations

import importlib.util
import os
import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.store.patience import pauses
from airflow_provider_zeus.store.rows import read_json
from airflow_provider_zeus.store.sql_errors import connected, hidden, is_port, may_pass, no_slot, reached
from airflow_provider_zeus.store.sql_watch import CALL_S, watch_all
from airflow_provider_zeus.store.sqlite_file import watch
from airflow_provider_zeus.store.turns import turn

BUSY_TIMEOUT_S = 30  # of SQLite's writers, who wait for each other on one host
LOCK_S, STATEMENT_S = CALL_S - 2, CALL_S - 1  # of PostgreSQL: its own errors say more than a connection that was cut
DRIVERS = ("psycopg2", "psycopg")
DRIVER_REMEDY = "Install it where tasks, api-server and scheduler run: pip install airflow-provider-zeus[postgres]"
_CLIENT: dict[str, Any] = {  # unless the URL says otherwise; a dead network must not hang a training
    "connect_timeout": 5,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "airflow-provider-zeus",
}
_READ_LIMITS = f"SELECT set_config('statement_timeout', '{STATEMENT_S:g}s', true)"
_LIMITS = (  # of one writing transaction: of nobody else's that a connection pooler hands the session to
    f"{_READ_LIMITS}, set_config('lock_timeout', '{LOCK_S:g}s', true), "
    f"set_config('idle_in_transaction_session_timeout', '{2 * BUSY_TIMEOUT_S}s', true)"
)
_WRITE = "zeus_write"  # execution option of a transaction that will write
_engines: dict[tuple[int, str], sa.Engine] = {}  # by pid too: a fork must not share a socket with its parent


def read_url(text: str) -> sa.URL:
    """Read a database URL and name the driver that is installed here. Raises StoreError."""
    url = parsed_url(text, "The database URL of the store")
    return url.set(drivername=_driver()) if url.drivername == "postgresql" else url


def parsed_url(text: str, field: str) -> sa.URL:
    """Read a database URL. Raises StoreError about ``field`` without repeating what may be a password."""
    try:
        text.encode()  # else no driver takes it
        url = sa.make_url("postgresql" + text.removeprefix("postgres") if text.startswith("postgres://") else text)
    except (ArgumentError, ValueError):
        url = None
    if url is None or "@" in (url.host or ""):  # else a part of the password would be taken for the host, and shown
        raise StoreError(
            f"{field} cannot be read as a database URL; write it as postgresql://user:password@host:5432/database and "
            "quote special characters of the password (@ as %40)."
        ) from None
    if url.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql", *(f"postgresql+{d}" for d in DRIVERS)):
        raise StoreError(
            f"{field}: the trial log is not kept in {url.drivername}. Name a PostgreSQL database as "
            "postgresql://user:password@host:5432/database; on one host it may be an SQLite file, sqlite:////path."
        )
    return url


def _driver() -> str:
    for module in DRIVERS:
        if importlib.util.find_spec(module):
            return f"postgresql+{module}"
    raise StoreError(f"No PostgreSQL driver is installed here. {DRIVER_REMEDY}.")


def engine_of(url: sa.URL) -> sa.Engine:
    """The engine of a URL, made once per process."""
    key = (os.getpid(), url.render_as_string(hide_password=False))
    if key not in _engines:
        _engines[key] = _new_engine(url)
    return _engines[key]


def forget(engine: sa.Engine) -> None:
    """Release the connections of an engine and make a new one when it is asked for again."""
    for key in [k for k, known in _engines.items() if known is engine]:
        del _engines[key]
    engine.dispose()


def _new_engine(url: sa.URL) -> sa.Engine:
    postgres = url.get_backend_name() == "postgresql"
    options: dict[str, Any] = {"connect_args": {"timeout": BUSY_TIMEOUT_S}}
    if postgres:
        options = {
            "connect_args": {name: value for name, value in _CLIENT.items() if name not in url.query},
            "poolclass": sa.NullPool,  # a server has some 100 connections: none is kept between two calls
            "isolation_level": "READ COMMITTED",  # row locks order the writers; a stricter default would refuse some
        }
    try:
        engine = sa.create_engine(url, hide_parameters=True, json_deserializer=read_json, **options)
    except (SQLAlchemyError, ImportError, TypeError) as error:
        raise explained(error, url) from None
    if postgres:
        watch_all(engine)
        sa.event.listen(engine, "do_connect", _connect_postgres)
        sa.event.listen(engine, "begin", _begin_postgres)
    else:
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        if path := file_of(url):
            watch(engine, path)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver must not begin transactions by itself: BEGIN comes from below
    connection.text_factory = _read_text
    connection.execute("PRAGMA foreign_keys = ON")


def _read_text(raw: bytes) -> str:
    return raw.decode(errors="replace")  # of a damaged row: the others are read all the same


def _begin_sqlite(connection: sa.Connection) -> None:
    """A writer takes the lock at once: two readers that both turn writers would fail, whatever the timeout."""
    write = connection.get_execution_options().get(_WRITE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _connect_postgres(dialect: sa.Dialect, _record: Any, args: Any, options: Any) -> Any:
    """Connect; where the server has no connection left, wait for one that another process gives back.

    A driver's error repeats the fields of the Connection, and SQLAlchemy logs it: they are taken out here.
    """
    until_s = time.monotonic() + CALL_S
    for pause_s in pauses(random.random):
        try:
            return dialect.connect(*args, **options)
        except Exception as error:
            full = no_slot(error)
            fields = {name: value for name, value in options.items() if name not in _CLIENT}
            error.args = tuple(hidden(str(each), fields) for each in error.args)
            if not full or time.monotonic() + pause_s >= until_s:
                raise
        time.sleep(pause_s)
    raise AssertionError("pauses have no end")


def _begin_postgres(connection: sa.Connection) -> None:
    """No statement lasts for ever. A writer neither waits for ever for a lock nor, should its process stop in the
    middle, keeps one for ever.
    """
    connection.exec_driver_sql(_LIMITS if connection.get_execution_options().get(_WRITE) else _READ_LIMITS)


@contextmanager
def transaction(engine: sa.Engine, *, write: bool = False) -> Iterator[sa.Connection]:
    """One transaction, committed at the end. Raises StoreError for whatever the database or its driver says."""
    committing = False
    try:
        with (
            _turn(engine.url) if write else nullcontext(),
            engine.connect().execution_options(**{_WRITE: write}) as connection,
            connection.begin(),
        ):
            yield connection
            committing = write
    except (SQLAlchemyError, OverflowError, UnicodeError) as error:  # the latter two of a driver, about a value
        raise explained(error, engine.url, unsure=committing) from None


def _turn(url: sa.URL) -> AbstractContextManager[None]:
    path = file_of(url)
    return turn(path, BUSY_TIMEOUT_S) if path else nullcontext()


def file_of(url: sa.URL) -> Path | None:
    """The file of an SQLite database; None for one in memory and for other databases."""
    database = url.database
    is_file = url.get_backend_name() == "sqlite" and database and database != ":memory:"
    return Path(database) if is_file and database else None


def explained(error: Exception, url: sa.URL, *, unsure: bool = False) -> StoreError:
    """One sentence and a remedy. ``unsure``: it was raised while the write was committed.

    Until the database has answered, the values of the Connection's fields are hidden: any may be the password.
    """
    if isinstance(error, NoSuchModuleError | ImportError):
        return StoreError(f"No driver for {url.drivername!r} is installed here. {DRIVER_REMEDY}.")
    said = str(getattr(error, "orig", None) or error).strip().split("\n")[0]
    where = url
    if url.get_backend_name() != "sqlite" and not connected(error):
        where = url.set(
            host=url.host if url.host is None or reached(said, url.host) else "***",
            port=url.port if is_port(url.port) else None,
            database=url.database and "***",
        )
        said = hidden(said, {**url.translate_connect_args(), **url.query})
    for secret in _secrets(url):
        said = said.replace(secret, "***")
    if "lock timeout" in said:
        remedy = f"Another process has held its lock for {LOCK_S:g} s; find out which"
    elif "locked" in said:
        remedy = f"Another process has held its lock for {BUSY_TIMEOUT_S} s; find out which, or use PostgreSQL"
    elif url.get_backend_name() == "sqlite":
        remedy = "See that its directory exists, is writable for this user and has space left"
        if not os.access(url.database or "", os.W_OK):
            remedy += ". Users of one host share it in a folder of their group with mode 2770 (see [zeus] shared_group)"
    else:
        remedy = "See that the database runs and that the Connection names host, database, user and options as they are"
    said = f"The trial log at {shown(where)} cannot be used ({said}). {remedy}."
    return StoreError(said, passing=may_pass(error), unsure=unsure)


def _secrets(url: sa.URL) -> list[str]:
    queried = [str(value) for name, value in url.query.items() if "pass" in name]
    return [secret for secret in (str(url.password or ""), *queried) if secret]


def shown(url: sa.URL) -> str:
    """Where the log lies, for people: no user, no password, of the options only the folder of a Unix socket."""
    backend = url.get_backend_name()
    if backend == "sqlite":
        return f"sqlite:{url.database}"
    place = f"{url.host or ('' if 'host' in url.query else 'localhost')}{f':{url.port}' if url.port else ''}"
    folder = str(url.query.get("host", ""))
    socket = f"?host={folder if Path(folder).is_dir() else '***'}" if folder else ""
    return f"{backend}://{place}/{url.database or ''}{socket}"
