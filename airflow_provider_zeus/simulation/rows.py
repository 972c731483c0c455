"""Rows of CSV files that others wrote: what cannot be read is one line that names file, line and column."""

from __future__ import annotations

import csv
import lzma
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from airflow_provider_zeus.errors import JobSpecError

LEAST, MOST = 1e-9, 1e15  # of what is measured, in whatever unit: products of such figures are finite, and not 0
_CORRECT = "Correct or remove that line"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a file."""

    path: Path
    line: int
    cells: Mapping[str, str | None]

    def text(self, name: str) -> str:
        """One cell. Raises JobSpecError where the line is too short to have it."""
        value = self.cells[name]
        if value is None:
            raise self.wrong(name, "is missing")
        return value

    def number(self, name: str, *, positive: bool = True) -> float:
        """One cell as a number from 1e-9 to 1e15; one that need not be ``positive`` from -1e15. Raises JobSpecError."""
        try:
            value = float(self.cells[name] or "")
        except ValueError:
            value = math.nan
        if (LEAST if positive else -MOST) <= value <= MOST:
            return value
        kind = "positive number" if positive else "number"
        beyond = f" from {LEAST if positive else -MOST:g} to {MOST:g}" if math.isfinite(value) and value else ""
        raise self.wrong(name, f"is not a {kind}{beyond}")

    def whole(self, name: str) -> int:
        """One cell as a positive whole number. Raises JobSpecError."""
        value = self.number(name)
        if value != int(value):
            raise self.wrong(name, "is not a whole number")
        return int(value)

    def wrong(self, name: str, problem: str) -> JobSpecError:
        """The error of one cell."""
        return JobSpecError.of(name, self.cells[name], f"in line {self.line} of {self.path} {problem}", _CORRECT)


def rows_of(field: str, path: Path, columns: Sequence[str], remedy: str) -> Iterator[Row]:
    """The rows of a file, which may be packed by xz. Raises JobSpecError about ``field`` where it is no such file."""
    try:
        with _text(path) as file:
            reader = csv.DictReader(file)
            missing = [c for c in columns if c not in (reader.fieldnames or ())]
            if missing:
                said = f"lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
                raise JobSpecError.of(field, str(path), said, remedy)
            for cells in reader:
                yield Row(path, reader.line_num, cells)
    except OSError as error:
        raise JobSpecError.of(field, str(path), f"cannot be read ({error.strerror or error})", remedy) from None
    except (UnicodeDecodeError, csv.Error, lzma.LZMAError, EOFError):
        raise JobSpecError.of(field, str(path), "is not a CSV file in UTF-8, nor one packed by xz", remedy) from None


def _text(path: Path) -> IO[str]:
    if path.suffix == ".xz":
        return lzma.open(path, "rt", newline="", encoding="utf-8-sig")
    return path.open(newline="", encoding="utf-8-sig")  # spreadsheets begin a file with a byte order mark
