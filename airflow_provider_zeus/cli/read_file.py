"""Reads a file that ``airflow zeus import`` is given: an export, or a table of earlier trainings.

The file is hostile input. Its size and the number of its entries are bounded, and each value is checked. A value that
cannot be used is named with its place and a remedy, before anything is written.
"""

from __future__ import annotations

import csv
import json
import os
import re
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

_AGAIN = "Write it again with 'airflow zeus export --format json'"
_DECODER = json.JSONDecoder(parse_constant=refuse_constant)
_SPACE = re.compile(r"[ \t\r\n]*")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def refuse(place: str, column: str, value: object, problem: str, remedy: str) -> NoReturn:
    """Raise the error of a value in the file."""
    shown = value[:80] if isinstance(value, str) else value
    raise JobSpecError.of(f"{place}, {column}", shown, problem, remedy)


def text_of(path: str) -> str:
    """The text of a file. Raises JobSpecError: it cannot be read, is too large or is not UTF-8."""
    try:
        never_blocks = os.O_NONBLOCK | os.O_CLOEXEC  # as a pipe would
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | never_blocks)) as file:
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


def document_of(text: str, path: str) -> tuple[Iterator[Entry], Iterator[Entry]]:
    """Trials and profiles of a JSON export, each decoded when it is asked for. Raises JobSpecError then."""
    return _entries(text, path, "trials"), _entries(text, path, "profiles")


def _entries(text: str, path: str, wanted: str) -> Iterator[Entry]:
    written, listed = None, False
    for name, place, value in _parts(text, path):
        written = value if name == "format" else written
        if name in ("trials", "profiles") and written != FORMAT:
            break
        if name == wanted and place is None:
            listed = isinstance(value, list)
            if not listed:
                raise JobSpecError.of(name, value if isinstance(value, int) else "...", "no list", _AGAIN)
        elif name == wanted and place is not None:
            if not isinstance(value, dict):
                refuse(place, "entry", value, "no object", _AGAIN)
            yield place, value
    if written != FORMAT:  # it stands first, so that no entry of another one is read
        shown = written if isinstance(written, int) else None
        raise JobSpecError.of("format", shown, f"this version reads format {FORMAT} alone", _AGAIN)
    if not listed:
        raise JobSpecError.of(wanted, None, "no list", _AGAIN)


def _parts(text: str, path: str) -> Iterator[tuple[str, str | None, Any]]:
    """The members of a JSON object, and one by one those of its two lists, each of which begins with an empty one.

    Each is decoded by itself, and no longer one than an entry may be: a whole document takes 25 times its size.
    Yields the name, the place of an entry of a list, and the value.
    """

    def space(at: int) -> int:
        found = _SPACE.match(text, at)
        return found.end() if found else at

    def past(sign: str, at: int) -> int:
        if text[at : at + 1] != sign:
            raise JobSpecError.of("FILE", path, f"no JSON (no {sign!r} at character {at + 1})", _AGAIN)
        return space(at + 1)

    def value(at: int, place: str) -> tuple[Any, int]:
        problem: Exception = ValueError("it ends too early")
        for most in (4096, 32 * 1024, MOST_LINE):  # mostly it is short
            try:
                found, length = _DECODER.raw_decode(text[at : at + most])
                if length < most:  # a number may have been cut
                    return found, space(at + length)
            except (ValueError, RecursionError) as error:
                problem = error
        if at + MOST_LINE < len(text):
            refuse(place, "entry", "...", f"no JSON, or longer than {MOST_LINE:,} characters ({problem})", _AGAIN)
        raise JobSpecError.of("FILE", path, f"no JSON ({problem})", _AGAIN)

    at = space(0)
    if text[at : at + 1] != "{":  # a list
        return
    at = past("{", at)
    while text[at : at + 1] != "}":
        name, at = value(at, "names")
        at = past(":", at)
        if name in ("trials", "profiles") and text[at : at + 1] == "[":
            yield name, None, []
            at, count = past("[", at), 0
            while text[at : at + 1] != "]":
                if count >= MOST_TRIALS:
                    raise JobSpecError.of(name, "...", f"more than {MOST_TRIALS:,}", "Export one job at a time")
                place = f"{name}[{count}]"
                entry, at = value(at, place)
                yield name, place, entry
                at, count = at if text[at : at + 1] == "]" else past(",", at), count + 1
            at = past("]", at)
        else:
            found, at = value(at, str(name)[:80])
            yield str(name), None, found
        at = at if text[at : at + 1] == "}" else past(",", at)
    if past("}", at) != len(text):
        raise JobSpecError.of("FILE", path, "no JSON (it goes on after its end)", _AGAIN)


def table_of(text: str, path: str) -> tuple[bool, Iterator[Entry]]:
    """(whether the lines are of an export, the lines) of a CSV file, each with its number, read when asked for."""
    taken = 0  # characters of the present record: it may have several lines

    def lines() -> Iterator[str]:
        nonlocal taken
        for count, found in enumerate(_LINE.finditer(text), 1):
            taken += found.end() - found.start()
            if taken > MOST_LINE:
                refuse(f"line {count}", "line", "...", f"longer than {MOST_LINE:,} characters", "Shorten it")
            yield found[0]

    def records() -> Iterator[list[str]]:
        nonlocal taken
        try:
            for cells in reader:
                yield cells
                taken = 0
        except csv.Error as error:
            refuse(f"line {reader.line_num}", "line", path, f"no CSV ({error})", "Correct it")

    reader = csv.reader(lines(), strict=True)
    every = records()
    header = [name.strip() for name in next(every, [])]
    is_export = _kind_of(header, path)
    return is_export, _lines(every, reader, header)


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


def _lines(records: Iterator[list[str]], lines: Any, header: list[str]) -> Iterator[Entry]:
    for count, cells in enumerate(records):
        place = f"line {lines.line_num}"
        if not any(cell.strip() for cell in cells):
            continue
        if count >= MOST_TRIALS:
            refuse(place, "line", count, f"more than {MOST_TRIALS:,} lines", "Import fewer at a time")
        if len(cells) != len(header):
            remedy = "Quote a cell that holds a comma"
            refuse(place, "cells", len(cells), f"the first line has {len(header)}", remedy)
        yield place, dict(zip(header, cells, strict=True))
