"""What a replayed run is charged: bounds, profiling, and the oracle that regret is measured by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.trial import Phase, PlannedAttempt
from benchmarks.simulation.environment import Environment
from benchmarks.simulation.scenario import Epoch, Scenario
from tests.strategies import REPRODUCIBLE
from tests.unit.benchmarks.simulation.tiny import scenarios, tiny


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    return tiny(tmp_path)


def test_the_oracle_by_hand(scenario: Scenario) -> None:
    assert {b: (a.limit_w, a.epoch.cost) for b, a in scenario.arms.items()} == {
        16: (200, 2000),
        32: (200, 1560),
        64: (100, 1180),
    }
    assert [scenario.expected_cost(b) for b in scenario.arms] == [4000, 4680, 10620]
    assert (scenario.best, scenario.best_cost) == (16, 4000)
    run = scenario.default_run
    assert (run.energy_j, run.time_s, run.cost) == (3 * 1520, 3 * 8, 4680)


def test_the_first_run_of_a_batch_size_pays_an_epoch_at_every_limit(scenario: Scenario) -> None:
    env = Environment(scenario, 0)
    first = env.train(16)
    second = env.train(16)
    mean_j = (2000 + 2000) / 2
    mean_s = (20 + 10) / 2
    assert (first.energy_j, first.time_s) == (mean_j + 2000, mean_s + 10)
    assert (second.energy_j, second.time_s, second.cost) == (4000, 20, 4000)
    assert (first.excess.energy_j, first.excess.time_s) == (0, 5)
    assert first.cost - first.excess.cost == second.cost
    assert second.excess.cost == 0


def attempt(b: int, **bounds: float) -> PlannedAttempt:
    return PlannedAttempt(batch_size=b, phase=Phase.EXPLORE, why="Because.", **bounds)


def test_bounds_as_training_keeps_them(scenario: Scenario) -> None:
    """An epoch is begun only if it fits; below one epoch the bound is passed within it;
    what ran is charged.
    """
    env = Environment(scenario, 0)
    env.train(32)
    assert env.attempt(attempt(32, bound_epochs=2.5)).epochs == 2
    assert env.attempt(attempt(32, bound_cost=2 * 1560.0)).epochs == 2
    assert not env.attempt(attempt(32, bound_cost=2 * 1560.0)).reached
    assert env.attempt(attempt(32, bound_cost=3 * 1560.0)).reached
    cut = env.attempt(attempt(32, bound_cost=390.0))
    assert (cut.epochs, cut.cost, cut.time_s) == (0.25, 390, 2)
    known = env.attempt(attempt(32, max_epoch_cost=1500.0))
    assert (known.time_s, known.reached) == (1, False), (
        "EpochCost is known: given up at the first look"
    )
    assert env.attempt(attempt(32, max_epoch_cost=1600.0)).reached
    assert env.attempt(attempt(32, max_epoch_cost=1560.0)).reached, (
        "only what is above it is too dear"
    )
    assert env.attempt(attempt(32, bound_epochs=1.5)).epochs == 1
    assert env.attempt(attempt(32, bound_epochs=1 - 1e-12)).epochs == 1, "but for the last digits"
    new = env.attempt(attempt(16, max_epoch_cost=1500.0))
    assert (new.epochs, new.time_s) == (1, 15), "given up when the profiling epoch is over"
    new = env.attempt(attempt(64, bound_cost=295.0))
    assert new.epochs == 0.25
    assert new.cost - new.excess.cost == pytest.approx(295)
    assert new.time_s == 7.5 / 4, "a quarter of the profiling epoch"


def test_upstream_looks_for_free(scenario: Scenario) -> None:
    env = Environment(scenario, 0, free_looks=True)
    run = env.train(16, bound_cost=1999.0)
    assert (run.epochs, run.cost, run.reached) == (0, 0, False)
    assert env.train(16).excess.cost == 0, "and it is profiled since then"
    assert env.train(16, bound_cost=2000.0).epochs == 1, "an epoch that just fits is trained"


def test_at_a_given_limit_nothing_is_profiled_and_the_bound_holds(scenario: Scenario) -> None:
    env = Environment(scenario, 0)
    point = scenario.pair.points[32][0]
    run = env.train_at(32, point)
    assert (run.limit_w, run.epochs, run.energy_j, run.time_s) == (100, 3, 3 * 1080, 36)
    assert run.excess == Epoch(0, 0, 0)
    assert env.train_at(32, point, bound_cost=2.9 * run.epoch_cost).epochs == 2
    assert env.train(32).excess.cost > 0, "still unprofiled"


def test_the_expected_cost_holds_the_profiling_that_is_paid(scenario: Scenario) -> None:
    """Nothing is left to chance: expected is what happens."""
    env = Environment(scenario, 0)
    for run in (env.train(16), env.train(16), env.train(32, bound_epochs=1), env.train(32)):
        assert run.expected_cost == pytest.approx(run.cost)
        assert run.chance == run.reached


def test_the_kth_run_of_a_batch_size_draws_the_same_whatever_runs_between(
    scenario: Scenario,
) -> None:
    """Common random numbers: half of the runs of 64 miss."""
    one, two, other = (Environment(scenario, seed) for seed in (7, 7, 8))
    alone = [one.train(64).reached for _ in range(30)]
    between = []
    for b in (16, 32) * 15:
        two.train(b, bound_epochs=1)
        between.append(two.train(64).reached)
    assert between == alone
    assert {True, False} == set(alone)
    assert [other.train(64).reached for _ in range(30)] != alone
    alike = Environment(
        Scenario(replace(scenario.pair, epochs=dict.fromkeys((16, 32, 64), (1.0, 2.0)))), 7
    )
    assert [alike.train(16).epochs for _ in range(30)] != [
        alike.train(32).epochs for _ in range(30)
    ]


@REPRODUCIBLE
@given(scenarios(), st.integers(0, 3), st.floats(0.01, 30.0), st.booleans())
def test_charges_agree_with_each_other(
    scenario: Scenario, seed: int, bound: float, new: bool
) -> None:
    for b, arm in scenario.arms.items():
        env = Environment(scenario, seed)
        if not new:
            env.profiled.add(b)
        run = env.train(b, bound_epochs=bound)
        assert run.epochs <= min(bound, scenario.pair.max_epochs) + 1e-9
        assert run.cost == pytest.approx(scenario.weights.cost(run.energy_j, run.time_s))
        assert run.cost - run.excess.cost == pytest.approx(run.epochs * arm.epoch.cost)
        assert 0 <= run.chance <= 1
        if run.reached:
            assert run.epochs in arm.epochs
            assert run.chance > 0
        if not new:
            assert run.excess.cost == 0
