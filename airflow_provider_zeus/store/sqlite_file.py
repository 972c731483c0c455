"""The file of an SQLite log while connections to it are open: it may be deleted, moved, or replaced by a backup.

SQLite goes on with the file that it opened, wherever that lies by now, and what it writes there is lost. So the file at
the path is compared with the one that a connection opened before each transaction. A connection to another file is
thrown away; where no file is left, none is made.
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
    """Let each transaction of an engine use the file that lies at ``path``. Raises StoreError there when it is gone."""
    sa.event.listen(engine, "do_connect", lambda _dialect, record, *_: _remember(record, path))
    sa.event.listen(engine, "checkout", lambda _connection, record, _proxy: _compare(record, path))
    sa.event.listen(engine, "checkin", lambda _connection, record: _remember_wal(record, path))


def _remember(record: Any, path: Path) -> None:
    """Before a connection opens the file. Were it replaced in between, :func:`_compare` opens the new one."""
    _refuse_files_of_others(path)
    record.info["file"] = _there(path)


def _compare(record: Any, path: Path) -> None:
    here = _there(path)
    if here != record.info["file"]:
        _drop_old_wal(record, path)
        raise sa.exc.DisconnectionError(f"{path} was replaced")  # the pool opens the file that is there now


def _refuse_files_of_others(path: Path) -> None:
    """Raises StoreError where another user put something in the place of the file, or of what SQLite writes beside it:
    a symbolic link, or anything in a folder in which every user may write.
    """
    real = Path(os.path.realpath(path))
    for each in (path, real, *(real.with_name(real.name + suffix) for suffix in ("-wal", "-shm", "-journal"))):
        try:
            found, folder = each.lstat(), each.parent.stat()
        except OSError:
            continue  # it is not there, or SQLite says why it cannot be reached
        is_link = stat.S_ISLNK(found.st_mode)
        foreign = found.st_uid not in (0, os.geteuid(), folder.st_uid)
        if foreign and (is_link or folder.st_mode & stat.S_IWOTH):
            raise StoreError(
                f"The trial log at sqlite:{path} is not opened: {each} is a {'symbolic link' if is_link else 'file'} "
                f"that user {found.st_uid} made. Remove it, and keep the log in a folder where no other user may write."
            )


def _there(path: Path) -> Identity:
    """Which file lies at the path. Raises StoreError where there is none."""
    found = _identity(path)
    if found is None:
        raise StoreError(
            f"The trial log at sqlite:{path} is gone: its file was deleted or moved. Put it back; else the next run "
            "that asks makes a new one, as the first run of a job makes it."
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


def _remember_wal(record: Any, path: Path) -> None:
    """After a transaction: which write-ahead log belongs to the file that the connection opened."""
    wal = _identity(_wal(path))
    if wal and "wal" not in record.info and _identity(path) == record.info.get("file"):
        record.info["wal"] = wal


def _drop_old_wal(record: Any, path: Path) -> None:
    """The write-ahead log of the file that was replaced: SQLite would read its pages into the new one."""
    if "wal" in record.info and record.info["wal"] == _identity(_wal(path)):
        for side in (_wal(path), path.with_name(f"{path.name}-shm")):
            with suppress(OSError):
                side.unlink()
