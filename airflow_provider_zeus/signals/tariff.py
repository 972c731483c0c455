"""A static tariff: prices by month, day and hour in a time zone, as most contracts have them.

Pure, no network.

``{"timezone": "Europe/Berlin", "unit": "EUR/kWh", "default": 0.31, "rules": [{"days": "mon-fri",
"hours": "17-21", "months": "10-03", "value": 0.42}, {"hours": "22-06", "value": 0.24}]}``

The first rule that holds counts. Hours, days and months are lists of entries and ranges, as
``"mon,wed-fri"``. A range may wrap; an end hour is exclusive. Local time, so that both days of a
change of the clock are right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self
from zoneinfo import ZoneInfo

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.signals.series import Series, Step, Unit, is_number
from airflow_provider_zeus.units import S_PER_H

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_RANGES = {"months": (1, 12), "days": (0, 6), "hours": (0, 23)}
_EXAMPLES = {"months": "10-03", "days": "mon,wed-fri", "hours": "22-06"}


@dataclass(frozen=True, slots=True)
class Rule:
    """A price in these months (1 to 12), days (0: Monday) and hours (0 to 23) of local time."""

    value: float
    months: frozenset[int]
    days: frozenset[int]
    hours: frozenset[int]


@dataclass(frozen=True, slots=True)
class Tariff:
    """Rules, and the price if none of them holds."""

    zone: ZoneInfo
    unit: Unit
    default: float
    rules: tuple[Rule, ...]

    @classmethod
    def parse(cls, spec: object) -> Self:
        """Parse the tariff's JSON object.

        Raises JobSpecError that names field, value and remedy.
        """
        if not isinstance(spec, Mapping):
            raise JobSpecError.of(
                "tariff", spec, "not a JSON object", "give timezone, unit, default and rules"
            )
        # A mistyped name would leave a rule out in silence.
        _refuse_others("tariff", spec, {"timezone", "unit", "default", "rules"})
        rules = spec.get("rules", [])
        # A DAG file writes it: each page and run would go through all of its rules.
        if not isinstance(rules, list) or len(rules) > 100:
            raise JobSpecError.of(
                "rules", rules, "not a list of at most 100 rules", "write it as a list"
            )
        unit = Unit.parse(spec.get("unit"))
        return cls(
            zone=_zone(spec.get("timezone")),
            unit=unit,
            default=_value("default", spec.get("default"), unit),
            rules=tuple(_rule(i, rule, unit) for i, rule in enumerate(rules, start=1)),
        )

    def at(self, time_s: float) -> float:
        """The price at a time [s since the epoch], in ``unit.name``."""
        local = datetime.fromtimestamp(time_s, self.zone)
        month = local.month
        day = local.weekday()
        hour = local.hour
        for rule in self.rules:
            if month in rule.months and day in rule.days and hour in rule.hours:
                return rule.value
        return self.default

    def series(self, start_s: float, end_s: float) -> Series:
        """The prices of the local hours that lie in ``start_s`` to ``end_s``, whole or in part: a
        step for each.

        Raises JobSpecError if that is too long.
        """
        steps = []
        # Steps begin at local hours, as the rules do.
        at_s = start_s - _into_hour_s(start_s, self.zone)
        while at_s < end_s:
            # A change of the clock by half an hour moves the hours: each step ends at the next one.
            until_s = at_s + S_PER_H - _into_hour_s(at_s, self.zone)
            steps.append(Step(at_s, until_s, self.at(at_s)))
            at_s = until_s
        return Series.of(self.unit, steps, source="tariff", zone=str(self.zone))


def _into_hour_s(time_s: float, zone: ZoneInfo) -> float:
    """How far into its local hour a time is [s]; the clocks of some zones are half an hour off."""
    local = datetime.fromtimestamp(math.floor(time_s), zone)
    return local.minute * 60 + local.second + time_s - math.floor(time_s)


def _zone(name: object) -> ZoneInfo:
    """The time zone of a name. Raises JobSpecError."""
    try:
        return ZoneInfo(str(name))
    except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        remedy = 'name one of the IANA database, such as "Europe/Berlin"'
        raise JobSpecError.of("timezone", name, "not known", remedy) from None


def _refuse_others(part: str, spec: Mapping[str, Any], fields: set[str]) -> None:
    """Raise JobSpecError if a part of the tariff has another field than these."""
    for name in spec:
        if name not in fields:
            field = f"{part}: {str(name)[:40]}"
            raise JobSpecError.of(field, "...", "no such field", f"use {', '.join(sorted(fields))}")


def _value(field: str, value: object, unit: Unit) -> float:
    """A value in ``unit.name``. Raises JobSpecError."""
    if not is_number(value):
        raise JobSpecError.of(
            field, value, "not a finite number", "give the price in the tariff's unit"
        )
    if not unit.can_have(value):
        raise JobSpecError.of(field, value, "a negative carbon intensity", "give 0 or more")
    return float(value) * unit.factor


def _rule(number: int, rule: object, unit: Unit) -> Rule:
    if not isinstance(rule, Mapping):
        raise JobSpecError.of(
            f"rule {number}", rule, "not a JSON object", 'write {"hours": "22-06", "value": 0.24}'
        )
    _refuse_others(f"rule {number}", rule, {"days", "hours", "months", "value"})
    return Rule(
        value=_value(f"rule {number}: value", rule.get("value"), unit),
        months=_span(number, "months", rule),
        days=_span(number, "days", rule),
        hours=_span(number, "hours", rule),
    )


def _span(number: int, field: str, rule: Mapping[str, Any]) -> frozenset[int]:
    """The months, days or hours of a field: entries and ranges of them, as ``"mon,wed-fri"``.

    A missing field is the whole range. Raises JobSpecError.
    """
    first, last = _RANGES[field]
    if field not in rule:
        return frozenset(range(first, last + 1))
    text = rule[field]
    try:
        return frozenset[int]().union(*(_part(field, part) for part in text.split(",")))
    except (AttributeError, ValueError):
        remedy = f'write it as "{_EXAMPLES[field]}"'
        raise JobSpecError.of(f"rule {number}: {field}", text, "cannot be read", remedy) from None


def _part(field: str, text: str) -> frozenset[int]:
    """``"10-03"`` or ``"5"``, over the end if it wraps. Raises ValueError."""
    first, last = _RANGES[field]
    count = last - first + 1
    start_text, dash, end_text = text.partition("-")
    start = _entry(field, start_text)
    length = 1
    if dash:
        # "17-21" ends at 21 o'clock, though "mon-fri" has the friday; "6-6" is the whole day.
        is_exclusive = field == "hours"
        if is_exclusive and end_text.strip() == "24":
            end_text = "0"
        length = (_entry(field, end_text) - start - is_exclusive) % count + 1
    return frozenset((start - first + i) % count + first for i in range(length))


def _entry(field: str, text: str) -> int:
    """One month, day or hour. Raises ValueError."""
    word = text.strip().lower()
    if field == "days":
        return [word in (day, day[:3]) for day in _DAYS].index(True)
    if not word.isascii() or not word.isdecimal():
        raise ValueError(text)
    first, last = _RANGES[field]
    if not first <= int(word) <= last:
        raise ValueError(text)
    return int(word)
