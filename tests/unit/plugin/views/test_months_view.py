"""A month of all jobs: what was spent, by kind of source, the month before, what was saved,
and the chart.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from airflow_provider_zeus.model.period_sum import PeriodSum
from airflow_provider_zeus.plugin.text.factors import Factors
from airflow_provider_zeus.plugin.views import months_view
from airflow_provider_zeus.plugin.views.months_view import JOBS, NO_RUN, NOTHING, months_chart
from airflow_provider_zeus.reports.month_spent import DagAbout
from airflow_provider_zeus.reports.months import SavedDraws, Spent, SpentBy
from tests.golden import Table

MONTHS = ["2026-09", "2026-10", "2026-11"]
KWH_J = 3.6e6
NO_PRICES = Factors()


def of(
    job: str,
    period: int = 2,
    source: str | None = "nvml_counter",
    kwh: float | None = 2.0,
    **changes: object,
) -> PeriodSum:
    energy_j = None if kwh is None else kwh * KWH_J
    known = PeriodSum(
        dag_id="d",
        job_id=job,
        source=source,
        period=period,
        runs=3,
        energy_j=energy_j,
        time_s=7200.0,
        gpu_s=14400.0,
        unknown=0,
        without_energy=0,
        currencies=(),
        paid=None,
        paid_j=None,
        g_co2e=None,
        g_co2e_j=None,
        start_saved=None,
        start_saved_g=None,
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def test_a_sum_without_the_energy_of_an_attempt_is_a_lower_bound() -> None:
    prices = Factors(price_per_kwh=0.5, currency="EUR", g_co2e_per_kwh=100.0)
    answer = month_answer(
        [of("a"), of("b", without_energy=2)], MONTHS, prices, {"d": DagAbout(("t",), ("ann",))}
    )
    shown = {
        "Energy": "≥ 4 kWh",
        "Time": "4 h 00 min",
        "Money": "≥ 2.00 EUR",
        "CO₂e": "≥ 400 g CO₂e",
    }
    assert tiles(answer, "measured", "Spent") == shown
    ((_, _, _, *cells),) = answer.kinds[0].groups[0].rows
    assert cells == [*shown.values()]
    hours = Factors(price_per_gpu_hour=1.0, currency="EUR")
    found = tiles(month_answer([of("b", without_energy=2)], MONTHS, hours), "measured", "Spent")
    assert (found["Energy"], found["Money"]) == ("≥ 2 kWh", "4.00 EUR"), "its time is known"


def test_a_job_of_two_dags_is_one_job() -> None:
    answer = month_answer([of("a"), of("a", dag_id="other", unknown=1)], MONTHS, NO_PRICES)
    assert answer.kinds[0].answers[0].about == "6 runs of 1 job"
    assert "1 attempt of 1 job" in answer.note


def test_tasks_that_are_only_measured_are_no_jobs_and_have_saved_nothing() -> None:
    tasks = [of("", outside=True), of("", dag_id="other", outside=True)]
    (spent,) = month_answer(tasks, MONTHS, NO_PRICES).kinds[0].answers
    assert (spent.question, spent.about) == ("Spent", "6 runs of the tasks of 2 DAGs")
    answers = month_answer([of("a"), *tasks], MONTHS, NO_PRICES).kinds[0].answers
    assert [each.question for each in answers] == ["Spent", "Saved"]
    assert answers[0].about == "3 runs of 1 job, 6 runs of the tasks of 2 DAGs"


def month_answer(sums: Any, months: Any, factors: Any, about: Any = None) -> Any:
    return SimpleNamespace(**months_view.month_answer(sums, months, factors, about or {}))


def month_saved(*given: Any) -> Any:
    return SimpleNamespace(**months_view.month_saved(*given))


def tiles(answer: Any, kind: str, question: str) -> dict[str, str]:
    (of_kind,) = [k for k in answer.kinds if k.kind == kind]
    (found,) = [a for a in of_kind.answers if a.question == question]
    return {tile.name: tile.figure.text for tile in found.figures}


def test_jobs_are_added_within_a_kind_of_source_and_never_beyond_it() -> None:
    sums = [
        of("a"),
        of("b"),
        of("b", source="nvml_poll"),
        of("c", source="simulated", kwh=100.0),
        of("a", period=1),
    ]
    answer = month_answer(sums, MONTHS, NO_PRICES)
    assert (answer.month, answer.title, answer.months) == (
        "2026-11",
        "November 2026",
        ["2026-11", "2026-10"],
    )
    assert [k.kind for k in answer.kinds] == ["simulated", "measured"], "what drew most is first"
    assert tiles(answer, "measured", "Spent") == {"Energy": "6 kWh", "Time": "6 h 00 min"}
    assert tiles(answer, "simulated", "Spent")["Energy"] == "100 kWh"
    assert tiles(answer, "measured", "The month before")["Energy"] == "2 kWh"
    (measured,) = [k for k in answer.kinds if k.kind == "measured"]
    assert measured.answers[0].about == "9 runs of 2 jobs"


def test_owners_and_tags_have_tables_by_kind() -> None:
    about = {"d": DagAbout(["gpu"], ["ann"]), "e": DagAbout([], ["ann"])}
    answer = month_answer(
        [of("a"), of("b", dag_id="e"), of("a", period=1)], MONTHS, NO_PRICES, about
    )
    (kind,) = answer.kinds
    shown = {table.columns[0]: [row[:4] for row in table.rows] for table in kind.groups}
    assert shown == {
        "Owner": [["ann", "2", "6", "4 kWh"]],
        "Tag": [["(none)", "1", "3", "2 kWh"], ["gpu", "1", "3", "2 kWh"]],
    }
    assert month_answer([of("a")], MONTHS, NO_PRICES).kinds[0].groups == []


def test_money_and_carbon_where_they_are_configured() -> None:
    prices = Factors(
        price_per_kwh=0.3, price_per_gpu_hour=1.0, pue=1.5, g_co2e_per_kwh=400.0, currency="EUR"
    )
    spent = tiles(month_answer([of("a")], MONTHS, prices), "measured", "Spent")
    assert spent["Money"] == "4.90 EUR", "2 kWh x 1.5 x .3 and 4 GPU hours"
    assert spent["CO₂e"].startswith("1.2 kg")


def test_what_was_priced_by_its_hours_is_not_priced_by_todays_price() -> None:
    hours = {
        "paid": 0.2,
        "paid_j": KWH_J,
        "currencies": ("EUR",),
        "g_co2e": 100.0,
        "g_co2e_j": 2 * KWH_J,
    }
    today = Factors(price_per_kwh=0.3, g_co2e_per_kwh=400.0, currency="EUR")
    spent = tiles(month_answer([of("a", **hours)], MONTHS, today), "measured", "Spent")
    assert (spent["Money"], spent["CO₂e"]) == ("0.50 EUR", "100 g CO₂e"), (
        "half of the energy at today's price"
    )
    none = month_answer([of("a", **hours)], MONTHS, NO_PRICES)
    (money,) = [t for t in none.kinds[0].answers[0].figures if t.name == "Money"]
    assert (money.figure.value, "were not priced" in money.note) == (None, True)


@pytest.mark.parametrize(
    ("price", "shown"), [({"price_per_kwh": 0.3}, None), ({"price_per_gpu_hour": 1.0}, "4.00 EUR")]
)
def test_a_sum_without_energy_has_no_price_that_leaves_it_out(
    price: dict[str, float], shown: str | None
) -> None:
    prices = Factors(currency="EUR", g_co2e_per_kwh=400.0, **price)  # type: ignore[arg-type]
    spent = tiles(
        month_answer([of("a", source=None, kwh=None)], MONTHS, prices), "time alone", "Spent"
    )
    assert spent.get("Money") == shown
    assert not {"Energy", "CO₂e"} & spent.keys()


def test_attempts_that_reported_nothing_are_named_and_no_kind_of_their_own() -> None:
    """Those of a job come from the log as a sum of their own: they have no source."""
    silent: dict[str, Any] = {"source": None, "kwh": None, "time_s": None, "gpu_s": None}
    now = [
        of("a"),
        of("a", source="estimate"),
        of("a", unknown=2, **silent),
        of("b", unknown=1, **silent),
    ]
    before = [of("a", period=1, source="estimate"), of("a", period=1, unknown=1, **silent)]
    answer = month_answer(
        [*before, *now, of("a", unknown=1, dag_id="e", **silent)], MONTHS, NO_PRICES
    )
    assert {kind.kind for kind in answer.kinds} == {"measured", "estimated"}
    Table("zeus_page").check(
        "attempts of this month and the one before reported nothing", answer.note
    )


def test_a_month_in_which_all_attempts_died_is_no_month_without_runs() -> None:
    dead = of("b", source=None, kwh=None, time_s=None, gpu_s=None, unknown=9)
    answer = month_answer([dead], MONTHS, NO_PRICES)
    assert answer.kinds == []
    Table("zeus_page").check("all attempts of a month died", answer.note)
    assert month_answer([], MONTHS, NO_PRICES).note == NO_RUN
    assert month_answer([of("a", period=0)], MONTHS, NO_PRICES).note == NO_RUN


def test_a_sum_says_nothing_of_attempts_that_it_does_not_know() -> None:
    hours = {
        "paid": 0.2,
        "paid_j": KWH_J,
        "currencies": ("EUR",),
        "g_co2e": 100.0,
        "g_co2e_j": KWH_J,
    }
    (money,) = [
        t
        for t in month_answer([of("a", **hours)], MONTHS, NO_PRICES).kinds[0].answers[0].figures
        if t.note
    ]
    assert money.note.startswith("the hours of a part of the energy were not priced")
    today = Factors(price_per_kwh=0.3, g_co2e_per_kwh=400.0, currency="EUR").at_the_time(
        of("a", **hours).drawn()
    )
    part = "mean of the hours in which it was drawn; of a part of the energy [zeus] "
    assert (today.price_from, today.g_co2e_from) == (
        f"{part}price_per_kwh",
        f"{part}g_co2e_per_kwh",
    )


def test_two_currencies_of_a_job_count_its_energy_once() -> None:
    two = of(
        "a", paid=0.4, paid_j=2 * KWH_J, currencies=("EUR", "USD"), g_co2e=200.0, g_co2e_j=2 * KWH_J
    )
    clean = of("b", g_co2e=0.0, g_co2e_j=2 * KWH_J)
    assert NO_PRICES.at_the_time(Spent.of([two, clean]).drawn).g_co2e_per_kwh == pytest.approx(50.0)


def test_a_kind_that_ran_only_in_the_month_before() -> None:
    (kind,) = month_answer([of("a", period=1)], MONTHS, NO_PRICES).kinds
    assert [a.question for a in kind.answers] == ["The month before"]
    assert month_answer([], MONTHS, NO_PRICES).kinds == []


def saved(kind: str, joules: float, sd_j: float) -> SavedDraws:
    noise = np.random.default_rng(1).standard_normal(1000)
    return SavedDraws(
        kind,
        joules + sd_j * noise,
        60.0 + noise,
        60.0 + noise,
        3,
        spent=SpentBy(3 * joules, 240.0, 240.0),
    )


def test_what_the_jobs_saved_is_a_verdict_for_each_kind() -> None:
    found = [
        saved("measured", KWH_J, 1e5),
        saved("simulated", 10.0, 1e6),
        "its default has not run",
    ]
    sums = [of("a"), of("b", source="simulated"), of("c", source="estimate")]
    answer = month_saved(found, sums, 3, NO_PRICES)
    assert answer.done
    assert answer.progress.startswith("What was saved is not known for 1 job:")
    assert answer.answers["measured"].about == "by 3 runs of 1 job"
    energy, time = answer.answers["measured"].figures
    assert energy.figure.value == pytest.approx(KWH_J, rel=0.02)
    assert (energy.name, time.name) == ("Energy", "Time")
    assert energy.note == "24 to 26 %", "of what the defaults would have spent"
    assert "90 % sure" in energy.figure.exact
    assert answer.answers["simulated"].figures[0].figure.text == "not clear yet", (
        "its interval holds zero"
    )
    assert answer.answers["estimated"].note == NOTHING


def test_a_sum_with_an_old_default_in_it_says_so_and_is_not_green() -> None:
    found = [saved("measured", KWH_J, 1e5), replace(saved("measured", KWH_J, 1e5), old=True)]
    card = month_saved(found, [of("a"), of("b")], 2, NO_PRICES).answers["measured"]
    assert card.about.endswith("by 6 runs of 2 jobs, 1 job judged by an old run of the default")
    assert {tile.kind for tile in card.figures} == {"warn"}


def test_a_month_counts_a_cheaper_start_as_the_tab_of_the_job_does() -> None:
    """10 kWh were drawn at .10 instead of .30 EUR and 50 instead of 30 g;
    the default would have drawn 20 kWh.
    """
    waited = {"paid": 1.0, "start_saved": 2.0, "g_co2e": 500.0, "start_saved_g": -200.0}
    sums = [
        of("a", kwh=10.0, paid_j=10 * KWH_J, g_co2e_j=10 * KWH_J, currencies=("EUR",), **waited)
    ]
    told = replace(saved("measured", 10 * KWH_J, 0.0), spent=SpentBy(10 * KWH_J, 240.0, 240.0))
    shown = {t.name: t for t in month_saved([told], sums, 1, NO_PRICES).answers["measured"].figures}
    assert shown["Money"].figure.text == "5.00 EUR", (
        "3 by the energy at the price at once, and 2 by the start"
    )
    assert shown["CO₂e"].figure.text == "100 g CO₂e"
    assert [shown[name].note[:4] for name in ("Money", "CO₂e")] == ["83 %", "17 %"], (
        "of 6 EUR and 600 g"
    )


def test_of_time_alone_no_energy_is_named() -> None:
    time_alone = SavedDraws(
        "time alone",
        None,
        np.full(1000, 60.0),
        np.full(1000, 60.0),
        3,
        spent=SpentBy(None, 240.0, 240.0),
    )
    answer = month_saved(
        [time_alone], [of("a", source=None)], 1, Factors(price_per_kwh=0.3, g_co2e_per_kwh=400.0)
    )
    assert [tile.name for tile in answer.answers["time alone"].figures] == ["Time"]


def test_until_all_jobs_are_fitted_it_says_how_many_are() -> None:
    answer = month_saved(
        [saved("measured", KWH_J, 1e5)], [of("a"), of("b", source="estimate")], 7, NO_PRICES
    )
    assert not answer.done
    assert answer.progress == "1 of 7 jobs added up so far."
    assert answer.answers == {}, "a part of the sum is no verdict: it may be of the other sign"


def test_the_chart_names_the_jobs_that_spent_most_and_adds_the_others() -> None:
    sums = [of(f"job{n:02d}", kwh=float(n)) for n in range(1, 13)] + [
        of("job12", period=0, kwh=1.0)
    ]
    chart = months_chart(sums, MONTHS, "measured")
    assert chart.option is not None
    series = chart.option["series"]
    assert [s["name"] for s in series] == [
        *(f"job{n:02d}" for n in range(12, 12 - JOBS, -1)),
        "other jobs",
    ]
    assert [d["value"] for d in series[0]["data"]] == [1, 0, 12]
    assert series[-1]["data"][2]["value"] == sum(range(1, 6))
    assert chart.text == "2026-11: 78 kWh in all."
    assert chart.table is not None
    assert [row[:2] for row in chart.table.rows] == [
        ["2026-11", "78 kWh"],
        ["2026-10", "0 Wh"],
        ["2026-09", "1 kWh"],
    ]


def test_a_missing_source_has_one_name() -> None:
    about = {"d": DagAbout(("t",), ("ann",))}
    (kind,) = month_answer([of("a", source=None, kwh=None)], MONTHS, NO_PRICES, about).kinds
    assert kind.kind == "time alone", "as it is sent"
    assert kind.source.text == "energy not measured"
    assert [table.caption.partition(";")[0] for table in kind.groups] == [
        "By owner, energy not measured",
        "By tag, energy not measured",
    ]


def test_the_chart_is_of_time_where_nothing_measures_energy() -> None:
    chart = months_chart([of("a", source=None, kwh=None)], MONTHS, "time alone")
    assert chart.title == "Time by month, energy not measured"
    assert chart.text == "2026-11: 2 h 00 min in all."
    assert months_chart([of("a", kwh=None, time_s=0.0)], MONTHS, "measured").option is None
