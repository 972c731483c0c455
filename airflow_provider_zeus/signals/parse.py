"""A series from the answer of a service or from a file: JSON by paths, CSV by columns. Pure; hostile input.

A path is ``$.data[*].from``: names, and ``[*]`` for each item of a list. Times are ISO 8601 (with an offset, or UTC),
seconds or milliseconds since the epoch.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.signals.series import MOST_STEPS, Series, Step, Unit, is_number

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
    step_s: float | None = None  # length of a step; default: the usual distance of two
    estimated: str = ""  # path or column of a flag: the value was estimated by the service
    zone_at: str = ""  # path of the zone that the answer is for; it has to be the one asked for


def parsed(text: str, layout: Layout, *, zone: str = "", source: str = "", most_step_s: float = 86_400.0) -> Series:
    """Read a series. Values that are no finite numbers become gaps.

    Raises JobSpecError that names what is wrong: no JSON or CSV, a path that leads nowhere, lists of different lengths,
    an unknown unit, an answer for another zone, too long.
    """
    if len(text) > MOST_CHARACTERS:
        raise JobSpecError.of("series", f"over {MOST_CHARACTERS} characters", "too long", "ask for a shorter span")
    unit = Unit.parse(layout.unit)
    columns = _of_json(text, layout, zone) if layout.times.startswith("$") else _of_csv(text, layout)
    times, values, forecasts, ends, flags = columns
    if len(values or forecasts) != len(times) or any(len(each) not in (0, len(times)) for each in columns):
        raise JobSpecError.of("series", UNSAID, "lists of different lengths", "correct the paths")
    if len(times) > MOST_STEPS:
        raise JobSpecError.of("series", f"over {MOST_STEPS} steps", "too long", "ask for a shorter span")
    starts_s = [_time_s(t) for t in times]
    known_s = sorted({s for s in starts_s if s is not None})
    usual_s = median([b - a for a, b in pairwise(known_s)]) if len(known_s) > 1 else None
    length_s = layout.step_s or usual_s
    steps = []
    for i, start_s in enumerate(starts_s):
        known = _number(values[i]) if values else None
        number = _number(forecasts[i]) if known is None and forecasts else known
        if start_s is None or number is None:
            continue
        end_s = _time_s(ends[i]) if ends else None
        if end_s is None and length_s is not None:
            end_s = start_s + length_s
        if end_s is not None and 0 < end_s - start_s <= most_step_s:
            estimated = known is None or bool(flags and flags[i] is True)
            steps.append(Step(start_s, end_s, number * unit.factor, estimated))
    return Series.of(unit, steps, source=source, zone=zone)


def _of_json(text: str, layout: Layout, zone: str) -> tuple[Sequence[Any], ...]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        raise JobSpecError.of("series", UNSAID, "no JSON", "correct the URL or the file") from None
    if layout.zone_at:
        (said,) = _found(answer, layout.zone_at)[:1] or [None]
        if said != zone:
            raise JobSpecError.of("zone", zone, "the answer is for another one", "name the zone in the request")
    paths = (layout.times, layout.values, layout.forecasts, layout.ends, layout.estimated)
    return tuple(_found(answer, path) if path else [] for path in paths)


def _of_csv(text: str, layout: Layout) -> tuple[Sequence[Any], ...]:
    try:
        rows = list(csv.DictReader(io.StringIO(text)))
    except csv.Error:
        raise JobSpecError.of("series", UNSAID, "no CSV", "correct the URL or the file") from None
    names = (layout.times, layout.values, layout.forecasts, layout.ends, layout.estimated)
    for name in filter(None, names):
        if not rows or name not in rows[0]:
            raise JobSpecError.of("column", name, "not in the file", "name a column of its first line")
    flags = {"true": True, "false": False}
    columns = ([row.get(name) for row in rows] if name else [] for name in names)
    return tuple(
        [flags.get(cell.strip().lower(), cell) if isinstance(cell, str) else cell for cell in column]
        for column in columns
    )


def _found(answer: object, path: str) -> list[Any]:
    """What a path leads to: the items of a list at its end, too. A name that is missing in an item gives None."""
    name_or_every = r"\.([A-Za-z_][\w-]*)|(\[\*\])"
    if not re.fullmatch(rf"\$(?:{name_or_every})*", path):
        raise JobSpecError.of("path", path, "cannot be read", 'write it as "$.data[*].from"')
    found: list[Any] = [answer]
    for name, every in re.findall(name_or_every, path):
        if every:
            found = [item for each in found for item in (each if isinstance(each, list) else [])]
        else:
            found = [each.get(name) if isinstance(each, dict) else None for each in found]
        if len(found) > MOST_STEPS:
            raise JobSpecError.of("series", f"over {MOST_STEPS} steps", "too long", "ask for a shorter span")
    if len(found) == 1 and isinstance(found[0], list):
        return list(found[0])
    if found == [None] and "[*]" not in path:
        raise JobSpecError.of("path", path, "leads nowhere in the answer", "compare it with the answer")
    return found


def _number(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if is_number(value) else None


def _time_s(value: object) -> float | None:
    number = _number(value)
    if number is not None:
        in_ms = abs(number) >= 1e11  # seconds since the epoch are below that until the year 5138
        return number / 1000 if in_ms else number
    try:
        moment = datetime.fromisoformat(str(value).strip().replace("Z", "+00:00"))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
