"""Verdicts: what was saved, lost, undecided or is not known, in the same words on every page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.plugin.text import run_notes, saved_text, words
from airflow_provider_zeus.plugin.text.saved_text import Outcome
from airflow_provider_zeus.reports.baseline import Saved
from airflow_provider_zeus.reports.run_figures import RunSaving
from airflow_provider_zeus.reports.savings import Savings
from airflow_provider_zeus.units import costs_as

HALF = Weights(0.5, 300.0)


def saved(
    low: float | None, value: float | None, high: float | None, base: float = 1000.0, explored: float = 0.0
) -> Saved:
    if value is None:
        gone = Estimate.missing("no run of the default batch size 32 has reached the target")
        return Saved(unit="J", spent=500.0, baseline=gone, saved=gone, exploration=explored, settled=gone)
    one = Estimate(value, low, high)
    settled = one.plus(explored)
    return Saved(
        unit="J", spent=base - value, baseline=Estimate(base), saved=one, exploration=explored, settled=settled
    )


GOOD, BAD, OPEN = saved(100.0, 200.0, 300.0), saved(-300.0, -200.0, -100.0), saved(-50.0, 20.0, 90.0)
UNKNOWN = saved(None, None, None)


def of_run(cost: Saved, **changes: Any) -> RunSaving:
    values: dict[str, Any] = {
        "kept": True,
        "measured": True,
        "full_power_w": 300.0,
        "default_batch_size": 32,
        "where": ("V100", 1, "simulated"),
        "runs": (),
        "base": SimpleNamespace(old_since=None),
    }
    return RunSaving(**{**values, "cost": cost, "energy": cost, "time": replace(cost, unit="s"), **changes})


def of_job(cost: Saved, **changes: Any) -> Savings:
    values: dict[str, Any] = {
        "default_batch_size": 32,
        "full_power_w": None,
        "runs": 8,
        "measured": 2,
        "per_run": Estimate(25.0, 10.0, 40.0),
        "break_even_run": 3,
        "break_even_in": None,
        "steps": (),
        "where": None,
        "left_out": {},
        "base": SimpleNamespace(old_since=None),
        "best": None,
    }
    return Savings(**{**values, "cost": cost, "energy": cost, "time": replace(cost, unit="s"), **changes})


@pytest.mark.parametrize(
    ("cost", "kind", "word", "colour"),
    [(GOOD, "saved", "Saved", "good"), (BAD, "lost", "Lost", "bad"), (OPEN, "even", "Not clear yet", "")],
)
def test_a_saving_a_loss_and_what_the_interval_leaves_open(cost: Saved, kind: str, word: str, colour: str) -> None:
    run = run_notes.run_verdict(of_run(cost))
    assert (run.kind, run.word) == (kind, word)
    assert saved_text.job_word(of_job(cost)) == (word, colour)
    told = saved_text.Told("Energy", cost.saved, lambda cost: words.cost(cost, "J"), 1000.0)
    card = saved_text.saved_answer("", [told], cost, HALF)
    tile, both = card.figures
    seen = {"saved": "11 to 27 %", "lost": "9 to 33 %", "even": "5 % more to 8 % less"}[kind]  # of 900 or 1,100 J
    (alone,) = saved_text.saved_answer("", [told]).figures
    assert (alone.kind, alone.figure.value, alone.note) == (colour, cost.saved.value, seen), "how sure, at once"
    assert (tile.figure, tile.note) == (alone.figure, ""), "the sentence above has the interval"
    assert "90 % sure" in tile.figure.exact, "on hover"
    assert card.question == {"Not clear yet": "Saved or lost"}.get(word, word), "the heading is the verdict"
    assert tile.figure.text == ("not clear yet" if kind == "even" else "0.0556 Wh"), "which the heading has said"
    assert (both.name, both.note, both.kind) == (saved_text.TOGETHER, "weighed half and half", colour)
    assert both.figure.text == ("not clear yet" if kind == "even" else "20 %"), "no amount: it would be read as energy"
    assert seen in both.figure.exact


def test_a_saving_by_an_old_run_of_the_default_says_so_in_words_and_in_no_green() -> None:
    """On the tab, on the page of all jobs and on a run's page."""
    runs = tuple(SimpleNamespace(run=SimpleNamespace(trials=[run], not_needed=False)) for run in map(ran, range(1, 9)))
    old = of_job(GOOD, steps=runs, base=SimpleNamespace(old_since=4))
    assert saved_text.outdated(old) == 5
    assert saved_text.job_word(old) == ("Saved", "warn")
    text = saved_text.compared(old, HALF)
    assert text == (
        "They saved 20 % of energy and 20 % of time against always batch size 32 at full power; that is not sure, but "
        "judged by an old run of it"
    )
    assert saved_text.how_sure(text) == "judged by an old run of it"
    assert "in 2 of 8 runs, in none of the newest 5" in saved_text.intervals(old)
    card = saved_text.saved_answer("against it", [saved_text.Told("Energy", GOOD.saved, words.energy)], GOOD, old=True)
    assert (card.about, card.figures[0].kind) == ("against it", "warn")
    one = of_run(GOOD, measured=False, runs=(runs[6].run,), base=SimpleNamespace(old_since=4))
    assert "did not run on this slice of the data, nor for long before" in run_notes.run_verdict(one).text


def ran(number: int) -> Any:
    seen = SimpleNamespace(power_limit_w=None)
    return SimpleNamespace(number=number, batch_size=64, generations=0, observation=seen)


def test_what_differs_from_the_heading_says_so() -> None:
    def texts(*of: Saved, cost: Saved | None = None) -> tuple[str, list[str]]:
        told = [saved_text.Told("Energy", one.saved, words.energy) for one in of]
        card = saved_text.saved_answer("", told, cost)
        return card.question, [tile.figure.text for tile in card.figures]

    assert texts(OPEN, BAD, GOOD, cost=BAD) == ("Lost", ["not clear yet", "0.0556 Wh", "saved 0.0556 Wh"])
    assert texts(GOOD, BAD, cost=OPEN) == ("Saved or lost", ["saved 0.0556 Wh", "lost 0.0556 Wh"])
    assert texts(BAD, OPEN) == ("Lost", ["0.0556 Wh", "not clear yet"]), "by the figures, where no cost weighs them"
    assert texts(GOOD, BAD) == ("Saved or lost", ["saved 0.0556 Wh", "lost 0.0556 Wh"])


def test_the_interval_or_that_it_was_measured() -> None:
    ends = ((100.0, 300.0), (-300.0, -100.0), (2.0, 2.0))
    texts = {Outcome.of(1.0, Estimate(1.0, low, high), costs_as("J")).interval for low, high in ends}
    assert "90 % sure: 0.0278 Wh to 0.0833 Wh" in texts
    assert len(texts) == 2, "a loss has the same interval as a saving, from the nearer end on"
    assert [t for t in texts if "measured" in t]


def test_a_saving_and_the_ends_of_its_interval_have_one_unit() -> None:
    wide = saved(90 * 3600.0, 95 * 3600.0, 120 * 3600.0)
    assert "90 % sure: 90 Wh to 120 Wh" in saved_text.intervals(of_job(wide))


def test_what_a_run_saved_of_the_weighted_cost_is_a_share_since_its_joules_are_no_energy() -> None:
    mixed = of_run(GOOD, time=replace(BAD, unit="s"))
    text = run_notes.run_verdict(mixed, weights=HALF).text
    assert text == (
        "It cost 0.222 Wh and 20 min 00 s. It saved 20 % of energy (90 % sure: 11 to 27 %) but took 20 % more time "
        "(9 to 33 %) against always batch size 32 at full power (300 W); weighed half and half, that saves "
        "20 % (11 to 27 %)."
    )
    assert (
        "that pays, weighed half and half, is not clear yet"
        in run_notes.run_verdict(replace(mixed, cost=OPEN), weights=HALF).text
    )
    assert "weighed" not in run_notes.run_verdict(of_run(GOOD), weights=HALF).text, "both say the same"
    assert "weighed" not in run_notes.run_verdict(mixed, weights=Weights(1.0, 300.0)).text, "energy alone counts"


def test_a_figure_that_may_be_a_loss_is_no_saving() -> None:
    assert saved_text.compared(of_job(OPEN), HALF) == (
        "Whether they saved anything against always batch size 32 at full power is not clear yet: energy (90 % sure: "
        "5 % more to 8 % less) and time (5 % more to 8 % less)"
    )
    assert "not clear yet" in saved_text.paid_off(of_job(OPEN, break_even_run=1))


def test_the_default_alone_is_no_saving_nor_two_runs() -> None:
    alone = saved(0.0, 0.0, 0.0)
    assert run_notes.run_verdict(of_run(alone)).word == "Nothing"
    job = of_job(alone, measured=8, break_even_run=1, per_run=Estimate(0.0, 0.0, 0.0))
    assert saved_text.job_word(job) == ("Not exploring yet", "")
    assert "the default, ran" in saved_text.compared(job, HALF)
    assert saved_text.intervals(job) == saved_text.paid_off(job) == ""
    assert saved_text.job_word(of_job(BAD, runs=2)) == ("Too early", "")


@pytest.mark.parametrize(("not_needed", "word"), [(False, "Not exploring yet"), (True, "Saved")])
def test_runs_that_were_not_needed_saved_something(not_needed: bool, word: str) -> None:
    trial = SimpleNamespace(batch_size=32, generations=0, observation=SimpleNamespace(power_limit_w=None))
    runs = [SimpleNamespace(trials=[trial], not_needed=skips) for skips in (False, not_needed)]
    job = of_job(GOOD, steps=tuple(SimpleNamespace(run=run) for run in runs))
    assert saved_text.job_word(job)[0] == word


def test_less_more_and_what_is_not_clear_in_one_sentence() -> None:
    def said(job: Savings) -> str:
        text = saved_text.compared(job, HALF)
        assert saved_text.how_sure(text), "it bears the intervals on hover"
        return text

    more, always = replace(BAD, unit="s"), "always batch size 32 at full power"
    less = "They saved 20 % of energy (90 % sure: 11 to 27 %)"
    assert said(of_job(GOOD)) == f"{less} and 20 % of time (11 to 27 %) against {always}"
    assert said(of_job(GOOD, time=more)).startswith(
        f"{less} but took 20 % more time (9 to 33 %) against {always}; weighed"
    )
    assert said(of_job(BAD)).endswith(
        f"took 20 % more energy (90 % sure: 9 to 33 %) and 20 % more time (9 to 33 %) than {always}"
    )
    assert said(of_job(GOOD, energy=OPEN)).endswith(
        f"saved 20 % of time (90 % sure: 11 to 27 %) against {always}; energy (5 % more to 8 % less) is not clear yet"
    ), "how sure is said with what is told first"
    exactly = said(of_job(saved(200.0, 200.0, 200.0)))
    assert exactly == f"They saved 20 % of energy (measured) and 20 % of time (measured) against {always}"
    assert saved_text.compared(of_job(UNKNOWN), HALF) == "What was saved is not known"


def test_what_was_estimated_is_called_so() -> None:
    assert "2 of 8 runs" in saved_text.intervals(of_job(GOOD))
    assert "of 8 runs" not in saved_text.intervals(of_job(GOOD, measured=8))
    exact = saved_text.intervals(of_job(saved(-200.0, -200.0, -200.0)))
    assert exact.endswith("measured."), "the other runs left no model: nothing of the sum is estimated"
    measured, estimated = (run_notes.run_verdict(of_run(GOOD, measured=m)).text for m in (True, False))
    assert estimated.startswith(measured)
    assert estimated != measured


def test_a_loss_names_what_exploration_took_and_a_run_its_missed_target() -> None:
    lost = of_run(saved(-300.0, -200.0, -100.0, explored=400.0))
    assert "33 % of what it cost was exploration" in run_notes.run_verdict(lost).text
    little = of_run(saved(-300.0, -200.0, -100.0, explored=4.0))
    assert "exploration" not in run_notes.run_verdict(little).text, "too little to be named"
    won = of_run(saved(1.0, 2.0, 3.0, explored=400.0))
    assert "exploration" not in run_notes.run_verdict(won).text
    above, below = run_notes.run_verdict(won).text, run_notes.run_verdict(won, below=True).text
    assert below.startswith(above)
    assert "below the target" in below.removeprefix(above)
    assert "reported no metric" in run_notes.run_verdict(won, silent=True).text


def test_a_run_without_a_model_has_lost_all() -> None:
    gone = of_run(saved(-800.0, -800.0, -800.0, base=0.0), kept=False)
    assert run_notes.run_verdict(gone).kind == "lost"


def test_what_is_not_known_says_why() -> None:
    for verdict in (run_notes.run_verdict(None, "no energy"), run_notes.run_verdict(of_run(UNKNOWN))):
        assert verdict.kind == "unknown"
    assert "no energy" in run_notes.run_verdict(None, "no energy").text


def test_few_words_beside_the_verdict() -> None:
    def amounts(found: Savings) -> str:
        return saved_text.amounts(found.cost, found.energy.saved, found.time.saved)

    less_time = replace(BAD, unit="s")
    assert amounts(of_job(GOOD)) == "0.0556\u00a0Wh\u00a0of\u00a0energy, 3\u00a0min\u00a020\u00a0s"
    assert (
        amounts(of_job(GOOD, time=less_time))
        == "0.0556\u00a0Wh\u00a0of\u00a0energy, 3\u00a0min\u00a020\u00a0s\u00a0lost"
    )
    few = saved_text.amounts(GOOD, GOOD.saved.times(3600.0), Estimate.missing(""), 50 * 3600.0)
    assert few == "200\u00a0Wh\u00a0of\u00a0energy", "as what was spent"
    both = amounts(of_job(saved(-100.0, -5.0, 90.0), energy=GOOD, time=less_time)).replace("\u00a0", " ")
    assert both == "0.0556 Wh of energy saved, 3 min 20 s lost", "beside a verdict that is open"
    assert amounts(of_job(OPEN, energy=UNKNOWN)) == "time\u00a0not\u00a0clear\u00a0yet"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"break_even_run": 1}, "From the start"),
        ({"break_even_run": 3}, "From run 3 of 8 on"),
        ({"break_even_run": None, "break_even_in": 1}, "in 1 more run if"),
        ({"break_even_run": None, "break_even_in": 12}, "in 12 more runs if"),
        ({"break_even_run": None, "cost": BAD, "per_run": Estimate(0.0, 0.0, 0.0)}, "does not pay off"),
        ({"break_even_run": None, "cost": BAD, "per_run": Estimate(5.0, -9.0, 20.0)}, "is not known"),
    ],
)
def test_when_it_pays_off(changes: dict[str, Any], text: str) -> None:
    told = saved_text.paid_off(of_job(**{"cost": GOOD, **changes}))
    assert text in told
    assert told.startswith("0 % of the cost so far was exploration.")


def test_the_verdicts_word_for_word() -> None:
    lost = saved(-300.0, -200.0, -100.0, explored=400.0)
    verdicts = [
        *(run_notes.run_verdict(of_run(cost)) for cost in (GOOD, OPEN, saved(200.0, 200.0, 200.0), UNKNOWN)),
        run_notes.run_verdict(of_run(GOOD, measured=False)),
        run_notes.run_verdict(of_run(saved(0.0, 0.0, 0.0))),
        run_notes.run_verdict(of_run(lost), below=True),
        run_notes.run_verdict(of_run(saved(-800.0, -800.0, -800.0, base=0.0), kept=False)),
        run_notes.run_verdict(None, "the run has not ended"),
    ]
    found = "".join(f"{verdict.kind} | {verdict.word}: {verdict.text}\n" for verdict in verdicts)
    assert found == (Path(__file__).parent / "snapshots/verdicts.txt").read_text()


def test_a_share_near_an_end_is_not_told_as_all_or_nothing() -> None:
    most = saved_text.Outcome.of(996.0, Estimate(996.0, 995.0, 997.0), str, 1000.0)
    least = saved_text.Outcome.of(4.0, Estimate(4.0, -2.0, 9.0), str, 1000.0)
    assert (most.share, least.share) == ("99.6 %", "0.4 %")
    assert least.between == "0.2 % more to 1 % less"
