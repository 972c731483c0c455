"""Detect that the file of an SQLite log was deleted, moved or replaced by a backup while connections are open.

SQLite continues with the file that it opened, and writes to it are lost. So before each transaction the file at the
path is compared with the one that the connection opened. A connection to another file is dropped. A missing file is not
created.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from airflow_provider_zeus.errors import StoreError

Identity = tuple[int, int]  # device and inode


def watch(engine: sa.Engine, path: Path) -> None:
    """Make each transaction of an engine use the file at ``path``, or raise StoreError where it is missing."""
    sa.event.listen(engine, "do_connect", lambda _dialect, record, *_: _note_file(record, path))
    sa.event.listen(engine, "checkout", lambda _connection, record, _proxy: _compare(record, path))
    sa.event.listen(engine, "checkin", lambda _connection, record: _note_wal(record, path))


def _note_file(record: Any, path: Path) -> None:
    """Note the file before a connection opens it. If it is replaced in between, :func:`_compare` opens the new one."""
    _refuse_files_of_others(path)
    record.info["file"] = _existing(path)


def _compare(record: Any, path: Path) -> None:
    here = _existing(path)
    if here != record.info["file"]:
        _drop_old_wal(record, path)
        raise sa.exc.DisconnectionError(f"{path} was replaced")  # the pool opens the new file


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


def _existing(path: Path) -> Identity:
    """Identity of the file at the path. Raises StoreError where it is missing."""
    found = _identity(path)
    if found is None:
        raise StoreError(
            f"The trial log at sqlite:{path} is gone: its file was deleted or moved. Put it back; else the next run "
            "that opens the log creates a new one."
        )
    return found


def _identity(path: Path) -> Identity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _wal(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _note_wal(record: Any, path: Path) -> None:
    """After a transaction: note the write-ahead log of the file that the connection opened."""
    wal = _identity(_wal(path))
    if wal and "wal" not in record.info and _identity(path) == record.info.get("file"):
        record.info["wal"] = wal


def _drop_old_wal(record: Any, path: Path) -> None:
    """Delete the write-ahead log of the replaced file: SQLite would apply its pages to the new one."""
    if "wal" in record.info and record.info["wal"] == _identity(_wal(path)):
        for side in (_wal(path), path.with_name(f"{path.name}-shm")):
            with suppress(OSError):
                side.unlink()
