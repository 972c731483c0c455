"""The traps of the public implementation, one test each; ``docs/policy.md`` lists them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from airflow_provider_zeus.model.trial import Phase, State
from airflow_provider_zeus.optimizer.policy import choose, decision_seed, learn
from airflow_provider_zeus.optimizer.situation import Situation
from tests.strategies import V100
from tests.unit.optimizer.world import NEVER, World, job_of

JOB = job_of(16, 32, 64, default=32)
NEEDS = {16: 12.0, 32: 10.0, 64: 9.0}
FAR = {16: 90.0, 32: 10.0, 64: 50.0}


def settled_world(needs: dict[int, float] = NEEDS, **fields: object) -> World:
    """Exploration over: every size that reaches its target within the bound ran twice."""
    world = World(job_of(16, 32, 64, default=32, **fields), needs)
    world.runs(6)
    return world


def test_trap_1_costs_are_positive_and_the_smallest_wins() -> None:
    world = World(JOB, NEEDS, {16: 1.0, 32: 10.0, 64: 100.0})
    world.add(16)
    world.add(32)
    world.add(64)
    assert all(arm.mean > 0 for arm in world.arms().values())
    assert world.decide(settings={"pause_exploration": True}).attempts[0].batch_size == 16


def test_trap_2_equal_costs_keep_every_close_arm_in_play() -> None:
    world = settled_world({16: 3.0, 32: 3.0, 64: 3.0})
    assert all(arm.sd > 0.05 * arm.mean for arm in world.arms().values())
    assert {world.decide(seed=s).attempts[0].batch_size for s in range(50)} == {16, 32, 64}


def test_trap_3_one_noisy_failure_in_round_2_drops_no_neighbour() -> None:
    world = World(job_of(8, 16, 32, default=32), {8: 8.0, 16: 9.0, 32: 7.0})
    assert world.runs(3) == [32, 16, 8]
    world.epochs = {8: 8.0, 16: NEVER, 32: 7.0}
    assert world.runs(2) == [32, 16]
    assert set(world.arms()) == {8, 16, 32}


def test_trap_4_where_nothing_converges_the_default_runs_with_a_reason() -> None:
    world = World(JOB, {16: NEVER, 32: NEVER, 64: NEVER})
    decisions = [world.run() for _ in range(20)]
    assert all(d.attempts[-1].batch_size == 32 and not d.attempts[-1].bounded for d in decisions)
    (last,) = decisions[-1].attempts
    assert (last.batch_size, last.phase) == (32, Phase.INCUMBENT)
    assert "the default" in last.why


def test_trap_5_failing_never_improves_an_arm() -> None:
    world = settled_world({16: 18.0, 32: 10.0, 64: 9.0})
    before = world.arms()[16].mean
    # stopped early: cheaper than 18 epochs, but only bounds from below
    for epochs in (1.0, 17.0, 19.0):
        world.add(16, State.GIVEN_UP, epochs=epochs)
        assert world.arms()[16].mean >= before
    assert world.arms()[16].mean > before


def test_trap_6_a_run_that_did_not_converge_sets_no_bound() -> None:
    world = World(JOB, NEEDS)
    world.run()
    bound = world.decide().attempts[0].bound_cost
    world.add(64, State.GIVEN_UP, epochs=1.0, phase=Phase.RETURN)  # cheap, for it ended early
    assert world.decide().attempts[0].bound_cost == bound


def test_trap_7_after_a_shift_in_cost_every_run_still_ends_with_a_model() -> None:
    world = settled_world()
    world.runs(10)
    world.epochs = {b: 2.5 * epochs for b, epochs in NEEDS.items()}
    start = len(world.log)
    for _ in range(40):
        world.run()
        assert world.log[-1].state is State.CONVERGED
    assert any(t.state is State.GIVEN_UP for t in world.log[start:])  # the bound did bite


def test_trap_8_one_lucky_run_does_not_tighten_the_bound_to_its_own_cost() -> None:
    world = World(job_of(16, 32, default=32), NEEDS)
    for round_, epochs in ((1, 10.0), (2, 4.0)):
        world.add(32, epochs=epochs, phase=Phase.EXPLORE, round_=round_)
    bounded = world.decide().attempts[0]
    # beta x the mean of 10 and 4, not x 4
    assert bounded.bound_cost == pytest.approx(2.0 * 7.0 * 2250.0)


def test_trap_9_each_decision_draws_its_own_numbers_and_can_be_repeated() -> None:
    world = settled_world({16: 10.0, 32: 10.0, 64: 10.0})
    seeds = [decision_seed("dag.train", n, 0) for n in range(100, 108)]
    first = [world.decide(seed=s) for s in seeds]
    assert len({d.attempts[0].batch_size for d in first}) > 1
    assert [world.decide(seed=s) for s in reversed(seeds)] == first[::-1]


def test_trap_10_a_result_that_arrives_after_exploration_counts() -> None:
    world = World(JOB, NEEDS)
    world.runs(7)
    late = replace(
        world.log[2], number=2, observation=replace(world.log[2].observation, epochs=30.0)
    )
    others = [t for t in world.log if t.number != late.number]
    belief = world.belief.__class__(job=world.job)
    for trial in [*others, late]:
        belief = learn(belief, trial)
    in_order = replace(world, log=sorted([*others, late], key=lambda t: t.number)).belief
    assert belief == in_order
    assert (late.number, late.batch_size, 30.0) in belief.converged


def test_trap_11_an_idle_arm_is_forgotten_and_tried_again() -> None:
    world = settled_world({16: 14.0, 32: 10.0, 64: 18.0}, window=8)
    # the arm that is not drawn has become the cheapest
    world.epochs = {16: 14.0, 32: 10.0, 64: 3.0}
    tried = world.runs(40)
    assert tried[-20:].count(64) > 10
    assert world.decide(settings={"pause_exploration": True}).attempts[0].batch_size == 64


def test_a_bounded_attempt_that_is_given_up_costs_at_most_beta_times_the_incumbent() -> None:
    world = settled_world(FAR)
    rng = Random(5)
    for _ in range(30):
        world.epochs = {b: rng.uniform(0.5, 3.0) * epochs for b, epochs in FAR.items()}
        decision = world.decide()
        arms = world.arms()
        if decision.attempts[0].bounded:
            assert decision.attempts[0].bound_cost == pytest.approx(
                2.0 * min(a.mean for a in arms.values())
            )
        world.run()


def test_a_decision_can_be_replayed_from_what_its_trial_stored() -> None:
    world = settled_world()
    for _ in range(5):
        known = list(world.log)
        decision = world.run()
        again = replace(world, log=known)
        assert (
            choose(Situation(again.job, again.belief, device=V100, seed=decision.seed)) == decision
        )
