"""Files that others may have put there: opened without waiting, read up to a size. Standard library only."""

from __future__ import annotations

import os
import stat


def open_plain(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """A descriptor of a plain file. Never waits, as opening a pipe does for its other end.

    Raises OSError (it cannot be opened, or is gone), ValueError (it is a folder, a pipe, a socket or a device).
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("not a plain file")
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)


def read_plain(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """All of a plain file. Raises OSError as :func:`open_plain`, ValueError: not a plain file, or a larger one."""
    with open(open_plain(path), "rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"longer than {most_bytes} bytes")
    return data


def named(path: str | os.PathLike[str]) -> str:
    """A path for people: what is no UTF-8 in it is escaped, so that it can be printed everywhere."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
