"""A static tariff: prices by month, day and hour in a time zone, as most contracts have them. Pure, no network.

``{"timezone": "Europe/Berlin", "unit": "EUR/kWh", "default": 0.31,
"rules": [{"days": "mon-fri", "hours": "17-21", "months": "10-03", "value": 0.42}, {"hours": "22-06", "value": 0.24}]}``

The first rule that holds counts. Hours, days and months may wrap; an end hour is exclusive. Local time, so that both
days of a change of the clock are right.
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


@dataclass(frozen=True, slots=True)
class Rule:
    """A price in these months (1 to 12), days (0: Monday) and hours (0 to 23) of local time."""

    value: float
    months: frozenset[int]
    days: frozenset[int]
    hours: frozenset[int]


@dataclass(frozen=True, slots=True)
class Tariff:
    """Rules, and the price where none holds."""

    zone: ZoneInfo
    unit: Unit
    default: float
    rules: tuple[Rule, ...]

    @classmethod
    def parse(cls, spec: object, *, most_rules: int = 100) -> Self:
        """Parse the tariff's JSON object. Raises JobSpecError that names field, value and remedy."""
        if not isinstance(spec, Mapping):
            raise JobSpecError.of("tariff", spec, "not a JSON object", "give timezone, unit, default and rules")
        _known("tariff", spec, {"timezone", "unit", "default", "rules"})
        rules = spec.get("rules", [])
        if not isinstance(rules, list) or len(rules) > most_rules:
            raise JobSpecError.of("rules", rules, f"not a list of at most {most_rules} rules", "write it as a list")
        unit, name = Unit.parse(spec.get("unit")), spec.get("timezone")
        try:
            zone = ZoneInfo(name) if isinstance(name, str) and name else None
        except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
            zone = None
        if zone is None:
            remedy = 'name one of the IANA database, such as "Europe/Berlin"'
            raise JobSpecError.of("timezone", name, "not known", remedy)
        return cls(
            zone=zone,
            unit=unit,
            default=_value("default", spec.get("default")) * unit.factor,
            rules=tuple(_rule(i, rule, unit.factor) for i, rule in enumerate(rules, start=1)),
        )

    def at(self, time_s: float) -> float:
        """The price at a time [s since the epoch], in ``unit.name``."""
        local = datetime.fromtimestamp(time_s, self.zone)
        month, day, hour = local.month, local.weekday(), local.hour
        holding = (r for r in self.rules if month in r.months and day in r.days and hour in r.hours)
        return next((rule.value for rule in holding), self.default)

    def series(self, start_s: float, end_s: float) -> Series:
        """The prices of the local hours that lie in ``start_s`` to ``end_s``, whole or in part: a step for each.

        Raises JobSpecError where that is too long.
        """
        steps, at_s = [], start_s - _into_hour_s(start_s, self.zone)
        while at_s < end_s:
            until_s = at_s + S_PER_H - _into_hour_s(at_s, self.zone)
            steps.append(Step(at_s, until_s, self.at(at_s)))
            at_s = until_s
        return Series.of(self.unit, steps, source="tariff", zone=str(self.zone))


def _into_hour_s(time_s: float, zone: ZoneInfo) -> float:
    """How far into its local hour a time is [s]; the clocks of some zones are half an hour off."""
    local = datetime.fromtimestamp(math.floor(time_s), zone)
    return local.minute * 60 + local.second + time_s - math.floor(time_s)


def _known(where: str, spec: Mapping[str, Any], fields: set[str]) -> None:
    for name in spec:
        if name not in fields:
            raise JobSpecError.of(
                f"{where}: {str(name)[:40]}", "...", "no such field", f"use {', '.join(sorted(fields))}"
            )


def _value(field: str, value: object) -> float:
    if is_number(value):
        return float(value)
    raise JobSpecError.of(field, value, "not a finite number", "give the price in the tariff's unit")


def _rule(number: int, rule: object, factor: float) -> Rule:
    if not isinstance(rule, Mapping):
        raise JobSpecError.of(f"rule {number}", rule, "not a JSON object", 'write {"hours": "22-06", "value": 0.24}')
    _known(f"rule {number}", rule, {"days", "hours", "months", "value"})
    days = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
    return Rule(
        value=_value(f"rule {number}: value", rule.get("value")) * factor,
        months=_span(number, "months", rule, 1, 12, int),
        days=_span(number, "days", rule, 0, 6, lambda text: days.index(text.strip().lower()[:3])),
        hours=_span(number, "hours", rule, 0, 23, int, exclusive=True),
    )


def _span(
    number: int, field: str, rule: Mapping[str, Any], first: int, last: int, read: Any, *, exclusive: bool = False
) -> frozenset[int]:
    """``"10-03"`` or ``"5"``, over the end where it wraps; a missing field is the whole range."""
    count = last - first + 1
    if field not in rule:
        return frozenset(range(first, last + 1))
    text = rule[field]
    try:
        start, end = (read(part) for part in (text.split("-") if "-" in text else (text, text)))
    except (AttributeError, TypeError, ValueError):
        start = end = first - 1
    if exclusive and "-" in str(text):
        end = last if end == first else end - 1
    if first <= start <= last and first <= end <= last:
        return frozenset((start - first + i) % count + first for i in range((end - start) % count + 1))
    example = {"months": "10-03", "days": "mon-fri", "hours": "22-06"}[field]
    raise JobSpecError.of(f"rule {number}: {field}", text, "cannot be read", f'write it as "{example}"')
