"""The file in which a simulated GPU keeps the state of a driver: its limit, counter and clock.

Layout, 48 bytes, native byte order (the file stays on its host), slots of 8 bytes::

    0  b"ZEUSGPU1"    magic and version of this layout
    8  f8 LIMIT_W       power limit set [W]; any process may write it
    16 f8 EFFECTIVE_W   limit in force [W], which approaches LIMIT_W
    24 f8 CLOCK_S       virtual time [s]
    32 f8 ENERGY_J      energy drawn up to CLOCK_S [J]
    40 f8 COUNTER_MJ    energy counter [mJ], a whole number

The training process writes every slot but LIMIT_W at each step; any process may read all. Slots are
accessed by a memoryview of doubles, which stores 8 aligned bytes at once; ``struct`` would write
byte by byte. Standard library only: the guardian uses it.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from array import array
from typing import Self

from airflow_provider_zeus import private_files

MAGIC = b"ZEUSGPU1"
LIMIT_W, EFFECTIVE_W, CLOCK_S, ENERGY_J, COUNTER_MJ = range(5)
SIZE = len(MAGIC) + 5 * 8


class LayoutError(OSError):
    """A file that is no simulated GPU's state."""


class StateFile:
    """An existing state file, mapped.

    Raises OSError: it cannot be opened, or is of another layout (LayoutError).
    """

    def __init__(self, path: str) -> None:
        with private_files.closing(private_files.open_file(path, os.O_RDWR)) as descriptor:
            if os.fstat(descriptor).st_size != SIZE:
                raise LayoutError(f"{path} is not a simulated GPU's state: not {SIZE} bytes long")
            view = memoryview(mmap.mmap(descriptor, SIZE))
        self.slots = view[len(MAGIC) :].cast("d")
        # NaN fails, too: every sum from then on would be NaN.
        is_state = all(0.0 <= value < math.inf for value in self.slots)
        if bytes(view[: len(MAGIC)]) != MAGIC or not is_state:
            raise LayoutError(f"{path} is not a simulated GPU's state of layout {MAGIC.decode()}")

    @classmethod
    def in_memory(cls, limit_w: float) -> Self:
        """A new state that no other process sees."""
        state = cls.__new__(cls)
        state.slots = memoryview(mmap.mmap(-1, SIZE))[len(MAGIC) :].cast("d")
        state.slots[LIMIT_W] = state.slots[EFFECTIVE_W] = limit_w
        return state

    def limit_w(self) -> float:
        """The power limit set [W]."""
        return self.slots[LIMIT_W]

    def set_limit_w(self, limit_w: float) -> None:
        """Set the power limit [W], without a check of range or permission."""
        self.slots[LIMIT_W] = limit_w


def create(path: str, limit_w: float, *, replace: bool = False) -> None:
    """Write a new state with clock and counter 0. An existing file stays unless ``replace``.

    The file appears complete under its name and is never truncated: another process may have the
    old one mapped. Raises OSError, also if the disk is full; then no file is left.
    """
    # A pid would not do: threads share it, and another container may have the same one.
    temporary = f"{path}.{os.urandom(8).hex()}.new"
    descriptor = private_files.open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with open(descriptor, "wb") as file:
            file.write(MAGIC + array("d", (limit_w, limit_w, 0.0, 0.0, 0.0)).tobytes())
        # link() fails if the name is there: a file that another process has mapped must stay.
        publish = os.replace if replace else os.link
        with contextlib.suppress(FileExistsError):  # another process was first: its file counts
            publish(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):  # os.replace() has moved it away
            os.unlink(temporary)
