"""Golden tables: what a user reads in each situation, compared whole.

There is one table for each surface, a text file of this folder. A row is a line ``== situation`` and, below it, the
text as the user sees it. A row that differs fails its test. ``ZEUS_GOLDEN=write`` before pytest writes the rows that
the tests render, instead.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
_HEAD = re.compile(r"^== (.+)\n", re.MULTILINE)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Table:
    """The table of one surface: ``Table("check")`` is ``tests/golden/check.txt``."""

    surface: str

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.surface}.txt"

    def rows(self) -> dict[str, str]:
        """Situation -> text, without the empty lines at its ends."""
        if not self.path.exists():
            return {}
        _, *parts = _HEAD.split(self.path.read_text(encoding="utf-8"))
        return {
            title: text.strip("\n") for title, text in zip(parts[::2], parts[1::2], strict=True)
        }

    def check(self, situation: str, text: str) -> None:
        """Compare a text with its row."""
        text = text.strip("\n")
        assert not _HEAD.search(text), "the text would begin another row"
        if os.environ.get("ZEUS_GOLDEN") == "write":
            self._write(situation, text)
        assert text == self.rows().get(situation), f"the row '{situation}' of {self.path}"

    def _write(self, situation: str, text: str) -> None:
        with _locked(FOLDER):  # tests of several processes write one table
            rows = {**self.rows(), situation: text}
            self.path.write_text(
                "\n\n".join(f"== {title}\n{row}" for title, row in sorted(rows.items())) + "\n",
                encoding="utf-8",
            )
