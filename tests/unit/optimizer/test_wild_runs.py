"""One paused training, as a wild run: how long it changes decisions, and that a true change is learnt all the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

import pytest

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.trial import PlannedAttempt, ProfileSample, State
from airflow_provider_zeus.optimizer.arms import (
    doubted,
    epoch_costs,
    loads,
    pace,
    run_variance,
)
from airflow_provider_zeus.optimizer.policy import Belief, belief_tag, choose, learn, prior
from airflow_provider_zeus.optimizer.situation import Situation
from tests.strategies import V100
from tests.unit.optimizer.world import World, job_of

POLICIES = ("zeus", "knowledge_gradient")
FACTORS = (10.0, 30.0, 1000.0)
SIZES = (8, 16, 32, 64, 128, 256)
NEEDS = {8: 34.0, 16: 28.0, 32: 20.0, 64: 10.0, 128: 20.0, 256: 34.0}
EPOCH_S = {8: 12.0, 16: 11.0, 32: 10.0, 64: 9.5, 128: 9.2, 256: 9.1}
BEST = 64
DEFAULTS = (
    pytest.param(8, marks=pytest.mark.slow),
    32,
    64,
    pytest.param(256, marks=pytest.mark.slow),
)


@dataclass
class PausedWorld(World):
    """``pauses``: (batch size, its how-manieth attempt, from 1) -> how many times as long that attempt takes."""

    pauses: Mapping[tuple[int, int], float] = field(default_factory=dict)
    attempts: Counter[int] = field(default_factory=Counter)
    paused_in: int | None = None  # recurrence, from 0

    def _attempt(self, attempt: PlannedAttempt, data_slice: str | None = None) -> State:
        b = attempt.batch_size
        self.attempts[b] += 1
        factor = self.pauses.get((b, self.attempts[b]), 1.0)
        usual_s = dict(self.epoch_s)
        self.epoch_s = {**usual_s, b: factor * usual_s[b]}
        state = super()._attempt(attempt, data_slice)
        self.epoch_s = usual_s
        return state

    def kept(self, count: int) -> list[int]:
        """The batch sizes with which the next ``count`` recurrences end."""
        sizes = []
        for _ in range(count):
            self.run()
            sizes.append(self.log[-1].batch_size or 0)
        return sizes


def world_of(policy: str, default: int = 32, **fields: object) -> PausedWorld:
    job = job_of(*SIZES, default=default, policy=policy)
    return PausedWorld(job, NEEDS, dict(EPOCH_S), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("default", DEFAULTS)
def test_without_a_pause_the_best_size_is_found(policy: str, default: int) -> None:
    assert set(world_of(policy, default).kept(40)[20:]) == {BEST}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("default", DEFAULTS)
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("nth", [4, 10])
def test_after_three_runs_one_wild_run_changes_no_more_than_three_decisions(
    policy: str, default: int, factor: float, nth: int
) -> None:
    usual = world_of(policy, default)
    paused = world_of(policy, default, pauses={(BEST, nth): factor})
    expected = usual.kept(35)
    found = paused.kept(35)
    assert paused.attempts[BEST] >= nth, "the wild run has run"
    different = [i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b]
    assert len(different) <= 3, (expected, found)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("default", DEFAULTS)
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("nth", [2, 3])
def test_of_three_runs_the_second_or_the_third_may_be_wild(
    policy: str, default: int, factor: float, nth: int
) -> None:
    found = world_of(policy, default, pauses={(BEST, nth): factor}).kept(35)
    expected = world_of(policy, default).kept(35)
    assert sum(a != b for a, b in zip(expected, found, strict=True)) <= 3, (expected, found)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("default", DEFAULTS)
@pytest.mark.parametrize("factor", FACTORS)
def test_a_size_whose_first_run_is_wild_runs_again_within_five(
    policy: str, default: int, factor: float
) -> None:
    world = world_of(policy, default, pauses={(BEST, 1): factor})
    recurrences = []
    for _ in range(35):
        before = world.attempts[BEST]
        world.run()
        recurrences.append(world.attempts[BEST] > before)
    first = recurrences.index(True)
    assert any(recurrences[first + 1 : first + 6]), recurrences
    assert all(recurrences[25:]), "and stays the best"


@pytest.mark.parametrize("runs", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("factor", [0.2, 0.5, 1.2, 1.9, 2.1, 10.0, 1000.0])
def test_a_rate_that_truly_changed_is_learnt_within_three_runs(runs: int, factor: float) -> None:
    world = world_of("zeus")
    for _ in range(runs):
        world.add(BEST)
    before = epoch_costs(world.belief, V100, (), Weights.of(world.job, V100))[BEST]
    world.epoch_s = {**EPOCH_S, BEST: factor * EPOCH_S[BEST]}
    for _ in range(3):
        world.add(BEST)
    now = epoch_costs(world.belief, V100, (), Weights.of(world.job, V100))[BEST]
    assert now == pytest.approx(factor * before)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_size_that_became_dear_is_left_after_three_runs_of_it(policy: str) -> None:
    world = world_of(policy)
    world.kept(25)
    world.epoch_s = {**EPOCH_S, BEST: 5 * EPOCH_S[BEST]}
    runs = world.kept(10)
    assert runs[3:] == [size for size in runs[3:] if size != BEST], runs


@pytest.mark.parametrize("policy", POLICIES)
def test_an_excluded_run_is_as_if_it_had_never_been_and_the_decision_can_be_replayed(
    policy: str,
) -> None:
    world = world_of(policy, pauses={(BEST, 2): 1000.0})
    world.kept(12)
    odd = [n for n in (3, 7, 12) if n <= len(world.log)]
    settings = {"excluded": odd}
    without = reduce(learn, [t for t in world.log if t.number not in odd], prior(world.job))
    belief = reduce(learn, world.log, prior(world.job, settings))
    assert replace(belief, excluded=frozenset()) == without
    decision = choose(Situation(world.job, belief, device=V100, seed=5, settings=settings))
    assert decision == choose(Situation(world.job, without, device=V100, seed=5))
    stored = replace(decision, settings=settings)
    again = reduce(learn, world.log, prior(world.job, stored.settings))
    assert (
        choose(
            Situation(
                world.job, again, device=V100, seed=stored.seed, settings=stored.settings or {}
            )
        )
        == decision
    )
    assert belief_tag(belief) != belief_tag(without)
    assert Belief.from_json(prior(world.job, settings), belief.to_json()) == belief


def test_a_wild_run_adds_nothing_to_the_spread_the_load_or_the_pace() -> None:
    world = world_of("zeus")
    profile = [
        ProfileSample(batch_size=BEST, limit_w=250, samples=1000, energy_j=1900.0, time_s=9.5)
    ]
    for _ in range(4):
        world.add(BEST, power_limit_w=250.0)
    usual_w = loads(world.belief, V100)
    world.epoch_s = {**EPOCH_S, BEST: 1000 * EPOCH_S[BEST]}
    world.power_w = 40.0
    world.add(BEST, power_limit_w=250.0)
    variance, _ = run_variance(world.belief, V100, Weights.of(world.job, V100))
    assert variance == pytest.approx(0.0)
    assert loads(world.belief, V100) == usual_w
    assert pace(world.belief, V100, profile) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("b", "factor", "is_doubted"), [(64, 1.9, False), (64, 2.1, True), (16, 3.9, False)]
)
def test_a_first_run_is_doubted_by_what_a_step_of_another_size_takes(
    b: int, factor: float, is_doubted: bool
) -> None:
    world = world_of("zeus")
    world.epoch_s = {32: 10.0, 64: 10.0 * factor, 16: 10.0 * factor}
    world.add(32)
    world.add(b)
    weights = Weights.of(world.job, V100)
    assert doubted(world.belief, V100, (), weights) == ({b} if is_doubted else set())
    assert (b in epoch_costs(world.belief, V100, (), weights)) is not is_doubted
    world.add(b)  # as dear once more: it is believed
    assert doubted(world.belief, V100, (), weights) == set()
