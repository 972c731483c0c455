"""A backup of an SQLite log, and the way back.

A copy of the file by other means may lack the newest rows: while a process uses it, SQLite keeps
them in a log beside the file. And a file that is put back beside such a log of an earlier one is
damaged by it. So SQLite's own backup makes both copies.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from airflow_provider_zeus import private_files
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.store.sql.engine import BUSY_TIMEOUT_S
from airflow_provider_zeus.store.sql.schema import HEAD, VERSION_TABLE
from airflow_provider_zeus.store.sql.sqlite_file import ONE_FILE, journal_of

BESIDE = ("-wal", "-shm", "-journal")  # a copy without them would lack what was written last
# SQLite locks these bytes of a file (sqlite.org/fileformat.html, "The lock-byte page"): whoever
# holds all of them keeps every reader and writer out.
LOCK_BYTES = 0x40000000
LOCK_LENGTH = 512


def backup(log: Path, file: Path) -> int:
    """Copy a log to ``file``, while others read and write it; return how many trials the copy
    holds.

    The copy is whole or is not made. A file of that name is replaced. Raises StoreError.
    """
    if not log.exists():
        raise StoreError(f"There is no run log at {log} to back up.")
    _refuse_same(log, file)
    with _new_beside(file) as new:
        _copy(log, new, journal=ONE_FILE)  # else its first reader would leave files beside it
        trials = _checked(new)
        os.replace(new, file)
    _sync_folder(file)
    return trials


def restore(file: Path, log: Path) -> int:
    """Replace a log by a backup; return how many trials it holds now.

    All of the log is gone, with files that a killed process left beside it. Raises StoreError:
    ``file`` is no backup of this version, or another process has the log open.
    """
    _refuse_same(log, file)
    trials_in(file)
    with _new_beside(log) as new, _held_alone(log):
        _copy(file, new, journal=journal_of(log))
        trials = _checked(new)
        # Before the new file is there, or SQLite would write their old pages into it.
        for suffix in BESIDE:
            log.with_name(log.name + suffix).unlink(missing_ok=True)
        os.replace(new, log)
    _sync_folder(log)
    return trials


def trials_in(file: Path) -> int:
    """How many trials a log of this version holds. Raises StoreError."""
    if not file.is_file():
        raise StoreError(f"There is no file {file} to restore from.")
    with _named(file), closing(_connected(file)) as database:
        return _count(database)


def _refuse_same(log: Path, file: Path) -> None:
    its_own = {os.path.realpath(f"{log}{suffix}") for suffix in ("", *BESIDE)}
    if os.path.realpath(file) in its_own:
        raise StoreError(f"{file} belongs to the run log itself: name another file.")


@contextmanager
def _new_beside(file: Path) -> Iterator[Path]:
    """A new empty file in the folder of ``file``, removed at the end unless it was moved away."""
    # In a container each process may have the same pid, and a killed one leaves its file.
    new = file.with_name(f"{file.name}.{secrets.token_hex(4)}.new")
    try:
        os.close(private_files.open_file(new, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    except OSError as error:
        raise StoreError(
            f"{new} cannot be made ({error.strerror}): name a folder where this user may write."
        ) from None
    try:
        yield new
    finally:
        for suffix in ("", *BESIDE):
            new.with_name(new.name + suffix).unlink(missing_ok=True)


def _copy(source: Path, target: Path, *, journal: str) -> None:
    with _named(source), closing(_connected(source)) as of, closing(_connected(target)) as to:
        of.backup(to)
        to.execute(journal)


def _checked(copy: Path) -> int:
    """How many trials a copy holds.

    Raises StoreError if it is damaged or no log of this version.
    """
    with _named(copy), closing(_connected(copy)) as database:
        problem = database.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if problem != "ok":
            raise StoreError(f"The copy is damaged ({problem}), so nothing was replaced.")
        return _count(database)


def _count(database: sqlite3.Connection) -> int:
    table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    if database.execute(table, [VERSION_TABLE]).fetchone() is None:
        raise StoreError("The file is no run log: it has no tables of ours.")
    (version,) = database.execute("SELECT version_num FROM zeus_alembic_version").fetchone() or (
        None,
    )
    if version != HEAD:
        raise StoreError(
            f"The file is a run log with schema {version}; this version knows {HEAD} alone."
        )
    (trials,) = database.execute("SELECT count(*) FROM zeus_trial").fetchone()
    return int(trials)


def _connected(file: Path) -> sqlite3.Connection:
    """A connection to a file that exists.

    One that may only read would leave files of its own beside it.
    """
    mode = "rw" if os.access(file, os.W_OK) else "ro"
    return sqlite3.connect(
        f"{file.absolute().as_uri()}?mode={mode}", uri=True, timeout=BUSY_TIMEOUT_S
    )


@contextmanager
def _named(file: Path) -> Iterator[None]:
    """Errors of SQLite as a StoreError that names the file."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(f"{file} cannot be read as a run log ({error}).") from None


@contextmanager
def _held_alone(log: Path) -> Iterator[None]:
    """Hold SQLite's locks of a log, so that nobody reads it meanwhile.

    Raises StoreError if another process does.
    """
    if not log.exists():
        yield
        return
    try:
        descriptor = private_files.open_file(log, os.O_RDWR)
    except OSError as error:
        raise StoreError(f"{log} cannot be opened ({error.strerror}).") from None
    with private_files.closing(descriptor):
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, LOCK_LENGTH, LOCK_BYTES)
        except OSError:
            raise StoreError(
                f"Another process has the run log at {log} open: stop Airflow's servers, or wait "
                "until no task of "
                f"Zeus runs, and try again (fuser {log} names the process)."
            ) from None
        yield


def _sync_folder(file: Path) -> None:
    """Write the new name to the disk, if the file system can."""
    with suppress(OSError):
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
        with private_files.closing(folder):
            os.fsync(folder)
