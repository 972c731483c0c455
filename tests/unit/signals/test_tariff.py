"""A static tariff: rules of months, days and hours in local time, with both days of a change of the clock."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.signals.tariff import Tariff

BERLIN = ZoneInfo("Europe/Berlin")
SPEC: dict[str, Any] = {
    "timezone": "Europe/Berlin",
    "unit": "ct/kWh",
    "default": 31,
    "rules": [
        {"days": "mon-fri", "hours": "17-21", "months": "10-03", "value": 42},
        {"hours": "22-06", "value": 24},
    ],
}


def at(year: int, month: int, day: int, hour: int, minute: int = 0, fold: int = 0) -> float:
    return datetime(year, month, day, hour, minute, tzinfo=BERLIN, fold=fold).timestamp()


@pytest.mark.parametrize(
    ("time_s", "eur"),
    [
        (at(2026, 1, 5, 17), 0.42),  # a Monday in winter
        (at(2026, 1, 5, 20, 59), 0.42),
        (at(2026, 1, 5, 21), 0.31),
        (at(2026, 1, 4, 18), 0.31),  # a Sunday
        (at(2026, 7, 6, 18), 0.31),  # summer
        (at(2026, 7, 6, 23), 0.24),
        (at(2026, 7, 6, 5, 59), 0.24),
        (at(2026, 7, 6, 6), 0.31),
    ],
)
def test_the_first_rule_that_holds_counts(time_s: float, eur: float) -> None:
    assert Tariff.parse(SPEC).at(time_s) == pytest.approx(eur)


@pytest.mark.parametrize(
    ("day", "hours"), [((2026, 3, 29), 23), ((2026, 10, 25), 25), ((2026, 7, 1), 24)]
)
def test_days_of_a_change_of_the_clock_have_23_and_25_hours(
    day: tuple[int, int, int], hours: int
) -> None:
    start_s = at(*day, 0)
    end_s = (datetime(*day, tzinfo=BERLIN) + timedelta(days=1)).timestamp()
    series = Tariff.parse(SPEC).series(start_s, end_s)
    assert (end_s - start_s) / 3600 == hours == len(series.steps)
    assert series.mean(start_s, end_s) is not None
    night = sum(s.end_s - s.start_s for s in series.steps if s.value < 0.3) / 3600
    assert night == hours - 16, "from 22 to 6 by the wall clock"


def test_a_series_has_whole_hours_alone() -> None:
    series = Tariff.parse(SPEC).series(at(2026, 1, 5, 16, 30), at(2026, 1, 5, 18, 15))
    assert [(s.end_s - s.start_s, s.value) for s in series.steps] == [
        (3600, pytest.approx(0.31)), (3600, pytest.approx(0.42)), (3600, pytest.approx(0.42))
    ]  # fmt: skip
    assert [
        s.start_s
        for s in Tariff.parse(SPEC).series(at(2026, 1, 5, 17) - 0.2, at(2026, 1, 5, 17) + 0.2).steps
    ] == [
        at(2026, 1, 5, 16),
        at(2026, 1, 5, 17),
    ]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"timezone": "Berlin"}, "timezone"),
        ({"timezone": None}, "timezone"),
        ({"timezone": "../etc/passwd"}, "timezone"),
        ({"unit": "EUR"}, "unit"),
        ({"default": "31"}, "default"),
        ({"default": float("nan")}, "default"),
        ({"default": 10**400}, "default"),
        ({"unit": "g/kWh", "default": -999}, "default = -999: a negative carbon intensity"),
        (
            {"unit": "g/kWh", "rules": [{"value": -1}]},
            "rule 1: value = -1: a negative carbon intensity",
        ),
        ({"rules": {}}, "rules"),
        ({"rules": [3]}, "rule 1"),
        ({"rules": [{"hours": "22-06"}]}, "rule 1: value"),
        ({"rules": [{"hours": "25-26", "value": 1}]}, "rule 1: hours"),
        ({"rules": [{"hours": "24-6", "value": 1}]}, "rule 1: hours"),
        ({"rules": [{"days": "fri-someday", "value": 1}]}, "rule 1: days"),
        ({"rules": [{"months": "0-3", "value": 1}]}, "rule 1: months"),
        ({"rules": [{"days": "sat/sun", "value": 1}]}, "rule 1: days"),
        ({"rules": [{"days": "satsun", "value": 1}]}, "rule 1: days"),
        ({"rules": [{"days": "sat, ", "value": 1}]}, "rule 1: days"),
        ({"rules": [{"days": "mon-wed-fri", "value": 1}]}, "rule 1: days"),
        ({"rules": [{"days": ["sat", "sun"], "value": 1}]}, "rule 1: days"),
        ({"rules": [{"hours": "6-8;17-21", "value": 1}]}, "rule 1: hours"),
        ({"rules": [{"hours": "1_0", "value": 1}]}, "rule 1: hours"),
        ({"rules": [{"hours": 6, "value": 1}]}, "rule 1: hours"),
        ({"rules": [{"months": "jan", "value": 1}]}, "rule 1: months"),
        ({"rules": [{"hour": "1-2", "value": 1}]}, "rule 1: hour"),
        ({"price": 3}, "tariff: price"),
    ],
)
def test_each_bad_field_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(JobSpecError, match=named):
        Tariff.parse({**SPEC, **changes})


def test_a_negative_price_is_a_price() -> None:
    assert Tariff.parse({**SPEC, "default": -5, "rules": []}).at(0.0) == pytest.approx(-0.05)


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(JobSpecError, match="tariff"):
        Tariff.parse("0.31")


@pytest.mark.parametrize(
    ("rule", "field", "entries"),
    [
        ({"days": "sat,sun"}, "days", {5, 6}),
        ({"days": "Mon, wed-fri"}, "days", {0, 2, 3, 4}),
        ({"days": "saturday,fri-sunday"}, "days", {4, 5, 6}),
        ({"days": "fri-mon"}, "days", {4, 5, 6, 0}),
        ({"hours": "6-8,17-21"}, "hours", {6, 7, 17, 18, 19, 20}),
        ({"hours": "22-2,12"}, "hours", {22, 23, 0, 1, 12}),
        ({"hours": "6-6"}, "hours", set(range(24))),
        ({"hours": "17-24"}, "hours", set(range(17, 24))),
        ({"hours": "0-24"}, "hours", set(range(24))),
        ({"months": "6-8,12"}, "months", {6, 7, 8, 12}),
        ({"months": "11-2"}, "months", {11, 12, 1, 2}),
    ],
)
def test_lists_and_ranges_are_read_whole(
    rule: dict[str, str], field: str, entries: set[int]
) -> None:
    (parsed,) = Tariff.parse({**SPEC, "rules": [{**rule, "value": 1}]}).rules
    assert getattr(parsed, field) == entries
