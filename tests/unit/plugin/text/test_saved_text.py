"""Verdicts and tiles: what was saved, lost, undecided or is not known, in the same words on every page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.plugin.text import saved_text
from airflow_provider_zeus.plugin.text.saved_text import Outcome
from airflow_provider_zeus.plugin.views.models import Source, Tile
from airflow_provider_zeus.reports.baseline import Saved
from airflow_provider_zeus.reports.run_figures import RunSaving
from airflow_provider_zeus.reports.savings import Savings
from airflow_provider_zeus.units import costs_as

SOURCE = Source(name="simulated", text="simulated", kind="simulated")


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
        "base": None,
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
        "base": None,
    }
    return Savings(**{**values, "cost": cost, "energy": cost, "time": replace(cost, unit="s"), **changes})


@pytest.mark.parametrize(
    ("cost", "kind", "word", "colour"),
    [(GOOD, "saved", "Saved", "good"), (BAD, "lost", "Lost", "bad"), (OPEN, "even", "Undecided", "warn")],
)
def test_a_saving_a_loss_and_what_the_interval_leaves_open(cost: Saved, kind: str, word: str, colour: str) -> None:
    run, job = saved_text.run_verdict(of_run(cost)), saved_text.job_verdict(of_job(cost))
    assert (run.kind, run.word) == (job.kind, job.word) == (kind, word)
    tile = saved_text.run_tile(of_run(cost), SOURCE)
    name = {"saved": "Saving", "lost": "Loss", "even": "Undecided"}[kind]
    assert (tile.name, tile.kind, tile.source) == (name, colour, SOURCE)
    assert tile.figure.value == cost.saved.value


def test_the_interval_or_that_it_was_measured() -> None:
    ends = ((100.0, 300.0), (-300.0, -100.0), (2.0, 2.0))
    texts = {Outcome.of(1.0, Estimate(1.0, low, high), costs_as("J")).interval for low, high in ends}
    assert "90 % interval 100 J to 300 J" in texts
    assert len(texts) == 2, "a loss has the same interval as a saving, from the nearer end on"
    assert [t for t in texts if "measured" in t]


def test_a_figure_that_may_be_a_loss_is_no_saving() -> None:
    found = tiles(of_job(OPEN, per_run=Estimate(5.0, -9.0, 20.0), break_even_run=1))
    undecided = found["Undecided: cost"]
    assert undecided.kind == "warn"
    assert undecided.figure.text.startswith("saved about ")
    assert (found["A run saves"].figure.text, found["A run saves"].kind) == ("undecided", "warn")
    assert (found["Break-even"].figure.text, found["Break-even"].kind) == ("undecided", "warn")


def test_the_default_alone_is_no_saving() -> None:
    alone = saved(0.0, 0.0, 0.0)
    for verdict in (saved_text.job_verdict(of_job(alone, measured=8)), saved_text.run_verdict(of_run(alone))):
        assert (verdict.kind, verdict.word) == ("even", "Undecided")
    found = tiles(of_job(alone, measured=8, break_even_run=1, per_run=Estimate(0.0, 0.0, 0.0)))
    assert "measured" not in found["A run saves"].note, "it is yet to run"
    assert (found["Undecided: cost"].kind, found["Break-even"].figure.text) == ("warn", "undecided")


def test_what_was_estimated_is_called_so() -> None:
    assert "2 of 8 runs" in saved_text.job_verdict(of_job(GOOD)).text
    assert "of 8 runs" not in saved_text.job_verdict(of_job(GOOD, measured=8)).text
    exact = saved_text.job_verdict(of_job(saved(-200.0, -200.0, -200.0))).text
    assert exact.endswith("measured."), "the other runs left no model: nothing of the sum is estimated"
    measured, estimated = (saved_text.run_verdict(of_run(GOOD, measured=m)).text for m in (True, False))
    assert estimated.startswith(measured)
    assert estimated != measured


def test_a_loss_names_what_exploration_took_and_a_run_its_missed_target() -> None:
    lost = of_run(saved(-300.0, -200.0, -100.0, explored=400.0))
    assert "400 J" in saved_text.run_verdict(lost).text
    little = of_run(saved(-300.0, -200.0, -100.0, explored=4.0))
    assert "4 J" not in saved_text.run_verdict(little).text, "too little to be named"
    won = of_run(saved(1.0, 2.0, 3.0, explored=400.0))
    assert "400 J" not in saved_text.run_verdict(won).text
    above, below = saved_text.run_verdict(won).text, saved_text.run_verdict(won, below=True).text
    assert below.startswith(above)
    assert "below the target" in below.removeprefix(above)
    assert "reported no metric" in saved_text.run_verdict(won, silent=True).text


def test_a_run_without_a_model_has_lost_all() -> None:
    gone = of_run(saved(-800.0, -800.0, -800.0, base=0.0), kept=False)
    assert saved_text.run_verdict(gone).kind == "lost"
    tile = saved_text.run_tile(gone, SOURCE)
    assert (tile.name, tile.figure.text, tile.note, tile.kind) == ("Loss", "800 J", "no model", "bad")


def test_what_is_not_known_says_why() -> None:
    for verdict, tile in (
        (saved_text.run_verdict(None, "no energy"), saved_text.run_tile(None, SOURCE, "no energy")),
        (saved_text.run_verdict(of_run(UNKNOWN)), saved_text.run_tile(of_run(UNKNOWN), SOURCE)),
    ):
        assert (verdict.kind, tile.figure.value, tile.source.text) == ("unknown", None, "")
        assert tile.figure.exact in verdict.text
        assert tile.figure.exact in tile.note


def tiles(of: Savings) -> dict[str, Tile]:
    return {tile.name: tile for tile in saved_text.job_tiles(of, SOURCE)}


def test_the_tiles_of_a_job() -> None:
    found = tiles(of_job(saved(100.0, 200.0, 300.0, explored=50.0)))
    assert {name: (tile.figure.text, tile.kind) for name, tile in found.items()} == {
        "Saved: cost": ("200 J", "good"),
        "Spent on exploration": ("50 J", ""),
        "Break-even": ("at run 3", "good"),
        "A run saves": ("25 J", "good"),
    }
    assert "150 J to 350 J" in found["Spent on exploration"].note, "without it: with its interval"
    lost = tiles(of_job(BAD, per_run=Estimate(-5.0, -9.0, -1.0), break_even_run=None))
    assert (lost["Lost: cost"].kind, lost["A run loses"].kind) == ("bad", "bad")
    assert (lost["Break-even"].figure.text, lost["Break-even"].kind) == ("not in sight", "bad")
    assert not any(tile.figure.text.startswith("-") for tile in lost.values())


def test_where_exploration_is_the_whole_loss() -> None:
    explored = saved(-9.0, -9.0, -9.0, explored=9.0)
    assert tiles(of_job(explored))["Spent on exploration"].note.endswith("; without it nothing was saved or lost")


def test_few_words_beside_the_verdict() -> None:
    less_time = replace(BAD, unit="s")
    assert saved_text.amounts(of_job(GOOD)) == "0.0556\u00a0Wh, 3\u00a0min\u00a020\u00a0s"
    assert saved_text.amounts(of_job(GOOD, time=less_time)) == "0.0556\u00a0Wh, 3\u00a0min\u00a020\u00a0s\u00a0lost"
    assert saved_text.amounts(of_job(OPEN, energy=UNKNOWN)) == "about 20\u00a0s"
    assert saved_text.brief(of_run(GOOD, energy=UNKNOWN)) == "Saved 20 % of cost: 3\u00a0min\u00a020\u00a0s"
    assert saved_text.brief(of_run(UNKNOWN)) == "Not known"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"break_even_run": 1}, "from the start"),
        ({"break_even_run": None, "break_even_in": 1}, "in 1 more run"),
        ({"break_even_run": None, "break_even_in": 12}, "in 12 more runs"),
        ({"break_even_run": None, "cost": UNKNOWN}, "–"),
        ({"break_even_run": None, "cost": BAD, "per_run": Estimate(0.0, 0.0, 0.0)}, "not yet"),
    ],
)
def test_break_even(changes: dict[str, Any], text: str) -> None:
    assert saved_text.break_even(of_job(**{"cost": GOOD, **changes})).figure.text == text


def test_the_verdicts_word_for_word() -> None:
    lost = saved(-300.0, -200.0, -100.0, explored=400.0)
    verdicts = [
        *(saved_text.run_verdict(of_run(cost)) for cost in (GOOD, OPEN, saved(200.0, 200.0, 200.0), UNKNOWN)),
        saved_text.run_verdict(of_run(GOOD, measured=False)),
        saved_text.run_verdict(of_run(saved(0.0, 0.0, 0.0))),
        saved_text.run_verdict(of_run(lost), below=True),
        saved_text.run_verdict(of_run(saved(-800.0, -800.0, -800.0, base=0.0), kept=False)),
        saved_text.run_verdict(None, "the run has not ended"),
        *(saved_text.job_verdict(of_job(cost)) for cost in (GOOD, BAD, UNKNOWN)),
        saved_text.job_verdict(of_job(OPEN), all_of=False),
        saved_text.job_verdict(of_job(replace(GOOD, unit="s"), runs=1, measured=1)),
    ]
    found = "".join(f"{verdict.kind} | {verdict.word}: {verdict.text}\n" for verdict in verdicts)
    assert found == (Path(__file__).parent / "snapshots/verdicts.txt").read_text()
