"""The file of an SQLite log: whether it may be opened, how its writes are made, and whose turn it is to write to it.

Each transaction opens the file anew and closes it. So a file that was put back from a backup is read at once, a file
that is gone is not made again, and the write-ahead log is folded into the file whenever nobody is in a transaction.

Writers that wait for SQLite's lock sleep and retry with growing pauses, so one of them may wait for a minute. A writer
therefore first locks a file beside the database (:func:`turn`). The kernel grants this lock in the order of arrival,
and releases it when a process dies. It only orders writers. Where it cannot be had (a read-only folder, another user's
lock file, a file system without locks, a suspended holder), SQLite's waiting remains.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from airflow_provider_zeus import private_files
from airflow_provider_zeus.errors import StoreError

MOUNTS = Path("/proc/self/mounts")  # Linux: device, folder, kind, options of each mount
# File systems that several hosts may have mounted, by the kernel's names; those of "fuse." besides.
SHARED = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2"),
        *("smb3", "vboxsf", "virtiofs"),
    )
)


def journal_of(path: Path) -> str:
    """SQLite's journal mode for a log: ``WAL``, or ``DELETE`` where several hosts may use the file.

    In ``WAL`` mode nobody waits to read. But its processes find the newest rows by memory that they share, which two
    hosts do not: they would write over each other's rows (sqlite.org/wal.html). ``DELETE`` needs locks alone.
    """
    kind = file_system(path)
    return "DELETE" if kind in SHARED or kind.startswith("fuse.") else "WAL"


def file_system(path: Path) -> str:
    """The kind of file system that a path lies on, "nfs4" for example; empty if that is not known."""
    real = Path(os.path.realpath(path))
    kind, deepest = "", -1
    try:
        lines = MOUNTS.read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return ""
    for fields in (line.split() for line in lines):
        folder = Path(fields[1].replace("\\040", " "))
        if real.is_relative_to(folder) and len(folder.parts) >= deepest:  # of two at one place the later one is seen
            kind, deepest = fields[2], len(folder.parts)
    return kind


def watch(engine: sa.Engine, path: Path) -> None:
    """Before each connection of an engine: raise StoreError if the file is missing or belongs to another user."""

    def before_connect(_dialect: Any, _record: Any, *_: Any) -> None:
        check_file(path)

    sa.event.listen(engine, "do_connect", before_connect)


def check_file(path: Path) -> None:
    """Raises StoreError if the file is missing, or another user made it or a file that SQLite writes beside it."""
    _refuse_files_of_others(path)
    if not path.exists():
        raise StoreError(
            f"The trial log at sqlite:{path} is gone: its file was deleted or moved. Put it back; else the next run "
            "that opens the log creates a new one."
        )


def _refuse_files_of_others(path: Path) -> None:
    """Raises StoreError where another user made the file, or one that SQLite writes beside it.

    That is: a symbolic link of another user, or a file of another user in a folder where every user may write.
    """
    real = Path(os.path.realpath(path))
    for each in (path, real, *(real.with_name(real.name + suffix) for suffix in ("-wal", "-shm", "-journal"))):
        try:
            found, folder = each.lstat(), each.parent.stat()
        except OSError:
            continue  # missing, or SQLite reports why it cannot be opened
        is_link = stat.S_ISLNK(found.st_mode)
        foreign = found.st_uid not in (0, os.geteuid(), folder.st_uid)
        if foreign and (is_link or folder.st_mode & stat.S_IWOTH):
            raise StoreError(
                f"The trial log at sqlite:{path} is not opened: {each} is a {'symbolic link' if is_link else 'file'} "
                f"that user {found.st_uid} made. Remove it, and keep the log in a folder where no other user may write."
            )


@contextmanager
def turn(database: Path, most_s: float) -> Iterator[None]:
    """Hold this process's turn; wait for it for at most ``most_s`` seconds. Raises nothing."""
    lock = None
    with suppress(OSError, ValueError):
        lock = private_files.open_file(f"{database}.turn", os.O_RDONLY | os.O_CREAT)
    try:
        if lock is not None:
            _queue(lock, most_s)
        yield
    finally:
        if lock is not None:
            with suppress(OSError):  # a process that was forked meanwhile still has the file open
                fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


def _queue(lock: int, most_s: float) -> None:
    def wait() -> None:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)  # after a timeout the file is closed, which releases the lock

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(RuntimeError):  # no thread can be started at the exit of the process
            waiting = threading.Thread(target=wait, daemon=True)  # flock() has no time limit
            waiting.start()
            waiting.join(most_s)
    except OSError:
        pass  # a file system without locks
