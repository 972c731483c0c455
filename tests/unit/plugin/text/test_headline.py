"""The first line of a tab: what it cost, what it saved, what runs next, each with its interval or its reason."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.trial import ProfileSample, State, Trial, TrialKey
from airflow_provider_zeus.plugin.text import headline, saved_text, words
from airflow_provider_zeus.plugin.views import dag_view
from airflow_provider_zeus.plugin.views.dag_known import JobAnalysis
from airflow_provider_zeus.plugin.views.factors import Factors
from airflow_provider_zeus.plugin.views.models import Answer, Tile
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.run_figures import Yardstick
from airflow_provider_zeus.reports.schedule_shift import schedule_shift
from airflow_provider_zeus.signals.series import Series, Step, Unit
from airflow_provider_zeus.signals.tariff import Tariff
from tests.unit.plugin.kit import JOB, trial

HALF = Weights(0.5, 300.0)
WHERE = ("V100", 1, "simulated")
PRICED = Factors(price_per_kwh=0.5, price_per_gpu_hour=3.6, g_co2e_per_kwh=100.0, currency="EUR")
PROFILE = [
    ProfileSample(batch_size=b, limit_w=w, samples=1000, energy_j=j, time_s=s)
    for b in (32, 64)
    for w, j, s in ((200.0, 80.0, 1.1), (300.0, 100.0, 1.0))
]


def run(n: int, b: int, kwh: float, **changes: Any) -> Trial:
    fields = {"epochs": 4.0 * kwh, "energy_j": 3.6e6 * kwh, "time_s": 3600.0 * kwh, "rest_j": 0.0, "rest_s": 0.0}
    fields |= {"samples": 4000 * kwh, "power_limit_w": 300.0}
    return trial(n, f"r{n}", b, **{**fields, **changes})


def known(trials: Sequence[Trial], **live: Any) -> JobAnalysis:
    return JobAnalysis.of(trials, as_dataset(trials, JOB), PROFILE, live)


def answers(trials: Sequence[Trial], factors: Factors = PRICED, **live: Any) -> list[Answer]:
    of = known(trials, **live)
    told = headline.told_of(of.saving, [s.run for s in of.saving.steps], of.source, factors)
    return headline.of_job(of.saving, of.next_run, told, of.weights, of.source, factors)


def state(of: JobAnalysis) -> str:
    return headline.odd_state(of.saving, of.next_run, of.source)


def figure(of: Answer, name: str) -> Tile:
    return next(t for t in of.figures if t.name == name)


SAVED = [*(run(n, 32, 2.0) for n in range(1, 5)), *(run(n, 64, 1.0) for n in range(5, 11))]


def test_three_answers_in_units_of_a_bill() -> None:
    cost, saved, upcoming = answers(SAVED)
    assert [a.question for a in (cost, saved, upcoming)] == [headline.COST, "Saved", headline.NEXT]
    assert [(t.name, t.figure.text) for t in cost.figures] == [
        ("Energy", "14 kWh"),
        ("Time", "14 h 00 min"),
        ("Money", "57.40 EUR"),
        ("CO₂e", "1.4 kg CO₂e"),
    ]
    assert figure(saved, "Energy").kind == figure(saved, "Money").kind == "good"
    kwh, eur = (figure(saved, name).figure.value or 0.0 for name in ("Energy", "Money"))
    assert kwh == pytest.approx(6 * 3.6e6, rel=0.3)
    assert eur == pytest.approx(kwh / 3.6e6 * 4.1, rel=0.05), "half a EUR a kWh, 3.60 EUR an hour"
    assert all("90 % sure" in t.figure.exact for t in saved.figures if t.name != saved_text.TOGETHER)
    both = figure(saved, saved_text.TOGETHER)
    assert re.fullmatch(r"\d\d %", both.figure.text), "a share: its joules would be taken for energy"
    assert both.note == "weighed half and half"
    assert "cost = 0.5 × energy + 0.5 × time × 300 W (eta 0.5)" in both.figure.exact
    assert {t.note for t in saved.figures if t is not both} == {""}, "the sentence has the intervals"
    assert saved.about == "against always 32 at full power"
    assert [t.name for t in upcoming.figures] == [t.name for t in cost.figures], "the next run costs the same kinds"
    assert "90 % sure of the median run" in figure(upcoming, "Energy").figure.exact
    assert "64" in upcoming.about


def test_what_was_saved_has_the_unit_of_what_was_spent() -> None:
    low = [*(run(n, 32, 0.02) for n in range(1, 5)), *(run(n, 64, 0.001) for n in range(5, 14))]
    spent, saved = (figure(card, "Energy").figure for card in answers(low)[:2])
    assert (spent.value or 0.0) < 99 * 3600.0 < (saved.value or 0.0)
    assert spent.text.endswith(" Wh")
    assert saved.text.endswith(" Wh"), "so that the two compare"


def test_a_loss_and_what_is_not_clear_yet_are_called_so() -> None:
    dear = [*(run(n, 32, 2.0) for n in range(1, 5)), *(run(n, 64, 6.0) for n in range(5, 11))]
    lost = figure(answers(dear)[1], "Energy")
    assert (answers(dear)[1].question, lost.kind) == ("Lost", "bad")
    even = [
        *(run(n, 32, k) for n, k in zip(range(1, 6), (2.0, 1.0, 3.0, 1.5, 2.5), strict=True)),
        *(run(n, 64, 1.9) for n in range(6, 9)),
    ]
    for tile in answers(even)[1].figures:
        assert (tile.kind, tile.figure.text) == ("", "not clear yet")
        assert "between a loss of" in tile.figure.exact or "% more to" in tile.figure.exact


def test_the_default_alone_and_a_default_that_never_reached_its_target() -> None:
    _, upcoming = answers([run(1, 32, 2.0)])
    assert upcoming.question == headline.NEXT
    assert figure(upcoming, "Energy").figure.value == pytest.approx(2 * 3.6e6, rel=0.05)
    log = [run(1, 32, 2.0, state=State.EXHAUSTED, epochs=10.0)]
    (cost,) = answers(log)
    assert figure(cost, "Energy").figure.value == 2 * 3.6e6, "what was spent is known"
    odd = state(known(log))
    assert odd.startswith("No run has reached the target yet")
    assert "max_epochs" in odd
    taught = state(known([run(1, 32, 2.0, state=State.EXHAUSTED, epochs=10.0), run(2, 64, 1.0)]))
    assert "the default, 32, missed the target in its run. Make 64 (default_batch_size=64) the def" in taught
    assert "Measure the default" not in taught, "it would miss it again"
    assert "Measure the default in the next run" in state(known([run(n, 64, 1.0) for n in (1, 2)]))
    assert state(known(SAVED)) == ""
    silent = known([run(n, 32, 2.0, state=State.NO_METRIC) for n in (1, 2)])
    assert silent.saving.runs == 2
    assert state(silent) == "", "more epochs would not help: none was reported"


def test_a_try_names_both_sizes_and_a_live_setting_its_own() -> None:
    tries = answers([run(n, 32, 2.0) for n in range(1, 6)])[-1]
    assert re.fullmatch(r"32 at [23]00 W, if \d+ is given up", tries.about)
    pinned = answers(SAVED, pin_batch_size=64)[2]
    assert pinned.about.startswith("batch size 64 at ")
    assert "300 W" in pinned.about or "200 W" in pinned.about


def test_the_first_sentence_says_what_it_cost_what_it_saved_and_what_comes_next() -> None:
    def told(trials: Sequence[Trial]) -> str:
        of = known(trials)
        return headline.sentence(of.saving, of.next_run, of.source, of.weights).text

    assert re.fullmatch(
        r"10 runs cost 14 kWh and 14 h 00 min\. They saved \d\d % of energy \(90 % sure: \d\d to \d\d %\) and \d\d % "
        r"of time \(\d\d to \d\d %\) against always batch size 32 at full power\.\n"
        r"Next run: batch size 64 at 300 W, about 1.03 kWh and 1 h 02 min\.",
        told(SAVED),
    )
    one = told([run(1, 32, 2.0)])
    assert one.startswith("1 run cost 2 kWh and 2 h 00 min. So far only 32, the default, ran")
    after = r"\nNext run: tries batch size \d+; if it is given up, 32 at 300 W, which takes about 2[.\d]* kWh and 2 h "
    assert re.search(after, one)
    assert "Too early" in told([run(1, 32, 2.0), run(2, 64, 1.0)])
    assert told([]) == headline.NO_RUN
    of = known(SAVED)
    said = headline.sentence(of.saving, of.next_run, of.source, of.weights)
    assert said.exact.count("90 % sure") == 2
    assert said.sure == "90 % sure"


def test_without_an_energy_source_there_is_no_energy_and_it_is_said_once() -> None:
    gone = {"energy_j": None, "energy_source": None, "power_limit_w": None, "rest_j": None}
    log = [run(t.number, t.batch_size, t.observation.epochs / 4.0, **gone) for t in SAVED if t.observation.epochs]
    for answer in answers(log):
        assert [t.name for t in answer.figures] in (["Time", "Money"], ["Time"])
        assert figure(answer, "Time").figure.value is not None
    assert figure(answers(log)[0], "Money").figure.value is None, "the energy's part of the price is missing"
    assert "cpu_watts" in state(known(log))


def test_the_answer_of_a_run() -> None:
    log = as_dataset(SAVED, JOB, WHERE)
    saving = Yardstick.of(log, WHERE, profiles=PROFILE).saving([SAVED[-1]])
    (answer,) = headline.of_run(saving, HALF, words.badge(["simulated"]), replace(PRICED, price_per_gpu_hour=None))
    assert [t.name for t in answer.figures] == ["Energy", "Time", "Money", "CO₂e", "Together"]
    alone = headline.of_run(saving, Weights(1.0, 300.0), words.badge(["simulated"]), Factors())
    assert [t.name for t in alone[0].figures] == ["Energy", "Time"], "at eta 1 the cost is the energy, told once"
    kwh, eur = (figure(answer, name).figure.value or 0.0 for name in ("Energy", "Money"))
    assert kwh == pytest.approx(3.6e6, rel=0.4)
    assert eur == pytest.approx(kwh / 3.6e6 * 0.5)


TARIFF = Tariff.parse(
    {
        "timezone": "Europe/Berlin",
        "unit": "EUR/kWh",
        "default": 0.40,
        "rules": [{"hours": "22-06", "value": 0.20}],
    }
)


def evening(n: int, hour: int = 18, **changes: Any) -> Trial:
    at = datetime(2026, 1, n, hour, 30, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    return replace(run(n, 32, 2.0, **changes), opened_at=at)


def test_another_hour_of_the_day_in_a_sentence() -> None:
    found = schedule_shift([evening(n) for n in range(1, 6)], TARIFF)
    assert found is not None
    assert (found.runs, found.delay_h, found.start_hour) == (5, 4, 18), "two hours that begin at 22:30"
    assert (found.cost_now, found.cost_then) == (pytest.approx(5 * 2 * 0.40), pytest.approx(5 * 2 * 0.20))
    said = headline.shift(found, TARIFF, "[zeus] tariff")
    assert "2.00 EUR instead of 4.00 EUR (50 % less) at 22:00 instead of 18:00 (Europe/Berlin)" in said
    with_pue = schedule_shift([evening(1)], TARIFF, pue=1.5)
    assert with_pue is not None
    assert with_pue.cost_now == pytest.approx(1.2)


def test_a_schedule_that_is_cheap_already_and_runs_that_say_nothing() -> None:
    night = schedule_shift([evening(n, hour=1) for n in range(1, 4)], TARIFF)
    assert night is not None
    assert night.delay_h == 0
    assert "no other hour" in headline.shift(night, TARIFF, "[zeus] tariff")
    assert schedule_shift([evening(1, run_type="manual")], TARIFF) is None
    assert schedule_shift([evening(1, energy_j=None)], TARIFF) is None
    assert headline.shift(None, TARIFF, "[zeus] tariff") == ""
    scattered = schedule_shift([evening(n, hour=12 + n) for n in range(1, 7)], TARIFF)
    assert scattered is not None
    assert scattered.start_hour is None
    assert "h later" in headline.shift(scattered, TARIFF, "[zeus] tariff")


def days(unit: str, value_at: Mapping[int, float], count: int = 10, source: str = "api.example.org") -> Series:
    """Hours of so many days from 2026-01-01 on, 0.4 where none is given, in UTC."""
    begin_s = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    hours = (begin_s + h * 3600.0 for h in range(24 * count))
    steps = [Step(at, at + 3600.0, value_at.get(int((at - begin_s) // 3600) % 24, 0.4)) for at in hours]
    return Series.of(Unit.parse(unit), steps, source=source, zone="DE-LU")


def test_another_hour_of_the_day_by_the_series_that_the_log_keeps() -> None:
    """Each run draws 2 kWh in 2 h from 17:30 UTC on; at 1 and 2 o'clock it is cheap."""
    runs = [evening(n) for n in (1, 5, 9, 10, 31)]
    cheap, clean = days("EUR/kWh", {1: 0.1, 2: 0.1, 3: 0.1}), days("g/kWh", {1: 0.1, 2: 0.1, 3: 0.1})
    said = dag_view.shifts(runs, Factors(), {"zeus_price": cheap, "zeus_carbon": clean})
    covered = "3 scheduled runs from 2026-01-01 to 2026-01-09"
    name = "(api.example.org, DE-LU) the energy of"
    money = f"By zeus_price {name} {covered} would have cost 0.60 EUR instead of 2.40 EUR (75 % less) at 01:00 instead"
    assert said.startswith(f"{money} of 17:00 (UTC). By zeus_carbon {name} {covered} would have emitted 0.6 g CO₂e")
    assert dag_view.shifts(runs[-1:], Factors(), {"zeus_price": cheap}) == "", "no run of these days"
    even = dag_view.shifts(runs, Factors(), {"zeus_carbon": days("g/kWh", {})})
    assert "no other hour of the day would have been cleaner by 5 % for these 3 scheduled runs" in even


def test_a_tariff_of_the_configuration_counts_where_no_service_tells_the_price() -> None:
    runs, set_up = [evening(n) for n in range(1, 6)], Factors(tariff=TARIFF)
    clean, of_config = days("g/kWh", {1: 0.1, 2: 0.1, 3: 0.1}), days("EUR/kWh", {}, source="tariff")
    said = dag_view.shifts(runs, set_up, {"zeus_price": of_config, "zeus_carbon": clean})
    assert said.startswith("By [zeus] tariff the energy of 5 scheduled runs would have cost 2.00 EUR")
    assert said.count("By ") == 2
    assert "tariff" not in dag_view.shifts(runs, set_up, {"zeus_price": days("EUR/kWh", {1: 0.1, 2: 0.1})})


def test_all_attempts_of_a_run_are_moved_together() -> None:
    first = evening(1, run_type="scheduled")
    second = replace(first, number=2, key=TrialKey(first.key.ti_id, 2), opened_at=first.opened_at + 7200)
    found = schedule_shift([first, second], TARIFF)
    assert found is not None
    assert (found.runs, found.cost_now) == (1, pytest.approx(4 * (3.5 * 0.40 + 0.5 * 0.20) / 4)), "18:30 to 22:30"


def test_waiting_is_a_lever_of_its_own_and_all_of_them_add_up() -> None:
    trials = [
        replace(t, observation=replace(t.observation, price_per_kwh=0.2, price_at_once=0.5, price_currency="EUR"))
        for t in SAVED
    ]
    known = JobAnalysis.of(trials, as_dataset(trials, JOB), PROFILE, {})
    log = dag_view.JobLog(trials, known, Factors(currency="EUR"), {}, more=False)
    money = log.told[-1]
    kwh = sum(t.observation.energy_j or 0.0 for t in trials) / 3.6e6
    assert money.start == pytest.approx(0.3 * kwh)
    parts = [lever.saved.times(money.factor).value for lever in known.levers_by(money.weights)]
    assert None not in parts
    assert money.saved.value == pytest.approx(sum(p or 0.0 for p in parts) + money.start, rel=0.02)
    table = log.levers
    assert table is not None
    assert table.columns == ["", "Energy", "Time", "Money"]
    assert [row[0] for row in table.rows] == ["Batch size", "Power limit", "Start", "Together"]
    assert table.rows[2][1:3] == ["0", "0"]
    assert table.rows[2][3] == f"saved {0.3 * kwh:.2f} EUR"
    saved = answers(trials, Factors(currency="EUR"))[1]
    assert figure(saved, "Money").figure.value == pytest.approx(money.saved.value)


def test_where_the_default_alone_ran_its_waits_are_shown() -> None:
    alone = [run(n, 32, 2.0) for n in range(1, 5)]
    assert [answer.question for answer in answers(alone)] == [headline.COST, headline.NEXT]
    waited = [
        replace(t, observation=replace(t.observation, price_per_kwh=0.2, price_at_once=0.5, price_currency="EUR"))
        for t in alone
    ]
    (money,) = answers(waited, Factors())[1].figures
    assert (money.name, money.figure.value) == ("Money", pytest.approx(0.3 * 8))
