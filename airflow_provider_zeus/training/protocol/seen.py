"""What a rehearsal sees: a training that runs two steps for ``airflow zeus check``."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from airflow_provider_zeus.model.wire import AnyNumber, decode, encode, parse
from airflow_provider_zeus.untrusted_files import read_plain, write_whole

SCHEMA = 1
_MOST_BYTES = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """Part of a plan: the run ends after two steps, and writes what it saw to the file ``path``.

    ``to_report``: it ends at the first report, so that nothing after the loop runs.
    """

    path: str
    to_report: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What two steps showed. ``optimizer_steps`` and ``sizes`` are those of torch; 0 and empty without it."""

    told: tuple[int, ...] = ()  # samples of each step that was told
    optimizer_steps: int = 0
    sizes: tuple[tuple[int, ...], ...] = ()
    # of each torch DataLoader's pass with optimizer steps: samples drawn before each of them, since the one before
    short: bool = False  # a pass had no more batches at its second optimizer step: the last one may have any size
    cut: bool = False  # a pass, or the loop, was ended after two steps
    metric: AnyNumber | None = None  # as reported
    older: int = 0  # parameters trained that had their weights before the function was called

    def write(self, path: Path) -> None:
        """Write it whole. Raises OSError."""
        write_whole(path, json.dumps({"v": SCHEMA, **encode(self)}))

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read what :meth:`write` wrote; None where there is no such file, or another text."""
        try:
            return decode(cls, parse(read_plain(os.fspath(path), _MOST_BYTES).decode(), SCHEMA))
        except (OSError, ValueError, TypeError, RecursionError):
            return None
