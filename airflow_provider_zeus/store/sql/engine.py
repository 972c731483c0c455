"""Engines and transactions of the SQL store, one engine per process and URL, and errors with a
remedy.

Errors hide possible passwords, and say whether they may pass.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from airflow_provider_zeus import patterns
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.patience import pauses
from airflow_provider_zeus.store.rows import read_json
from airflow_provider_zeus.store.sql.sqlite_file import turn, watch
from airflow_provider_zeus.store.sql.watchdog import CALL_S, watch_all

BUSY_TIMEOUT_S = 30  # SQLite has one writer at a time: the others of a host wait for it
# Sooner than the watchdog: PostgreSQL's own errors say more than a connection that is cut.
LOCK_S = CALL_S - 2
STATEMENT_S = CALL_S - 1
DRIVERS = ("psycopg2", "psycopg")
# Only of these drivers is it known which errors may pass.
_DRIVERS = {"sqlite": ("", "pysqlite"), "postgresql": ("", *DRIVERS)}
DRIVER_REMEDY = (
    "Install it where tasks, api-server and scheduler run: pip install "
    "airflow-provider-zeus[postgres]"
)
# A dead network must not hang a training; a URL may choose other limits.
_CLIENT: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "airflow-provider-zeus",
}
_LIMITS = (  # for one transaction: a connection pooler may give the session to other clients
    f"SELECT set_config('statement_timeout', '{STATEMENT_S:g}s', true), "
    f"set_config('lock_timeout', '{LOCK_S:g}s', true), "
    f"set_config('idle_in_transaction_session_timeout', '{2 * BUSY_TIMEOUT_S}s', true)"
)
# The key has the pid: a forked worker must not write to its parent's socket.
_engines: dict[tuple[int, str, bool], sa.Engine] = {}


def read_url(text: str) -> sa.URL:
    """Parse a database URL and add the installed driver. Raises StoreError."""
    url = parsed_url(text, "The database URL of the store")
    if url.drivername != "postgresql":
        return url
    for module in DRIVERS:
        if importlib.util.find_spec(module):
            return url.set(drivername=f"postgresql+{module}")
    raise StoreError(f"No PostgreSQL driver is installed here. {DRIVER_REMEDY}.")


def parsed_url(text: str, field: str) -> sa.URL:
    """Parse a database URL.

    Raises StoreError about ``field`` without repeating a possible password.
    """
    if text.startswith("postgres://"):
        text = "postgresql" + text.removeprefix("postgres")
    try:
        text.encode()  # half a character would fail only in the driver
        url = sa.make_url(text)
    except (ArgumentError, ValueError):
        url = None
    # Else a part of the password would be shown as the host.
    if url is None or "@" in (url.host or ""):
        raise StoreError(
            f"{field} cannot be read as a database URL; write it as "
            "postgresql://user:password@host:5432/database and quote special characters of the "
            "password (@ as %40)."
        ) from None
    database, _, driver = url.drivername.partition("+")
    if driver not in _DRIVERS.get(database, ()):
        raise StoreError(
            f"{field}: the run log is not kept in {url.drivername}. Name a PostgreSQL database as "
            "postgresql://user:password@host:5432/database; on one host it may be an SQLite file, "
            "sqlite:////path."
        )
    return url


def engine_of(url: sa.URL, *, keeps_file_open: bool = True) -> sa.Engine:
    """The engine of a URL, created once per process.

    :param keeps_file_open: whether it keeps a connection to an SQLite file between two
        transactions. While one is open, SQLite keeps new rows in a log beside the file: a process
        that lives for months leaves them there.
    """
    key = (os.getpid(), url.render_as_string(hide_password=False), keeps_file_open)
    if key not in _engines:
        _engines[key] = new_engine(url, keeps_file_open=keeps_file_open)
    return _engines[key]


def forget(engine: sa.Engine) -> None:
    """Close the connections of an engine; the next :func:`engine_of` creates a new one."""
    keys = [key for key, other in _engines.items() if other is engine]
    for key in keys:
        # Before dispose(): another thread must not get a pool that is being closed.
        del _engines[key]
    engine.dispose()


def new_engine(
    url: sa.URL,
    creator: Callable[[], sqlite3.Connection] | None = None,
    *,
    keeps_file_open: bool = True,
) -> sa.Engine:
    """An engine with our events; ``creator``: opens each connection to an SQLite database in
    memory.
    """
    postgres = url.get_backend_name() == "postgresql"
    path = file_of(url)
    options: dict[str, Any] = {"connect_args": {"timeout": BUSY_TIMEOUT_S}}
    if path is not None and not keeps_file_open:
        options["poolclass"] = sa.NullPool
    if creator is not None:
        options = {"creator": creator, "poolclass": sa.QueuePool, "max_overflow": -1}
    if postgres:
        client = {name: value for name, value in _CLIENT.items() if name not in url.query}
        options = {
            "connect_args": client,
            # A server allows some 100 connections: keep none between two calls.
            "poolclass": sa.NullPool,
            # Row locks order the writers; a server's stricter default would reject some.
            "isolation_level": "READ COMMITTED",
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
        if path is not None:
            watch(engine, path)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # else the driver begins itself, and never IMMEDIATE
    # A damaged row must not hide the others.
    connection.text_factory = partial(bytes.decode, errors="replace")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin_sqlite(connection: sa.Connection) -> None:
    """Lock at once for writing: two readers that both become writers would fail regardless of the
    timeout.
    """
    write = connection.get_execution_options().get("zeus_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _connect_postgres(dialect: sa.Dialect, _record: Any, args: Any, options: Any) -> Any:
    """Connect; if the server has no free connection, wait until another process closes one.

    A driver's error repeats the fields of the Connection, and SQLAlchemy logs it, so they are
    hidden here.
    """
    # A training waits for at most one call, however many tries that takes.
    until_s = time.monotonic() + CALL_S
    for pause_s in pauses(random.random):
        try:
            return dialect.connect(*args, **options)
        except Exception as error:
            full = no_slot(error)
            fields = {name: value for name, value in options.items() if name not in _CLIENT}
            error.args = tuple(hidden(str(text), fields) for text in error.args)
            if not full or time.monotonic() + pause_s >= until_s:
                raise
        time.sleep(pause_s)
    raise AssertionError("pauses have no end")


def _begin_postgres(connection: sa.Connection) -> None:
    """Limit the time of statements, and of waiting for a lock and idling with one."""
    connection.exec_driver_sql(_LIMITS)


@contextmanager
def transaction(engine: sa.Engine, *, write: bool = False) -> Iterator[sa.Connection]:
    """One transaction, committed at the end.

    Raises StoreError for any error of the database or its driver.
    """
    committing = False
    path = file_of(engine.url)
    waits: AbstractContextManager[None] = nullcontext()
    if write and path is not None:
        # 4 s, as a stopped process may hold the turn: a question waits for two, and has 20 s.
        waits = turn(path, 4.0)
    try:
        with (
            waits,
            engine.connect().execution_options(zeus_write=write) as connection,
            connection.begin(),
        ):
            yield connection
            # From here on a lost connection leaves open whether the write is stored.
            committing = write
    except (SQLAlchemyError, OverflowError, UnicodeError) as error:
        # SQLAlchemy does not wrap the last two, which drivers raise about a value.
        raise explained(error, engine.url, unsure=committing) from None


def clock(connection: sa.Connection) -> float:
    """Seconds since the epoch by the store's clock: the database's on PostgreSQL, this host's on
    SQLite.
    """
    # Writers of a file share one host, so its clock is the store's.
    if connection.dialect.name != "postgresql":
        return time.time()
    epoch = sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)
    return float(connection.scalar(sa.select(epoch)) or 0)


def file_of(url: sa.URL) -> Path | None:
    """The file of an SQLite database; None for one in memory and for other databases."""
    if url.get_backend_name() != "sqlite":
        return None
    if url.database in (None, "", ":memory:"):
        return None
    return Path(url.database)


def explained(error: Exception, url: sa.URL, *, unsure: bool = False) -> StoreError:
    """A StoreError with a remedy. ``unsure``: raised during the commit, so the write may be stored.

    Until the database has answered, the values of the Connection's fields are hidden: any of them
    may be a password.
    """
    if isinstance(error, NoSuchModuleError | ImportError):
        return StoreError(f"No driver for {url.drivername!r} is installed here. {DRIVER_REMEDY}.")
    cause = _cause(error)
    text, *_ = str(cause).strip().split("\n")
    place = url
    state = _state(cause)
    # Class 08, 28 or 3D (connection, user, database): a password may stand in one of these fields.
    has_answered = state is not None and not state.startswith(("08", "28", "3D"))
    # After any other answer these fields are correct, and help to find the cause.
    if url.get_backend_name() != "sqlite" and not has_answered:
        place = _hidden_place(url, text)
        text = hidden(text, {**url.translate_connect_args(), **url.query})
    passwords = [value for name, value in url.query.items() if "pass" in name]
    for secret in filter(None, (url.password, *passwords)):
        text = text.replace(str(secret), "***")
    text = f"The run log at {shown(place)} cannot be used ({text}). {_remedy(text, url)}."
    return StoreError(text, passing=may_pass(error), unsure=unsure)


def _cause(error: Exception) -> Exception:
    """The driver's error, if SQLAlchemy has wrapped it."""
    cause: Exception | None = getattr(error, "orig", None)
    if cause is None:
        return error
    return cause


def _hidden_place(url: sa.URL, text: str) -> sa.URL:
    """A URL without possible passwords in wrong fields. ``text``: the driver's."""
    host = url.host
    if host is not None and not reached(text, host):
        host = "***"
    port = url.port
    if port is not None and not 0 < port < 2**16:
        port = None
    database = url.database
    if database:
        database = "***"
    return url.set(host=host, port=port, database=database)


def _remedy(text: str, url: sa.URL) -> str:
    if "lock timeout" in text:
        return f"Another process has held its lock for {LOCK_S:g} s; find out which"
    if "locked" in text:
        return (
            f"Another process has held its lock for {BUSY_TIMEOUT_S} s; find out which, or use "
            "PostgreSQL"
        )
    if url.get_backend_name() != "sqlite":
        return (
            "Check that the database runs and the Connection names host, database, user and "
            "options as they are"
        )
    remedy = "Check that its directory exists, is writable for this user and has space left"
    if not os.access(url.database or "", os.W_OK):
        remedy += (
            ". Users of one host share it in a folder of their group with mode 2770 (see [zeus] "
            "shared_group)"
        )
    return remedy


def shown(url: sa.URL) -> str:
    """Location of the log, for people: without user and password; of the options only a Unix
    socket's folder.
    """
    backend = url.get_backend_name()
    if backend == "sqlite":
        return f"sqlite:{url.database}"
    place = url.host or ""
    if not place and "host" not in url.query:
        place = "localhost"
    if url.port:
        place += f":{url.port}"
    address = f"{backend}://{place}/{url.database or ''}"
    folder = str(url.query.get("host", ""))
    if not folder:
        return address
    # A password may stand in this field by mistake, so it is shown only if there is such a folder.
    return f"{address}?host={folder if Path(folder).is_dir() else '***'}"


def may_pass(error: Exception) -> bool:
    """Whether an error is temporary: no connection, no free slot, a lock or a timeout; not a name,
    a right, a schema.

    libpq has no SQLSTATE for a failed connection, only a text: the server's (FATAL) or its own.
    """
    cause = _cause(error)
    text = str(cause)
    state = _state(cause)
    kinds = {kind.__name__ for kind in type(cause).__mro__}
    if state is None and kinds.isdisjoint(("OperationalError", "InterfaceError")):
        return False
    if type(cause).__module__.startswith("sqlite3"):
        return "database is locked" in text or "database table is locked" in text
    if state is not None:
        # Connection lost; no memory or slot; shutting down; timeouts; locks: a later call may
        # succeed (PostgreSQL, Appendix A).
        states = "08...|53200|53300|57P0[123]|57014|25P0[34]|55P03|40001|40P01"
        return patterns.fullmatch(states, state) is not None
    if "FATAL" in text:
        passing = "starting up|shutting down|recovery mode|not yet accepting|terminating connection"
        return no_slot(cause) or patterns.search(passing, text) is not None
    refused = (
        "could not translate host name.*not known|SSL was required|certificate|does not support"
    )
    return patterns.search(refused, text) is None


def no_slot(error: Exception) -> bool:
    """Whether the server has no free connection for this user (SQLSTATE 53300)."""
    full = "too many (clients|connections)|connection slots are reserved"
    return _state(error) == "53300" or patterns.search(full, str(error)) is not None


def reached(said: str, host: str) -> bool:
    """Whether a driver's text shows that ``host`` is a host to which it tried to connect."""
    return f'connection to server at "{host}"' in said


def hidden(said: str, fields: Mapping[str, object]) -> str:
    """A driver's text with ``***`` for each value of a Connection's fields: any of them may be a
    password.

    A known host and a possible port stay. Text that the server quotes is hidden, too: the server
    shortens long values, and writes ``_`` for ``-`` in names.
    """
    for name, value in fields.items():
        if "pass" in name and value:
            said = said.replace(str(value), "***")
    # The longest first: a password may begin with another field's value.
    for secret in sorted(set(_suspects(said, fields)), key=len, reverse=True):
        said = said.replace(f'"{secret}"', '"***"')
        if len(secret) >= 5:  # a shorter one may be a common word, which the error needs
            said = _without_word(said, secret)
    pieces = said.split('"')
    for i in range(1, len(pieces) - 1, 2):  # a server cuts long values, so they equal no field
        is_address = pieces[i - 1].endswith(("server at ", "on socket "))
        is_option = pieces[i] in fields and _is_option(pieces[i])
        if not is_address and not is_option:
            pieces[i] = "***"
    return '"'.join(pieces)


def _without_word(said: str, secret: str) -> str:
    """A text with ``***`` for a secret, unless that is a part of a longer word."""
    pieces = said.split(secret)
    shown = pieces[:1]
    for before, after in pairwise(pieces):
        is_part = _ends_word(before[-1:]) or _ends_word(after[:1])
        shown += [secret if is_part else "***", after]
    return "".join(shown)


def _ends_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _is_option(name: str) -> bool:
    """Whether a field of a Connection has the form of an option of libpq."""
    return patterns.fullmatch("[a-z_]+", name) is not None


def _suspects(said: str, fields: Mapping[str, object]) -> Iterator[str]:
    """Values, parts of values that are lists, and names that are no options."""
    for name, value in fields.items():
        text = str(value or "")
        is_host = name == "host" and reached(said, text)
        is_port = isinstance(value, int) and 0 < value < 2**16
        if text and not (is_host or is_port):
            yield from (text, *text.replace("=", " ").replace(",", " ").split())
        if not _is_option(name):
            yield name


def _state(error: BaseException) -> str | None:
    """SQLSTATE, as psycopg or psycopg2 names it."""
    state: str | None = getattr(error, "sqlstate", None)
    if state is None:
        state = getattr(error, "pgcode", None)
    return state
