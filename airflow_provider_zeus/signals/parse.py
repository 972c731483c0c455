"""A series from the answer of a service or from a file: JSON by paths, CSV by columns. Pure; hostile input.

A path is ``$.data[*].from``: names, ``[*]`` for each item of a list, and ``[0]`` for its first one. So
``$.values[*][0]`` and ``$.values[*][1]`` are the times and values of pairs. Times are ISO 8601 (with an offset, or
UTC), or counted since the epoch in seconds, milliseconds, microseconds or nanoseconds.
"""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Any

from airflow_provider_zeus import patterns
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.patterns import MOST_CELL
from airflow_provider_zeus.signals.series import CARBON, MOST_STEPS, Series, Step, Unit, is_number

MOST_CHARACTERS = 8_000_000
UNSAID = "..."  # in errors, for what was read: who names an address may not be one who may read there


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where an answer has its times and values."""

    times: str  # path, or the column of a CSV file
    unit: str  # as Unit.parse reads it
    values: str = ""  # what happened; a price that is published counts as such
    forecasts: str = ""  # path or column of values that count where ``values`` has none; they are marked as estimated
    ends: str = ""  # path or column of the ends of the steps; empty: a step ends where the next one begins
    step_s: float | None = None  # length of a step at most; default: the usual distance of two, which counts if shorter
    step_at: str = ""  # path of that length where an answer says it: seconds, or a text as "hourly" or "15_minutes"
    estimated: str = ""  # path or column of a flag: the value was estimated by the service
    zone_at: str = ""  # path of the zone that the answer is for; it has to be the one asked for
    unit_at: str = ""  # path of the unit where an answer says it; it has to be ``unit``


def text_of(data: bytes) -> str:
    """The text of an answer or of a file: UTF-8, or UTF-16 or 32 as its first bytes tell; each of them by gzip, too."""
    if data.startswith(b"\x1f\x8b"):
        try:
            data = zlib.decompressobj(wbits=31).decompress(data, 4 * MOST_CHARACTERS)
        except zlib.error:
            raise JobSpecError.of("series", UNSAID, "damaged gzip", "correct the URL or the file") from None
    return data.decode(json.detect_encoding(data), "replace")


def parsed(text: str, layout: Layout, *, zone: str = "", source: str = "", most_step_s: float = 90_000.0) -> Series:
    """Read a series. Values that are no finite numbers become gaps, as do negative carbon intensities.

    Raises JobSpecError that names what is wrong: no JSON or CSV, a path that leads nowhere, lists of different lengths,
    an unknown unit, an answer for another zone, a time or a number of another form, two values at one time without an
    offset, no value at all, too long.

    :param most_step_s: longer steps are gaps; the day on which the clocks go back has 25 h.
    """
    if len(text) > MOST_CHARACTERS:
        raise JobSpecError.of("series", f"over {MOST_CHARACTERS} characters", "too long", "ask for a shorter span")
    if (begin := text.lstrip()[:1]) in ("", "<"):
        problem = f"no JSON or CSV but {'a page (HTML or XML)' if begin else 'empty'}"
        raise JobSpecError.of("series", UNSAID, problem, "correct the URL or the file")
    unit = Unit.parse(layout.unit)
    said_s, columns = _of_json(text, layout, zone) if layout.times.startswith("$") else (None, _of_csv(text, layout))
    times, values, forecasts, ends, flags = columns
    if len(values or forecasts) != len(times) or any(len(each) not in (0, len(times)) for each in columns):
        raise JobSpecError.of("series", UNSAID, "lists of different lengths", "correct the paths")
    if len(times) > MOST_STEPS:
        raise JobSpecError.of("series", f"over {MOST_STEPS} steps", "too long", "ask for a shorter span")
    starts_s, ends_s = _read("times", layout.times, times, _time_s), _read("ends", layout.ends, ends, _time_s)
    known = _possible(unit, _read("values", layout.values, values, _number))
    guessed = _possible(unit, _read("forecasts", layout.forecasts, forecasts, _number))
    begins_s = sorted({s for s in starts_s if s is not None})
    usual_s = median([b - a for a, b in pairwise(begins_s)]) if len(begins_s) > 1 else None
    if usual_s is not None and usual_s < 60.0 and begins_s[-1] < 1e8 and len(begins_s) > 2:
        problem = "less than a minute apart, before 1973"  # years, days since 1900, hours of the day
        remedy = "write ISO 8601, or seconds or milliseconds since the epoch"
        raise JobSpecError.of("times", layout.times, problem, remedy)
    length_s = min((s for s in (said_s, layout.step_s, usual_s) if s is not None), default=None)
    steps = []
    at_times: dict[float, float] = {}
    for i, start_s in enumerate(starts_s):
        happened = known[i] if known else None
        number = guessed[i] if happened is None and guessed else happened
        if start_s is None or number is None:
            continue
        if at_times.setdefault(start_s, number) != number and _is_naive(times[i]):
            problem = (
                f"entry {i + 1} of {len(times)} is there with another value before, and has no offset: in the night"
            )
            problem += " in which clocks are put back two times look alike"
            raise JobSpecError.of("times", layout.times, problem, "write times in UTC, or with their offset")
        end_s = ends_s[i] if ends_s else None
        if end_s is None and length_s is not None:
            end_s = start_s + length_s
        if end_s is not None and 0 < end_s - start_s <= most_step_s:
            estimated = happened is None or bool(flags and flags[i] is True)
            steps.append(Step(start_s, end_s, number * unit.factor, estimated))
    series = Series.of(unit, steps, source=source, zone=zone)
    if not steps or len(set(steps)) >= 2 * len(series.steps):
        _refuse(layout, bool(times), bool(begins_s), bool(steps), {*known, *guessed} <= {None})
    return series


def _refuse(layout: Layout, has_entries: bool, has_times: bool, has_steps: bool, has_no_number: bool) -> None:
    """Raise JobSpecError that says why a series of these columns cannot be used."""
    if not has_entries:
        raise JobSpecError.of("times", layout.times, "an empty list", "ask for a span that has values")
    if not has_times:
        raise JobSpecError.of("times", layout.times, "none of its entries is a time", "correct the path or the column")
    if has_no_number:
        where = layout.values or layout.forecasts
        problem = "none of its entries is a number"
        if Unit.parse(layout.unit).goal == CARBON:
            problem = "none of its entries is a number of at least 0"
        raise JobSpecError.of("values", where, problem, "correct the path or the column")
    if not has_steps:
        problem = "no step has a length, or none of 25 h at most"
        raise JobSpecError.of("step_s", layout.step_s, problem, 'name "ends", or the seconds as "step_s"')
    problem = "several values for each time, as of several zones in one answer"
    raise JobSpecError.of("times", layout.times, problem, "ask for one of them")


def _of_json(text: str, layout: Layout, zone: str) -> tuple[float | None, tuple[Sequence[Any], ...]]:
    """(what the answer says that a step takes [s], its columns)."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        raise JobSpecError.of("series", UNSAID, "no JSON", "correct the URL or the file") from None
    if layout.zone_at:
        (said,) = _found(answer, layout.zone_at)[:1] or [None]
        if said != zone:
            raise JobSpecError.of("zone", zone, "the answer is for another one", "name the zone in the request")
    if layout.unit_at and any(_differs(said, layout.unit) for said in _found(answer, layout.unit_at, needed=False)[:1]):
        raise JobSpecError.of("unit", layout.unit, "the answer is in another one", "name that of the answer")
    said_s = [_length_s(said) for said in _found(answer, layout.step_at, needed=False)[:1]] if layout.step_at else []
    paths = (layout.times, layout.values, layout.forecasts, layout.ends, layout.estimated)
    either = {layout.values, layout.forecasts} if layout.values and layout.forecasts else set()
    columns = [_found(answer, p, needed=p not in {*either, layout.estimated}) if p else [] for p in paths]
    if either and not (columns[1] or columns[2]):
        columns[1] = _found(answer, layout.values)  # says what is missing
    return next(iter(said_s), None), tuple(columns)


def _of_csv(text: str, layout: Layout) -> tuple[Sequence[Any], ...]:
    """The columns of a file whose cells are separated by what its first line has most of: ``,``, ``;`` or tabs."""
    text = text.lstrip("\r\n")
    separator = max(",;\t", key=text.partition("\n")[0].count)
    try:
        header, *rows = filter(None, csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True))
    except csv.Error:
        raise JobSpecError.of("series", UNSAID, "no CSV", "correct the URL or the file") from None
    names = (layout.times, layout.values, layout.forecasts, layout.ends, layout.estimated)
    for name in filter(None, names):
        if name not in header:
            remedy = 'name a column of its first line, or a path as "$.data[*].from" where it is JSON'
            raise JobSpecError.of("column", name, "not in the file", remedy)
    if any("".join(row[len(header) :]).strip() for row in rows):  # "0,30" without quotes is two cells
        problem = "a line has more cells than the first one"
        raise JobSpecError.of("series", UNSAID, problem, 'write numbers as 0.30, and texts with a comma in "..."')
    flags = {"true": True, "false": False}
    places = {name: place for place, name in enumerate(header)}
    columns = []
    for name in names:
        place = places.get(name, -1)
        cells = [row[place] if place < len(row) else None for row in rows] if name else []
        columns.append([cell if cell is None else flags.get(cell.strip().lower(), cell) for cell in cells])
    return tuple(columns)


def _found(answer: object, path: str, *, needed: bool = True) -> list[Any]:
    """What a path leads to: the items of a list at its end, too. A name or an index that an item lacks gives None.

    A path that leads nowhere at all is an error if it is needed, else it gives nothing.
    """
    part_of_path = r"\.([A-Za-z_][\w-]*)|\[(\*|\d{1,6})\]"
    if not patterns.fullmatch(rf"\$(?:{part_of_path})*", path):
        raise JobSpecError.of("path", path, "cannot be read", 'write it as "$.data[*].from", or "$.values[*][0]"')
    found = [answer]
    for part, (name, index) in enumerate(patterns.findall(part_of_path, path), 1):
        items = [_items(each, name, index) for each in found]
        if found and all(item is None for item in items):
            if not needed:
                return []
            missing = "such name" if name else "list" if index == "*" else "such item of a list"
            problem = f"leads nowhere: the answer has no {missing} at part {part} of it"
            raise JobSpecError.of("path", path, problem, "compare it with the answer")
        missing_item = [] if index == "*" else [None]
        found = [item for some in items for item in (missing_item if some is None else some)]
        if len(found) > MOST_STEPS:
            raise JobSpecError.of("series", f"over {MOST_STEPS} steps", "too long", "ask for a shorter span")
    return list(found[0]) if len(found) == 1 and isinstance(found[0], list) else found


def _items(value: Any, name: str, index: str) -> list[Any] | None:
    """What one part of a path leads to: all items for the index ``*``, else one; None: it leads nowhere.

    :param name: empty where ``index`` is given.
    """
    if name:
        return [value[name]] if isinstance(value, dict) and name in value else None
    if not isinstance(value, list):
        return None
    if index == "*":
        return value
    return [value[int(index)]] if int(index) < len(value) else None


def _possible(unit: Unit, numbers: Sequence[float | None]) -> list[float | None]:
    """Numbers of a column, None for each that a series of this unit cannot have."""
    return [number if unit.can_have(number) else None for number in numbers]


def _read(field: str, where: str, cells: Sequence[Any], read: Callable[[Any], float | None]) -> list[float | None]:
    """The times or numbers of a column. What has digits and cannot be read is an error: it is no gap."""
    if any(isinstance(cell, str) and len(cell) > MOST_CELL for cell in cells):
        problem = f"an entry has over {MOST_CELL} characters"
        raise JobSpecError.of(field, where, problem, "correct the path or the column")
    found = [read(cell) for cell in cells]
    for i, cell in enumerate(cells):
        if found[i] is None and isinstance(cell, str) and any(map(str.isdecimal, cell)):
            kind, remedy = "number", "write it as 1234.5, without separators, units or signs of a currency"
            if read is _time_s:
                kind, remedy = "time", 'write it as "2026-01-05T00:00Z", or in seconds or milliseconds since the epoch'
            raise JobSpecError.of(field, where, f"entry {i + 1} of {len(cells)} is a {kind} of another form", remedy)
    return found


def _number(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if is_number(value) else None


def _time_s(value: object) -> float | None:
    moment = _moment(value)
    if moment is not None:
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    number = _number(value)
    if number is None:
        return None
    limits = ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6))  # of seconds (until the year 5138), milli- and microseconds
    return number / next((per_s for limit, per_s in limits if abs(number) < limit), 1e9)


def _moment(value: object) -> datetime | None:
    """A time that is written as a date; None for one that is counted, and for what is no time."""
    text = str(value).strip() if isinstance(value, str | int) else ""
    if patterns.fullmatch(r"(19|20)\d{6}(\d{4}|\d{6})?", text):  # 20260105 or 202601050000: no epoch of these days
        text = f"{text[:8]}T{text[8:] or '00'}"
    elif _number(value) is not None:
        return None
    if text.endswith(("UTC", "GMT")):
        text = f"{text[:-3].rstrip()}Z"
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _is_naive(value: object) -> bool:
    """Whether a time has no offset, so that two readings of the night in which clocks are put back look alike."""
    moment = _moment(value)
    return moment is not None and moment.tzinfo is None


def _length_s(said: object) -> float | None:
    """The length of a step as an answer says it: seconds, ``"hourly"``, ``"15_minutes"``; None: not known."""
    match = patterns.fullmatch(r"(\d+)_minutes?", said) if isinstance(said, str) else None
    if match is not None:
        return 60.0 * float(match[1]) or None
    number = {"hourly": 3600.0, "daily": 86_400.0}.get(said) if isinstance(said, str) else _number(said)
    return number if number is not None and number > 0 else None


def _differs(said: object, unit: str) -> bool:
    """Whether a text names another unit than ``unit``, in any spelling; a text of another kind names none."""
    spelling = "".join(said.split()).replace("\u20ac", "eur").lower() if isinstance(said, str) else ""
    match = patterns.fullmatch("([a-z]+)/([km])wh", spelling)
    if match is None:
        return False
    name = match[1] if len(match[1]) < 3 or match[1] == "lbs" else match[1].upper()
    try:
        return Unit.parse(f"{name}/{match[2].replace('m', 'M')}Wh") != Unit.parse(unit)
    except JobSpecError:
        return False
