"""A series of values over time: means, gaps, units, what is no number."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.signals.series import MOST_STEPS, Series, Step, Unit
from tests.strategies import REPRODUCIBLE

GRAMS = Unit.parse("g/kWh")
EUR = Unit.parse("EUR/kWh")


def hours(*values: float, start: int = 0) -> Series:
    return Series.of(
        GRAMS,
        [Step(3600.0 * (start + i), 3600.0 * (start + i + 1), v) for i, v in enumerate(values)],
    )


@pytest.mark.parametrize(
    ("text", "goal", "name", "factor"),
    [
        ("g/kWh", "carbon", "g/kWh", 1.0),
        ("kg/MWh", "carbon", "g/kWh", 1.0),
        ("lbs/MWh", "carbon", "g/kWh", 0.45359237),
        ("EUR/MWh", "price", "EUR/kWh", 0.001),
        ("ct/kWh", "price", "EUR/kWh", 0.01),
        ("p/kWh", "price", "GBP/kWh", 0.01),
        ("USD/kWh", "price", "USD/kWh", 1.0),
    ],
)
def test_units_of_the_services(text: str, goal: str, name: str, factor: float) -> None:
    assert Unit.parse(text) == (goal, name, pytest.approx(factor))


@pytest.mark.parametrize(
    "text", [None, "", "g", "kWh", "eur/kWh", "EURO/kWh", "g/MWh", 3, "EUR / kWh"]
)
def test_any_other_unit_is_named(text: object) -> None:
    with pytest.raises(JobSpecError, match="unit"):
        Unit.parse(text)


def test_means_are_weighed_by_time_and_gaps_are_not_known() -> None:
    series = hours(100.0, 200.0, 400.0)
    assert series.mean(0, 3600) == 100.0
    assert series.mean(1800, 5400) == 150.0
    assert series.mean(1800, 1800) == 100.0
    assert series.mean(0, 4 * 3600) is None
    assert series.mean(-1, 3600) is None
    gap = Series.of(GRAMS, [*hours(100.0).steps, *hours(300.0, start=2).steps])
    assert gap.mean(0, 3 * 3600) is None
    assert gap.mean(2 * 3600, 3 * 3600) == 300.0
    assert gap.at(3700.0) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, None, "12", True, [1], 10**400, -(10**400)])
def test_what_is_no_number_is_a_gap_and_never_0(bad: object) -> None:
    series = Series.of(EUR, [Step(0.0, 3600.0, bad), Step(3600.0, 7200.0, -5.0)])  # type: ignore[arg-type]
    assert series.mean(0, 3600) is None
    assert series.mean(3600, 7200) == -5.0, "prices may be negative"


def test_steps_of_any_length_that_overlap_are_cut() -> None:
    series = Series.of(
        GRAMS, [Step(0, 3600, 1.0), Step(1800, 2700, 3.0), Step(0, 0, 9.0), Step(5, 4, 9.0)]
    )
    assert [(s.start_s, s.end_s) for s in series.steps] == [(0, 1800), (1800, 2700)]
    assert series.step_s() == 900
    assert hours().step_s() is None


def test_the_newer_of_two_series_counts_where_both_have_a_value() -> None:
    merged = hours(1.0, 1.0, 1.0, 1.0).merged(Series.of(GRAMS, [Step(5400, 9000, 7.0)]))
    assert [(s.start_s, s.end_s, s.value) for s in merged.steps] == [
        (0, 3600, 1.0), (3600, 5400, 1.0), (5400, 9000, 7.0), (9000, 10800, 1.0), (10800, 14400, 1.0)
    ]  # fmt: skip
    with pytest.raises(JobSpecError, match="unit"):
        hours(1.0).merged(Series.of(EUR, ()))


def test_a_kept_step_that_no_float_can_hold_is_no_series() -> None:
    with pytest.raises(ValueError, match="not a series"):
        Series.from_json(f'["g/kWh", "", "", [[0, 3600, 1{399 * "0"}]]]')


def test_a_hostile_length_is_refused() -> None:
    with pytest.raises(JobSpecError, match="too long"):
        Series.of(GRAMS, (Step(i, i + 1, 1.0) for i in range(MOST_STEPS + 2)))


@REPRODUCIBLE
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9), st.floats(-100, 100)), max_size=12)
)
def test_steps_never_overlap_and_a_mean_lies_between_the_values(
    found: list[tuple[int, int, float]],
) -> None:
    series = Series.of(GRAMS, [Step(a, a + n, v) for a, n, v in found])
    assert all(a.end_s <= b.start_s for a, b in zip(series.steps, series.steps[1:], strict=False))
    for a, n, _ in found:
        mean = series.mean(a, a + n)
        if mean is not None:
            values = [s.value for s in series.steps if s.start_s < a + n and s.end_s > a]
            assert min(values) - 1e-9 <= mean <= max(values) + 1e-9
    assert series.merged(series).steps == series.steps
