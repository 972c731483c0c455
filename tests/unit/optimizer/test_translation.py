"""Another GPU (section 7): the history on one decides the first run on the other. On the paper's traces."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import Decision, PlannedAttempt, State
from airflow_provider_zeus.optimizer.arms import epoch_costs, translated
from airflow_provider_zeus.optimizer.policy import Belief, choose, decision_seed, learn, prior
from airflow_provider_zeus.optimizer.posterior import posteriors
from airflow_provider_zeus.optimizer.situation import Situation
from benchmarks.simulation.environment import Environment, Run
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Traces
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
    """A job that recurs on the GPU of ``scenario``."""

    def __init__(self, scenario: Scenario, policy: str, seed: int) -> None:
        self.scenario = scenario
        self.seed = seed
        self.number = 0
        self.job = scenario.job(policy=policy)
        self.environment = Environment(scenario, seed)
        self.belief: Belief = prior(self.job)

    def decide(self, scenario: Scenario | None = None) -> Decision:
        device = (scenario or self.scenario).device
        return choose(
            Situation(
                self.job,
                self.belief,
                device=device,
                seed=decision_seed("job", self.number + 1, self.seed),
            )
        )

    def recur(self) -> None:
        decision = self.decide()
        for attempt in decision.attempts:
            run = self.environment.attempt(attempt)
            self._learn(attempt, run)
            if run.reached:
                break

    def _learn(self, attempt: PlannedAttempt, run: Run) -> None:
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


def costs_of(
    belief: Belief, here: Mapping[int, float], there: Mapping[int, float]
) -> dict[int, float]:
    """Expected cost [J] of the batch sizes that reached the target, where it is known."""
    found = {
        b: one.cost.value
        for b, one in posteriors(belief, here, there).items()
        if b in belief.reached
    }
    return {b: cost for b, cost in found.items() if cost is not None}


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_first_run_on_another_gpu_is_within_10_percent_of_the_best_known(
    policy: str, workload: str
) -> None:
    v100, a40 = scenarios(workload)
    for seed in range(2):
        history = History(v100, policy, seed)
        for _ in range(RECURRENCES):
            history.recur()
        first = history.decide(a40).attempts[0].batch_size
        known = {b: a40.expected_cost(b) for _, b, _ in history.belief.converged}
        assert first in known
        assert known[first] <= 1.1 * min(known.values()), f"seed {seed}: {first} of {known}"


@pytest.mark.parametrize("workload", ["deepspeech2", "neumf", "shufflenet"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_first_run_on_another_gpu_beats_a_bad_default(policy: str, workload: str) -> None:
    v100, a40 = scenarios(workload)
    history = History(v100, policy, seed=0)
    for _ in range(RECURRENCES):
        history.recur()
    first = history.decide(a40).attempts[0].batch_size
    assert a40.expected_cost(first) < 0.5 * a40.expected_cost(a40.pair.default_batch_size)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("policy", POLICIES)
def test_with_every_epoch_cost_profiled_here_costs_are_those_of_this_gpu(
    policy: str, workload: str
) -> None:
    v100, a40 = scenarios(workload)
    history = History(v100, policy, seed=0)
    for _ in range(RECURRENCES):
        history.recur()
    here = {b: arm.epoch.cost for b, arm in a40.arms.items()}
    found = posteriors(history.belief, here, {})
    costs = costs_of(history.belief, here, {})
    assert costs.keys() == {b for _, b, _ in history.belief.converged}
    for b, cost in costs.items():
        assert found[b].measured
        assert cost == pytest.approx((found[b].epochs.value or 0.0) * here[b])
    truth = {b: a40.expected_cost(b) for b in costs}
    assert truth[min(costs, key=costs.__getitem__)] <= 1.1 * min(truth.values())


def test_a_curve_is_shifted_to_the_level_measured_here() -> None:
    assert translated({}, {16: 4.0, 32: 2.0}) == {16: 4.0, 32: 2.0}
    there = {16: 4.0, 32: 2.0, 64: 1.0}
    assert translated({32: 6.0}, there) == pytest.approx({16: 12.0, 32: 6.0, 64: 3.0})
    # x1 and x4: x2
    assert translated({32: 2.0, 64: 4.0}, there) == pytest.approx({16: 8.0, 32: 2.0, 64: 4.0})
    assert translated({128: 5.0}, there) == {**there, 128: 5.0}


@pytest.mark.parametrize("policy", POLICIES)
def test_one_measured_size_shifts_the_others(policy: str) -> None:
    """64 was the cheapest on the V100; here it is measured and expensive, so 32 is the cheapest."""
    world = World(job_of(16, 32, 64, default=32, policy=policy), {16: 20.0, 32: 10.0, 64: 9.0})
    for _ in range(2):
        for b in (16, 32, 64):
            world.add(b)
    there = epoch_costs(world.belief, V100, (), Weights.of(world.job, V100))
    costs = costs_of(world.belief, {}, there)
    assert sorted(costs, key=costs.__getitem__) == [64, 32, 16]
    here = {64: 3_500.0, 32: 2_250.0}
    costs = costs_of(world.belief, here, there)
    assert min(costs, key=costs.__getitem__) == 32
    assert {b: one.measured for b, one in posteriors(world.belief, here, there).items()} == {
        16: False,
        32: True,
        64: True,
    }


def test_a_cost_from_another_device_has_no_interval_under_policy_zeus_and_says_why() -> None:
    world = World(job_of(16, 32, default=32, policy="zeus"), {16: 20.0, 32: 10.0})
    found = {
        b: one.epoch_cost
        for b, one in posteriors(world.belief, {32: 9.0}, {16: 4.0, 32: 3.0}).items()
    }
    assert found[16] == Estimate(pytest.approx(12.0), reason="taken from another device")
    assert found[32] == Estimate(9.0, 9.0, 9.0)
    nowhere = posteriors(world.belief, {}, {16: 4.0})[32].epoch_cost
    assert nowhere == Estimate.missing("its EpochCost was not measured on any device")


@pytest.mark.parametrize("policy", POLICIES)
def test_without_epoch_costs_no_cost_is_known(policy: str) -> None:
    world = World(job_of(16, 32, default=32, policy=policy), {16: 30.0, 32: 10.0})
    world.add(32)
    assert costs_of(world.belief, {}, {}) == {}
