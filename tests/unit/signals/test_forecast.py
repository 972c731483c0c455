"""When to start: the cheapest start by what is known then, or at once with the reason."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.signals import forecast as planner
from airflow_provider_zeus.signals.forecast import forecast, plan_start
from airflow_provider_zeus.signals.series import Series, Step, Unit
from tests.strategies import REPRODUCIBLE

GRAMS = Unit.parse("g/kWh")
EUR = Unit.parse("EUR/kWh")
HOUR = 3600.0
DAY = 86_400.0
NONE = Series.of(GRAMS, ())


def hours(values: list[float], start_h: float = 0.0, unit: Unit = GRAMS) -> Series:
    return Series.of(
        unit,
        [Step((start_h + i) * HOUR, (start_h + i + 1) * HOUR, v) for i, v in enumerate(values)],
    )


def plan(
    values: list[float], *, wait_h: float = 8, job_h: float = 1, past: Series = NONE, **more: float
) -> planner.Start:
    return plan_start(
        hours(values), past, now_s=0.0, latest_s=wait_h * HOUR, duration_s=job_h * HOUR, **more
    )


def test_it_waits_for_the_cheapest_hours_over_the_runs_length() -> None:
    found = plan([100, 90, 50, 95, 20, 80, 80, 80, 80, 80])
    assert (found.at_s, found.reason, found.saving) == (4 * HOUR, planner.WAITS, 80.0)
    assert plan([100, 90, 50, 40, 60, 20, 80, 80, 80, 80, 80], job_h=2).at_s == 4 * HOUR
    assert plan([100, 20, 90, 20, 90, 90, 90, 90, 90, 90]).at_s == HOUR, (
        "of two equal ones the earlier"
    )


def test_it_never_starts_later_than_the_latest_start() -> None:
    assert plan([100, 90, 80, 70, 10, 10, 10], wait_h=2).at_s == 2 * HOUR
    late = plan_start(hours([100, 1]), NONE, now_s=10.0, latest_s=10.0, duration_s=60.0)
    assert (late.at_s, late.reason) == (10.0, planner.TOO_LATE)


def test_a_run_may_also_end_with_a_step_or_begin_as_late_as_it_may() -> None:
    values = [300.0, 300.0, 100.0, 100.0, 300.0]
    late = plan(values, wait_h=1.75, job_h=1.5)
    assert (late.at_s, late.mean_then) == (
        1.75 * HOUR,
        pytest.approx((0.25 * 300 + 1.25 * 100) / 1.5),
    )
    ends = plan([300.0, 200.0, 100.0, 300.0], wait_h=3, job_h=1.5)
    assert (ends.at_s, ends.mean_then) == (1.5 * HOUR, pytest.approx(400 / 3))


@REPRODUCIBLE
@given(
    st.lists(st.floats(-50, 500), min_size=2, max_size=12),
    st.floats(0.1, 9.0),
    st.floats(0.1, 4.0),
    st.floats(0, 1),
)
def test_no_other_start_is_cheaper(
    values: list[float], wait_h: float, job_h: float, share: float
) -> None:
    found = plan(values, wait_h=wait_h, job_h=job_h, worth=0.0)
    at_s = share * wait_h * HOUR
    other = hours(values).mean(at_s, at_s + max(job_h * HOUR, 1.0))
    if other is not None and found.mean_then is not None:
        assert found.mean_then <= other + 1e-6


def test_below_five_per_cent_it_does_not_wait() -> None:
    assert plan([100, 97, 96, 99]).reason == planner.NOT_WORTH_IT
    assert plan([100, 97, 94, 99]).reason == planner.WAITS
    assert plan([100, 97, 96, 99], worth=0.0).at_s == 2 * HOUR
    assert plan([10, 97, 96, 99]).reason == planner.NOW_IS_BEST


@pytest.mark.parametrize("prices", [[0.0, -0.05, 0.1], [-0.01, -0.05, 0.1], [0.001, -0.05, 0.1]])
def test_prices_around_and_below_0_are_compared_by_difference(prices: list[float]) -> None:
    found = plan_start(
        hours(prices, unit=EUR), hours([], unit=EUR), now_s=0.0, latest_s=2 * HOUR, duration_s=HOUR
    )
    assert (found.at_s, found.reason) == (HOUR, planner.WAITS)
    assert found.saving == pytest.approx(prices[0] + 0.05)


@pytest.mark.parametrize(
    ("published", "reason"),
    [
        (NONE, planner.NO_VALUES),
        (hours([100, 20, 30], start_h=-9), planner.NO_VALUES),  # the past
        (hours([math.nan] * 9), planner.NO_VALUES),
        (hours([100]), planner.NO_FORECAST),
        (hours([100.0] * 24), planner.NOW_IS_BEST),  # one value for all
        (
            Series.of(GRAMS, [Step(0, HOUR, 100.0), Step(20 * HOUR, 21 * HOUR, 1.0)]),
            planner.NO_FORECAST,
        ),
    ],
)
def test_any_fault_of_a_signal_means_start_at_once(published: Series, reason: str) -> None:
    found = plan_start(published, NONE, now_s=0.0, latest_s=8 * HOUR, duration_s=HOUR)
    assert (found.at_s, found.reason, found.saving) == (0.0, reason, 0.0)


def test_a_forecast_is_the_mean_of_the_last_week_at_the_same_hour_and_published_values_come_first() -> (
    None
):
    week = hours([100.0 + 10 * (h % 24) for h in range(7 * 24)], start_h=-7 * 24)
    known = forecast(hours([500.0]), week, now_s=0.0, until_s=6 * HOUR)
    assert [s.value for s in known.steps] == [500.0, 110.0, 120.0, 130.0, 140.0, 150.0]
    assert [s.estimated for s in known.steps] == [False, *[True] * 5]
    assert (
        plan_start(hours([500.0]), week, now_s=0.0, latest_s=4 * HOUR, duration_s=HOUR).at_s == HOUR
    )
    two_days = hours([100.0] * 48, start_h=-48)
    assert forecast(NONE, two_days, now_s=0.0, until_s=HOUR).steps == (), "too few days"


def test_what_is_over_alone_is_known_of_the_past() -> None:
    week = hours([100.0] * (8 * 24), start_h=-7 * 24)  # a day of the future among it
    assert planner.usual_value(week, 10 * HOUR, 11 * HOUR, 0.0) == 100.0
    changed = hours([100.0] * (7 * 24) + [9.0] * 24, start_h=-7 * 24)
    assert planner.usual_value(changed, 30 * HOUR, 31 * HOUR, 0.0) == 100.0, (
        "not from the hours after now"
    )


def in_pairs(values: list[float], start_h: float = 0.0) -> Series:
    """A series by the hour whose hours are each written as two rows, one second apart."""
    rows = [(step.start_s, step.value) for step in hours(values, start_h).steps]
    return Series.of(GRAMS, [Step(at + s, at + HOUR, v) for at, v in rows for s in (0.0, 1.0)])


def test_very_short_steps_take_no_longer_to_plan() -> None:
    past = in_pairs([100.0 - h % 24 for h in range(8 * 24)], start_h=-8 * 24)
    begun_s = time.process_time()
    found = plan_start(past, past, now_s=0.0, latest_s=2 * DAY, duration_s=HOUR)
    assert time.process_time() - begun_s < 20.0
    assert (found.at_s, found.reason) == (23 * HOUR, planner.WAITS)


def test_short_steps_that_are_published_take_no_longer_either() -> None:
    seconds = Series.of(
        GRAMS, [Step(s, s + 1.0, 100.0 if s < HOUR / 2 else 50.0) for s in range(8_000)]
    )
    begun_s = time.process_time()
    found = plan_start(seconds, NONE, now_s=0.0, latest_s=2 * HOUR, duration_s=HOUR / 4)
    assert time.process_time() - begun_s < 20.0
    assert found.at_s == pytest.approx(HOUR / 2, abs=planner.LEAST_STEP_S)


@pytest.mark.parametrize("cheapest", [2, 3])
def test_of_a_thousand_steps_each_is_a_start(cheapest: int) -> None:
    minutes = [Step(60.0 * i, 60.0 * (i + 1), 100.0) for i in range(1_001)]
    minutes[cheapest] = minutes[cheapest]._replace(value=10.0)
    found = plan_start(
        Series.of(GRAMS, minutes), NONE, now_s=0.0, latest_s=60_000.0, duration_s=60.0
    )
    assert (found.at_s, found.mean_then) == (60.0 * cheapest, 10.0)


def test_a_wait_is_absolute_and_bounded() -> None:
    found = plan([100.0] + [50.0] * 9, wait_h=1e9)
    assert found.at_s == HOUR
    assert plan([100.0] + [50.0] * 9, job_h=1e9).at_s == 0.0
