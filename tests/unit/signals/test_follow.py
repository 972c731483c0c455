"""The limit over a run: frugal while energy is dear or dirty, fast while it is not."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.cost import Rate, Weights
from airflow_provider_zeus.model.wire import decode, encode
from airflow_provider_zeus.signals.forecast import AHEAD_S, DAY_S, LEAST_STEP_S, Followed, weighed
from airflow_provider_zeus.signals.series import Series, Step, Unit
from airflow_provider_zeus.units import S_PER_H
from tests.strategies import REPRODUCIBLE

RATES: dict[float, Rate] = {
    100.0: Rate(50.0, 1.9),
    150.0: Rate(62.0, 1.4),
    200.0: Rate(70.0, 1.15),
    250.0: Rate(85.0, 1.0),
}
HALF = Weights(0.5, 50.0)


def best_w(ratio: float, weights: Weights = HALF) -> float | None:
    return weighed(weights, ratio).best_w(RATES)


def test_a_dirty_hour_is_frugal_and_a_clean_one_fast() -> None:
    assert best_w(1.0) == HALF.best_w(RATES)
    assert (best_w(0.1), best_w(10.0)) == (250.0, 100.0)


def test_time_alone_and_energy_alone_stay_so() -> None:
    time_alone = Weights(0.0, 1.0, time_alone=True)
    assert weighed(time_alone, 0.5) == time_alone
    assert weighed(Weights(1.0, 50.0), 1.5).eta == 1.0
    assert weighed(Weights(0.0, 50.0), 1.5).eta == 0.0


@REPRODUCIBLE
@given(st.floats(0.01, 0.99), st.floats(0.2, 5.0))
def test_it_is_eq_7_with_the_energy_term_weighed(eta: float, ratio: float) -> None:
    weights = Weights(eta, 50.0)
    changed = weighed(weights, ratio)
    for energy_j, time_s in RATES.values():
        asked = eta * ratio * energy_j + (1 - eta) * 50.0 * time_s
        assert math.isclose(
            changed.cost(energy_j, time_s), asked / (eta * ratio + 1 - eta), rel_tol=1e-9
        )


UNIT = Unit.parse("g/kWh")
NOW_S = 30 * DAY_S


def hourly(
    value: Callable[[float], float | None],
    first_s: float = NOW_S - 8 * DAY_S,
    last_s: float = NOW_S,
) -> Series:
    hours = [first_s + i * S_PER_H for i in range(round((last_s - first_s) / S_PER_H))]
    return Series.of(
        UNIT, [Step(at, at + S_PER_H, v) for at in hours if (v := value(at)) is not None]
    )


def test_the_ratio_is_that_of_the_present_step_to_the_past_week() -> None:
    nights = hourly(lambda at_s: 100.0 if at_s % DAY_S < DAY_S / 2 else 300.0)
    followed = Followed.of("carbon", nights, NOW_S)
    assert followed is not None
    assert followed.mean == pytest.approx(200.0)
    assert followed.ratio(NOW_S) == pytest.approx(0.5)
    assert followed.ratio(NOW_S + 13 * S_PER_H) == pytest.approx(1.5)
    assert followed.ratio(NOW_S + AHEAD_S - 1) == pytest.approx(1.5)


def test_what_is_published_counts_before_what_is_usual() -> None:
    series = hourly(lambda at_s: 100.0 if at_s < NOW_S else 250.0, last_s=NOW_S + 2 * S_PER_H)
    followed = Followed.of("carbon", series, NOW_S)
    assert followed is not None
    assert [followed.ratio(NOW_S + h * S_PER_H) for h in (0, 1, 2)] == pytest.approx(
        [2.5, 2.5, 1.0]
    )


def test_a_minute_that_is_over_counts_no_more() -> None:
    """Short steps are followed by their mean."""
    price = [900.0, 900.0, 100.0, 100.0, 100.0, 100.0]
    minutes = [Step(NOW_S + 60 * i, NOW_S + 60 * (i + 1), v) for i, v in enumerate(price)]
    series = hourly(lambda _: 100.0).merged(Series.of(UNIT, minutes))
    followed = Followed.of("carbon", series, NOW_S + 120)
    assert followed is not None
    assert followed.steps[0] == (NOW_S + 120, NOW_S + 360, pytest.approx(100.0))


def test_where_nothing_is_known_the_run_trains_as_without_a_signal() -> None:
    followed = Followed.of("carbon", hourly(lambda _: 100.0), NOW_S)
    assert followed is not None
    assert followed.ratio(NOW_S - DAY_S) == followed.ratio(NOW_S + AHEAD_S + 1) == 1.0
    assert Followed.of("price", hourly(lambda _: -3.0), NOW_S) is None
    assert Followed.of("price", hourly(lambda _: 0.0), NOW_S) is None


@pytest.mark.parametrize(
    ("first_h", "hours", "follows"), [(100, 1, True), (1, 6, True), (30, 24, True), (90, 40, False)]
)
def test_a_missing_hour_of_the_past_week_does_not_end_it(
    first_h: int, hours: int, follows: bool
) -> None:
    # hours before now; a service may tell the newest ones late
    missing = range(first_h, first_h + hours)
    nights = hourly(
        lambda s: (
            None if (NOW_S - s) / S_PER_H in missing else 100.0 + 100.0 * (s % DAY_S >= DAY_S / 2)
        )
    )
    followed = Followed.of("carbon", nights, NOW_S)
    assert (followed is not None) == follows
    if followed is not None:
        assert followed.mean == pytest.approx(150.0, abs=6.0)
        assert followed.ratio(NOW_S + S_PER_H) == pytest.approx(100.0 / followed.mean)


def test_very_short_steps_take_no_longer_to_follow() -> None:
    rows = hourly(lambda at_s: 100.0 if at_s % DAY_S < DAY_S / 2 else 300.0).steps
    pairs = Series.of(
        UNIT, [Step(s.start_s + i, s.end_s, s.value) for s in rows for i in (0.0, 1.0)]
    )
    begun_s = time.process_time()
    followed = Followed.of("carbon", pairs, NOW_S)
    assert time.process_time() - begun_s < 20.0
    assert followed is not None
    assert [followed.ratio(NOW_S + h * S_PER_H) for h in (0, 13, 47)] == pytest.approx(
        [0.5, 1.5, 1.5]
    )
    assert len(followed.steps) == AHEAD_S / LEAST_STEP_S


# bytes: the longest text that Linux hands to a process as one variable
MOST_OF_A_VARIABLE = 128 * 1024


def published(*lengths_s: float) -> Followed:
    """What a plan holds of a series whose steps have these lengths, one after the other, until the plan ends."""
    steps = []
    at_s = NOW_S
    for i in itertools.count():
        if at_s >= NOW_S + AHEAD_S:
            break
        end_s = at_s + lengths_s[i % len(lengths_s)]
        steps.append(Step(at_s, end_s, 100.0 * (i % 7) + 1 / 3))
        at_s = end_s
    followed = Followed.of("carbon", hourly(lambda _: 100.0).merged(Series.of(UNIT, steps)), NOW_S)
    assert followed is not None
    return followed


@pytest.mark.parametrize(
    "lengths_s", [(60.0,), (7.0,), (1.0, 300.0), (299.0,), (299.0, 1.0, 300.0), (3600.0, 1.0)]
)
def test_a_plan_of_any_steps_can_be_handed_to_a_process(lengths_s: tuple[float, ...]) -> None:
    followed = published(*lengths_s)
    assert followed.steps[-1][1] >= NOW_S + AHEAD_S
    assert len(json.dumps(encode(followed))) < MOST_OF_A_VARIABLE / 2


def test_shorter_steps_are_followed_by_their_mean() -> None:
    minutes = [100.0] * 3 + [200.0] * 2 + [300.0] * 5
    steps = [Step(NOW_S + 60 * i, NOW_S + 60 * (i + 1), v) for i, v in enumerate(minutes) if i != 6]
    steps += [Step(NOW_S + 600.0, NOW_S + 4200.0, 500.0)]
    followed = Followed.of("carbon", hourly(lambda _: 100.0).merged(Series.of(UNIT, steps)), NOW_S)
    assert followed is not None
    assert followed.steps[:3] == (
        (NOW_S, NOW_S + 300.0, pytest.approx(140.0)),
        (NOW_S + 300.0, NOW_S + 600.0, pytest.approx(260.0)),  # a minute of it as usual
        (NOW_S + 600.0, NOW_S + 4200.0, 500.0),
    )


def test_a_negative_price_is_no_reason_to_waste_without_end() -> None:
    followed = Followed(signal="price", mean=30.0, steps=((0.0, 1.0, -500.0), (1.0, 2.0, 1e6)))
    assert (followed.ratio(0.5), followed.ratio(1.5)) == (0.1, 10.0)


def test_a_plan_holds_it_as_json() -> None:
    followed = Followed.of("carbon", hourly(lambda _: 100.0), NOW_S)
    assert followed is not None
    assert decode(Followed, json.loads(json.dumps(encode(followed)))) == followed
