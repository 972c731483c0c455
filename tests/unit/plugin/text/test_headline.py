"""The first line of a tab: what it cost, what it saved, what runs next,
each with its interval or its reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.trial import GPU_HIDDEN, ProfileSample, State, Trial, TrialKey
from airflow_provider_zeus.plugin.answer_parts import Answer, Tile
from airflow_provider_zeus.plugin.text import headline, saved_text, words
from airflow_provider_zeus.plugin.text.factors import Factors
from airflow_provider_zeus.plugin.text.saved_text import Took
from airflow_provider_zeus.plugin.views import dag_view
from airflow_provider_zeus.plugin.views.job_analysis import JobAnalysis
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.run_figures import Yardstick
from airflow_provider_zeus.reports.schedule_shift import schedule_shift
from airflow_provider_zeus.signals.series import Series, Step, Unit
from airflow_provider_zeus.signals.tariff import Tariff
from tests.golden import Table
from tests.unit.plugin.kit import JOB, trial

PAGE = Table("job_page")
HALF = Weights(0.5, 300.0)
WHERE = ("V100", 1, "simulated")
PRICED = Factors(price_per_kwh=0.5, price_per_gpu_hour=3.6, g_co2e_per_kwh=100.0, currency="EUR")
PROFILE = [
    ProfileSample(batch_size=b, limit_w=w, samples=1000, energy_j=j, time_s=s)
    for b in (32, 64)
    for w, j, s in ((200.0, 80.0, 1.1), (300.0, 100.0, 1.0))
]


def run(n: int, b: int, kwh: float, **changes: Any) -> Trial:
    fields = {
        "epochs": 4.0 * kwh,
        "energy_j": 3.6e6 * kwh,
        "time_s": 3600.0 * kwh,
        "rest_j": 0.0,
        "rest_s": 0.0,
    }
    fields |= {"samples": 4000 * kwh, "power_limit_w": 300.0}
    return trial(n, f"r{n}", b, **{**fields, **changes})


def known(trials: Sequence[Trial], **live: Any) -> JobAnalysis:
    return JobAnalysis.of(trials, as_dataset(trials, JOB), PROFILE, live)


def answers(trials: Sequence[Trial], factors: Factors = PRICED, **live: Any) -> list[Answer]:
    of = known(trials, **live)
    told = headline.shown_savings(of.saving, [s.run for s in of.saving.steps], of.source, factors)
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
    assert all(
        "90 % sure" in t.figure.exact for t in saved.figures if t.name != saved_text.TOGETHER
    )
    both = figure(saved, saved_text.TOGETHER)
    assert re.fullmatch(r"\d\d %", both.figure.text), (
        "a share: its joules would be taken for energy"
    )
    assert both.note == "weighed half and half"
    assert "cost = 0.5 × energy + 0.5 × time × 300 W (eta 0.5)" in both.figure.exact
    assert {t.note for t in saved.figures if t is not both} == {""}, (
        "the sentence has the intervals"
    )
    assert saved.about == "against always 32 at full power"
    assert [t.name for t in upcoming.figures] == [t.name for t in cost.figures], (
        "the next run costs the same kinds"
    )
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
    assert figure(upcoming, "Energy").figure.value == pytest.approx(2 * 3.6e6, rel=0.12)
    (cost,) = answers([BELOW])
    assert figure(cost, "Energy").figure.value == 2 * 3.6e6, "what was spent is known"
    assert state(known(SAVED)) == ""
    silent = known([run(n, 32, 2.0, state=State.NO_METRIC) for n in (1, 2)])
    assert silent.saving.runs == 2
    assert state(silent) == "", "more epochs would not help: none was reported"


BELOW = run(1, 32, 2.0, state=State.EXHAUSTED, epochs=10.0)
UNMEASURED = {"energy_j": None, "energy_source": None, "power_limit_w": None, "rest_j": None}
STATES = {
    "no run has reached the target": [BELOW],
    "the default missed the target": [BELOW, run(2, 64, 1.0)],
    "the default has not run": [run(n, 64, 1.0) for n in (1, 2)],
    "no energy source": [
        run(t.number, t.batch_size, t.observation.epochs / 4.0, **UNMEASURED)
        for t in SAVED
        if t.observation.epochs
    ],
}


@pytest.mark.parametrize("situation", STATES)
def test_a_state_that_leaves_figures_out_is_said_with_its_remedy(situation: str) -> None:
    PAGE.check(situation, state(known(STATES[situation])))


def test_a_try_names_both_sizes_and_a_live_setting_its_own() -> None:
    tries = answers([run(n, 32, 2.0) for n in range(1, 6)])[-1]
    assert re.fullmatch(r"32 at [23]00 W, if \d+ is given up", tries.about)
    pinned = answers(SAVED, pin_batch_size=64)[2]
    assert pinned.about.startswith("batch size 64 at ")
    assert "300 W" in pinned.about or "200 W" in pinned.about


def missed(runs: int) -> list[Trial]:
    """26 runs, of which so many ended below the target."""
    log = [run(n, 32, 2.0) for n in (1, 2)]
    log += [run(n, 64, 2.5, state=State.EXHAUSTED, epochs=10.0) for n in range(3, 3 + runs)]
    return log + [run(n, 64, 1.0) for n in range(3 + runs, 27)]


ONCE = [run(1, 32, 2.0), *(run(n, 64, 1.0) for n in range(2, 6))]
LATER = [run(n, 64, 1.0) for n in range(7, 30)]
SENTENCES = {
    "no run": [],
    "one run of the default": ONCE[:1],
    "one run of the default, one of another size": ONCE[:2],
    "another size saves half": SAVED,
    "7 of 26 runs are below the target": missed(7),
    "2 of 26 runs are below the target": missed(2),
    "the default ran once": ONCE,
    "the default ran once and was given up": [
        *ONCE,
        run(6, 32, 3.0, state=State.GIVEN_UP),
        run(7, 64, 1.0),
    ],
    "the default ran once and was given up long ago": [
        *ONCE,
        run(6, 32, 2.4, state=State.GIVEN_UP),
        *LATER,
    ],
    "the default ran twice": [*ONCE, run(6, 32, 2.0), run(7, 64, 1.0)],
}


@pytest.mark.parametrize("situation", SENTENCES)
def test_the_first_sentence_says_what_it_cost_what_it_saved_and_what_comes_next(
    situation: str,
) -> None:
    of = known(SENTENCES[situation])
    sentence = headline.sentence(of.saving, of.next_run, of.source, of.weights)
    assert sentence.sure in sentence.text
    PAGE.check(situation, f"{sentence.text}\n\nOn hover: {sentence.exact or 'nothing'}")


def test_what_one_run_of_the_default_shows_is_no_verdict() -> None:
    assert [card.question for card in answers(ONCE)] == [headline.COST, headline.NEXT]


def test_a_job_that_saves_half_is_clear_after_five_runs_at_most() -> None:
    """The default runs first and fourth; each other run takes half of what it took."""
    sizes = [32, 64, 64, 32, 64, 64, 64, 64]
    log = [run(n, b, 2.0 if b == 32 else 1.0) for n, b in enumerate(sizes, start=1)]
    not_clear = []
    for runs in range(3, len(log) + 1):
        of = known(log[:runs])
        said = headline.sentence(of.saving, of.next_run, of.source, of.weights)
        if "ot clear yet" in said.text:
            not_clear.append(runs)
    assert not_clear == [3, 4]
    assert "They saved " in said.text


def test_without_an_energy_source_there_is_no_energy() -> None:
    log = STATES["no energy source"]
    for answer in answers(log):
        assert [t.name for t in answer.figures] in (["Time", "Money"], ["Time"])
        assert figure(answer, "Time").figure.value is not None
    assert figure(answers(log)[0], "Money").figure.value is None, (
        "the energy's part of the price is missing"
    )


def test_the_answer_of_a_run() -> None:
    log = as_dataset(SAVED, JOB, WHERE)
    saving = Yardstick.of(log, WHERE, profiles=PROFILE).saving([SAVED[-1]])
    (answer,) = headline.of_run(
        saving, HALF, words.badge(["simulated"]), replace(PRICED, price_per_gpu_hour=None)
    )
    assert [t.name for t in answer.figures] == ["Energy", "Time", "Money", "CO₂e", "Together"]
    alone = headline.of_run(saving, Weights(1.0, 300.0), words.badge(["simulated"]), Factors())
    assert [t.name for t in alone[0].figures] == ["Energy", "Time"], (
        "at eta 1 the cost is the energy, told once"
    )
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


SHIFTS = {
    "at night it would be cheaper": [evening(n) for n in range(1, 6)],
    "it runs at night already": [evening(n, hour=1) for n in range(1, 4)],
    "it runs at any hour": [evening(n, hour=12 + n) for n in range(1, 7)],
}


@pytest.mark.parametrize(
    ("situation", "delay_h", "start_hour"),
    [
        ("at night it would be cheaper", 4, 18),  # two hours that begin at 22:30
        ("it runs at night already", 0, 1),
        ("it runs at any hour", 9, None),
    ],
)
def test_another_hour_of_the_day(situation: str, delay_h: int, start_hour: int | None) -> None:
    shift = schedule_shift(SHIFTS[situation], TARIFF)
    assert shift is not None
    assert (shift.runs, shift.delay_h, shift.start_hour) == (
        len(SHIFTS[situation]),
        delay_h,
        start_hour,
    )
    PAGE.check(situation, headline.shift(shift, TARIFF, "[zeus] tariff"))


def test_what_another_hour_costs() -> None:
    shift = schedule_shift([evening(n) for n in range(1, 6)], TARIFF)
    assert shift is not None
    assert (shift.cost_now, shift.cost_then) == (
        pytest.approx(5 * 2 * 0.40),
        pytest.approx(5 * 2 * 0.20),
    )
    with_pue = schedule_shift([evening(1)], TARIFF, pue=1.5)
    assert with_pue is not None
    assert with_pue.cost_now == pytest.approx(1.2)


def test_runs_that_say_nothing_of_another_hour() -> None:
    assert schedule_shift([evening(1, run_type="manual")], TARIFF) is None
    assert schedule_shift([evening(1, energy_j=None)], TARIFF) is None
    assert headline.shift(None, TARIFF, "[zeus] tariff") == ""


def days(
    unit: str, value_at: Mapping[int, float], count: int = 10, source: str = "api.example.org"
) -> Series:
    """Hours of so many days from 2026-01-01 on, 0.4 where none is given, in UTC."""
    begin_s = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    hours = (begin_s + h * 3600.0 for h in range(24 * count))
    steps = [
        Step(at, at + 3600.0, value_at.get(int((at - begin_s) // 3600) % 24, 0.4)) for at in hours
    ]
    return Series.of(Unit.parse(unit), steps, source=source, zone="DE-LU")


CHEAP = days("EUR/kWh", {1: 0.1, 2: 0.1, 3: 0.1})
CLEAN = days("g/kWh", {1: 0.1, 2: 0.1, 3: 0.1})
OF_CONFIG = days("EUR/kWh", {}, source="tariff")
# each run draws 2 kWh in 2 h from 17:30 UTC on; at 1 and 2 o'clock it is cheap
RUNS = [evening(n) for n in (1, 5, 9, 10, 31)]
BY_SERIES: dict[str, dict[str, Series]] = {
    "by the series that the log keeps": {"zeus_price": CHEAP, "zeus_carbon": CLEAN},
    "by a series without a cleaner hour": {"zeus_carbon": days("g/kWh", {})},
    "by a tariff of the configuration and a series": {
        "zeus_price": OF_CONFIG,
        "zeus_carbon": CLEAN,
    },
    "by a service in place of the tariff": {"zeus_price": CHEAP},
}


@pytest.mark.parametrize("situation", BY_SERIES)
def test_another_hour_of_the_day_by_what_the_log_keeps(situation: str) -> None:
    set_up = Factors(tariff=TARIFF if "tariff" in situation else None)
    PAGE.check(situation, dag_view.shifts(RUNS, set_up, BY_SERIES[situation]))


def test_no_run_of_the_days_of_a_series() -> None:
    assert dag_view.shifts(RUNS[-1:], Factors(), {"zeus_price": CHEAP}) == ""


def test_all_attempts_of_a_run_are_moved_together() -> None:
    first = evening(1, run_type="scheduled")
    second = replace(
        first, number=2, key=TrialKey(first.key.ti_id, 2), opened_at=first.opened_at + 7200
    )
    found = schedule_shift([first, second], TARIFF)
    assert found is not None
    assert (found.runs, found.cost_now) == (1, pytest.approx(4 * (3.5 * 0.40 + 0.5 * 0.20) / 4)), (
        "18:30 to 22:30"
    )


def test_waiting_is_a_lever_of_its_own_and_all_of_them_add_up() -> None:
    trials = [
        replace(
            t,
            observation=replace(
                t.observation, price_per_kwh=0.2, price_at_once=0.5, price_currency="EUR"
            ),
        )
        for t in SAVED
    ]
    known = JobAnalysis.of(trials, as_dataset(trials, JOB), PROFILE, {})
    log = dag_view.JobLog(trials, known, Factors(currency="EUR"), {}, more=False)
    money = log.shown_savings[-1]
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
        replace(
            t,
            observation=replace(
                t.observation, price_per_kwh=0.2, price_at_once=0.5, price_currency="EUR"
            ),
        )
        for t in alone
    ]
    (money,) = answers(waited, Factors())[1].figures
    assert (money.name, money.figure.value) == ("Money", pytest.approx(0.3 * 8))


@pytest.mark.parametrize(
    ("factors", "marked"),
    [
        (PRICED, {"Energy", "Money", "CO₂e"}),
        (Factors(price_per_gpu_hour=3.6, currency="EUR"), {"Energy"}),
    ],
)
def test_what_is_made_of_an_estimate_is_marked_as_one(factors: Factors, marked: set[str]) -> None:
    def notes(source: str) -> dict[str, str]:
        badge = words.badge([source])
        return {
            t.name: t.note for t in headline.spent_tiles(Took(3.6e6, 60.0), 60.0, badge, factors)
        }

    found = notes("estimate")
    assert {name for name, note in found.items() if note} == marked
    assert {found[name] for name in marked} == {"estimate: half to twice this"}
    assert set(notes("rapl_share").values()) == {""}


def test_a_task_that_may_have_used_a_gpu_says_so() -> None:
    hidden = trial(1, "a", 32, reasons={GPU_HIDDEN: "whether this task is hidden"})
    assert words.hidden_gpu(hidden) == " Whether this task is hidden."
    assert words.hidden_gpu(trial(1, "a", 32)) == ""
