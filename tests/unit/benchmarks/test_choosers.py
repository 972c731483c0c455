"""What people do without a policy, on tables whose truth is known."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.quality.choosers import PAUSE, HillClimbing, always_default, climb
from benchmarks.quality.drifts import changed, with_default
from benchmarks.replays import spent_by
from benchmarks.simulation.scenario import Scenario
from tests.unit.benchmarks.simulation.tiny import tiny

SIZES = (16, 32, 64, 128)


def climbed(costs: dict[int, float], recurrences: int, start: int = 16) -> list[list[int]]:
    """The sizes that each recurrence trains; a size without a finite cost misses its target."""
    hill = HillClimbing(SIZES, start)
    log = []
    for _ in range(recurrences):
        trained: list[int] = []

        def train(b: int, trained: list[int] = trained) -> tuple[bool, float]:
            trained.append(b)
            return math.isfinite(costs[b]), min(costs[b], 20.0)

        hill.recurrence(train)
        log.append(trained)
    return log


def test_hill_climbing_doubles_while_a_run_gets_cheaper() -> None:
    found = climbed({16: 10.0, 32: 5.0, 64: 3.0, 128: 4.0}, 8)
    assert found == [[16], [32], [32], [64], [64], [128], [64], [32]]


def test_a_miss_trains_the_present_size_in_the_same_recurrence() -> None:
    found = climbed({16: 10.0, 32: math.inf, 64: 1.0, 128: 1.0}, 4 + PAUSE)
    assert found[:4] == [[16], [32, 16], [16], [32, 16]], "there is nothing below 16"
    assert found[4:] == [[16]] * PAUSE, "then it rests"
    assert climbed({16: 10.0, 32: math.inf, 64: 1.0, 128: 1.0}, 20).count([32, 16]) == 3


def test_always_the_default_is_an_expected_cost(tmp_path: Path) -> None:
    scenario = tiny(tmp_path)
    default = scenario.pair.default_batch_size
    assert scenario.run_cost(16) == 2 * 2000
    assert scenario.run_cost(64) == pytest.approx(1180 * (3 + scenario.pair.max_epochs) / 2), (
        "a miss pays to the end"
    )
    none = changed(scenario, epochs=dict.fromkeys(scenario.pair.batch_sizes, (math.inf,)))
    totals = {spent_by(always_default(scenario, 5, seed, {3: none})) for seed in range(3)}
    assert totals == {3 * scenario.run_cost(default) + 2 * none.run_cost(default)}


def test_climbing_follows_a_shift_of_the_data(tmp_path: Path) -> None:
    scenario = with_default(tiny(tmp_path), 16)
    dear = changed(scenario, epochs={16: (6.0,), 32: (1.0,), 64: (math.inf,)})
    log = climb(scenario, 30, 0, {10: dear})
    assert set(log.batch_size[:10]) == {16, 32}, "32 is tried, and dearer"
    assert log.batch_size[-1] == 32
    assert log.runs_below_target == 0


def test_a_scenario_stays_as_it_was(tmp_path: Path) -> None:
    scenario = tiny(tmp_path)
    before = Scenario(scenario.pair)
    climb(scenario, 3, 0, {})
    assert scenario == before
