"""A series from the answer of a service or from a file: JSON by paths, CSV by columns.

Pure; hostile input.

A path is ``$.data[*].from``: names, ``[*]`` for each item of a list, and ``[0]`` for its first one.
So ``$.values[*][0]`` and ``$.values[*][1]`` are the times and values of pairs. Times are ISO 8601
(with an offset, or UTC), or counted since the epoch in seconds, milliseconds, microseconds or
nanoseconds.
"""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, pairwise, zip_longest
from statistics import median
from typing import Any, NamedTuple

from airflow_provider_zeus import patterns
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.groups import known_values
from airflow_provider_zeus.patterns import MOST_CELL
from airflow_provider_zeus.signals.series import CARBON, MOST_STEPS, Series, Step, Unit, is_number

MOST_CHARACTERS = 8_000_000
# In errors, for what was read: who names an address may not be one who may read there.
UNSAID = "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The places of times and values in an answer.

    Each field is a path, or the column of a CSV file; ``unit`` is a text that :meth:`.Unit.parse`
    reads, and ``step_s`` a number of seconds.
    """

    times: str
    unit: str
    # A published price counts as what happened, since it does not change any more.
    values: str = ""
    # They count where ``values`` has none, marked as estimated: they may not come true.
    forecasts: str = ""
    # Most services give no ends: then a step ends where the next one begins.
    ends: str = ""
    # A step must not reach over a gap: it takes so long at most, or the usual distance of two.
    step_s: float | None = None
    # One service answers in steps of several lengths: it says there which, as seconds, "hourly" or
    # "15_minutes".
    step_at: str = ""
    estimated: str = ""  # a flag: pages say which values the service estimated
    # A service may answer for another zone than the one asked for: such an answer is refused.
    zone_at: str = ""
    # A service may change its unit, which would make figures wrong by a factor: it is compared with
    # ``unit``.
    unit_at: str = ""


def text_of(data: bytes) -> str:
    """The text of an answer or of a file: UTF-8, or UTF-16 or 32 as its first bytes tell; each
    of them by gzip, too.
    """
    # Some services compress whether asked or not, and so are files.
    if data.startswith(b"\x1f\x8b"):
        try:
            # Bounded, since a little gzip may hold gigabytes; UTF-32 has four bytes a character.
            data = zlib.decompressobj(wbits=31).decompress(data, 4 * MOST_CHARACTERS)
        except zlib.error:
            raise JobSpecError.of(
                "series", UNSAID, "damaged gzip", "correct the URL or the file"
            ) from None
    return data.decode(json.detect_encoding(data), "replace")


class _Columns(NamedTuple):
    """The cells of an answer for each step, as they are written there; empty if it has no such
    column.
    """

    times: Sequence[Any]
    values: Sequence[Any]
    forecasts: Sequence[Any]
    ends: Sequence[Any]
    flags: Sequence[Any]
    step_s: float | None = None  # an answer may have shorter steps than the layout knows of

    @property
    def are_alike(self) -> bool:
        """Whether each column that there is has an entry for each time."""
        count = len(self.times)
        if len(self.values or self.forecasts) != count:
            return False
        others = (self.values, self.forecasts, self.ends, self.flags)
        return all(len(column) in (0, count) for column in others)


def parsed(text: str, layout: Layout, *, zone: str = "", source: str = "") -> Series:
    """Read a series.

    Values that are no finite numbers become gaps, as do negative carbon intensities.

    Raises JobSpecError that names the problem: no JSON or CSV, a path that leads nowhere, lists of
    different lengths, an unknown unit, an answer for another zone, a time or a number of another
    form, two values at one time without an offset, no value at all, too long.
    """
    # Before the parser: a page of an error or of a login is the usual mistake.
    _refuse_other_text(text)
    unit = Unit.parse(layout.unit)
    is_json = layout.times.startswith("$")
    columns = _of_json(text, layout, zone) if is_json else _of_csv(text, layout)
    if not columns.are_alike:
        raise JobSpecError.of("series", UNSAID, "lists of different lengths", "correct the paths")
    if not columns.times:
        problem = "an empty list"
        raise JobSpecError.of("times", layout.times, problem, "ask for a span that has values")
    # Before the cells are read: each of them takes time.
    if len(columns.times) > MOST_STEPS:
        raise _too_long(f"over {MOST_STEPS} steps")
    starts_s = _read("times", layout.times, columns.times, _time_s)
    ends_s = _read("ends", layout.ends, columns.ends, _time_s)
    values = _possible(unit, _read("values", layout.values, columns.values, _number))
    forecasts = _possible(unit, _read("forecasts", layout.forecasts, columns.forecasts, _number))
    begins_s = sorted({start_s for start_s in starts_s if start_s is not None})
    if not begins_s:
        problem = "none of its entries is a time"
        raise JobSpecError.of("times", layout.times, problem, "correct the path or the column")
    length_s = _step_length_s(layout, columns.step_s, begins_s)
    # A column that the answer lacks is empty, and zip() would give no row at all.
    rows = zip_longest(columns.times, starts_s, ends_s, values, forecasts, columns.flags)
    steps = _steps(layout, unit, list(rows), length_s)
    # A longer one reaches over a gap: the day on which the clocks go back has 25 h, none more.
    steps = [step for step in steps if 0 < step.end_s - step.start_s <= 90_000.0]
    series = Series.of(unit, steps, source=source, zone=zone)
    if {*values, *forecasts} <= {None}:
        raise _without_number(layout, unit)
    if not steps:
        problem = "no step has a length, or none of 25 h at most"
        remedy = 'name "ends", or the seconds as "step_s"'
        raise JobSpecError.of("step_s", layout.step_s, problem, remedy)
    # Of several values for a time only one is kept, which would leave half of them or fewer.
    if len(set(steps)) >= 2 * len(series.steps):
        problem = "several values for each time, as of several zones in one answer"
        raise JobSpecError.of("times", layout.times, problem, "ask for one of them")
    return series


def _steps(
    layout: Layout, unit: Unit, rows: Sequence[Sequence[Any]], length_s: float
) -> list[Step]:
    """The steps of the rows that have a time and a number.

    :param rows: time as written, start, end, value, forecast and flag of each.
    :param length_s: of a step without an end.

    Raises JobSpecError if a time without an offset has two values.
    """
    steps = []
    number_at: dict[float, float] = {}
    for i, (time, start_s, end_s, value, forecast, flag) in enumerate(rows, start=1):
        number = forecast if value is None else value
        if start_s is None or number is None:
            continue
        is_twice = number_at.setdefault(start_s, number) != number
        if is_twice and _is_naive(time):
            problem = (
                f"entry {i} of {len(rows)} is there with another value before, and has no "
                "offset: in the night in which clocks are put back two times look alike"
            )
            remedy = "write times in UTC, or with their offset"
            raise JobSpecError.of("times", layout.times, problem, remedy)
        if end_s is None:
            end_s = start_s + length_s
        is_estimated = value is None or flag is True
        steps.append(Step(start_s, end_s, number * unit.factor, estimated=is_estimated))
    return steps


def _refuse_other_text(text: str) -> None:
    """Raise JobSpecError if a text is too long, empty, or a page."""
    # A hostile service must not fill the memory of a worker.
    if len(text) > MOST_CHARACTERS:
        raise _too_long(f"over {MOST_CHARACTERS} characters")
    begin = text.lstrip()[:1]
    if begin not in ("", "<"):
        return
    # A page of a login or of an error begins with "<": a parser would only say that it is no JSON.
    kind = "a page (HTML or XML)" if begin else "empty"
    raise JobSpecError.of(
        "series", UNSAID, f"no JSON or CSV but {kind}", "correct the URL or the file"
    )


def _too_long(length: str) -> JobSpecError:
    return JobSpecError.of("series", length, "too long", "ask for a shorter span")


def _step_length_s(layout: Layout, said_s: float | None, begins_s: Sequence[float]) -> float:
    """Length of a step without an end of its own [s]; 0 if nothing says it, so it is left out.

    :param said_s: as the answer says.
    :param begins_s: at which the steps begin, ascending.

    Raises JobSpecError if the begins look like years or hours of the day and not like times.
    """
    lengths_s = known_values((said_s, layout.step_s))
    if len(begins_s) > 1:
        usual_s = median([later - earlier for earlier, later in pairwise(begins_s)])
        lengths_s.append(usual_s)
        # They are years, days since 1900 or hours of the day, which would be read as seconds.
        are_no_times = usual_s < 60.0 and begins_s[-1] < 1e8
        if are_no_times and len(begins_s) > 2:
            problem = "less than a minute apart, before 1973"
            remedy = "write ISO 8601, or seconds or milliseconds since the epoch"
            raise JobSpecError.of("times", layout.times, problem, remedy)
    return min(lengths_s, default=0.0)


def _without_number(layout: Layout, unit: Unit) -> JobSpecError:
    """The error of columns without any value that the unit can have."""
    problem = "none of its entries is a number"
    if unit.goal == CARBON:
        problem += " of at least 0"
    name = "values" if layout.values else "forecasts"
    return JobSpecError.of(name, getattr(layout, name), problem, "correct the path or the column")


def _of_json(text: str, layout: Layout, zone: str) -> _Columns:
    """The columns of an answer."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        raise JobSpecError.of("series", UNSAID, "no JSON", "correct the URL or the file") from None
    # A key of a free plan may be for one zone, which the service then answers for.
    if layout.zone_at and _first(answer, layout.zone_at, needed=True) != zone:
        raise JobSpecError.of(
            "zone", zone, "the answer is for another one", "name the zone in the request"
        )
    unit = _first(answer, layout.unit_at)
    # EUR/MWh read as EUR/kWh would be wrong by a thousand.
    if unit is not None and _differs(unit, layout.unit):
        raise JobSpecError.of(
            "unit", layout.unit, "the answer is in another one", "name that of the answer"
        )
    # A service of forecasts has no values, and one of the past no forecasts: one is enough.
    forecasts = _column(answer, layout.forecasts, needed=not layout.values)
    values = _column(answer, layout.values, needed=not forecasts)
    return _Columns(
        times=_column(answer, layout.times),
        values=values,
        forecasts=forecasts,
        ends=_column(answer, layout.ends),
        flags=_column(answer, layout.estimated, needed=False),
        step_s=_length_s(_first(answer, layout.step_at)),
    )


def _first(answer: object, path: str, *, needed: bool = False) -> Any:
    """The first item that a path leads to; None without one."""
    return next(iter(_column(answer, path, needed=needed)), None)


def _of_csv(text: str, layout: Layout) -> _Columns:
    """The columns of a file whose cells are separated by the character that its first line has
    most of: ``,``, ``;`` or tabs.
    """
    text = text.lstrip("\r\n")
    # Files of the continent separate by semicolons, since their numbers have commas.
    separator = max(",;\t", key=text.partition("\n")[0].count)
    lines = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
    try:
        # Files often begin with an empty line.
        header, *rows = filter(None, lines)
    except csv.Error:
        raise JobSpecError.of("series", UNSAID, "no CSV", "correct the URL or the file") from None
    names = (layout.times, layout.values, layout.forecasts, layout.ends, layout.estimated)
    for name in filter(None, names):
        if name not in header:
            remedy = (
                'name a column of its first line, or a path as "$.data[*].from" where it is JSON'
            )
            raise JobSpecError.of("column", name, "not in the file", remedy)
    # "0,30" without quotes is two cells, and its value would be 0.
    if any("".join(row[len(header) :]).strip() for row in rows):
        problem = "a line has more cells than the first one"
        raise JobSpecError.of(
            "series", UNSAID, problem, 'write numbers as 0.30, and texts with a comma in "..."'
        )
    # Only the columns that are named are read: a file may have any number of others.
    places = {name: place for place, name in enumerate(header)}
    columns = [_cells(rows, places[name]) if name else [] for name in names]
    times, values, forecasts, ends, flags = columns
    return _Columns(times, values, forecasts, ends, flags)


def _cells(rows: Sequence[Sequence[str]], place: int) -> list[Any]:
    """The cells of a column: None if a row is shorter, a bool for the words *true* and *false*."""
    # Other words may be data: only these two are read as flags.
    flags: dict[str, Any] = {"true": True, "false": False}
    cells = [row[place] if place < len(row) else None for row in rows]
    return [flags.get(str(cell).strip().lower(), cell) for cell in cells]


def _column(answer: object, path: str, *, needed: bool = True) -> list[Any]:
    """The items that a path leads to: those of a list at its end, too; none without a path.

    A name or an index that an item lacks gives None.

    A path that leads nowhere at all is an error if it is needed, else it gives nothing.
    """
    if not path:
        return []
    part_of_path = r"\.([A-Za-z_][\w-]*)|\[(\*|\d{1,6})\]"
    # Only these parts are read: a path is no program.
    if not patterns.fullmatch(rf"\$(?:{part_of_path})*", path):
        raise JobSpecError.of(
            "path", path, "cannot be read", 'write it as "$.data[*].from", or "$.values[*][0]"'
        )
    items = [answer]
    for part, (name, index) in enumerate(patterns.findall(part_of_path, path), 1):
        children = [_children(item, name, index) for item in items]
        if items and all(child is None for child in children):
            if not needed:
                return []
            missing = _missing(name, index)
            problem = f"leads nowhere: the answer has no {missing} at part {part} of it"
            raise JobSpecError.of("path", path, problem, "compare it with the answer")
        # An item without the name keeps its place, so that columns stay side by side.
        gap = [] if index == "*" else [None]
        items = list(chain.from_iterable(gap if child is None else child for child in children))
        if len(items) > MOST_STEPS:
            raise _too_long(f"over {MOST_STEPS} steps")
    # Services also answer with a whole column as one list: its path means the items.
    if len(items) == 1 and isinstance(items[0], list):
        return list(items[0])
    return items


def _missing(name: str, index: str) -> str:
    """The lack of an answer at a part of a path."""
    if name:
        return "such name"
    return "list" if index == "*" else "such item of a list"


def _children(value: Any, name: str, index: str) -> list[Any] | None:
    """The items that one part of a path leads to: all for the index ``*``, else one; None: it leads
    nowhere.

    :param name: empty if there is an ``index``.
    """
    if name:
        if not isinstance(value, dict) or name not in value:
            return None
        return [value[name]]
    if not isinstance(value, list):
        return None
    if index == "*":
        return value
    place = int(index)
    if place >= len(value):
        return None
    return [value[place]]


def _possible(unit: Unit, numbers: Sequence[float | None]) -> list[float | None]:
    """Numbers of a column, None for each that a series of this unit cannot have."""
    return [number if unit.can_have(number) else None for number in numbers]


def _read(
    field: str, where: str, cells: Sequence[Any], read: Callable[[Any], float | None]
) -> list[float | None]:
    """The times or numbers of a column.

    A cell that has digits and cannot be read is an error: it is no gap.
    """
    texts = [cell for cell in cells if isinstance(cell, str)]
    # The patterns below take time that grows with the text.
    if max(map(len, texts), default=0) > MOST_CELL:
        problem = f"an entry has over {MOST_CELL} characters"
        raise JobSpecError.of(field, where, problem, "correct the path or the column")
    numbers = [read(cell) for cell in cells]
    for i, (cell, number) in enumerate(zip(cells, numbers, strict=True), start=1):
        has_digits = isinstance(cell, str) and any(map(str.isdecimal, cell))
        if number is not None or not has_digits:
            continue
        kind = "number"
        remedy = "write it as 1234.5, without separators, units or signs of a currency"
        if read is _time_s:
            kind = "time"
            remedy = (
                'write it as "2026-01-05T00:00Z", or in seconds or milliseconds since the epoch'
            )
        problem = f"entry {i} of {len(cells)} is a {kind} of another form"
        raise JobSpecError.of(field, where, problem, remedy)
    return numbers


def _number(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if not is_number(value):
        return None
    return float(value)


def _time_s(value: object) -> float | None:
    """A time [s since the epoch]; None if it is none."""
    moment = _moment(value)
    if moment is not None:
        # Without an offset a time is UTC, as most services mean it.
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp()
    number = _number(value)
    if number is None:
        return None
    # The size of a number tells its unit: seconds reach 1e11 in the year 5138.
    for per_s in (1.0, 1e3, 1e6):
        if abs(number) < 1e11 * per_s:
            return number / per_s
    return number / 1e9


def _moment(value: object) -> datetime | None:
    """A time that is written as a date; None for one that is counted, and for a text that is no
    time.
    """
    if not isinstance(value, str | int):
        return None
    text = str(value).strip()
    # 20260105 or 202601050000 would be another year as a number of seconds or milliseconds.
    if patterns.fullmatch(r"(19|20)\d{6}(\d{4}|\d{6})?", text):
        text = f"{text[:8]}T{text[8:] or '00'}"
    elif _number(value) is not None:
        return None
    # Some services write the name of the zone, and fromisoformat() knows Z alone.
    if text.endswith(("UTC", "GMT")):
        text = f"{text[:-3].rstrip()}Z"
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _is_naive(value: object) -> bool:
    """Whether a time has no offset, so that two readings of the night in which clocks are put
    back look alike.
    """
    moment = _moment(value)
    return moment is not None and moment.tzinfo is None


def _length_s(said: object) -> float | None:
    """The length of a step as an answer says it: seconds, ``"hourly"``, ``"15_minutes"``; None:
    not known.
    """
    # One service says it in words, which are no number of seconds.
    if isinstance(said, str):
        minutes = patterns.fullmatch(r"(\d+)_minutes?", said)
        if minutes is not None:
            return 60.0 * float(minutes[1]) or None
        return {"hourly": 3600.0, "daily": 86_400.0}.get(said)
    number = _number(said)
    if number is None or number <= 0:
        return None
    return number


def _differs(said: object, unit: str) -> bool:
    """Whether a text names another unit than ``unit``, in any spelling; a text of another kind
    names none.
    """
    if not isinstance(said, str):
        return False
    spelling = "".join(said.split()).replace("\u20ac", "eur").lower()
    match = patterns.fullmatch("([a-z]+)/([km])wh", spelling)
    if match is None:
        return False
    name, prefix = match.groups()
    # "ct" and "p" are no currencies but parts of one, and lbs is a weight.
    is_currency = len(name) >= 3 and name != "lbs"
    if is_currency:
        name = name.upper()
    try:
        return Unit.parse(f"{name}/{prefix.replace('m', 'M')}Wh") != Unit.parse(unit)
    except JobSpecError:
        return False
