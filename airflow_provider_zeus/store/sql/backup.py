"""A backup of an SQLite log, and the way back.

A copy of the file by other means may lack the newest rows: while a process uses it, SQLite keeps
them in a log beside the file. And a file that is put back beside such a log of an earlier one is
damaged by it. So SQLite's own backup makes both copies.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from airflow_provider_zeus import private_files
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.store.sql.engine import BUSY_TIMEOUT_S
from airflow_provider_zeus.store.sql.schema import HEAD, VERSION_TABLE
from airflow_provider_zeus.store.sql.sqlite_file import ONE_FILE, journal_of, refuse_files_of_others

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
        # else its first reader would leave files beside it
        trials = _copied(log, new, journal=ONE_FILE)
        os.replace(new, file)
    _sync_folder(file)
    return trials


def restore(file: Path, log: Path) -> int:
    """Replace a log by a backup; return how many trials it holds now.

    All of the log is gone, with files that a killed process left beside it. Raises StoreError:
    ``file`` is no backup of this version, or another process has the log open.
    """
    _refuse_same(log, file)
    refuse_files_of_others(log)
    log = Path(os.path.realpath(log))  # a link stays, and leads to the new file
    trials_in(file)
    with _new_beside(log) as new, _held_alone(log):
        trials = _copied(file, new, journal=journal_of(log))
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
    with _named(f"{file} cannot be read as a run log"), closing(_connected(file)) as database:
        return _count(database, file)


def _refuse_same(log: Path, file: Path) -> None:
    # SQLite keeps them beside the file that a link leads to.
    its_own = {f"{os.path.realpath(log)}{suffix}" for suffix in ("", *BESIDE)}
    if os.path.realpath(file) in its_own:
        raise StoreError(f"{file} belongs to the run log itself: name another file.")


@contextmanager
def _new_beside(file: Path) -> Iterator[Path]:
    """A new empty file in the folder of ``file``, removed at the end unless it was moved away."""
    # In a container each process may have the same pid, and a killed one leaves its file.
    new = file.with_name(f"{file.name}.{os.urandom(8).hex()}.new")
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


def _copied(source: Path, target: Path, *, journal: str) -> int:
    """Copy a log to a new file; return how many trials the copy holds.

    Raises StoreError if that cannot be done, or the copy is damaged or no log of this version.
    """
    # Both are named: SQLite does not tell which of them it could not read or write.
    problem = f"{source} cannot be copied into {target.absolute().parent}"
    with _named(problem), closing(_connected(source)) as of, closing(_connected(target)) as to:
        of.backup(to)
        to.execute(journal)
        damage = to.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if damage != "ok":
            raise StoreError(
                f"The copy of {source} is damaged ({damage}), so nothing was replaced."
            )
        return _count(to, source)


def _count(database: sqlite3.Connection, file: Path) -> int:
    """How many trials a log holds. Raises StoreError, which names ``file``."""
    table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    if database.execute(table, [VERSION_TABLE]).fetchone() is None:
        raise StoreError(f"{file} is no run log: it has no tables of ours.")
    of_tables = f"SELECT version_num FROM {VERSION_TABLE}"  # noqa: S608 - a name of ours
    (version,) = database.execute(of_tables).fetchone() or (None,)
    if version != HEAD:
        raise StoreError(
            f"{file} is a run log with schema {version}; this version knows {HEAD} alone."
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
def _named(problem: str) -> Iterator[None]:
    """Errors of SQLite as a StoreError that names the problem."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(f"{problem} ({error}).") from None


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
        except BlockingIOError:
            raise StoreError(
                f"Another process has the run log at {log} open: stop Airflow's servers, or wait "
                "until no task of "
                f"Zeus runs, and try again (fuser {log} names the process)."
            ) from None
        except OSError as error:
            raise StoreError(
                f"{log} cannot be locked ({error.strerror}): its file system has to have locks."
            ) from None
        yield


def _sync_folder(file: Path) -> None:
    """Write the new name to the disk, if the file system can."""
    with suppress(OSError):
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
        with private_files.closing(folder):
            os.fsync(folder)
