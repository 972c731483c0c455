"""Reads a file that ``airflow zeus import`` is given: an export, or a table of earlier trainings.

The file is hostile input. Its size and the number of its entries are bounded, and each value is checked. A value that
cannot be used is named with its place and a remedy, before anything is written.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.wire import refuse_constant
from airflow_provider_zeus.reports.export_rows import COLUMNS, FORMAT

MOST_BYTES = 256 * 1024 * 1024
MOST_TRIALS = 100_000
MOST_LINE = 256 * 1024  # characters of one entry, power over time included
EARLIER = ("batch_size", "epochs", "energy_j", "time_s")  # columns that a table of earlier trainings has
OPTIONAL = ("date", "reached", "power_limit_w", "device")

Entry = tuple[str, Mapping[str, Any]]  # where it stands in the file, its values


def refuse(place: str, column: str, value: object, problem: str, remedy: str) -> NoReturn:
    """Raise the error of a value in the file."""
    shown = value[:80] if isinstance(value, str) else value
    raise JobSpecError.of(f"{place}, {column}", shown, problem, remedy)


def text_of(path: str) -> str:
    """The text of a file. Raises JobSpecError: it cannot be read, is too large or is not UTF-8."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise JobSpecError.of("FILE", path, f"cannot be read ({error.strerror})", "Name a file") from None
    if len(data) > MOST_BYTES:
        remedy = "Export one job at a time, or fewer lines"
        raise JobSpecError.of("FILE", path, f"larger than {MOST_BYTES // 2**20} MB", remedy)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise JobSpecError.of("FILE", path, f"line {line} is not UTF-8", "Save it as UTF-8") from None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would block


def document_of(text: str, path: str) -> tuple[list[Entry], list[Entry]]:
    """Trials and profiles of a JSON export."""
    again = "Write it again with 'airflow zeus export --format json'"
    try:
        document = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise JobSpecError.of("FILE", path, f"no JSON ({error})", again) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else None
        raise JobSpecError.of("format", found, f"this version reads format {FORMAT} alone", again)
    return tuple(_entries(document, name, again) for name in ("trials", "profiles"))  # type: ignore[return-value]


def _entries(document: Mapping[str, Any], name: str, again: str) -> list[Entry]:
    entries = document.get(name)
    if not isinstance(entries, list):
        raise JobSpecError.of(name, entries, "no list", again)
    if len(entries) > MOST_TRIALS:
        raise JobSpecError.of(name, len(entries), f"more than {MOST_TRIALS:,}", "Export one job at a time")
    for i, entry in enumerate(entries):
        if not isinstance(entry, dict):
            refuse(f"{name}[{i}]", "entry", entry, "no object", again)
        if len(json.dumps(entry)) > MOST_LINE:
            refuse(f"{name}[{i}]", "entry", "...", f"longer than {MOST_LINE:,} characters", again)
    return [(f"{name}[{i}]", entry) for i, entry in enumerate(entries)]


def table_of(text: str, path: str) -> tuple[bool, list[Entry]]:
    """(whether the lines are of an export, the lines) of a CSV file, each with its number."""
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(lines, [])]
        is_export = _kind_of(header, path)
        return is_export, [*_lines(lines, header)]
    except csv.Error as error:
        refuse(f"line {lines.line_num}", "line", path, f"no CSV ({error})", "Correct it")


def _kind_of(header: list[str], path: str) -> bool:
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        refuse("line 1", "columns", twice, "stands there twice", "Remove one of them")
    if set(COLUMNS) <= set(header):
        return True
    missing = [name for name in EARLIER if name not in header]
    if missing or not header:
        remedy = f"Give an export, or earlier trainings with the columns {', '.join(EARLIER)}"
        refuse("line 1", "columns", ", ".join(header), f"{', '.join(missing)} missing", remedy)
    unknown = [name for name in header if name not in (*EARLIER, *OPTIONAL)]
    if unknown:
        remedy = f"Besides {', '.join(EARLIER)} there may be {', '.join(OPTIONAL)}"
        refuse("line 1", "columns", unknown[0], f"no column of {path} that is known", remedy)
    return False


def _lines(lines: Any, header: list[str]) -> Iterator[Entry]:
    for count, cells in enumerate(lines):
        place = f"line {lines.line_num}"
        if not any(cell.strip() for cell in cells):
            continue
        if count >= MOST_TRIALS:
            refuse(place, "line", count, f"more than {MOST_TRIALS:,} lines", "Import fewer at a time")
        if len(cells) != len(header):
            remedy = "Quote a cell that holds a comma"
            refuse(place, "cells", len(cells), f"the first line has {len(header)}", remedy)
        if sum(map(len, cells)) > MOST_LINE:
            refuse(place, "line", "...", f"longer than {MOST_LINE:,} characters", "Shorten it")
        yield place, dict(zip(header, cells, strict=True))
