"""What an attempt's energy cost by its hours: the span, the means, what waiting changed, and what is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_zeus.model.trial import Observation
from airflow_provider_zeus.signals.hours import Span, priced, span, unpriced
from airflow_provider_zeus.signals.series import CARBON, PRICE, Series, Step, Unit

H = 3600.0
EUR = Series.of(
    Unit.parse("EUR/kWh"),
    [Step(i * H, (i + 1) * H, 0.4 if i < 10 else 0.1) for i in range(20)],
    source="api",
    zone="DE",
)
GRAMS = Series.of(
    Unit.parse("g/kWh"),
    [Step(i * H, (i + 1) * H, 300.0, i >= 10) for i in range(20)],
    source="grid",
)
SEEN = Observation(energy_j=3.6e6, time_s=2 * H, energy_source="nvml_counter")


def test_the_span_of_a_real_device_ends_with_the_attempt() -> None:
    assert span(SEEN, began_s=H, earlier_s=0.0, ended_s=11 * H) == (9 * H, 11 * H)
    assert span(SEEN, began_s=10 * H, earlier_s=0.0, ended_s=11 * H) == (10 * H, 11 * H), (
        "not before the run"
    )
    assert span(SEEN, began_s=H, earlier_s=0.0, ended_s=None) is None
    assert span(replace(SEEN, time_s=None), began_s=H, earlier_s=0.0, ended_s=H) is None


def test_the_time_of_a_simulated_device_runs_from_the_start_of_the_run() -> None:
    simulated = replace(SEEN, energy_source="simulated")
    assert span(simulated, began_s=H, earlier_s=3 * H, ended_s=H + 5) == (4 * H, 6 * H)


def test_the_means_are_of_the_hours_with_their_source() -> None:
    seen = priced(SEEN, {PRICE: EUR, CARBON: GRAMS}, Span(9 * H, 11 * H), waited_s=2 * H)
    assert seen.price_per_kwh == pytest.approx(0.25)
    assert (seen.price_currency, seen.price_source) == ("EUR", "api, DE")
    assert seen.price_at_once == pytest.approx(0.4), "two hours earlier"
    assert (seen.g_co2e_per_kwh, seen.g_co2e_source) == (300.0, "grid, estimated")
    assert seen.reasons == {}
    assert priced(SEEN, {PRICE: EUR}, Span(9 * H, 11 * H)).price_at_once is None, "it did not wait"
    assert priced(SEEN, {}, Span(9 * H, 11 * H)) == SEEN, "no signal is set up"


def test_what_is_not_known_says_why() -> None:
    seen = priced(SEEN, {PRICE: EUR, CARBON: "no answer"}, Span(19 * H, 21 * H))
    assert (seen.price_per_kwh, seen.g_co2e_per_kwh) == (None, None)
    no_value = "the signal has no value for a part of its hours"
    assert seen.reasons == {"price_per_kwh": no_value, "g_co2e_per_kwh": "no answer"}
    wrong = priced(SEEN, {CARBON: EUR}, Span(9 * H, 11 * H))
    assert wrong.reasons == {"g_co2e_per_kwh": "the signal is in EUR/kWh"}


def test_prices_that_a_training_reports_count_for_nothing() -> None:
    told = replace(
        SEEN,
        price_per_kwh=1e9,
        price_source="me",
        reasons={"g_co2e_per_kwh": "mine", "metric": "none"},
    )
    assert unpriced(told) == replace(SEEN, reasons={"metric": "none"})
    assert unpriced(SEEN) is SEEN
