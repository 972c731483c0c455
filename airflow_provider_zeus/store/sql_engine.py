"""Engines of the SQL store: one per process and URL, and what a driver's error means for its user."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from airflow_provider_zeus.errors import StoreError

BUSY_TIMEOUT_S = 30
_WRITE = "zeus_write"  # execution option of a transaction that will write
_engines: dict[tuple[int, str], sa.Engine] = {}  # by pid too: a fork must not share a socket with its parent


def read_url(text: str) -> sa.URL:
    """Read and complete a database URL. Raises StoreError without repeating the URL: a password may be in it."""
    try:
        url = sa.make_url("postgresql" + text.removeprefix("postgres") if text.startswith("postgres://") else text)
    except (ArgumentError, ValueError):
        raise StoreError(
            "The database URL of the store cannot be read; write it as postgresql://user:password@host:5432/database "
            "and quote special characters of the password."
        ) from None
    backend = url.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise StoreError(f"The store does not run on {backend!r}; use PostgreSQL, or SQLite on one host.")
    return url.set(drivername=_driver()) if url.drivername == "postgresql" else url


def _driver() -> str:
    for module in ("psycopg2", "psycopg"):
        if importlib.util.find_spec(module):
            return f"postgresql+{module}"
    raise StoreError(
        "No PostgreSQL driver is installed here; install apache-airflow-providers-postgres or psycopg[binary]."
    )


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
    args: dict[str, Any] = {"connect_timeout": 10} if postgres else {"timeout": BUSY_TIMEOUT_S}
    try:
        engine = sa.create_engine(url, connect_args=args, pool_pre_ping=postgres, hide_parameters=True)
    except (SQLAlchemyError, ImportError, TypeError) as error:
        raise explained(error, url) from None
    if not postgres:
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver must not begin transactions by itself: BEGIN comes from below
    connection.execute("PRAGMA foreign_keys = ON")


def _begin_sqlite(connection: sa.Connection) -> None:
    """A writer takes the lock at once: two readers that both turn writers would fail, whatever the timeout."""
    write = connection.get_execution_options().get(_WRITE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


@contextmanager
def transaction(engine: sa.Engine, *, write: bool = False) -> Iterator[sa.Connection]:
    """One transaction, committed at the end. Raises StoreError for whatever the database or its driver says."""
    try:
        with engine.connect().execution_options(**{_WRITE: write}) as connection, connection.begin():
            yield connection
    except SQLAlchemyError as error:
        raise explained(error, engine.url) from None


def explained(error: Exception, url: sa.URL) -> StoreError:
    """One sentence and a remedy, without the password."""
    if isinstance(error, NoSuchModuleError | ImportError):
        return StoreError(f"No driver for {url.drivername!r} is installed here; install it on this machine.")
    said = str(getattr(error, "orig", None) or error).strip().split("\n")[0]
    if url.password:
        said = said.replace(str(url.password), "***")
    if "locked" in said:
        remedy = f"Another process has held its lock for {BUSY_TIMEOUT_S} s; find out which, or use PostgreSQL"
    elif url.get_backend_name() == "sqlite":
        remedy = "See that its directory exists, is writable for this user and has space left"
    else:
        remedy = "See that the database runs and that the Connection names host, database and user as they are"
    return StoreError(f"The trial log at {shown(url)} cannot be used ({said}). {remedy}.")


def shown(url: sa.URL) -> str:
    """Where the log lies, for people: no user, no password, no query."""
    if url.get_backend_name() == "sqlite":
        return f"sqlite:{url.database}"
    return f"postgresql://{url.host or 'localhost'}{f':{url.port}' if url.port else ''}/{url.database or ''}"
