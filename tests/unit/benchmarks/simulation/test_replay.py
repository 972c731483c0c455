"""Replays: regret by hand, every recurrence ends with a model, and what the policy is told."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.job_checks import POLICIES
from airflow_provider_zeus.model.trial import Decision, Phase, PlannedAttempt, State, Trial
from airflow_provider_zeus.optimizer.belief import Belief
from benchmarks.simulation import driver
from benchmarks.simulation.driver import default, grid_search, replay
from benchmarks.simulation.environment import Environment, Log
from benchmarks.simulation.scenario import Scenario
from tests.strategies import REPRODUCIBLE
from tests.unit.benchmarks.simulation.tiny import scenarios, tiny


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    return tiny(tmp_path)


def test_regret_by_hand(scenario: Scenario) -> None:
    """C* is 4000 J; a run of 32 costs 4680 J, one of 64 that misses 6 x 1180 J."""
    env = Environment(scenario, 0)
    log = Log()
    env.profiled |= {16, 32, 64}
    log.add(scenario, [env.train(16)])
    log.add(scenario, [env.train(32)])
    log.add(scenario, [env.train(32, bound_epochs=1), env.train(16)])
    log.add(scenario, [env.train(32, bound_epochs=1)])
    steps = [0, 680 / 4000, 1560 / 4000, (1560 + 4000 - 4000) / 4000]
    assert log.regret() == pytest.approx([sum(steps[: i + 1]) for i in range(4)])
    assert log.expected_regret() == pytest.approx(log.regret()), "nothing here is left to chance"
    assert log.energy_j == [4000, 3 * 1520, 1520 + 4000, 1520]
    assert log.time_s == [20, 24, 8 + 20, 8], (
        "what is charged for a miss is a cost, and no energy or time"
    )
    assert (log.attempts, log.batch_size, log.runs_below_target) == (
        [1, 1, 2, 1],
        [16, 32, 16, 32],
        1,
    )


def test_expected_regret_is_the_mean_of_regret(scenario: Scenario) -> None:
    missing = Environment(scenario, 0)
    missing.profiled.add(64)
    log = Log()
    for _ in range(2000):
        log.add(scenario, [missing.train(64)])
    assert log.runs_below_target == pytest.approx(1000, abs=100)
    assert log.expected_cost[0] == (3 + 6) / 2 * 1180 + 4000 / 2
    log.add(scenario, [missing.train(64)], final=False)
    assert log.expected_cost[-1] == (3 + 6) / 2 * 1180, (
        "after a miss another attempt would have followed"
    )
    assert log.regret()[1999] == pytest.approx(log.expected_regret()[1999], rel=0.05)


def test_default_runs_at_full_power_and_never_profiles(scenario: Scenario) -> None:
    log = default(scenario, 3)
    assert log.cost == [4680] * 3
    assert log.limit_w == [200] * 3
    assert log.regret()[-1] == pytest.approx(3 * 680 / 4000)


def test_grid_search_tries_each_configuration_once_and_drops_what_missed(
    scenario: Scenario,
) -> None:
    scenario = Scenario(replace(scenario.pair, epochs={**scenario.pair.epochs, 64: (math.inf,)}))
    log = grid_search(scenario, 12)
    tried = [(r.batch_size, r.limit_w) for runs in log.runs for r in runs]
    assert tried[:5] == [(16, 200), (16, 100), (32, 200), (32, 100), (64, 200)]
    assert tried[5:] == [(16, 200)] * 8, (
        "64 missed: not tried at its other limit; the cheapest ends the recurrence"
    )
    assert log.attempts == [1] * 4 + [2] + [1] * 7


@pytest.mark.parametrize("policy", POLICIES)
@REPRODUCIBLE
@given(scenario=scenarios(), seed=st.integers(0, 2))
def test_every_recurrence_ends_with_one_kept_model(
    policy: str, scenario: Scenario, seed: int
) -> None:
    log = replay(scenario, scenario.job(policy=policy), 12, seed)
    assert len(log) == 12
    assert log.runs_without_model == 0
    assert max(log.attempts) <= 2
    for runs in log.runs:
        trained = [r for r in runs if r.reached]
        assert len(trained) <= 1, "no training after the one that reached the target"
    assert log.runs_below_target == sum(not any(r.reached for r in runs) for runs in log.runs)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_finds_the_optimum_of_an_easy_job(policy: str, scenario: Scenario) -> None:
    log = replay(scenario, scenario.job(policy=policy), 40, 3)
    assert log.batch_size[-10:].count(16) >= 7
    again = replay(scenario, scenario.job(policy=policy), 40, 3)
    assert again.cost == log.cost, "a seed gives one replay"


class Told:
    """Takes down every trial that the policy is taught."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []

    def learn(self, belief: Belief, trial: Trial) -> Belief:
        self.trials.append(trial)
        return driver.learn(belief, trial)


def test_profiling_is_kept_apart_from_what_is_learnt(scenario: Scenario) -> None:
    told = Told()
    log = replay(scenario, scenario.job(policy="zeus"), 8, 1, learn=told.learn)
    assert [t.number for t in told.trials] == list(range(1, len(told.trials) + 1))
    belief = reduce(driver.learn, list(told.trials), driver.prior(scenario.job(policy="zeus")))
    for (b, _), entries in belief.rates.items():
        for _, rates in entries:
            assert rates.epoch_cost(driver.SLICE, scenario.weights) == pytest.approx(
                scenario.arms[b].epoch.cost
            )
    first = told.trials[0].observation
    assert (first.excess_s, first.time_s) == (2, 3 * 8 + 2), "of 32: (12 + 8) / 2 - 8 seconds"
    assert log.time_s[0] == 3 * 8 + 2, "and the user pays it"


@pytest.mark.parametrize(
    ("bound_epochs", "needed", "state"),
    [
        (None, 3.0, State.CONVERGED),
        (2.0, 3.0, State.GIVEN_UP),
        (None, math.inf, State.EXHAUSTED),
        (10.0, math.inf, State.EXHAUSTED),  # not the bound, max_epochs ended it
    ],
)
def test_how_a_run_ended_is_told(
    scenario: Scenario, bound_epochs: float | None, needed: float, state: State
) -> None:
    scenario = Scenario(replace(scenario.pair, epochs={**scenario.pair.epochs, 64: (needed,)}))
    planned = PlannedAttempt(
        batch_size=64, phase=Phase.EXPLORE, why="Because.", bound_epochs=bound_epochs
    )
    decision = Decision(attempts=(planned,), seed=0, policy="zeus")
    writer = driver.Writer(scenario.job(job_id="mine"), scenario)
    trial = writer.close(
        writer.open(decision, planned, 1), Environment(scenario, 0).attempt(planned)
    )
    assert (trial.state, trial.number, trial.job_id) == (state, 1, "mine")


def test_after_a_shift_another_truth_holds(scenario: Scenario) -> None:
    worse = Scenario(replace(scenario.pair, epochs={16: (5.0,), 32: (3.0,), 64: (6.0,)}))
    log = replay(scenario, scenario.job(policy="zeus"), 20, 0, shifts={10: worse})
    assert log.best_cost[9:11] == [4000, 4680]
    assert {
        r.epochs for runs in log.runs[10:] for r in runs if r.batch_size == 16 and r.reached
    } <= {5.0}
