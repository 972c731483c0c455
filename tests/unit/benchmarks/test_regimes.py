"""What befalls a job in each regime, replays of a log that is wrong, and the report."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_zeus.model.trial import State
from benchmarks.learn import job_with, log_of
from benchmarks.quality.drifts import SHIFT, Drift
from benchmarks.quality.regime_set import BY_NAME, REGIMES, given_up_times, noisy
from benchmarks.quality.regimes import found_silent, markdown, report_of, run_all, watched
from benchmarks.report import mean_and_worst, mean_of, ratio_of
from benchmarks.simulation.environment import Log
from benchmarks.simulation.scenario import Scenario
from tests.unit.benchmarks.simulation.tiny import tiny
from tests.unit.benchmarks.test_drifts import ONE, TWO, WHOLE, pair_of

KG = "knowledge_gradient"


def job(name: str, scenario: Scenario = WHOLE, seed: int = 0) -> Drift:
    found = BY_NAME[name].job(scenario, seed)
    assert found is not None
    return found


# ---------------------------------------------------------------------- the regimes
def test_every_regime_has_room_for_what_befalls_it() -> None:
    assert len(BY_NAME) == len(REGIMES)
    for regime in REGIMES:
        drift = regime.job(Scenario(TWO), 0)
        if drift is None:
            continue
        truths = [drift.before, *drift.shifts.values()]
        assert len({truth.pair.max_epochs for truth in truths}) == 1, regime.name
        assert all(0 <= t < drift.recurrences for t in drift.shifts), regime.name
        assert {truth.pair.batch_sizes for truth in truths} == {TWO.batch_sizes}, regime.name


def test_a_share_of_slices_that_nobody_reaches_hangs_on_the_seed() -> None:
    def nobody(drift: Drift) -> set[int]:
        return {t for t, truth in drift.shifts.items() if not math.isfinite(truth.best_cost)}

    name = "10 % of slices that nobody reaches"
    hopeless = [nobody(job(name, seed=seed)) for seed in range(50)]
    assert nobody(job(name, seed=3)) == hopeless[3] != hopeless[4]
    assert sum(map(len, hopeless)) / 5000 == pytest.approx(0.1, abs=0.02)


def test_levels_come_and_go() -> None:
    at_16 = {
        name: [truth.pair.epochs[16] for _, truth in sorted(job(name).shifts.items())]
        for name in ("level x2, on and off every ten", "weekly season x3")
    }
    low = (4, 4, 5)
    twice = (8, 8, 10)
    thrice = (12, 12, 15)
    assert at_16["level x2, on and off every ten"][:30] == [low] * 10 + [twice] * 10 + [low] * 10
    assert at_16["weekly season x3"][:14] == ([low] * 6 + [thrice]) * 2


def test_a_slow_tilt_grows_and_spares_the_default() -> None:
    drift = job("slow tilt towards large", Scenario(TWO))
    steps = [drift.shifts[t].pair.epochs for t in sorted(drift.shifts)]
    assert steps[0] == TWO.epochs
    assert [epochs[64] for epochs in steps] == [TWO.epochs[64]] * 10
    smallest = [epochs[8][0] for epochs in steps]
    assert smallest == sorted(smallest)
    assert smallest[-1] > 1.5 * smallest[0]


def test_one_run_in_twenty_takes_three_times_as_long() -> None:
    runs = job("5 % of runs take three times as long").before.pair.epochs
    assert len(runs[16]) == 20 * len(ONE.epochs[16])
    assert sorted(runs[16])[-3:] == [12, 12, 15]
    assert sorted(runs[16])[:-3] == sorted(ONE.epochs[16] * 19)


# ---------------------------------------------------------------------- replays
def test_a_change_that_is_seen_is_counted() -> None:
    many = pair_of("many", dict.fromkeys((32, 64, 128), (40.0, 41.0, 42.0)), most=50)
    tilted = job("tilt, large lost", Scenario(many))
    assert watched(Drift(Scenario(many), 40), KG, 0)[1] == 0
    assert watched(tilted, KG, 0)[1] == 1


def test_what_the_log_holds_may_be_wrong_while_costs_are_true() -> None:
    drift = Drift(WHOLE, 30)
    true, tenfold, noise = (
        watched(drift, KG, 0, m)[0] for m in (given_up_times(1), given_up_times(10), noisy(1.0))
    )
    assert true.cost == watched(drift, KG, 0)[0].cost
    assert noise.batch_size != true.batch_size, "an error of the EpochCost decides otherwise"
    for log in (true, tenfold, noise):
        for run in (run for runs in log.runs for run in runs):
            assert run.epoch_cost == WHOLE.arms[run.batch_size].epoch.cost


def test_only_runs_that_were_given_up_are_misread() -> None:
    rng = random.Random(0)
    misread = given_up_times(1.2)
    (trial,) = log_of(job_with(3), 1)
    factors = {state: misread(replace(trial, state=state), rng) for state in State}
    assert factors == {**dict.fromkeys(State, 1.0), State.GIVEN_UP: 1.2}


def test_what_looking_for_a_silent_improvement_cost_by_hand() -> None:
    drift = Drift(WHOLE, 60, {SHIFT: WHOLE}, silent=16)
    log = Log()
    ran = watched(Drift(WHOLE, 60), KG, 0)[0].runs[0][0]
    cost = {b: WHOLE.run_cost(b) for b in (16, 64, 128)}

    def add(*sizes: int) -> None:
        runs = [ran._replace(batch_size=b, expected_cost=cost[b], reached=True) for b in sizes]
        log.add(WHOLE, runs)

    for sizes in [(64,)] * SHIFT + [(64,), (128, 64), (64,), (16,), (64,)]:
        add(*sizes)
    assert found_silent(log, drift) == (4, pytest.approx(cost[128] / cost[64]))
    assert found_silent(log, replace(drift, silent=256))[0] is None


# ---------------------------------------------------------------------- the report
def test_mean_and_worst_by_hand() -> None:
    found = mean_and_worst({"a": ratio_of([1.0], [2.0]), "b": ratio_of([3.0], [2.0])}, mean_of)
    assert found == {"mean": [1, 1, 1], "worst_case": "b", "worst": [1.5, 1.5, 1.5]}


@pytest.mark.nightly
def test_the_report_has_every_regime(tmp_path: Path) -> None:
    report = report_of(run_all([tiny(tmp_path)], [0], 1))
    befall = {regime.name for regime in REGIMES} - {"target raised", "target lowered"}
    assert set(report["regimes"]) == befall, (
        "16, the smallest size, is best: no target rules out larger ones alone"
    )
    assert report["runs_without_model"] == 0
    assert report["attempts"] == 2
    for regime in REGIMES:
        of = report["regimes"].get(regime.name)
        if of:
            assert set(of) == {
                "pairs",
                "vs_default",
                "vs_paper",
                *([regime.special] if regime.special else []),
            }
            assert of["vs_default"]["worst_case"] == "bert_qa/toy"
            assert of["vs_default"]["mean"][0] > 0
    alarms = report["regimes"]["nothing changes"]["false_alarms"]
    assert alarms["worst_case"] == "bert_qa/toy"
    assert 0 <= alarms["mean"] <= 1, "of a hundred recurrences"
    rows = [line for line in markdown(report) if line.startswith("| ")]
    assert len(rows) == 1 + len(befall)
    assert len({row.count("|") for row in rows}) == 1
