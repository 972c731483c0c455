"""What saved it: the batch size or the power limit, worked out by hand,
and sums that agree with the savings.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Observation, ProfileSample, State, Trial
from airflow_provider_zeus.reports.dataset import ENERGY, TIME, as_dataset
from airflow_provider_zeus.reports.levers import BATCH_SIZE, LIMIT, SKIPPING, START, levers
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from airflow_provider_zeus.reports.savings import Savings, saving
from tests.strategies import REPRODUCIBLE, jobs_and_logs, profiles
from tests.unit.optimizer.world import World
from tests.unit.reports.test_savings import JOB, NEEDS, add, profile

# at 150 W, where all run: 10 s an epoch at 140 W; at full power the default takes 8 s at 225 W, 64
# 4 s at 240 W
PROFILES = [
    *(profile(150.0, 140.0, 10.0, b) for b in (32, 64)),
    profile(250.0, 225.0, 8.0),
    profile(250.0, 240.0, 4.0, 64),
]


def split(
    world: World, weights: Weights, known: list[ProfileSample]
) -> tuple[Savings, Estimate, Estimate]:
    found = saving(as_dataset(world.log, world.job), rng=random.Random(1), profiles=known)
    runs = [step.run for step in found.steps]
    batch_size, limit = levers(
        runs, found.base, LimitProfiles.of(known), weights, np.random.default_rng(2)
    )
    assert (batch_size.name, limit.name) == (BATCH_SIZE, LIMIT)
    return found, batch_size.saved, limit.saved


def test_the_default_below_full_power_saves_by_the_limit_alone() -> None:
    world = World(JOB, NEEDS)
    for _ in range(3):
        add(world, 32, 10.0)
    found, batch_size, limit = split(world, ENERGY, PROFILES)
    assert batch_size == Estimate(0.0, 0.0, 0.0)
    assert limit.value == pytest.approx(3 * 10 * (225 * 8 - 140 * 10))
    saved = found.energy.saved
    assert (limit.value, limit.low, limit.high) == pytest.approx(
        (saved.value, saved.low, saved.high)
    )


def test_another_size_at_full_power_saves_by_the_batch_size_alone() -> None:
    world = World(JOB, NEEDS)
    for _ in range(3):
        add(world, 32, 10.0, 225.0, time_s=80.0, energy_j=225 * 80.0, power_limit_w=250.0)
        add(world, 64, 10.0, 240.0, time_s=40.0, energy_j=240 * 40.0, power_limit_w=250.0)
    found, batch_size, limit = split(world, TIME, PROFILES)
    assert limit == Estimate(0.0, 0.0, 0.0)
    assert batch_size.value == pytest.approx(found.time.saved.value)
    assert batch_size.value is not None
    assert batch_size.value > 0


def test_a_slower_limit_loses_time_and_the_batch_size_gains_it_back() -> None:
    world = World(JOB, NEEDS)
    for _ in range(3):
        add(world, 32, 10.0)
        add(world, 64, 10.0)
    _, batch_size, limit = split(world, TIME, PROFILES)
    assert limit.value is not None
    assert batch_size.value is not None
    slower_s = 3 * 10 * ((10 - 8) + (10 - 4))
    assert limit.value == pytest.approx(-slower_s, rel=0.02)
    assert limit.low is not None
    assert limit.high is not None
    assert limit.low < -slower_s < limit.high, "the profile of 64 may be off"
    assert batch_size.value > 0


def test_what_profiling_cost_is_the_limits_and_what_was_given_up_is_the_batch_sizes() -> None:
    plain, profiled, explored = (World(JOB, NEEDS) for _ in range(3))
    for world in (plain, profiled, explored):
        add(world, 32, 10.0, excess_j=500.0 if world is profiled else 0.0, excess_s=0.0)
        if world is explored:
            add(world, 64, 3.0, state=State.GIVEN_UP)
        add(world, 32, 10.0)
    (_, size, limit), (_, _, less), (_, lost, _) = (
        split(w, ENERGY, PROFILES) for w in (plain, profiled, explored)
    )
    assert limit.value is not None
    assert less.value == pytest.approx(limit.value - 500.0 * 225 * 8 / (140 * 10), rel=0.05)
    assert lost.value is not None
    assert size.value is not None
    assert lost.value < size.value - 3 * 4 * 240 * 0.9


@pytest.mark.parametrize("known", [[], PROFILES[:2]])
def test_without_a_profile_at_full_power_neither_is_known(known: list[ProfileSample]) -> None:
    world = World(JOB, NEEDS)
    add(world, 32, 10.0)
    add(world, 64, 10.0)
    _, batch_size, limit = split(world, ENERGY, known[:0] or [PROFILES[0], PROFILES[2]])
    assert batch_size.value is limit.value is None
    assert limit.reason is not None
    assert "was not profiled" in limit.reason


@REPRODUCIBLE
@given(jobs_and_logs(), profiles(), st.integers(0, 3))
def test_they_add_up_to_the_saving(
    drawn: tuple[ZeusJob, list[Trial]], known: list[ProfileSample], seed: int
) -> None:
    job, log = drawn
    found = saving(as_dataset(log, job), rng=random.Random(seed), profiles=known)
    runs: Any = [step.run for step in found.steps]
    for weights, total in ((ENERGY, found.energy), (TIME, found.time)):
        each = levers(
            runs, found.base, LimitProfiles.of(known), weights, np.random.default_rng(seed)
        )
        values = [lever.saved.value for lever in each]
        if None in values:
            assert set(values) == {None}
        else:
            scale = 1.0 + abs(total.spent or 0.0) + abs(total.baseline.value or 0.0)
            assert sum(v for v in values if v is not None) == pytest.approx(
                total.saved.value, abs=0.01 * scale
            )


def test_a_run_that_was_not_needed_saves_its_whole_baseline_by_itself() -> None:
    world = World(JOB, NEEDS)
    for _ in range(4):
        add(world, 32, 10.0, 225.0, time_s=80.0, energy_j=225 * 80.0, power_limit_w=250.0)
    idle = world.add(64, State.NOT_NEEDED)
    world.log[-1] = replace(idle, observation=Observation(metric=0.95))
    found = saving(as_dataset(world.log, world.job), rng=random.Random(1), profiles=PROFILES)
    *trained, skipped = found.steps
    assert [step.spent for step in found.steps] == pytest.approx([*(s.spent for s in trained), 0.0])
    assert (skipped.run.not_needed, skipped.exploration) == (True, 0.0)
    runs = [step.run for step in found.steps]
    split_up = levers(
        runs, found.base, LimitProfiles.of(PROFILES), ENERGY, np.random.default_rng(2)
    )
    assert [lever.name for lever in split_up] == [BATCH_SIZE, LIMIT, SKIPPING]
    assert [lever.saved.value for lever in split_up[:2]] == [0.0, 0.0]
    assert split_up[2].saved.value == pytest.approx(found.energy.saved.value)
    assert split_up[2].saved.value == pytest.approx(10 * 225 * 8, rel=0.2), (
        "epochs of that slice are not known"
    )
    assert (split_up[2].saved.low or 0) < 10 * 225 * 8 < (split_up[2].saved.high or 0)


def test_an_earlier_model_is_a_lever_of_its_own_and_the_sum_stays() -> None:
    world = World(replace(JOB, policy="knowledge_gradient", starts=["cold", "warm"]), NEEDS)
    for _ in range(4):
        add(world, 32, 10.0, start="cold")
    for _ in range(4):
        add(world, 32, 2.0, start="warm")
    found = saving(as_dataset(world.log, world.job), rng=random.Random(1), profiles=PROFILES)
    runs = [step.run for step in found.steps]
    split_up = levers(
        runs, found.base, LimitProfiles.of(PROFILES), ENERGY, np.random.default_rng(2)
    )
    assert [lever.name for lever in split_up] == [BATCH_SIZE, LIMIT, START]
    size, _, start = (lever.saved.value for lever in split_up)
    assert start == pytest.approx(4 * 8 * 225 * 8, rel=0.15), (
        "eight epochs at full power in each of four runs"
    )
    assert size == pytest.approx(0.0, abs=0.05 * (start or 0.0))
    assert sum(lever.saved.value or 0.0 for lever in split_up) == pytest.approx(
        found.energy.saved.value
    )
