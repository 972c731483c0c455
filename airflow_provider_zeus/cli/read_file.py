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
_SPACE = re.compile(r"[ \t\r\n]*")


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


def entries_of(text: str, path: str, wanted: str) -> Iterator[Entry]:
    """The ``trials`` or the ``profiles`` of a JSON export, each decoded when asked for. Raises JobSpecError then."""
    written, listed = None, False
    for name, place, value in _Document(text, path).parts():
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


class _Document:
    """The text of a JSON object, decoded member by member: a whole document takes 25 times its size."""

    def __init__(self, text: str, path: str) -> None:
        self._text, self._path, self._at = text, path, 0
        self._decode = json.JSONDecoder(parse_constant=refuse_constant).raw_decode

    def parts(self) -> Iterator[tuple[str, str | None, Any]]:
        """The members, and one by one those of the two lists, each of which begins with an empty one.

        Yields the name, the place of an entry of a list, and the value.
        """
        self._skip_space()
        if not self._is_at("{"):  # a list
            return
        self._past("{")
        while not self._is_at("}"):
            name = self._value("names")
            self._past(":")
            if name in ("trials", "profiles") and self._is_at("["):
                yield name, None, []
                yield from self._entries(name)
            else:
                yield str(name), None, self._value(str(name)[:80])
            if not self._is_at("}"):
                self._past(",")
        self._past("}")
        if self._at != len(self._text):
            raise JobSpecError.of("FILE", self._path, "no JSON (it goes on after its end)", _AGAIN)

    def _entries(self, name: str) -> Iterator[tuple[str, str, Any]]:
        count = 0
        self._past("[")
        while not self._is_at("]"):
            if count >= MOST_TRIALS:
                raise JobSpecError.of(name, "...", f"more than {MOST_TRIALS:,}", "Export one job at a time")
            place = f"{name}[{count}]"
            yield name, place, self._value(place)
            count += 1
            if not self._is_at("]"):
                self._past(",")
        self._past("]")

    def _is_at(self, sign: str) -> bool:
        return self._text[self._at : self._at + 1] == sign

    def _past(self, sign: str) -> None:
        if not self._is_at(sign):
            raise JobSpecError.of("FILE", self._path, f"no JSON (no {sign!r} at character {self._at + 1})", _AGAIN)
        self._at += 1
        self._skip_space()

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _value(self, place: str) -> Any:
        """The next value, which is no longer than an entry may be."""
        problem: Exception = ValueError("it ends too early")
        for most in (4096, 32 * 1024, MOST_LINE):  # mostly it is short
            try:
                found, length = self._decode(self._text[self._at : self._at + most])
            except (ValueError, RecursionError) as error:
                problem = error
                continue
            if length < most:  # a number may have been cut
                self._at += length
                self._skip_space()
                return found
        if self._at + MOST_LINE < len(self._text):
            refuse(place, "entry", "...", f"no JSON, or longer than {MOST_LINE:,} characters ({problem})", _AGAIN)
        raise JobSpecError.of("FILE", self._path, f"no JSON ({problem})", _AGAIN)


def table_of(text: str, path: str) -> tuple[bool, Iterator[Entry]]:
    """(whether the lines are of an export, the lines) of a CSV file, each with its number, read when asked for."""
    taken = 0  # characters of the present record: it may have several lines

    def lines() -> Iterator[str]:
        nonlocal taken
        for count, found in enumerate(re.finditer(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text), 1):
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
