"""A folder on a disk that is full: a real tmpfs where this user may mount one,
else a limit on the size of files.
"""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

KINDS = ["tmpfs", "RLIMIT_FSIZE"]


@dataclass(frozen=True)
class FullDisk:
    """``folder`` takes no byte more from a child process that begins with ``preexec``."""

    folder: Path
    preexec: Callable[[], None] | None
    filler: Path | None = None

    def make_room(self) -> None:
        """From now on it takes some."""
        if self.filler is not None:
            self.filler.unlink()


@contextmanager
def full_disk(kind: str, folder: Path) -> Iterator[FullDisk]:
    """Skips the test where the kind is not to be had here."""
    folder.mkdir()
    if kind == "RLIMIT_FSIZE":
        yield FullDisk(folder, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
        return
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)],
            capture_output=True,
            text=True,
        )
        problem = mounted.stderr.strip() if mounted.returncode else ""
    except OSError as error:
        problem = str(error)
    if problem:
        pytest.skip(
            f"no tmpfs may be mounted here ({problem}), so no file system of the test's own can be"
            " full"
        )
    try:
        filler = folder / "filler"
        with filler.open("wb", buffering=0) as file:
            while _written(file.fileno()):
                pass
        yield FullDisk(folder, None, filler)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _written(descriptor: int) -> int:
    try:
        return os.write(descriptor, bytes(4096))
    except OSError:
        return 0
