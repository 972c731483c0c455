"""The shared file in which a simulated GPU keeps what a driver would: its limit, counter and clock.

Layout, 48 bytes, native byte order (the file never leaves its host), one slot of 8 bytes each::

    0  b"ZEUSGPU1"    magic and version of this layout
    8  f8 LIMIT_W       power limit set [W]; any process may write it
    16 f8 EFFECTIVE_W   limit in force, which approaches the one set [W]
    24 f8 CLOCK_S       virtual time [s]
    32 f8 ENERGY_J      energy drawn up to CLOCK_S [J]
    40 f8 COUNTER_MJ    what the energy counter shows [mJ], a whole number

The training process writes every slot but LIMIT_W at each step, any process may read all. Slots are accessed through a
memoryview of doubles, which stores 8 aligned bytes at once, where ``struct`` would write byte by byte. Standard library
only: the guardian uses it.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from array import array
from typing import Self

from airflow_provider_zeus import private

MAGIC = b"ZEUSGPU1"
LIMIT_W, EFFECTIVE_W, CLOCK_S, ENERGY_J, COUNTER_MJ = range(5)
SIZE = len(MAGIC) + 5 * 8


class StateFile:
    """An existing state file, mapped. Raises OSError (cannot be opened) or ValueError (not of this layout)."""

    def __init__(self, path: str) -> None:
        descriptor = private.open_file(path, os.O_RDWR)
        try:
            if os.fstat(descriptor).st_size != SIZE:
                raise ValueError(f"{path} is not a simulated GPU's state: not {SIZE} bytes long")
            view = memoryview(mmap.mmap(descriptor, SIZE))
        finally:
            os.close(descriptor)
        self.slots = view[len(MAGIC) :].cast("d")
        if bytes(view[: len(MAGIC)]) != MAGIC or not all(math.isfinite(v) and v >= 0.0 for v in self.slots):
            raise ValueError(f"{path} is not a simulated GPU's state of layout {MAGIC.decode()}")

    @classmethod
    def in_memory(cls, limit_w: float) -> Self:
        """A fresh state that no other process sees."""
        state = cls.__new__(cls)
        state.slots = memoryview(mmap.mmap(-1, SIZE))[len(MAGIC) :].cast("d")
        state.slots[LIMIT_W] = state.slots[EFFECTIVE_W] = limit_w
        return state

    def limit_w(self) -> float:
        """The power limit set [W]."""
        return self.slots[LIMIT_W]

    def set_limit_w(self, limit_w: float) -> None:
        """Set the power limit [W], as a driver's call would: no check, no permission."""
        self.slots[LIMIT_W] = limit_w


def create(path: str, limit_w: float, *, replace: bool = False) -> None:
    """Write a fresh state: clock and counter 0. An existing file is kept unless ``replace``.

    The file appears whole under its name, and is never truncated: another process may have the old one mapped.
    Raises OSError, where the disk is full too; then no file stays behind.
    """
    temporary = f"{path}.{os.getpid()}.new"
    with contextlib.suppress(FileNotFoundError):  # of a process that died while it wrote
        os.unlink(temporary)
    try:
        with open(private.open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(MAGIC + array("d", (limit_w, limit_w, 0.0, 0.0, 0.0)).tobytes())
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
    except FileExistsError:
        pass  # another process was first
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)
