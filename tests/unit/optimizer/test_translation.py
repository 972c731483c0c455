"""Another GPU (section 7): a history on one decides where the first run on the other begins. On the paper's traces."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from airflow_provider_zeus.optimizer.arms import epoch_costs, translated
from airflow_provider_zeus.optimizer.believed import ranking
from airflow_provider_zeus.optimizer.cost import Weights
from airflow_provider_zeus.optimizer.policy import Belief, choose, decision_seed, learn, prior
from airflow_provider_zeus.optimizer.trial import Attempt, Decision, State
from airflow_provider_zeus.simulation.environment import Environment, Run
from airflow_provider_zeus.simulation.scenario import Scenario
from airflow_provider_zeus.simulation.traces import Traces
from tests.strategies import V100, make_trial
from tests.unit.optimizer.world import World, job_of

WORKLOADS = ("bert_qa", "bert_sa", "deepspeech2", "neumf", "resnet50", "shufflenet")
RECURRENCES = 60
POLICIES = ("knowledge_gradient", "zeus")


@cache
def scenarios(workload: str) -> tuple[Scenario, Scenario]:
    """The workload on the V100 and on the A40, over the batch sizes that both measured."""
    if "ZEUS_TRACES" not in os.environ:
        pytest.skip("the paper's traces are not here: set ZEUS_TRACES to their folder")
    traces = Traces(Path(os.environ["ZEUS_TRACES"]))
    pairs = [traces.pair(workload, gpu) for gpu in ("v100", "a40")]
    both = [b for b in pairs[0].points if b in pairs[1].points]
    default = max((b for b in both if b <= pairs[0].default_batch_size), default=both[0])
    v100, a40 = (
        Scenario(
            replace(
                pair,
                default_batch_size=default,
                points={b: pair.points[b] for b in both},
                epochs={b: pair.epochs[b] for b in both},
            )
        )
        for pair in pairs
    )
    return v100, a40


class History:
    """A job that recurs on whatever GPU ``scenario`` names."""

    def __init__(self, scenario: Scenario, policy: str, seed: int) -> None:
        self.scenario, self.seed, self.number = scenario, seed, 0
        self.job = scenario.job(policy=policy)
        self.environment = Environment(scenario, seed)
        self.belief: Belief = prior(self.job)

    def decide(self, scenario: Scenario | None = None) -> Decision:
        device = (scenario or self.scenario).device
        return choose(self.job, self.belief, device=device, seed=decision_seed("job", self.number + 1, self.seed))

    def recur(self) -> None:
        decision = self.decide()
        for attempt in decision.attempts:
            run = self.environment.attempt(attempt)
            self._learn(attempt, run)
            if run.reached:
                break

    def _learn(self, attempt: Attempt, run: Run) -> None:
        self.number += 1
        stopped = State.GIVEN_UP if attempt.bounded else State.EXHAUSTED
        trial = make_trial(
            self.number,
            attempt.batch_size,
            State.CONVERGED if run.reached else stopped,
            job=self.job,
            phase=attempt.phase,
            round_=attempt.round,
            epochs=run.epochs,
            samples=round(run.epochs * 1_000_000),
            samples_per_epoch=1_000_000.0,
            energy_j=run.energy_j,
            time_s=run.time_s,
            excess_j=run.excess.energy_j,
            excess_s=run.excess.time_s,
            power_limit_w=run.limit_w,
            device_model=self.scenario.pair.gpu,
            device_count=1,
            max_power_w=self.scenario.pair.max_power_w,
            energy_source="simulated",
        )
        self.belief = learn(self.belief, trial)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_first_run_on_another_gpu_is_within_10_percent_of_the_best_known(policy: str, workload: str) -> None:
    v100, a40 = scenarios(workload)
    for seed in range(5):
        history = History(v100, policy, seed)
        for _ in range(RECURRENCES):
            history.recur()
        first = history.decide(a40).attempts[0].batch_size
        known = {b: a40.expected_cost(b) for _, b, _ in history.belief.converged}
        assert first in known
        assert known[first] <= 1.1 * min(known.values()), f"seed {seed}: {first} of {known}"


@pytest.mark.parametrize("workload", ["deepspeech2", "neumf", "shufflenet"])
@pytest.mark.parametrize("policy", POLICIES)
def test_that_beats_the_default_where_the_default_is_a_bad_one(policy: str, workload: str) -> None:
    v100, a40 = scenarios(workload)
    history = History(v100, policy, seed=0)
    for _ in range(RECURRENCES):
        history.recur()
    first = history.decide(a40).attempts[0].batch_size
    assert a40.expected_cost(first) < 0.5 * a40.expected_cost(a40.pair.default_batch_size)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("policy", POLICIES)
def test_with_every_epoch_cost_profiled_here_the_ranking_follows_what_this_gpu_draws(
    policy: str, workload: str
) -> None:
    v100, a40 = scenarios(workload)
    history = History(v100, policy, seed=0)
    for _ in range(RECURRENCES):
        history.recur()
    here = {b: arm.epoch.cost for b, arm in a40.arms.items()}
    ranked = ranking(history.belief, here, {})
    assert {one.batch_size for one in ranked} == {b for _, b, _ in history.belief.converged}
    assert all(one.measured for one in ranked)
    costs = [one.cost.value or 0.0 for one in ranked]
    assert costs == sorted(costs)
    for one in ranked:
        assert one.cost.value == pytest.approx((one.epochs.value or 0.0) * here[one.batch_size])
    truth = {one.batch_size: a40.expected_cost(one.batch_size) for one in ranked}
    assert truth[ranked[0].batch_size] <= 1.1 * min(truth.values())


def test_a_curve_is_shifted_to_the_level_measured_here() -> None:
    assert translated({}, {16: 4.0, 32: 2.0}) == {16: 4.0, 32: 2.0}
    there = {16: 4.0, 32: 2.0, 64: 1.0}
    assert translated({32: 6.0}, there) == pytest.approx({16: 12.0, 32: 6.0, 64: 3.0})
    assert translated({32: 2.0, 64: 4.0}, there) == pytest.approx({16: 8.0, 32: 2.0, 64: 4.0})  # x1 and x4: x2
    assert translated({128: 5.0}, there) == {**there, 128: 5.0}


@pytest.mark.parametrize("policy", POLICIES)
def test_one_measured_size_moves_the_whole_ranking(policy: str) -> None:
    """64 was the cheapest on the V100; here it is measured and dear, so 32 comes first."""
    world = World(job_of(16, 32, 64, default=32, policy=policy), {16: 20.0, 32: 10.0, 64: 9.0})
    for _ in range(2):
        for b in (16, 32, 64):
            world.add(b)
    there = epoch_costs(world.belief, V100, (), Weights.of(world.job, V100))
    assert [one.batch_size for one in ranking(world.belief, {}, there)] == [64, 32, 16]
    ranked = ranking(world.belief, {64: 3_500.0, 32: 2_250.0}, there)
    assert (ranked[0].batch_size, ranked[0].measured) == (32, True)
    assert [one.measured for one in ranked if one.batch_size == 16] == [False]


@pytest.mark.parametrize("policy", POLICIES)
def test_where_no_epoch_cost_is_known_nothing_is_ranked(policy: str) -> None:
    world = World(job_of(16, 32, default=32, policy=policy), {16: 30.0, 32: 10.0})
    world.add(32)
    assert ranking(world.belief, {}, {}) == []
