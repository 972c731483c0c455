"""Verdicts: what was saved, lost, undecided or is not known, in the same words on every page."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.plugin.text import run_notes, saved_text, words
from airflow_provider_zeus.plugin.text.saved_text import Outcome
from airflow_provider_zeus.reports.baseline import Saved
from airflow_provider_zeus.reports.dataset import RunTrials
from airflow_provider_zeus.reports.run_figures import RunSaving
from airflow_provider_zeus.reports.savings import Savings
from airflow_provider_zeus.units import costs_as
from tests.golden import Table
from tests.unit.reports.test_run_figures import trial

RUN_PAGE = Table("run_page")
JOB_PAGE = Table("job_page")
HALF = Weights(0.5, 300.0)


def saved(
    low: float | None,
    value: float | None,
    high: float | None,
    base: float = 1000.0,
    explored: float = 0.0,
) -> Saved:
    if value is None:
        gone = Estimate.missing("no run of the default batch size 32 has reached the target")
        return Saved(
            unit="J", spent=500.0, baseline=gone, saved=gone, exploration=explored, settled=gone
        )
    one = Estimate(value, low, high)
    settled = one.plus(explored)
    return Saved(
        unit="J",
        spent=base - value,
        baseline=Estimate(base),
        saved=one,
        exploration=explored,
        settled=settled,
    )


GOOD = saved(100.0, 200.0, 300.0)
BAD = saved(-300.0, -200.0, -100.0)
OPEN = saved(-50.0, 20.0, 90.0)
UNKNOWN = saved(None, None, None)


def of_run(cost: Saved, **changes: Any) -> RunSaving:
    values: dict[str, Any] = {
        "kept": True,
        "measured": True,
        "full_power_w": 300.0,
        "default_batch_size": 32,
        "where": ("V100", 1, "simulated"),
        "runs": (),
        "base": SimpleNamespace(old_since=None, doubt=None, at_least=False),
    }
    return RunSaving(
        **{**values, "cost": cost, "energy": cost, "time": replace(cost, unit="s"), **changes}
    )


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
        "base": SimpleNamespace(old_since=None, doubt=None, at_least=False),
        "best": None,
    }
    return Savings(
        **{**values, "cost": cost, "energy": cost, "time": replace(cost, unit="s"), **changes}
    )


@pytest.mark.parametrize(
    ("cost", "kind", "word", "colour"),
    [
        (GOOD, "saved", "Saved", "good"),
        (BAD, "lost", "Lost", "bad"),
        (OPEN, "even", "Not clear yet", ""),
    ],
)
def test_a_saving_a_loss_and_what_the_interval_leaves_open(
    cost: Saved, kind: str, word: str, colour: str
) -> None:
    run = run_notes.run_verdict(of_run(cost))
    assert (run.kind, run.word) == (kind, word)
    assert saved_text.job_word(of_job(cost)) == (word, colour)
    told = saved_text.ShownSaving("Energy", cost.saved, lambda cost: words.cost(cost, "J"), 1000.0)
    card = saved_text.saved_answer("", [told], cost, HALF)
    tile, both = card.figures
    # of 900 or 1,100 J
    seen = {"saved": "11 to 27 %", "lost": "9 to 33 %", "even": "5 % more to 8 % less"}[kind]
    (alone,) = saved_text.saved_answer("", [told]).figures
    assert (alone.kind, alone.figure.value, alone.note) == (colour, cost.saved.value, seen), (
        "how sure, at once"
    )
    assert (tile.figure, tile.note) == (alone.figure, ""), "the sentence above has the interval"
    assert "90 % sure" in tile.figure.exact, "on hover"
    assert card.question == {"Not clear yet": "Saved or lost"}.get(word, word), (
        "the heading is the verdict"
    )
    assert tile.figure.text == ("not clear yet" if kind == "even" else "0.0556 Wh"), (
        "which the heading has said"
    )
    assert (both.name, both.note, both.kind) == (
        saved_text.TOGETHER,
        "weighed half and half",
        colour,
    )
    assert both.figure.text == ("not clear yet" if kind == "even" else "20 %"), (
        "no amount: it would be read as energy"
    )
    assert seen in both.figure.exact


OLD_BASE = SimpleNamespace(old_since=4, doubt=None, at_least=False)


def by_an_old_run() -> Savings:
    runs = tuple(
        SimpleNamespace(run=SimpleNamespace(trials=[run], not_needed=False))
        for run in map(ran, range(1, 9))
    )
    return of_job(GOOD, steps=runs, base=OLD_BASE)


def test_a_saving_by_an_old_run_of_the_default_is_in_no_green() -> None:
    """On the tab and on the page of all jobs."""
    assert saved_text.outdated(by_an_old_run()) == 5
    card = saved_text.saved_answer(
        "against it", [saved_text.ShownSaving("Energy", GOOD.saved, words.energy)], GOOD, old=True
    )
    assert (card.about, card.figures[0].kind) == ("against it", "warn")


def ran(number: int) -> Any:
    seen = SimpleNamespace(power_limit_w=None)
    return SimpleNamespace(number=number, batch_size=64, generations=0, observation=seen)


def test_what_differs_from_the_heading_says_so() -> None:
    def texts(*of: Saved, cost: Saved | None = None) -> tuple[str, list[str]]:
        told = [saved_text.ShownSaving("Energy", one.saved, words.energy) for one in of]
        card = saved_text.saved_answer("", told, cost)
        return card.question, [tile.figure.text for tile in card.figures]

    assert texts(OPEN, BAD, GOOD, cost=BAD) == (
        "Lost",
        ["not clear yet", "0.0556 Wh", "saved 0.0556 Wh"],
    )
    assert texts(GOOD, BAD, cost=OPEN) == ("Saved or lost", ["saved 0.0556 Wh", "lost 0.0556 Wh"])
    assert texts(BAD, OPEN) == ("Lost", ["0.0556 Wh", "not clear yet"]), (
        "by the figures, where no cost weighs them"
    )
    assert texts(GOOD, BAD) == ("Saved or lost", ["saved 0.0556 Wh", "lost 0.0556 Wh"])


def test_the_interval_or_that_it_was_measured() -> None:
    ends = ((100.0, 300.0), (-300.0, -100.0), (2.0, 2.0))
    texts = {
        Outcome.of(1.0, Estimate(1.0, low, high), costs_as("J")).interval for low, high in ends
    }
    assert "90 % sure: 0.0278 Wh to 0.0833 Wh" in texts
    assert len(texts) == 2, "a loss has the same interval as a saving, from the nearer end on"
    assert [t for t in texts if "measured" in t]


@pytest.mark.parametrize(("not_needed", "word"), [(False, "Not exploring yet"), (True, "Saved")])
def test_runs_that_were_not_needed_saved_something(not_needed: bool, word: str) -> None:
    trial = SimpleNamespace(
        batch_size=32, generations=0, observation=SimpleNamespace(power_limit_w=None)
    )
    runs = [SimpleNamespace(trials=[trial], not_needed=skips) for skips in (False, not_needed)]
    job = of_job(GOOD, steps=tuple(SimpleNamespace(run=run) for run in runs))
    assert saved_text.job_word(job)[0] == word


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
    both = amounts(of_job(saved(-100.0, -5.0, 90.0), energy=GOOD, time=less_time)).replace(
        "\u00a0", " "
    )
    assert both == "0.0556 Wh of energy saved, 3 min 20 s lost", "beside a verdict that is open"
    assert amounts(of_job(OPEN, energy=UNKNOWN)) == "time\u00a0not\u00a0clear\u00a0yet"


MORE_TIME = replace(BAD, unit="s")
AT_LEAST = SimpleNamespace(old_since=None, doubt=None, at_least=True)
LOST = saved(-300.0, -200.0, -100.0, explored=400.0)
WON = of_run(saved(1.0, 2.0, 3.0, explored=400.0))
MIXED = of_run(GOOD, time=MORE_TIME)
TRIED = RunTrials((trial(1, 16, 8.0, State.GIVEN_UP),))
FAILED = RunTrials((trial(1, 32, 2.0, State.FAILED),))
STOPPED = RunTrials((trial(1, 32, 2.0, State.GIVEN_UP), trial(2, 64, 5.0)))
RETRIED = RunTrials((trial(1, 32, 2.0, State.FAILED), trial(2, 32, 5.0)))
SEVENTH = RunTrials((trial(7, 16, 5.0),))
# situation: the run, and what else its page knows
VERDICTS: dict[str, tuple[RunSaving | None, dict[str, Any]]] = {
    "it saved": (of_run(GOOD), {}),
    "it saved both, weighed half and half": (of_run(GOOD), {"weights": HALF}),
    "it saved, which was measured": (of_run(saved(200.0, 200.0, 200.0)), {}),
    "it saved against an estimated default": (of_run(GOOD, measured=False), {}),
    "it saved, and the default was given up": (of_run(GOOD, measured=False, runs=(STOPPED,)), {}),
    "it saved against an old run of the default": (
        of_run(GOOD, measured=False, runs=(SEVENTH,), base=OLD_BASE),
        {},
    ),
    "it saved at least so much": (of_run(GOOD, measured=False, base=AT_LEAST), {}),
    "it saved, which was measured, and an estimate would be a bound": (
        of_run(GOOD, base=AT_LEAST),
        {},
    ),
    "it saved, although it explored": (WON, {}),
    "it saved and is below the target": (WON, {"below": True}),
    "it saved and reported no metric": (WON, {"silent": True}),
    "it saved after a failed attempt": (of_run(GOOD, runs=(RETRIED,)), {}),
    "it may have saved": (of_run(OPEN), {}),
    "it lost, explored and is below the target": (of_run(LOST), {"below": True}),
    "it lost and explored too little to be named": (
        of_run(saved(-300.0, -200.0, -100.0, explored=4.0)),
        {},
    ),
    "it saved energy and lost time": (MIXED, {"weights": HALF}),
    "it saved energy and lost time, and energy alone counts": (
        MIXED,
        {"weights": Weights(1.0, 300.0)},
    ),
    "it saved energy and lost time, and may have saved in all": (
        replace(MIXED, cost=OPEN),
        {"weights": HALF},
    ),
    "it trained the default": (of_run(saved(0.0, 0.0, 0.0)), {}),
    "it left no model": (
        of_run(saved(-800.0, -800.0, -800.0, base=0.0), kept=False, runs=(TRIED,)),
        {},
    ),
    "its only attempt failed": (
        of_run(saved(0.0, 0.0, 0.0, base=0.0), kept=False, runs=(FAILED,)),
        {},
    ),
    "the default never reached its target": (of_run(UNKNOWN), {}),
    "the run has not ended": (None, {"why_not": "the run has not ended"}),
}


@pytest.mark.parametrize("situation", VERDICTS)
def test_the_verdict_on_a_run(situation: str) -> None:
    saving, more = VERDICTS[situation]
    verdict = run_notes.run_verdict(saving, **more)
    RUN_PAGE.check(situation, f"{verdict.word} ({verdict.kind}): {verdict.text}")


EQUAL = {"measured": 8, "break_even_run": 1, "per_run": Estimate(0.0, 0.0, 0.0)}
JOBS: dict[str, Savings] = {
    "the job saved": of_job(GOOD),
    "the job saved, and all its runs were measured": of_job(GOOD, measured=8),
    "the job saved from the start": of_job(GOOD, break_even_run=1),
    "the job saved, and the units of the interval's ends differ": of_job(
        saved(90 * 3600.0, 95 * 3600.0, 120 * 3600.0)
    ),
    "the job saved, which is exact": of_job(saved(200.0, 200.0, 200.0)),
    "the job lost, which is exact": of_job(saved(-200.0, -200.0, -200.0)),
    "the job saved energy and lost time": of_job(GOOD, time=MORE_TIME),
    "the job saved time and may have saved energy": of_job(GOOD, energy=OPEN),
    "the job saved, judged by an old run": by_an_old_run(),
    "the job may have saved": of_job(OPEN, break_even_run=1),
    "the job lost and pays off in one run": of_job(BAD, break_even_run=None, break_even_in=1),
    "the job lost and pays off in 12 runs": of_job(BAD, break_even_run=None, break_even_in=12),
    "the job lost and does not pay off": of_job(
        BAD, break_even_run=None, per_run=Estimate(0.0, 0.0, 0.0)
    ),
    "the job lost and may pay off": of_job(
        BAD, break_even_run=None, per_run=Estimate(5.0, -9.0, 20.0)
    ),
    "the job has two runs": of_job(BAD, runs=2),
    "the default alone ran so far": of_job(saved(0.0, 0.0, 0.0), **EQUAL),
    "no run of the default is known": of_job(UNKNOWN),
}


@pytest.mark.parametrize("situation", JOBS)
def test_what_a_job_saved(situation: str) -> None:
    job = JOBS[situation]
    word, colour = saved_text.job_word(job)
    sentence = saved_text.compared(job, HALF)
    JOB_PAGE.check(
        situation,
        f"{word} ({colour or 'no colour'})\n{sentence}\n"
        f"Sure: {saved_text.how_sure(sentence) or 'nothing'}\n"
        f"On hover: {saved_text.intervals(job) or 'nothing'}\n"
        f"Exploration: {saved_text.paid_off(job) or 'nothing'}",
    )


def attempts(*trials: Any) -> tuple[SimpleNamespace, ...]:
    return tuple(SimpleNamespace(run=RunTrials(of_run)) for of_run in trials)


def test_attempts_that_lost_are_counted_in_the_first_lines_with_when_they_are_back() -> None:
    tried = replace(trial(1, 16, 8.0, State.GIVEN_UP, run="r"))
    tried = replace(tried, planned=replace(tried.planned, bound_epochs=8.0))
    steps = attempts(*((tried, trial(n, 32, 5.0, run="r")) for n in (2, 3)))
    job = of_job(LOST, steps=steps, break_even_run=None, break_even_in=4)
    JOB_PAGE.check("other sizes lost and pay off", saved_text.lost_by_tries(job))
    never = replace(job, break_even_in=None, per_run=Estimate(-5.0, -9.0, -1.0))
    JOB_PAGE.check("other sizes lost and do not pay off", saved_text.lost_by_tries(never))
    assert saved_text.lost_by_tries(of_job(GOOD, steps=steps)) == ""
    alone = attempts((trial(1, 32, 5.0),))
    assert saved_text.lost_by_tries(of_job(LOST, steps=alone)) == "", "the default alone ran"
    best_known = attempts((trial(1, 16, 5.0),))
    assert saved_text.lost_by_tries(of_job(LOST, steps=best_known)) == "", "nothing was tried"


def test_a_share_near_an_end_is_not_told_as_all_or_nothing() -> None:
    most = saved_text.Outcome.of(996.0, Estimate(996.0, 995.0, 997.0), str, 1000.0)
    least = saved_text.Outcome.of(4.0, Estimate(4.0, -2.0, 9.0), str, 1000.0)
    assert (most.share, least.share) == ("99.6 %", "0.4 %")
    assert least.between == "0.2 % more to 1 % less"
