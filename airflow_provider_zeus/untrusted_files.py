"""Opens files that other users may have put there: without blocking, without following links, up to
a size.

A folder that others may write is opened once, and its files by its descriptor, so that a file that
replaces it meanwhile is not read. Standard library only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import islice

from airflow_provider_zeus.private_files import closing

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def open_plain(
    path: str | os.PathLike[str],
    flags: int = os.O_RDONLY,
    *,
    folder: int | None = None,
    owners: Collection[int] | None = None,
) -> int:
    """Open a regular file and return its descriptor. Never blocks, as opening a pipe would.

    :param folder: descriptor of the folder that ``path`` is relative to.
    :param owners: user ids that the file may belong to; with them, a file with a second hard link
        is refused.

    Raises OSError (it cannot be opened, or does not exist), ValueError (it is a link, a folder, a
    pipe, a socket or a device, or belongs to none of the ``owners``).
    """
    before: os.stat_result | None = None
    try:
        before = os.stat(path, dir_fd=folder, follow_symlinks=False)
        _check(before, owners)  # before opening: that may have an effect on a device
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY
    descriptor = os.open(path, flags, 0o666, dir_fd=folder)
    try:
        opened = os.fstat(descriptor)
        # it may have been replaced; a hard link that is removed by now does not count
        _check(opened, owners)
        if before is not None and not os.path.samestat(before, opened):
            raise ValueError("it is being replaced")
    except ValueError:
        os.close(descriptor)
        raise
    return descriptor


def _check(found: os.stat_result, owners: Collection[int] | None) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("not a plain file")
    if owners is None:
        return
    if found.st_nlink > 1:
        raise ValueError("it has a second name (a hard link)")
    if found.st_uid not in owners:
        raise ValueError("it belongs to another user")


def read_plain(
    path: str | os.PathLike[str],
    most_bytes: int,
    *,
    folder: int | None = None,
    owners: Collection[int] | None = None,
) -> bytes:
    """Read a regular file.

    Raises OSError and ValueError as :func:`open_plain`, ValueError also for a larger file.
    """
    return read_all(open_plain(path, folder=folder, owners=owners), most_bytes)


def read_all(descriptor: int, most_bytes: int) -> bytes:
    """Read an open file and close it.

    Raises OSError, ValueError: it is larger than ``most_bytes``.
    """
    with open(descriptor, "rb") as file:
        # One byte more tells that it is longer: a size that is asked before may change.
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"longer than {most_bytes} bytes")
    return data


def read_below(root: str | os.PathLike[str], path: str, most_bytes: int) -> bytes:
    """Read a regular file below a folder, by its path there or its whole one.

    Links that stay there are followed.

    Raises OSError and ValueError as :func:`read_plain`, ValueError also for a path that is not
    below the folder.
    """
    top = os.path.realpath(root)
    named = os.path.abspath(os.path.join(root, path))
    by_name = os.path.relpath(named, os.path.abspath(root))
    inside = os.path.relpath(os.path.realpath(named), top)
    *folders, name = inside.split(os.sep)
    # By name, too: else answers would tell of links that lie elsewhere.
    if os.pardir in (*by_name.split(os.sep), *folders, name):
        raise ValueError("not below the folder")
    descriptor = os.open(top, _FOLDER)
    try:
        for folder in folders:  # one after the other: none may have become a link meanwhile
            inner = os.open(folder, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        return read_plain(name, most_bytes, folder=descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def opened_folder(path: str | os.PathLike[str]) -> Iterator[int]:
    """Open a folder that others may write; yields its descriptor.

    Neither it nor its parent may be a symbolic link. Raises OSError.
    """
    parent, name = os.path.split(os.path.abspath(path))
    passed = getattr(os, "O_PATH", os.O_RDONLY)  # a parent folder need not be readable
    outer = os.open(parent, _FOLDER | passed)
    with closing(outer):
        descriptor = os.open(name or os.curdir, _FOLDER | os.O_RDONLY, dir_fd=outer)
    with closing(descriptor):
        yield descriptor


def names_in(folder: int, ending: str, *, most_looked_at: int) -> list[str]:
    """Sorted names in an open folder that end with ``ending``, of the first ``most_looked_at``.

    Raises OSError.
    """
    with os.scandir(folder) as entries:
        return sorted(e.name for e in islice(entries, most_looked_at) if e.name.endswith(ending))


def write_whole(
    path: str | os.PathLike[str], text: str, opener: Callable[[str, int], int] | None = None
) -> None:
    """Write a file completely or not at all, by a temporary file beside it with a name that cannot
    be guessed.

    An existing ``path``, also a link, is replaced and not followed. Raises OSError; then no
    temporary file is left.

    :param opener: makes the temporary file, as that of ``open()`` would; default: with mode 0666.
    """
    parent, name = os.path.split(os.fspath(path))
    temporary = os.path.join(parent, f".{name}.{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666) if opener is None else opener(temporary, flags)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            # Before the rename, or a host that crashes could have an empty file by that name.
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
