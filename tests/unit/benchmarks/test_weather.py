"""Trainings of slices against totals reckoned by hand, and the weather table against its example.

At eta 0.5 and MAXPOWER 250 W, an epoch of 100 samples at batch size 10:

=====  ====  =====  =========
limit  time  power  cost
=====  ====  =====  =========
100 W  12 s   80 W  1980 J  (best)
200 W  10 s  150 W  2000 J
=====  ====  =====  =========
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_zeus import ZeusJob
from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.trial import Phase, PlannedAttempt
from airflow_provider_zeus.power.factory import open_device
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun
from benchmarks import weather
from benchmarks.quality import slice_tables as wt
from benchmarks.quality import slice_trainings
from benchmarks.quality.slice_tables import Week
from benchmarks.quality.slice_trainings import (
    Profile,
    Trainings,
    always,
    best_limit,
    full_power,
    replay,
    truths_of,
)
from benchmarks.simulation.environment import Run
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import PowerMeasurement

WEEKS = [
    Week("A", 100, {10: (2.0,), 20: (math.inf,)}),
    Week("B", 200, {10: (3.0,), 20: (math.inf,)}),
]


@pytest.fixture(autouse=True)
def _short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice here has ten steps, as many as one window has."""
    monkeypatch.setattr(slice_trainings, "WINDOW_STEPS", 1)


def points(batch_size: int, samples: int) -> tuple[PowerMeasurement, ...]:
    """Twice the batch size takes two thirds of the time."""
    factor = samples / 100 * (1.0 if batch_size == 10 else 2 / 3)
    return PowerMeasurement(100.0, 12.0 * factor, 80.0), PowerMeasurement(
        200.0, 10.0 * factor, 150.0
    )


def job(*sizes: int, policy: str = "knowledge_gradient") -> ZeusJob:
    return ZeusJob(
        batch_sizes=sizes,
        default_batch_size=10,
        target="rmse <= runtime",
        max_epochs=60,
        window=26,
        profile_s=2.0,
        policy=policy,
    )


def fixed(
    weeks: Sequence[Week], at: Callable[[Scenario], PowerMeasurement], seed: int = 0
) -> list[Run]:
    return always(weeks, truths_of(weeks, job(10), points), job(10), seed, at)


def runs_of(weeks: Sequence[Week], of: ZeusJob, seed: int = 0) -> list[tuple[Run, ...]]:
    return replay(weeks, truths_of(weeks, of, points), of, seed).runs


def cost(runs: Sequence[Run]) -> float:
    return math.fsum(run.cost for run in runs)


def test_the_baselines_cost_what_the_hand_says() -> None:
    full, best = (fixed(WEEKS, at) for at in (full_power, best_limit))
    assert [run.cost for run in full] == pytest.approx([2 * 2000, 3 * 4000])
    assert [run.cost for run in best] == pytest.approx([2 * 1980, 3 * 3960])
    assert [run.energy_j for run in full] == pytest.approx([3000, 9000])
    assert [run.time_s for run in best] == pytest.approx([24, 72])


@pytest.mark.parametrize("policy", ["knowledge_gradient", "zeus"])
def test_a_single_batch_size_costs_its_epochs_and_its_profiling(policy: str) -> None:
    """3 s at 200 W (0.3 epochs, 450 J), 3 s at 100 W (0.25 epochs, 240 J):
    162 J more and 0.6 s less than at best.
    """
    profiling = 0.5 * 162 - 125 * 0.6
    costs = [cost(runs) for runs in runs_of(WEEKS, job(10, policy=policy))]
    assert costs == pytest.approx([2 * 1980 + profiling, 3 * 3960])


def test_profiling_goes_on_where_the_run_before_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    at = points(10, 100)
    weights = Weights(0.5, 200.0)
    profile = Profile(at, 10, job(10), weights)
    assert profile.epochs_left(at) == pytest.approx(3 / 10 + 3 / 12)
    assert profile.walk(at, 0.2) == pytest.approx((0.2, 300, 2))  # 1 s to settle, 1 s measured
    assert {w: seen.time_s for w, seen in profile.seen.items()} == pytest.approx({200.0: 1.0})
    assert profile.walk(at, 60)[2] == pytest.approx(2 + 3)
    assert profile.walk(at, 60) == (0.0, 0.0, 0.0)
    monkeypatch.setattr(slice_trainings, "WINDOW_STEPS", 4)
    slow = Profile(at, 10, job(10), weights)
    assert slow.walk(at, 60)[2] == pytest.approx(1 + 4.0 + 1 + 4.8)


@pytest.mark.parametrize("policy", ["knowledge_gradient", "zeus"])
def test_what_is_given_up_is_charged_and_every_week_ends_with_a_model(policy: str) -> None:
    weeks = WEEKS * 10
    both = job(10, 20, policy=policy)
    log = runs_of(weeks, both)
    tries = [run for runs in log for run in runs if run.batch_size == 20]
    assert tries, "20 looks cheaper per epoch: it must be tried"
    assert all(runs[-1].reached and runs[-1].batch_size == 10 for runs in log)
    assert sum(len(runs) - 1 for runs in log) == len(tries)
    paid = math.fsum(cost(runs) for runs in log)
    excess = math.fsum(run.excess.cost for runs in log for run in runs if run.reached)
    assert paid == pytest.approx(
        10 * (2 * 1980 + 3 * 3960) + excess + math.fsum(run.cost for run in tries)
    )


@pytest.mark.slow
def test_a_replayed_run_is_charged_what_the_same_real_run_was(tmp_path: Path) -> None:
    """The example's own training on its simulated GPU, profiling and all; within 5 %,
    as luck has it.
    """
    example = weather.example_job()
    planned = PlannedAttempt(batch_size=256, phase=Phase.EXPLORE, why="first")
    from weather import forecast

    plan = Plan(
        job_id="j",
        ti_id="ti",
        number=1,
        first_attempt=1,
        spec=example.to_dict(),
        attempts=(planned,),
        seed=3,
        state_dir=str(tmp_path),
    )
    lines: list[ResultLine] = []
    device = open_device(example.device, state_dir=tmp_path)
    ZeusRun.from_plan(plan, device=device, sink=lines.append).train(forecast.retrain, "2013-W30")
    seen = next(line.observation for line in lines if line.kind == "end")
    assert seen is not None
    week = Week("2013-W30", round(seen.samples_per_epoch or 0), {256: (seen.epochs or 0.0,)})
    mine = replace(example, batch_sizes=(256,), default_batch_size=256)
    truth = truths_of([week], mine)[0]
    run = Trainings([week], [truth], mine, 0).attempt(planned)
    assert run.time_s == pytest.approx(seen.time_s, rel=0.05)
    assert run.energy_j == pytest.approx(seen.energy_j, rel=0.05)
    costs = {p.limit_w: truth.weights.cost(p.energy_j, p.time_s) for p in truth.pair.points[256]}
    assert costs[seen.power_limit_w] == pytest.approx(costs[run.limit_w], rel=0.01), (
        "or one that is as good"
    )


def test_luck_is_the_slices_own_whoever_trains_it() -> None:
    weeks = [Week(f"W{i}", 100, {10: (2.0, 3.0, 5.0)}) for i in range(30)]
    ours = [runs[-1].epochs for runs in runs_of(weeks, job(10), 4)]
    assert ours == [run.epochs for run in fixed(weeks, full_power, 4)]
    assert set(ours) == {2.0, 3.0, 5.0}
    assert ours != [run.epochs for run in fixed(weeks, full_power, 5)]


def test_the_table_holds_every_cell_of_the_example() -> None:
    rows = wt.read(wt.TABLE)
    example = weather.example_job()
    assert sorted(row.cell for row in rows) == sorted(weather.all_cells())
    assert (tuple(example.batch_sizes), example.max_epochs, example.eta) == (
        wt.BATCH_SIZES,
        wt.MAX_EPOCHS,
        wt.ETA,
    )
    assert example.device == f"simulated:{wt.GPU}/{wt.LOAD}"
    for row in rows:
        again = wt.row_of(
            row.cell,
            reached=bool(row.reached),
            epochs=row.epochs,
            samples_per_epoch=row.samples_per_epoch,
        )
        assert row == again
        assert row.reached or row.epochs == wt.MAX_EPOCHS


@pytest.mark.nightly
def test_measuring_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    cells = [("2013-W13", 512, 0), ("2013-W13", 512, 1)]
    done = wt.row_of(cells[0], reached=True, epochs=7, samples_per_epoch=4858)
    wt.write(path, [done], ["kept"])
    assert weather.measure(path, 1, cells) == 1
    rows = wt.read(path)
    assert rows[0] == done
    assert (rows[1].cell, rows[1].samples_per_epoch, rows[1].reached) == (cells[1], 4858, 1)
    assert weather.measure(path, 1, cells) == 0


def test_a_broken_line_of_the_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    wt.write(path, [], [])
    path.write_text(path.read_text() + "2013-W13,16,x,1,6,4858,100,11.7,529.3\n")
    with pytest.raises(ValueError, match="'seed': 'x'"):
        wt.read(path)
