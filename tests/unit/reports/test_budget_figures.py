"""A budget's figures from the log: spent, forecast, and what passed 80 % and all of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_zeus.model.budget import Allowance, Budget
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.plugin.views.alerts_view import budget_answers
from airflow_provider_zeus.reports.budget_figures import (
    READ,
    BudgetFigures,
    budget_figures,
    budget_spent,
    trials_of_periods,
    usual_run,
)
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.store.sql.trials import SEARCHED
from tests.unit.plugin.kit import JOB, trial

BEGIN_S = datetime(2026, 11, 25, tzinfo=UTC).timestamp()
HOUR_S = 3600.0


def of(text: str = "10 kJ/day", per_j: float = 1.0, per_gpu_s: float = 0.0) -> Allowance:
    budget = Budget.parse(text)
    begin_s, end_s = budget.span(BEGIN_S)
    return Allowance(budget=budget, begin_s=begin_s, end_s=end_s, per_j=per_j, per_gpu_s=per_gpu_s)


def log(*joules: float | None, first_h: float = 0.0, **changes: Any) -> list[Trial]:
    return [
        trial(n, f"r{n}", energy_j=j, opened_at=BEGIN_S + HOUR_S * (first_h + n - 1), **changes)
        for n, j in enumerate(joules, start=1)
    ]


def figures(trials: list[Trial], later_h: float = 12.0, allowance: Allowance | None = None) -> BudgetFigures:
    found = budget_figures(trials, allowance or of(), BEGIN_S + HOUR_S * later_h)
    assert isinstance(found, BudgetFigures)
    return found


def test_spent_in_the_period_and_what_the_rest_is_expected_to_take() -> None:
    found = figures(log(1000.0, 2000.0, 3000.0, first_h=-1.0))
    assert found.use.spent == 5000.0, "the first began the day before"
    assert found.forecast == pytest.approx(5000.0 + 2000.0 * 12), "a mean run each hour, for the 12 hours that are left"
    assert found.passed == ()


def test_a_forecast_needs_three_runs() -> None:
    assert figures(log(1000.0, 2000.0)).forecast is None


def test_what_passed_80_per_cent_and_all_of_it() -> None:
    found = figures(log(7000.0, 2000.0, 500.0, 1000.0))
    assert [(p.share, p.trial.origin.run_id) for p in found.passed] == [(0.8, "r2"), (1.0, "r4")]
    at_once = figures(log(11_000.0))
    assert [(p.share, p.trial.origin.run_id) for p in at_once.passed] == [(0.8, "r1"), (1.0, "r1")]


def test_an_open_run_is_expected_to_take_a_usual_one() -> None:
    *done, last = log(1000.0, 1000.0, 1000.0, 400.0)
    found = figures([*done, replace(last, state=State.RUNNING)])
    assert (found.use.spent, found.use.committed) == (3400.0, 600.0)


def test_an_open_run_is_expected_to_take_what_those_took_that_trained() -> None:
    trained = [
        trial(2 * n + i, f"r{n}", energy_j=j, opened_at=BEGIN_S, map_index=n)
        for n in range(2)
        for i, j in enumerate((1000.0, 3000.0))
    ]
    idle = [trial(n, f"r{n}", 32, State.NOT_NEEDED, energy_j=None, time_s=None) for n in range(4, 20)]
    empty = [trial(n, f"r{n}", 32, State.NO_DATA, energy_j=0.0, time_s=0.1) for n in range(20, 30)]
    first = trial(30, "open", 16, State.GIVEN_UP, energy_j=500.0, opened_at=BEGIN_S)
    second = trial(31, "open", 32, State.RUNNING, energy_j=100.0, opened_at=BEGIN_S)
    assert usual_run([*trained, *idle, *empty, first, second], "simulated") == (4000.0, 18.0)
    assert usual_run([*idle, first, second], "simulated") == (None, 0.0)
    assert figures([*trained, *idle, *empty, first, second]).use.committed == 3400.0, "less what both attempts took"


def test_an_open_run_that_began_before_the_period_is_not_held_against_it() -> None:
    *done, last = log(1000.0, 1000.0, 1000.0, 400.0, first_h=-5.0)
    found = figures([*done, replace(last, state=State.RUNNING)])
    assert (found.use.spent, found.use.committed) == (0.0, 0.0)


def test_sources_are_not_added() -> None:
    before = log(5000.0, 5000.0, energy_source="estimate")
    after = [replace(t, number=t.number + 2) for t in log(1000.0, first_h=3.0)]
    assert figures([*before, *after]).use.spent == 1000.0


def test_energy_that_nothing_measures() -> None:
    trials = log(None, None, energy_source=None)
    assert budget_figures(trials, of(), BEGIN_S + 1) == "nothing measures energy there"
    assert figures(trials, allowance=of("5 EUR/day", 0.0, 0.01)).use.spent == pytest.approx(2 * 9.0 * 0.01)
    assert figures([]).use.spent == 0.0


def answers(trials: list[Trial], *budgets: str, on_budget: str = "warn", **prices: Any) -> list[Any]:
    job = replace(JOB, budget=budgets, on_budget=on_budget)
    return budget_answers(trials, job, Prices(**prices), BEGIN_S + 12 * HOUR_S)


def test_what_the_tab_says() -> None:
    (answer,) = answers(log(7000.0, 2000.0, 3000.0), "10 kJ/day", on_budget="incumbent")
    assert (answer.about, answer.share) == ("10 kJ/day, until 2026-11-26 (UTC)", pytest.approx(1.2))
    spent, forecast = answer.figures
    assert (spent.figure.text, spent.kind) == ("3.33 Wh (120 %)", "bad")
    assert (forecast.note, forecast.kind) == ("more than the budget", "warn")
    assert answer.note.split(". ") == [
        "80 % passed on 2026-11-25 by run r2",
        "100 % passed on 2026-11-25 by run r3",
        "No other batch size is tried until 2026-11-26 (UTC).",
    ]


def test_money_and_carbon_by_the_prices_that_are_set() -> None:
    money, carbon = answers(
        log(3.6e6), "1 EUR/day", "1 kg CO2e/week", price_per_kwh=0.3, pue=1.5, currency="EUR", g_co2e_per_kwh=400.0
    )
    assert money.figures[0].figure.text == "0.45 EUR (45 %)"
    assert carbon.figures[0].figure.text == "600 g CO2e (60 %)"
    for missing in answers(log(3.6e6), "1 EUR/day", "1 kg/week", price_per_kwh=0.3, currency="USD"):
        assert missing.note.startswith("Not known: budget 1 ")
        assert "set [zeus]" in missing.note
        assert missing.figures == []


def test_a_run_of_another_dag_than_the_readers_is_not_named() -> None:
    theirs, ours = log(8500.0, 2000.0)
    trials = [replace(theirs, origin=replace(theirs.origin, dag_id="secret")), ours]
    job, now_s = replace(JOB, budget="10 kJ/day"), BEGIN_S + 12 * HOUR_S
    (answer,) = budget_answers(trials, job, Prices(), now_s, reader="d")
    assert answer.note == "80 % passed on 2026-11-25 by a run of another DAG. 100 % passed on 2026-11-25 by run r2."


def read_of(trials: list[Trial], *budgets: str) -> tuple[list[Trial], list[int]]:
    """What is read of a log at noon, and how many trials were asked for each time."""
    asked: list[int] = []

    def read(last: int) -> list[Trial]:
        asked.append(last)
        return trials[-last:]

    return trials_of_periods(read, replace(JOB, budget=budgets), BEGIN_S + 12 * HOUR_S), asked


def every_30_s(n: int, first_s: float = 0.0) -> list[Trial]:
    return [trial(i, f"r{i}", opened_at=BEGIN_S + first_s + 30.0 * i) for i in range(1, n + 1)]


def test_the_trials_of_a_period_are_read_and_not_many_more() -> None:
    assert read_of(every_30_s(1296), "10 kJ/day") == (every_30_s(1296), [1000, 3000])
    before = every_30_s(2000, first_s=-1100 * 30.0)
    assert read_of(before, "10 kJ/day") == (before[-1000:], [1000]), "the day began 900 trials ago"
    assert read_of(before, "10 kJ/day", "1 kg/month")[1] == [1000, 3000], "the month of 25 November did earlier"
    assert read_of(every_30_s(9), "10 kJ/day")[1] == read_of([], "10 kJ/day")[1] == [1000]


def test_trials_that_cannot_be_read_do_not_end_it() -> None:
    trials = every_30_s(1500)
    assert len(read_of([t for t in trials if t.number % 3], "10 kJ/day")[0]) == 1000


def test_as_many_are_read_at_most_as_the_store_adds_up() -> None:
    assert READ[-1] == SEARCHED


def test_a_plan_knows_that_nothing_else_is_tried() -> None:
    job = replace(JOB, budget=["1 MWh/day", "10 kJ/day"], on_budget="incumbent")
    now_s = BEGIN_S + 12 * HOUR_S
    assert (
        "of the budget 2.78 Wh/day are spent"
        in budget_spent(lambda last: log(11_000.0), job, Prices(), now_s)["budget_spent"]
    )
    skips = budget_spent(lambda last: log(11_000.0), replace(job, on_budget="skip"), Prices(), now_s)
    assert skips["budget_spent"].endswith("(UTC); runs are skipped until then")
    assert budget_spent(lambda last: log(9_000.0), job, Prices(), now_s) == {}
    assert budget_spent(lambda last: log(11_000.0), replace(job, on_budget="warn"), Prices(), now_s) == {}
    assert budget_spent(lambda last: log(11_000.0), job, Prices(), now_s + 24 * HOUR_S) == {}, "a new period"
