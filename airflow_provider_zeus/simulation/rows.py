"""Rows of CSV files that users supply; an error names file, line and column in one line."""

from __future__ import annotations

import csv
import lzma
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_zeus.errors import JobSpecError

LEAST, MOST = 1e-9, 1e15  # of a measured figure: products of such figures are finite, and not 0
_CORRECT = "Correct or remove that line"


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One line of a file."""

    path: Path
    line: int
    cells: Mapping[str, str | None]

    def text(self, name: str) -> str:
        """Return a cell. Raises JobSpecError where the line is too short to have it."""
        value = self.cells[name]
        if value is None:
            raise self.wrong(name, "is missing")
        return value

    def number(self, name: str, *, positive: bool = True) -> float:
        """Return a cell as a number from 1e-9 to 1e15, or from -1e15 if not ``positive``. Raises JobSpecError."""
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
        """Return a cell as a positive whole number. Raises JobSpecError."""
        value = self.number(name)
        if value != int(value):
            raise self.wrong(name, "is not a whole number")
        return int(value)

    def wrong(self, name: str, problem: str) -> JobSpecError:
        """Return the error about a cell."""
        return JobSpecError.of(name, self.cells[name], f"in line {self.line} of {self.path} {problem}", _CORRECT)


def rows_of(field: str, path: Path, columns: Sequence[str], remedy: str) -> Iterator[CsvRow]:
    """Yield the rows of a file, which may be packed by xz. Raises JobSpecError about ``field`` if it is no CSV file."""
    try:
        packed, encoding = path.suffix == ".xz", "utf-8-sig"  # spreadsheets begin a file with a byte order mark
        with (
            lzma.open(path, "rt", newline="", encoding=encoding)
            if packed
            else path.open(newline="", encoding=encoding) as file
        ):
            reader = csv.DictReader(file)
            missing = [c for c in columns if c not in (reader.fieldnames or ())]
            if missing:
                said = f"lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
                raise JobSpecError.of(field, str(path), said, remedy)
            for cells in reader:
                yield CsvRow(path, reader.line_num, cells)
    except OSError as error:
        raise JobSpecError.of(field, str(path), f"cannot be read ({error.strerror or error})", remedy) from None
    except (UnicodeDecodeError, csv.Error, lzma.LZMAError, EOFError):
        raise JobSpecError.of(field, str(path), "is not a CSV file in UTF-8, nor one packed by xz", remedy) from None
