"""``choose`` on scripted histories: sampling, concurrency, live settings, deaths, run types."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import Phase, State
from airflow_provider_zeus.optimizer.belief import TARGET_IS_NEW, Belief, prior
from airflow_provider_zeus.optimizer.policy import decision_seed, fallback
from tests.golden import Table
from tests.strategies import A40, CPU, make_trial
from tests.unit.optimizer.world import NEVER, World, job_of

JOB = job_of(16, 32, 64, default=32)
NEEDS = {16: 12.0, 32: 10.0, 64: 9.0}


def explored(**runs: list[float]) -> World:
    """A world whose exploration is over, with these epochs per batch size (``b16=[...]``)."""
    world = World(JOB, NEEDS)
    for round_ in (1, 2):
        for name, epochs in runs.items():
            world.add(int(name[1:]), epochs=epochs[round_ - 1], phase=Phase.EXPLORE, round_=round_)
    return world


def chosen(world: World, seeds: int = 400) -> Counter[int]:
    return Counter(world.decide(seed=s).attempts[0].batch_size for s in range(seeds))


def test_of_two_arms_far_apart_the_cheaper_is_chosen_nearly_always() -> None:
    counts = chosen(explored(b32=[10.0, 11.0], b16=[20.0, 22.0], b64=[40.0, 42.0]))
    assert counts[32] >= 396


def test_of_two_close_arms_both_are_chosen() -> None:
    counts = chosen(explored(b32=[10.0, 12.0], b16=[10.5, 12.5], b64=[40.0, 42.0]))
    assert counts[32] > counts[16] > 80
    assert counts[64] == 0


def test_a_sampled_arm_that_is_not_the_incumbent_is_bounded() -> None:
    world = explored(b32=[10.0, 12.0], b16=[10.5, 12.5], b64=[40.0, 42.0])
    decision = next(
        d for s in range(100) if (d := world.decide(seed=s)).attempts[0].batch_size == 16
    )
    first, then = decision.attempts
    assert first.bound_cost == pytest.approx(2 * 11 * 2250.0)
    assert first.bound_epochs == pytest.approx(22.0)
    assert first.max_epoch_cost == pytest.approx(2 * 11 * 2250.0 / 11.5)
    assert (then.batch_size, then.bounded) == (32, False)


def test_the_bound_of_a_noisy_incumbent_is_on_its_mean() -> None:
    world = explored(b32=[5.0, 15.0], b16=[30.0, 30.0], b64=[40.0, 42.0])
    bounds = {
        d.attempts[0].bound_cost
        for s in range(300)
        if len((d := world.decide(seed=s)).attempts) == 2
    }
    assert all(bound == pytest.approx(2 * 10 * 2250.0) for bound in bounds)


@pytest.mark.parametrize("phase", [Phase.EXPLORE, Phase.RETURN])
def test_while_one_run_explores_the_next_takes_the_incumbent(phase: Phase) -> None:
    world = World(JOB, NEEDS)
    world.run()
    (first, _) = world.decide().attempts
    assert first.batch_size == 16
    running = make_trial(2, 16, State.RUNNING, job=JOB, phase=phase)
    (other,) = world.decide(running=[running]).attempts
    assert (other.batch_size, other.phase, other.bounded) == (32, Phase.INCUMBENT, False)
    assert "16" in other.why


def test_runs_that_do_not_explore_do_not_stop_exploration() -> None:
    world = World(JOB, NEEDS)
    world.run()
    running = make_trial(2, 32, State.RUNNING, job=JOB, phase=Phase.INCUMBENT)
    assert world.decide(running=[running]).attempts[0].phase is Phase.EXPLORE


def test_eight_concurrent_runs_sample_more_than_one_batch_size() -> None:
    world = explored(b32=[10.0, 12.0], b16=[10.5, 12.5], b64=[11.0, 13.0])
    seeds = [decision_seed("dag.train", world.number + i, 0) for i in range(8)]
    assert len({world.decide(seed=s).attempts[0].batch_size for s in seeds}) > 1


def test_a_pinned_batch_size_runs_alone_and_unbounded() -> None:
    (only,) = World(JOB, NEEDS).decide(settings={"pin_batch_size": 64}).attempts
    assert (only.batch_size, only.phase, only.bounded) == (64, Phase.PINNED, False)


def test_a_pin_that_is_no_batch_size_of_the_job_is_ignored() -> None:
    (only,) = World(JOB, NEEDS).decide(settings={"pin_batch_size": 48}).attempts
    assert only.batch_size == 32


def test_paused_exploration_takes_the_best_known() -> None:
    world = World(JOB, {**NEEDS, 16: 5.0})
    world.runs(2)
    (only,) = world.decide(settings={"pause_exploration": True}).attempts
    assert (only.batch_size, only.phase, only.bounded) == (16, Phase.INCUMBENT, False)
    assert world.decide(settings={"pause_exploration": False}).attempts[0].phase is Phase.EXPLORE


@pytest.mark.parametrize("run_type", ["backfill", "test"])
def test_a_run_that_does_not_teach_explores_nothing(run_type: str) -> None:
    world = World(JOB, NEEDS)
    world.run()
    (only,) = world.decide(run_type=run_type).attempts
    assert (only.batch_size, only.phase) == (32, Phase.INCUMBENT)
    assert world.decide(run_type="scheduled").attempts[0].phase is Phase.EXPLORE
    world.job = replace(JOB, learn_from=("scheduled", run_type))
    assert world.decide(run_type=run_type).attempts[0].phase is Phase.EXPLORE


@pytest.mark.parametrize("state", [State.ABANDONED, State.FAILED])
def test_after_a_death_the_next_run_takes_the_incumbent_and_after_that_explores_again(
    state: State,
) -> None:
    world = World(JOB, NEEDS)
    world.run()
    world.died(16, state, round_=1)
    (retry,) = world.run().attempts
    assert (retry.batch_size, retry.phase) == (32, Phase.INCUMBENT)
    assert world.decide().attempts[0].batch_size == 16


@pytest.mark.parametrize("deaths", [2, 6])
def test_errors_at_the_default_rule_nothing_out(deaths: int) -> None:
    """A mistake or an outage in the first runs is not caused by the batch size."""
    world = World(JOB, NEEDS)
    for _ in range(deaths):
        world.died(32, State.FAILED, round_=1, device_model="V100")
    assert world.decide().attempts[0].batch_size == 32
    assert set(world.runs(8)) == {16, 32, 64}


def test_out_of_memory_rules_a_size_out_at_once_and_on_that_model_only() -> None:
    world = World(JOB, NEEDS)
    world.run()
    world.died(16, State.FAILED, round_=1, device_model="V100", out_of_memory=True)
    assert 16 in world.belief.infeasible("V100")
    assert 16 not in world.belief.infeasible("A40")
    assert 16 not in world.runs(10)


def test_time_alone_where_nothing_measures_energy() -> None:
    world = World(job_of(16, 32, 64, default=32, eta=1.0), NEEDS, {64: 1.0}, device=CPU)
    world.runs(8)
    assert world.arms()[64].mean == pytest.approx(9.0)  # seconds
    decision = next(
        d for s in range(100) if "Thompson" in (d := world.decide(seed=s)).attempts[0].why
    )
    assert decision.attempts[0].batch_size == 64
    assert " s, the lowest" in decision.attempts[0].why


def test_without_a_device_the_newest_trial_s_is_assumed() -> None:
    world = explored(b32=[10.0, 11.0], b16=[20.0, 22.0], b64=[40.0, 42.0])
    assert world.decide(seed=1, device=None) == world.decide(seed=1)


def test_nothing_known_of_the_incumbent_s_cost_bounds_by_max_epochs() -> None:
    world = World(JOB, NEEDS)
    world.add(32, phase=Phase.EXPLORE, round_=1, time_s=None)
    first, then = world.decide().attempts
    assert (first.batch_size, first.bound_epochs, first.bound_cost) == (16, 100.0, None)
    assert not then.bounded


def test_a_default_that_missed_its_target_bounds_by_what_its_max_epochs_cost() -> None:
    world = World(JOB, {**NEEDS, 32: NEVER})
    world.run()
    first, _ = world.decide().attempts
    assert first.bound_cost == pytest.approx(2 * 100 * 2250.0)


def test_the_fallback_is_unbounded() -> None:
    (default,) = fallback(JOB, why="The store cannot be reached, so 32 runs.").attempts
    assert (default.batch_size, default.phase, default.bounded) == (32, Phase.FALLBACK, False)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (("dag.train", 7, 0), True),
        (("dag.train", 8, 0), False),
        (("dag.test", 7, 0), False),
        (("dag.train", 7, 1), False),
    ],
)
def test_a_decision_s_seed_is_of_job_number_and_replay(
    other: tuple[str, int, int], same: bool
) -> None:
    assert (decision_seed(*other) == decision_seed("dag.train", 7, 0)) is same
    assert 0 <= decision_seed(*other) < 2**53  # exact in every JSON reader


def after(runs: int, needs: Mapping[int, float] = NEEDS) -> World:
    world = World(JOB, needs)
    world.runs(runs)
    return world


def where_the_default_does_not_fit() -> World:
    world = World(job_of(16, 32, 64, default=64), NEEDS)
    world.died(64, State.FAILED, device_model="V100", out_of_memory=True)
    return world


def where_nothing_is_measured() -> World:
    world = World(job_of(32, default=32), NEEDS)
    for round_ in (1, 2):
        world.add(32, phase=Phase.EXPLORE, round_=round_, time_s=None, energy_j=None)
    return world


def on_another_device() -> World:
    world = after(10)
    world.device = A40
    world.run()
    return world


# situation: the world, and arguments of choose
DECISIONS: dict[str, tuple[Callable[[], World], dict[str, Any]]] = {
    "the first run": (lambda: after(0), {}),
    "the second run": (lambda: after(1), {}),
    "the fourth run": (lambda: after(3), {}),
    "the seventh run": (lambda: after(6), {}),
    "a pinned batch size": (lambda: after(1), {"settings": {"pin_batch_size": 16}}),
    "exploration is paused": (lambda: after(1), {"settings": {"pause_exploration": True}}),
    "a backfill": (lambda: after(1), {"run_type": "backfill"}),
    "no size reaches the target": (lambda: after(6, dict.fromkeys(NEEDS, NEVER)), {}),
    "the default does not fit into memory": (where_the_default_does_not_fit, {}),
    "nothing is measured": (where_nothing_is_measured, {}),
    "another device": (on_another_device, {}),
}


@pytest.mark.parametrize("situation", DECISIONS)
def test_the_reasons_of_decisions(situation: str) -> None:
    """Of every attempt and stand-in."""
    world, asked = DECISIONS[situation]
    attempts = world().decide(seed=0, **asked).in_order
    Table("decisions").check(situation, "\n".join(attempt.why for attempt in attempts))


def test_the_reason_of_the_second_attempt_names_both_sizes() -> None:
    world = World(JOB, NEEDS)
    world.run()
    first, then = world.decide().attempts
    assert (
        re.findall(r"\d+", then.why)
        == [str(first.batch_size), str(then.batch_size)]
        == ["16", "32"]
    )


def test_an_incumbent_that_no_longer_fits_hands_over_to_the_next_cheapest() -> None:
    world = explored(b32=[10.0, 11.0], b16=[20.0, 22.0], b64=[5.0, 6.0])
    assert world.decide(settings={"pause_exploration": True}).attempts[0].batch_size == 64
    world.died(64, State.FAILED, phase=Phase.SAMPLE, device_model="V100", out_of_memory=True)
    assert world.decide(settings={"pause_exploration": True}).attempts[0].batch_size == 32
    assert 64 not in {a.batch_size for s in range(50) for a in world.decide(seed=s).attempts}


@pytest.mark.parametrize("policy", ["zeus", "knowledge_gradient"])
def test_a_decision_says_when_the_target_changed_until_enough_runs_have_the_new_one(
    policy: str,
) -> None:
    world = World(replace(JOB, policy=policy), NEEDS)
    for _ in range(3):
        world.run()
    assert "target changed" not in world.decide().attempts[0].why
    before = world.log[-1].number
    world.job = replace(world.job, target="acc >= 0.95")
    told = f" The target changed after run {before}, from acc >= 0.9 to acc >= 0.95: runs to another target teach "
    assert (
        world.decide()
        .attempts[0]
        .why.endswith(f"{told}what an epoch costs, not how many it takes.")
    )
    asked = world.decide(settings={"pin_batch_size": 16}).attempts[0]
    assert (asked.batch_size, told in asked.why) == (16, True)
    ended = 0
    while told in world.decide().attempts[0].why:
        world.add(32)
        ended += 1
    assert ended == TARGET_IS_NEW
    assert Belief.from_json(prior(world.job), world.belief.to_json()).retargeted == (
        before,
        "acc >= 0.9",
    )
