"""The list of faults, ``faults.json``: what each one changes in the package."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

LIST = Path(__file__).with_name("faults.json")


@dataclass(frozen=True)
class Fault:
    """A small edit of one file that makes the package wrong."""

    id: str
    origin: str  # "drawn", or "fix" and the commit whose fix it undoes
    file: str  # from the folder of the repository
    old: str  # stands exactly once in the file
    new: str
    what: str  # what goes wrong, in one sentence

    def put_into(self, text: str) -> str:
        """The file's text with the fault.

        Raises ValueError where the old text does not stand there exactly once.
        """
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.id}: the old text stands {text.count(self.old)} times in {self.file}"
            )
        return text.replace(self.old, self.new)

    def lines(self, text: str) -> range:
        """The lines of the file, from 1, that differ."""
        before = self.old.splitlines()
        after = self.new.splitlines()
        head = _alike(before, after)
        tail = _alike(before[:head:-1], after[:head:-1])
        first = text[: text.index(self.old)].count("\n") + 1
        # a fault that only adds lines has none: the one that they stand before counts
        return range(first + head, max(first + len(before) - tail, first + head + 1))


def _alike(one: list[str], other: list[str]) -> int:
    """How many lines two texts begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def read(path: Path = LIST) -> list[Fault]:
    """The faults of a list."""
    return [Fault(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def write(faults: list[Fault], path: Path = LIST) -> None:
    """Write a list."""
    text = json.dumps([asdict(fault) for fault in faults], ensure_ascii=False, indent=1)
    path.write_text(text + "\n", encoding="utf-8")
