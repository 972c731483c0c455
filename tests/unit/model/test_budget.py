"""Budgets: their texts, their periods, and how much of them is used."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.budget import Allowance, Budget, BudgetUse, Kind, use

NOW_S = datetime(2026, 11, 25, 15, 30, tzinfo=UTC).timestamp()  # a Wednesday


def at(*day: int) -> float:
    return datetime(*day, tzinfo=UTC).timestamp()  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("text", "kind", "amount", "unit"),
    [
        ("50 kWh/month", Kind.ENERGY, 1.8e8, "J"),
        ("1.5MJ/day", Kind.ENERGY, 1.5e6, "J"),
        (".5 kWh/day", Kind.ENERGY, 1.8e6, "J"),
        ("1.5e-1MJ/day", Kind.ENERGY, 1.5e5, "J"),
        ("3 kg CO2e/week", Kind.CARBON, 3000.0, "g"),
        ("200 g/day", Kind.CARBON, 200.0, "g"),
        ("3kgCO2e/week", Kind.CARBON, 3000.0, "g"),
        ("20 EUR / week", Kind.MONEY, 20.0, "EUR"),
        ("50EUR/month", Kind.MONEY, 50.0, "EUR"),
        ("2e3EUR/month", Kind.MONEY, 2000.0, "EUR"),
    ],
)
def test_what_a_budget_is_of(text: str, kind: Kind, amount: float, unit: str) -> None:
    budget = Budget.parse(text)
    assert (budget.kind, budget.amount, budget.unit) == (kind, pytest.approx(amount), unit)
    assert Budget.parse(budget.text) == budget


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("50 kWh", "cannot be read"),
        ("50 kWh/year", "cannot be read"),
        ("kWh/day", "cannot be read"),
        (50, "cannot be read"),
        ("0 kWh/day", "not above 0"),
        ("1e999 kWh/day", "not above 0"),
        ("1.2.3 kWh/day", "cannot be read"),
        ("-5 kWh/day", "cannot be read"),
        ("50 kWh CO2e/month", "CO2e is given in g, kg, t, not in 'kWh'"),
        ("20 EUR CO2e/week", "CO2e is given in g, kg, t, not in 'EUR'"),
        ("1e308 MWh/day", "not above 0 and up to"),
        ("5 bananas/day", "'bananas' is no unit"),
        ("5 kwh/day", "'kwh' is no unit"),
    ],
)
def test_what_is_no_budget_is_named_with_the_forms(text: object, problem: str) -> None:
    with pytest.raises(JobSpecError, match=problem) as error:
        Budget.parse(text)
    assert '"50 kWh/month"' in str(error.value)


def test_periods_are_of_the_calendar_in_utc() -> None:
    spans = {period: Budget.parse(f"1 kWh/{period}").span(NOW_S) for period in ("day", "week", "month")}
    assert spans == {
        "day": (at(2026, 11, 25), at(2026, 11, 26)),
        "week": (at(2026, 11, 23), at(2026, 11, 30)),
        "month": (at(2026, 11, 1), at(2026, 12, 1)),
    }
    assert Budget.parse("1 kWh/month").span(at(2026, 12, 31)) == (at(2026, 12, 1), at(2027, 1, 1))


@given(st.floats(0, 4e9), st.sampled_from(["day", "week", "month"]))
def test_a_time_lies_in_its_period(now_s: float, period: str) -> None:
    begin_s, end_s = Budget.parse(f"1 kWh/{period}").span(now_s)
    assert begin_s <= now_s < end_s
    assert Budget.parse(f"1 kWh/{period}").span(end_s)[0] == end_s


def allowance(text: str = "1 kWh/day", per_j: float = 1.0, per_gpu_s: float = 0.0) -> Allowance:
    budget = Budget.parse(text)
    begin_s, end_s = budget.span(NOW_S)
    return Allowance(budget=budget, begin_s=begin_s, end_s=end_s, per_j=per_j, per_gpu_s=per_gpu_s)


def test_an_open_run_counts_as_a_usual_one_or_as_what_it_took_already() -> None:
    found = use(allowance(), (2e6, 100.0), [(None, 0.0), (0.4e6, 5.0), (1.5e6, 9.0)], (1e6, 60.0))
    assert found is not None
    assert (found.spent, found.committed) == (2e6, pytest.approx(1e6 + 0.6e6))
    assert found.share == pytest.approx(1.0)
    assert "0.556 kWh of the budget 1 kWh/day are spent (100% with those" in found.text
    assert "on 2026-11-26 (UTC)" in found.text


def test_energy_that_is_not_known_is_no_zero() -> None:
    assert use(allowance(), (None, 100.0), [], (None, 0.0)) is None
    by_time = use(allowance("5 EUR/day", per_j=0.0, per_gpu_s=0.01), (None, 100.0), [], (None, 0.0))
    assert by_time is not None
    assert by_time.spent == pytest.approx(1.0)


def test_a_budget_that_is_nearly_used_up_is_not_told_as_all_and_a_little_money_is_not_0() -> None:
    assert "(99.6%)" in BudgetUse(allowance=allowance(), spent=0.996 * 3.6e6, committed=0.0).text
    euros = Budget.parse("10 EUR/day")
    assert (euros.amount_text(0.004), euros.amount_text(-0.004)) == ("under 0.01 EUR", "over -0.01 EUR")
