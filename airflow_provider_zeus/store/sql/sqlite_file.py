"""The file of an SQLite log: whether it is still the one that was opened, its journal, and whose
turn it is to write.

If the file was deleted, moved or replaced by a backup, SQLite continues with the file that it
opened, and writes to it are lost. So before each transaction the file at the path is compared with
the one that the connection opened. A connection to another file is dropped. A missing file is not
created.

Writers that wait for SQLite's lock sleep and retry with growing pauses, so one of them may wait for
a minute. A writer therefore first locks a file beside the database (:func:`turn`). The kernel
grants this lock in the order of arrival, and releases it when a process dies. It only orders
writers. If it cannot be had (a read-only folder, another user's lock file, a file system without
locks, a suspended holder), SQLite's waiting remains.
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

Identity = tuple[int, int]  # a path may name another file by now

# Hosts share no memory for the files beside it, and a backup has to be one file.
ONE_FILE = "PRAGMA journal_mode = DELETE"
BESIDE_READERS = "PRAGMA journal_mode = WAL"  # a writer does not stop readers
MOUNTS = Path("/proc/self/mounts")
# The kernel's names of what several hosts may mount: they share no memory, which WAL needs.
SHARED = frozenset(
    (
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb3",
        "vboxsf",
        "virtiofs",
    )
)


def journal_of(log: Path) -> str:
    """The statement that sets a log's journal mode: :data:`ONE_FILE` if several hosts may use
    the file.

    In the other mode its processes find the newest rows by memory that they share. Two hosts do not
    share it, so they would write over each other's rows (sqlite.org/wal.html). One file needs locks
    alone.
    """
    kind = file_system(log)
    if kind in SHARED or kind.startswith("fuse."):
        return ONE_FILE
    return BESIDE_READERS


def file_system(path: Path) -> str:
    """The kind of file system that a path lies on, "nfs4" for example; empty if that is not
    known.
    """
    real = Path(os.path.realpath(path))
    kind = ""
    deepest = -1
    try:
        lines = MOUNTS.read_text(errors="replace").splitlines()
    except OSError:  # not Linux: then as if on one host's disk
        return ""
    for fields in (line.split() for line in lines):
        name = fields[1]
        # The kernel writes these as octal numbers; the backslash comes last, or it would make more.
        for octal, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
            name = name.replace(octal, character)
        folder = Path(name)
        # Of two mounts at one place the later one hides the other: hence >= and not >.
        if real.is_relative_to(folder) and len(folder.parts) >= deepest:
            kind = fields[2]
            deepest = len(folder.parts)
    return kind


def watch(engine: sa.Engine, path: Path) -> None:
    """Make each transaction of an engine use the file at ``path``, or raise StoreError if it is
    missing.
    """
    wal = path.with_name(f"{path.name}-wal")

    def note_file(_dialect: Any, record: Any, *_: Any) -> None:
        """Before a connection opens the file.

        If it is replaced in between, :func:`compare` opens the new one.
        """
        refuse_files_of_others(path)
        record.info["file"] = existing(path)

    def compare(_connection: Any, record: Any, _proxy: Any) -> None:
        if existing(path) == record.info["file"]:
            return
        if "wal" in record.info and record.info["wal"] == _identity(wal):
            _drop_side_files(path)
        raise sa.exc.DisconnectionError(f"{path} was replaced")  # the pool then opens the new file

    def note_wal(_connection: Any, record: Any) -> None:
        """After a transaction: the write-ahead log of the file that the connection opened."""
        identity = _identity(wal)
        if identity is None or "wal" in record.info:
            return
        if _identity(path) == record.info.get("file"):
            record.info["wal"] = identity

    sa.event.listen(engine, "do_connect", note_file)
    sa.event.listen(engine, "checkout", compare)
    sa.event.listen(engine, "checkin", note_wal)


def _drop_side_files(path: Path) -> None:
    """Delete the files beside a file that was replaced."""
    # Their pages are the old file's: SQLite would write them into the new one.
    for end in ("-wal", "-shm"):
        with suppress(OSError):
            path.with_name(f"{path.name}{end}").unlink()


def check_file(path: Path) -> None:
    """Raises StoreError if the file is missing, or another user made it or a file that SQLite
    writes beside it.
    """
    refuse_files_of_others(path)
    existing(path)


def refuse_files_of_others(path: Path) -> None:
    """Raises StoreError if another user made the file, or one that SQLite writes beside it.

    That is: a symbolic link of another user, or a file of another user in a folder in which every
    user may write.
    """
    real = Path(os.path.realpath(path))
    beside = [real.with_name(real.name + suffix) for suffix in ("-wal", "-shm", "-journal")]
    for file in (path, real, *beside):
        try:
            status = file.lstat()
            folder = file.parent.stat()
        except OSError:
            continue  # missing, or SQLite reports why it cannot be opened
        if status.st_uid in (0, os.geteuid(), folder.st_uid):
            continue
        kind = "symbolic link" if stat.S_ISLNK(status.st_mode) else "file"
        if kind == "file" and not folder.st_mode & stat.S_IWOTH:
            continue
        raise StoreError(
            f"The run log at sqlite:{path} is not opened: {file} is a {kind} that user "
            f"{status.st_uid} made. Remove it, and keep the log in a folder where no other user "
            "may "
            "write."
        )


def existing(path: Path) -> Identity:
    """Identity of the file at the path. Raises StoreError if it is missing."""
    identity = _identity(path)
    if identity is None:
        raise StoreError(
            f"The run log at sqlite:{path} is gone: its file was deleted or moved. Put it back; "
            "else "
            "the next run that opens the log creates a new one."
        )
    return identity


def _identity(path: Path) -> Identity | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


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
            with suppress(OSError):  # a forked child may hold the file open: close() would not do
                fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


def _queue(lock: int, most_s: float) -> None:
    def wait() -> None:
        with suppress(OSError):
            fcntl.flock(own, fcntl.LOCK_EX)
        os.close(own)  # if the caller has closed its descriptor, too, this releases the lock

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(OSError):  # no descriptor is left: then no turn is waited for
            # After a timeout another file may have the number of the caller's descriptor.
            own = os.dup(lock)
            waiting = threading.Thread(target=wait, daemon=True)  # flock() has no time limit
            try:
                waiting.start()
                waiting.join(most_s)
            except RuntimeError:  # no thread can be started at the exit of the process
                os.close(own)
    except OSError:
        pass  # a file system without locks: SQLite's own waiting remains
