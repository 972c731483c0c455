"""Energies, times and costs take the unit that fits."""

from __future__ import annotations

import pytest

from airflow_provider_zeus.units import (
    at_least,
    costs_as,
    devices,
    energy_text,
    money_text,
    share_text,
    three_digits,
    time_text,
)


@pytest.mark.parametrize(
    ("energy_j", "text"),
    [
        (0.0, "0 Wh"),
        (12.345, "0.00343 Wh"),
        (0.0875, "0.0000243 Wh"),
        (-0.0875, "-0.0000243 Wh"),
        (3600.0, "1 Wh"),
        (359_640.0, "99.9 Wh"),
        (359_900.0, "0.1 kWh"),
        (3_599_000.0, "1 kWh"),
        (5.4321e9, "1,510 kWh"),
        (5.4321e13, "15,100,000 kWh"),
        (-7200.0, "-2 Wh"),
    ],
)
def test_energy_takes_the_unit_that_fits(energy_j: float, text: str) -> None:
    assert energy_text(energy_j) == text


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0.1234, "0.123 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (61.0, "1 min 01 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (7325.0, "2 h 02 min"),
        (360_000.0, "100 h 00 min"),
    ],
)
def test_times_never_show_sixty(time_s: float, text: str) -> None:
    assert time_text(time_s) == text


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (0.0, "0 Wh"),
        (12.345, "0.00343 Wh"),
        (999_600.0, "0.278 kWh"),
        (-1234.0, "-0.343 Wh"),
    ],
)
def test_a_cost_is_in_the_unit_of_energy_or_of_time(cost: float, text: str) -> None:
    assert costs_as("J")(cost) == text
    assert costs_as("s")(90.0) == "1 min 30 s"
    assert (energy_text(400_000.0, 250_000.0), energy_text(36_000.0, 400_000.0)) == (
        "111 Wh",
        "0.01 kWh",
    ), "beside"


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (-0.0, "0 %"),
        (1.0, "100 %"),
        (0.996, "99.6 %"),
        (0.9996, "over 99.9 %"),
        (1.0004, "over 100 %"),
        (1.004, "100.4 %"),
        (0.004, "0.4 %"),
        (0.0004, "under 0.1 %"),
        (-0.0004, "over -0.1 %"),
        (-0.004, "-0.4 %"),
        (-0.9996, "under -99.9 %"),
        (0.006, "1 %"),
        (0.994, "99 %"),
        (0.184, "18 %"),
        (-0.09, "-9 %"),
    ],
)
def test_only_all_is_100_per_cent_and_only_nothing_is_0(share: float, text: str) -> None:
    assert share_text(share) == text
    assert share_text(share, "%") == text.replace(" %", "%")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00 EUR"),
        (-0.0, "0.00 EUR"),
        (0.004, "under 0.01 EUR"),
        (-0.004, "over -0.01 EUR"),
        (5e-7, "under 0.01 EUR"),
        (0.012, "0.01 EUR"),
        (100.0, "100.00 EUR"),
        (-1234.5, "-1,234.50 EUR"),
    ],
)
def test_money_that_is_not_0_is_not_told_as_0(value: float, text: str) -> None:
    assert money_text(value, "EUR") == text
    assert money_text(value, "") == text.replace("EUR", "(no currency set)")


def test_a_lower_bound_of_little_money_is_no_upper_one() -> None:
    assert [at_least(money_text(value, "EUR")) for value in (0.004, 4.0)] == [
        "≥ 0.00 EUR",
        "≥ 4.00 EUR",
    ]


def test_less_than_any_unit_tells_is_0_and_not_a_point() -> None:
    assert three_digits(3e-17) == "0"
    assert energy_text(1e-11, beside_j=1e9) == "0 kWh"
    assert three_digits(0.000012345) == "0.0000123"


def test_a_time_below_0_has_the_units_of_one_above() -> None:
    assert [time_text(-s) for s in (3600.0, 90.0, 5.0)] == ["-1 h 00 min", "-1 min 30 s", "-5 s"]


@pytest.mark.parametrize(
    ("model", "count", "text"),
    [("V100", 1, "V100"), ("V100", None, "V100"), ("V100", 2, "2 × V100"), ("", 2, "")],
)
def test_several_devices_are_counted(model: str, count: int | None, text: str) -> None:
    assert devices(model, count) == text
