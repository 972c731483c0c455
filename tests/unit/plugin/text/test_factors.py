"""Money and carbon: conversions for showing, shown only where a factor is set."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import Observation
from airflow_provider_zeus.plugin.text.factors import Factors, configured, factors

KWH = 3.6e6


def test_nothing_is_shown_where_nothing_is_set() -> None:
    none = factors(lambda name: "")
    assert none == Factors()
    assert (none.money(KWH, 3600.0), none.carbon(KWH), none.priced) == (None, None, False)


def test_energy_by_the_kwh_and_time_by_the_gpu_hour() -> None:
    both = Factors(
        price_per_kwh=0.25, price_per_gpu_hour=2.0, pue=1.2, g_co2e_per_kwh=400.0, currency="EUR"
    )
    money = both.money(2 * KWH, 7200.0)
    carbon = both.carbon(5 * KWH)
    assert money is not None
    assert carbon is not None
    assert money.value == pytest.approx(2 * 1.2 * 0.25 + 0.5 * 4 * 2.0)
    assert money.text == "4.60 EUR"
    assert money.exact.split(" = ")[1].split(" + ") == [
        "2.4 kWh (PUE 1.2) at 0.25",
        "2 GPU-hours at 2",
    ]
    assert (carbon.value, carbon.text) == (pytest.approx(5 * 1.2 * 400.0), "2.4 kg CO₂e")
    assert Factors(g_co2e_per_kwh=400.0).carbon(0.01 * KWH).text == "4 g CO₂e"  # type: ignore[union-attr]


def test_a_small_amount_is_no_zero() -> None:
    priced = Factors(price_per_kwh=0.25, currency="EUR")
    amounts = (0.000123, 0.0049, 0.0051, 0.3, 0.0)
    assert [priced.amount(a) for a in amounts] == ["under 0.01 EUR"] * 2 + [
        "0.01 EUR",
        "0.30 EUR",
        "0.00 EUR",
    ]
    assert Factors(price_per_kwh=0.25).amount(0.3).split(" ", 1) == ["0.30", "(no currency set)"]
    assert Factors(price_per_kwh=0.25, currency="EUR").amount(-1234.5) == "-1,234.50 EUR"


def test_what_is_not_known_is_not_priced() -> None:
    energy = Factors(price_per_kwh=0.25, g_co2e_per_kwh=1.0)
    time = Factors(price_per_gpu_hour=2.0)
    assert "energy" in energy.money(None, 9.0).exact  # type: ignore[union-attr]
    assert "time" in time.money(None, None).exact  # type: ignore[union-attr]
    assert time.money(None, 3600.0).value == 2.0  # type: ignore[union-attr]
    assert energy.carbon(None).value is None  # type: ignore[union-attr]


@pytest.mark.parametrize("bad", ["much", "-1", "nan", "inf"])
def test_a_factor_that_is_none_is_named_and_left_out(
    bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = factors(lambda name: bad if name == "price_per_kwh" else "1.5")
    assert (found.price_per_kwh, found.pue) == (None, 1.5)
    assert f"[zeus] price_per_kwh = {bad!r} is ignored" in caplog.text
    assert factors(lambda name: "0.5" if name == "pue" else "").pue is None, (
        "no site gives energy back"
    )


def test_they_are_read_from_airflows_configuration(
    airflow_home: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not configured().priced
    monkeypatch.setenv("AIRFLOW__ZEUS__PRICE_PER_KWH", "0.3")
    monkeypatch.setenv("AIRFLOW__ZEUS__CURRENCY", "CHF")
    assert (configured().price_per_kwh, configured().currency) == (0.3, "CHF")


@pytest.mark.parametrize("bad", ["{", "[]", "3", '{"timezone": "Mars"}', "[" * 9999])
def test_a_tariff_that_cannot_be_read_is_named_and_left_out(
    bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert factors(lambda name: bad if name == "tariff" else "").tariff is None
    assert "[zeus] tariff is ignored" in caplog.text


def test_a_tariff_is_read_and_can_be_compared() -> None:
    text = '{"timezone": "Europe/Berlin", "unit": "ct/kWh", "default": 31}'
    first, second = (factors(lambda name: text if name == "tariff" else "") for _ in range(2))
    assert first.tariff is not None
    assert first.tariff.at(0.0) == pytest.approx(0.31)
    assert (first == second, hash(first) == hash(second)) == (True, True), "a key of caches"


def hour(kwh: float, price: float | None, **more: Any) -> Observation:
    return Observation(
        energy_j=kwh * KWH, price_per_kwh=price, price_currency="EUR", price_source="api", **more
    )


def test_what_was_priced_by_its_hours_is_not_priced_again() -> None:
    seen = [hour(1.0, 0.1), hour(3.0, 0.5)]
    for today in (Factors(pue=1.5), Factors(pue=1.5, price_per_kwh=99.0, currency="EUR")):
        money = today.at_the_time(seen).money(4 * KWH, 3600.0)
        assert money is not None
        assert money.value == pytest.approx(1.5 * (0.1 + 3 * 0.5))
        assert money.text == "2.40 EUR"
        assert "mean of the hours in which it was drawn (api)" in money.exact


def test_an_attempt_without_its_hours_counts_with_the_price_that_is_set() -> None:
    seen = [hour(1.0, 0.1), Observation(energy_j=KWH)]
    money = Factors(price_per_kwh=0.3, currency="EUR").at_the_time(seen).money(2 * KWH, None)
    assert money is not None
    assert money.value == pytest.approx(0.4)
    assert "of 1 attempt [zeus] price_per_kwh" in money.exact


def test_money_that_is_not_known_says_why() -> None:
    some = Factors().at_the_time([hour(1.0, 0.1), Observation(energy_j=KWH)])
    said = some.money(2 * KWH, 1.0)
    assert said is not None
    assert (said.value, some.priced) == (None, False)
    assert (
        "the hours of 1 of 2 attempts were not priced, and [zeus] price_per_kwh is not set"
        in said.exact
    )
    pounds = [hour(1.0, 0.1), replace(hour(1.0, 0.1), price_currency="GBP")]
    assert "EUR and GBP, which cannot be added" in str(Factors().at_the_time(pounds).unpriced)
    dollars = Factors(price_per_gpu_hour=2.0, currency="USD").at_the_time([hour(1.0, 0.1)])
    assert "EUR and USD" in dollars.unpriced
    assert (
        Factors(price_per_kwh=1.0, currency="USD").at_the_time([Observation(energy_j=KWH)]).currency
        == "USD"
    )


def test_carbon_by_the_hours() -> None:
    seen = [
        hour(1.0, None, g_co2e_per_kwh=100.0, g_co2e_source="grid"),
        hour(1.0, None, g_co2e_per_kwh=300.0),
    ]
    carbon = Factors(g_co2e_per_kwh=9.0).at_the_time(seen).carbon(2 * KWH)
    assert carbon is not None
    assert carbon.value == pytest.approx(400.0)
    assert "(grid)" in carbon.exact


def test_what_waiting_saved_and_what_it_would_have_cost_at_once() -> None:
    seen = [
        hour(2.0, 0.1, price_at_once=0.4, g_co2e_per_kwh=100.0, g_co2e_at_once=90.0),
        hour(2.0, 0.2),
    ]
    none = Factors(pue=2.0)
    money, grams = none.start_saved(seen)
    assert (money, grams) == (pytest.approx(2 * 2 * 0.3), pytest.approx(-2 * 2 * 10.0)), (
        "carbon was lost"
    )
    then = none.at_the_time(seen)
    at_once = none.at_once(seen)
    assert then.price_per_kwh == pytest.approx(0.15)
    assert at_once.price_per_kwh == pytest.approx((2 * 0.4 + 2 * 0.2) / 4)
    carbon = [replace(one, g_co2e_per_kwh=100.0, g_co2e_at_once=90.0) for one in seen]
    assert none.at_the_time(carbon).g_co2e_per_kwh == pytest.approx(100.0)
    assert none.at_once(carbon).g_co2e_per_kwh == pytest.approx(90.0)
