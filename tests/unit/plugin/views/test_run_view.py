"""The tab of a run: tiles, attempts and progress, as data."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import DATA_WAIT, TO_TRY, UNSEEN, ProfileSample, State, Trial
from airflow_provider_zeus.plugin.answer_parts import Tile
from airflow_provider_zeus.plugin.text.factors import Factors
from airflow_provider_zeus.plugin.views import costs, pages, run_view
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.run_figures import RunFigures, RunSaving, Yardstick
from tests.golden import Table
from tests.unit.plugin.kit import JOB, trial

NONE = Factors()
WHERE = ("V100", 1, "simulated")
PROFILE = [
    ProfileSample(batch_size=32, limit_w=w, samples=1000, energy_j=j, time_s=s)
    for w, j, s in ((200.0, 80.0, 1.1), (300.0, 100.0, 1.0))
]


def check(situation: str, *texts: str) -> None:
    """Lines of the page are a row of its table."""
    Table("run_page").check(situation, "\n".join(texts))


def part(
    *trials: Trial,
    pending: Any = None,
    factors: Factors = NONE,
    saving: RunSaving | None = None,
    **live: Any,
) -> Any:
    made = run_view.RunPart(list(trials), live, pending or {}, saving, factors, "", None, ())
    return SimpleNamespace(**made.head, **pages.content("run", made))


def tile(of: Any, name: str) -> Tile:
    return next(t for t in of.headline[0].figures if t.name == name)


# --- figures


def test_the_figures_of_a_run() -> None:
    run = part(
        trial(1, "r", 64, State.GIVEN_UP, energy_j=500.0, time_s=5.0),
        trial(2, "r", 32, energy_j=700.0, time_s=7.0),
    )
    (cost,) = run.headline
    assert [(t.name, t.figure.text) for t in cost.figures] == [
        ("Energy", "0.333 Wh"),
        ("Time", "12 s"),
    ]
    assert (run.state_text, run.live, run.progress) == ("reached target", False, None)


def test_a_run_that_reported_no_metric_is_not_below_its_target() -> None:
    why = {
        "energy_j": None,
        "reasons": {UNSEEN: "the command is not seen to use batch size 64: it never names it"},
    }
    run = part(
        trial(
            1,
            "r",
            64,
            State.NO_METRIC,
            reason="the command did not report its accuracy: print it",
            **why,
        )
    )
    assert run.state_text == "no metric reported"
    assert "below" not in run.verdict.text
    (attempt,) = run.attempts
    check("a command reported no metric and is not seen to use its size", *run.notes, attempt.ended)


def test_without_a_source_there_is_no_energy() -> None:
    gone = {"energy_j": None, "energy_source": None, "power_limit_w": None}
    why = {"energy_j": "set [zeus] cpu_watts", "power_limit_w": "a CPU has none"}
    run = part(trial(1, "r", reasons=why, **gone))
    assert [t.name for t in run.headline[0].figures] == ["Time"]
    assert run.source.kind == "no-source", "its badge says how to get one"


def test_a_run_axis_its_pause() -> None:
    paused = trial(1, "r", energy_j=3600.0, time_s=40.0, paused_s=18.0, paused_j=1800.0)
    check("a training was paused", *part(paused).notes)


def test_a_run_that_was_excluded_says_so_and_still_has_its_costs() -> None:
    attempts = trial(1, "r", 64, State.GIVEN_UP), trial(2, "r", 32)
    excluded = part(*attempts, excluded=[2])
    check("a run is excluded", *excluded.notes)
    assert part(*attempts, excluded=[3]).notes == part(*attempts).notes
    assert excluded.headline == part(*attempts).headline


def test_what_waiting_for_batches_took_is_said_in_money_too() -> None:
    waited = trial(1, "r", energy_j=3600.0, time_s=10.0, data_wait_s=2.0)
    check("it waited for batches", *part(waited).notes)
    priced = part(waited, factors=Factors(price_per_kwh=500.0, currency="EUR"))
    check("it waited for batches, at a price", *priced.notes)
    assert part(trial(1, "r", energy_j=None, time_s=10.0, data_wait_s=0.05)).notes == []


def test_waiting_is_told_once_with_what_to_try() -> None:
    said = "20 % of its time, 2 s and at most 0.2 Wh, was spent waiting for batches"
    why = {DATA_WAIT: said, TO_TRY: "num_workers=4 in the DataLoader"}
    waited = trial(1, "r", energy_j=3600.0, time_s=10.0, data_wait_s=2.0, reasons=why)
    check("it waited for batches, and there is something to try", *part(waited).notes)


def test_waiting_is_priced_as_at_most_the_time_of_the_attempt() -> None:
    hourly = Factors(price_per_gpu_hour=2.0, currency="EUR")
    run = part(
        trial(1, "r", energy_j=None, time_s=3600.0, data_wait_s=7200.0, device_count=2),
        factors=hourly,
    )
    assert "at most 4.00 EUR" in " ".join(run.notes)


@pytest.mark.parametrize("counts", [(2, 1), (1, 2)])
def test_each_attempt_pays_for_its_own_gpus(counts: tuple[int, int]) -> None:
    """Two attempts of an hour on 2 and 1 GPUs: three hours at 2 EUR on page, event and bill."""
    taken = {"energy_j": 3.6e6, "time_s": 3600.0, "energy_source": "nvml_counter"}
    first, last = (trial(n, "r", device_count=c, **taken) for n, c in enumerate(counts, 1))
    own = [replace(first, state=State.FAILED), last]
    hourly = Factors(price_per_gpu_hour=2.0, currency="EUR")
    assert tile(part(*own, factors=hourly), "Money").figure.value == pytest.approx(6.0)
    cost = {"job_id": "j", "batch_size": 32, "energy_j": 7.2e6, "time_s": 7200.0, "attempts": []}
    assert RunFigures(cost=cost, ended=own).as_event(hourly)["money"] == pytest.approx(6.0)


def test_several_gpus_are_one_sum_and_it_is_said() -> None:
    run = part(trial(1, "r", device_count=4, max_power_w=1200.0))
    (note,) = run.notes
    assert "4 GPUs" in note


def test_money_and_carbon_only_where_their_factors_are_set() -> None:
    priced = Factors(
        price_per_kwh=0.5, price_per_gpu_hour=3.6, g_co2e_per_kwh=100.0, currency="EUR"
    )
    run = part(trial(1, "r", energy_j=3.6e6, time_s=1000.0, device_count=2), factors=priced)
    assert tile(run, "Money").figure.text == "2.50 EUR"
    assert tile(run, "CO₂e").figure.text == "100 g CO₂e"
    (cost,) = part(trial(1, "r"), factors=Factors(g_co2e_per_kwh=1.0)).headline
    assert "Money" not in [t.name for t in cost.figures]


def test_a_conversion_is_as_incomplete_as_its_figure() -> None:
    priced = Factors(price_per_kwh=1.0)
    begun = part(trial(1, "r", state=State.RUNNING, energy_j=3.6e6), factors=priced)
    assert tile(begun, "Money").figure.text == "1.00 (no currency set) so far"
    lost = trial(1, "r", state=State.ABANDONED, energy_j=None, time_s=None)
    assert (
        tile(part(lost, trial(2, "r", energy_j=3.6e6), factors=priced), "Money").figure.text
        == "≥ 1.00 (no currency set)"
    )
    mixed = trial(1, "r", energy_source="rapl"), trial(2, "r")
    assert tile(part(*mixed, factors=priced), "Money").figure.text == "–", (
        "different sources are not added"
    )


# --- saving


BASE = [
    trial(
        n,
        f"d{n}",
        32,
        epochs=e,
        energy_j=100.0 * e,
        time_s=e,
        power_limit_w=300.0,
        rest_j=0.0,
        rest_s=0.0,
    )
    for n, e in ((1, 4.0), (2, 6.0))
]
CHEAP = trial(9, "r", 16, epochs=2.0, energy_j=200.0, time_s=2.0, rest_j=0.0, rest_s=0.0)
LOG = as_dataset([*BASE, CHEAP], JOB, WHERE)
SAVING = Yardstick.of(LOG, WHERE, profiles=PROFILE).saving([CHEAP])


def test_the_verdict_of_real_trials() -> None:
    run = part(CHEAP, saving=SAVING)
    value = SAVING.cost.saved.value or 0.0
    low = SAVING.cost.saved.low or 0.0
    assert run.verdict.kind == ("saved" if low > 0 else "even")
    assert "against always batch size 32 at full power" in run.verdict.text
    (_, saved) = run.headline
    assert saved.figures[-1].figure.value == value


# --- running, not yet stored, several


def test_a_running_trial_tells_how_far_it_is() -> None:
    run = part(trial(1, "r", 32, State.RUNNING, epochs=3.25, metric=0.5), saving=SAVING)
    assert run.live
    assert run.progress is not None
    assert run.progress.text.split(", ")[1:] == [
        "epoch 3.2 of at most 10",
        "accuracy 0.5 (target: at least 0.8).",
    ]
    assert (run.progress.epochs, run.progress.max_epochs) == (3.25, 10.0)
    assert run.verdict.word == "Running"
    assert [answer.question for answer in run.headline] == ["Cost"]
    begun = trial(1, "r", 32, State.RUNNING, epochs=None, metric=None)
    progress = part(begun).progress
    assert progress is not None
    assert (progress.epochs, "no epoch" in progress.text) == (None, True)


def test_a_bounded_attempt_says_that_it_may_be_given_up() -> None:
    running = trial(1, "r", 32, State.RUNNING, epochs=1.0)
    bounded = replace(running, planned=replace(running.planned, bound_epochs=4.5))
    progress = part(bounded).progress
    assert progress is not None
    assert (progress.max_epochs, "given up" in progress.text) == (4.5, True)


def test_a_cost_that_waits_is_no_running_trial() -> None:
    waiting = trial(1, "r", 32, State.RUNNING, energy_j=None, time_s=None)
    run = part(waiting, pending={waiting.key: "Variable zeus-untold:ti-1:1"})
    (attempt,) = run.attempts
    assert (run.live, run.state_text, attempt.state_text) == (
        False,
        costs.NOT_STORED,
        costs.NOT_STORED,
    )
    assert attempt.waits == "Variable zeus-untold:ti-1:1"
    assert attempt.waits in attempt.ended
    assert "one attempt" in run.notes[-1]
    assert run_view.WAITS in run.verdict.text


def test_tasks_mapped_tasks_and_jobs_are_parts_of_their_own() -> None:
    log = [
        trial(1, "r"),
        trial(2, "r", map_index=1),
        trial(3, "r", map_index=0),
        trial(4, "r", task_id="other", job_id="a"),
        trial(5, "r"),
    ]
    parts = run_view.parts_of(log)
    assert {key: [t.number for t in own] for key, own in parts.items()} == {
        ("a", "other", -1): [4],
        ("d.train", "train", -1): [1, 5],
        ("d.train", "train", 0): [3],
        ("d.train", "train", 1): [2],
    }
    assert [part(*own).title for own in parts.values()] == [
        "other",
        "train",
        "train [0]",
        "train [1]",
    ]


def test_the_present_eta_costs_an_old_run_and_its_own_target_stays() -> None:
    run = part(trial(1, "r", energy_j=900.0, time_s=1.0), eta=1.0)
    assert [t.name for t in run.headline[0].figures] == ["Energy", "Time"], (
        "the cost is the energy, told once"
    )
    assert tile(run, "Energy").figure.text == "0.25 Wh"
    assert "Target accuracy >= 0.8" in run.facts
    assert run.settings == ["Live setting: eta set to 1.0"]


@pytest.mark.parametrize("state", list(State))
def test_every_state_has_a_page(state: State) -> None:
    for changes in ({}, {"energy_j": None, "time_s": None, "epochs": None, "device_model": None}):
        assert part(trial(1, "r", state=state, **changes)).verdict.text
