"""Schema version of the tables: checked without alembic, and migrated if the caller allows it."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import sqlalchemy as sa

from airflow_provider_zeus import private_files
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.patience import retried
from airflow_provider_zeus.store.base import UPGRADE
from airflow_provider_zeus.store.sql.engine import (
    BUSY_TIMEOUT_S,
    explained,
    file_of,
    read_url,
    shown,
    transaction,
)
from airflow_provider_zeus.store.sql.schema import HEAD, VERSION_TABLE
from airflow_provider_zeus.store.sql.sqlite_file import ONE_FILE, check_file, journal_of
from airflow_provider_zeus.store.sql.watchdog import remove_time_limits

_RUN = f"run '{UPGRADE}' once (with --conn-id for a Connection other than zeus_default)"
OTHER_VERSION = (  # no migration of this version leads from such tables
    "use the version of airflow-provider-zeus that wrote the log; or export it with that version, "
    "then move it aside "
    "or name another Connection"
)
_VERSION = sa.select(sa.column("version_num", sa.String)).select_from(sa.table(VERSION_TABLE))
LOCK_S = 30.0  # another process may create or migrate the file just now


def present_version(engine: sa.Engine) -> str | None:
    """Revision of the tables; None without tables. Makes no file.

    Raises StoreError: the database cannot be reached.
    """
    path = file_of(engine.url)
    if path is not None:
        if path.exists():
            return _version_of_file(engine, path)
        return None
    with transaction(engine) as connection:
        if not sa.inspect(connection).has_table(VERSION_TABLE):
            return None
        version: str | None = connection.execute(_VERSION).scalar_one_or_none()
        return version


def _version_of_file(engine: sa.Engine, path: Path) -> str | None:
    """Revision of the tables of an SQLite file, which is left as it is.

    The last connection that closes folds the write-ahead log of a killed process into the file. One
    that may only read does not; but if there is no such log it would leave an empty one.
    """
    check_file(path)
    wal = path.with_name(f"{path.name}-wal")
    mode = "ro" if wal.exists() and wal.stat().st_size else "rw"
    address = f"{path.absolute().as_uri()}?mode={mode}"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_TIMEOUT_S)) as reader:
            tables = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
            if reader.execute(tables, [VERSION_TABLE]).fetchone() is None:
                return None
            row = reader.execute(str(_VERSION)).fetchone()
    except sqlite3.Error as error:
        raise explained(error, engine.url) from None
    if row is None:
        return None
    return str(row[0])


def missing_file(url: str) -> Path | None:
    """Path of a missing SQLite file; None if it exists, and for other databases."""
    path = file_of(read_url(url))
    if path is None or path.exists():
        return None
    return path


def check(engine: sa.Engine, *, create: bool) -> None:
    """Check that the tables have this version. Raises StoreError with a remedy when they do not.

    ``create``: create or migrate them here, as for ``zeus.db``.
    """
    path = file_of(engine.url)
    is_missing = path is not None and not path.exists()
    if is_missing and not create:
        raise StoreError(
            f"There is no run log yet at {shown(engine.url)}: where all tasks run on one host the "
            f"first run of a job makes it; elsewhere {_RUN}."
        )
    version = present_version(engine)
    if version == HEAD:
        if path is not None:
            _leave_wal(path)
        return
    if version is not None:
        raise StoreError(
            f"The run log at {shown(engine.url)} has schema {version}. This version knows {HEAD} "
            "alone "
            f"and leaves the log as it is: {OTHER_VERSION}."
        )
    if not create:
        raise StoreError(f"The run log at {shown(engine.url)} has no tables of ours yet; {_RUN}.")
    migrate(engine)


def migrate(engine: sa.Engine) -> None:
    """Migrate the tables to this version: one transaction, one process at a time.

    Raises StoreError.
    """
    from alembic import command
    from alembic.config import Config

    config = Config()
    # %%: alembic's reader would take a % of the path for the start of a variable.
    config.set_main_option(
        "script_location", str(Path(__file__).parent / "migrations").replace("%", "%%")
    )
    path = file_of(engine.url)
    with _file_lock(path) if path else nullcontext():
        if path:
            # A task whose log was deleted may write to the new file already. SQLite waits for
            # readers then, but fails at once if another connection writes.
            retried(partial(_make_file, engine, path), BUSY_TIMEOUT_S)
        with transaction(engine, write=True) as connection:
            if connection.dialect.name == "postgresql":
                remove_time_limits(connection)
                # "zeus" in ASCII: all applications of a database share these numbers.
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(0x7A657573)))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


def _make_file(engine: sa.Engine, path: Path) -> None:
    """Make the file, and set its journal mode and the release of free pages.

    The file keeps both settings.

    Neither can be set in a transaction, and ``auto_vacuum`` only before the first table exists.
    """
    try:
        if not path.exists():  # the engine opens only an existing file
            os.close(private_files.open_file(path, os.O_RDWR | os.O_CREAT))
        with closing(engine.raw_connection()) as raw:
            raw.cursor().execute("PRAGMA auto_vacuum = INCREMENTAL")
            raw.cursor().execute(journal_of(path))
    except (sa.exc.SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise explained(error, engine.url) from None


def _leave_wal(path: Path) -> None:
    """Change the journal mode of a log that was made on one host's disk and lies on several hosts'
    now.

    This needs the file alone, and the right to write. Without them the next process that opens the
    log tries again. SQLite itself looks at the file: with a descriptor that we close, the kernel
    would drop this process's locks of it.
    """
    if journal_of(path) != ONE_FILE:
        return
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, timeout=1.0)) as alone:
        alone.execute(ONE_FILE)


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """Hold the lock of one process that creates or migrates the file; wait for it for at most
    :data:`LOCK_S`.
    """
    try:
        private_files.make_folder(path.parent)
        lock = private_files.open_file(f"{path}.lock", os.O_RDONLY | os.O_CREAT)
    except OSError as error:
        raise StoreError(
            f"The run log at {path} cannot be made ({error.strerror}); make it writable."
        ) from None
    until_s = time.monotonic() + LOCK_S
    with private_files.closing(lock):
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise StoreError(
                        f"The run log at {path} cannot be made or migrated: another process has "
                        f"kept {path}.lock for "
                        f"{LOCK_S:g} s. End that process (fuser {path}.lock names it)."
                    ) from None
            time.sleep(0.05)
        yield
