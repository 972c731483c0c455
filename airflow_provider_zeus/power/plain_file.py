"""Files that others may have put there: opened without waiting, never by a link, read up to a size.

A folder that others may write is opened once, and its files by the descriptor of it: nothing that is swapped meanwhile
is read in their place. Standard library only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import islice

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_PASSED = getattr(os, "O_PATH", os.O_RDONLY)  # a folder on the way need not be readable


def open_plain(
    path: str | os.PathLike[str],
    flags: int = os.O_RDONLY,
    *,
    folder: int | None = None,
    owners: Collection[int] | None = None,
) -> int:
    """A descriptor of a plain file. Never waits, as opening a pipe does for its other end.

    Raises OSError (it cannot be opened, or is gone), ValueError (it is a link, a folder, a pipe, a socket or a device,
    or not one of the ``owners``' own).

    :param folder: descriptor of the folder that ``path`` is relative to.
    :param owners: user ids that the file may belong to; it may have no second name then, as a hard link has.
    """
    there: os.stat_result | None = None
    try:
        there = os.stat(path, dir_fd=folder, follow_symlinks=False)
        _check(there, owners)  # opening a device may do something
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY
    descriptor = os.open(path, flags, 0o666, dir_fd=folder)
    try:
        opened = os.fstat(descriptor)
        _check(opened, owners)  # it may have been swapped; a hard link that is gone by now counts as none
        if there is not None and not os.path.samestat(there, opened):
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
    """All of a plain file. Raises OSError and ValueError as :func:`open_plain`, ValueError also for a larger one."""
    return read_all(open_plain(path, folder=folder, owners=owners), most_bytes)


def read_all(descriptor: int, most_bytes: int) -> bytes:
    """All of an opened file, which is closed then. Raises OSError, ValueError: it is larger."""
    with open(descriptor, "rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"longer than {most_bytes} bytes")
    return data


@contextmanager
def opened_folder(path: str | os.PathLike[str]) -> Iterator[int]:
    """Descriptor of a folder that others may write, by which its files are opened.

    Neither it nor the folder that it lies in may be a symbolic link. Raises OSError.
    """
    above, name = os.path.split(os.path.abspath(path))
    outer = os.open(above, _FOLDER | _PASSED)
    try:
        descriptor = os.open(name or os.curdir, _FOLDER | os.O_RDONLY, dir_fd=outer)
    finally:
        os.close(outer)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def names_in(folder: int, ending: str, *, most_looked_at: int) -> list[str]:
    """Names in an opened folder that end so, in order; of the first ``most_looked_at`` names. Raises OSError."""
    with os.scandir(folder) as entries:
        return sorted(e.name for e in islice(entries, most_looked_at) if e.name.endswith(ending))


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a file by way of another one beside it, whose name cannot be guessed; whole or not at all.

    What lies at ``path``, a link for instance, is replaced and not followed. Raises OSError, and leaves nothing then.
    """
    above, name = os.path.split(os.fspath(path))
    half = os.path.join(above, f".{name}.{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(half, flags, 0o666)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(half)
        raise


def named(path: str | os.PathLike[str]) -> str:
    """A path for people: what is no UTF-8 in it, and what is not shown, is escaped, so that it can be printed."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
