"""Another weight over the same log: what would be chosen."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import ProfileSample, State, Trial
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.eta_choices import ETAS, EtaChoice, choice_at
from airflow_provider_zeus.reports.next_run import NextDecision
from tests.strategies import A40, CPU, REPRODUCIBLE, jobs_and_logs, make_trial, profiles
from tests.unit.optimizer.world import World, job_of

POLICIES = ("zeus", "knowledge_gradient")
NEEDS = {16: 10.0, 32: 10.0, 64: 10.0}


def add(world: World, b: int, power_w: float, epoch_s: float, **fields: Any) -> None:
    """Ten epochs of 1000 samples at this power."""
    time_s = 10 * epoch_s
    world.add(
        b,
        epochs=10.0,
        time_s=time_s,
        energy_j=time_s * power_w,
        **{"power_limit_w": 250.0, **fields},
    )


def frugal_and_fast(policy: str) -> World:
    """64 is fast at 240 W, 16 frugal: twice as long at 80 W; 32 lies between in neither."""
    world = World(job_of(16, 32, 64, default=32, eta=0.1, policy=policy), NEEDS)
    for _ in range(3):
        add(world, 32, 200.0, 15.0)
        add(world, 64, 240.0, 10.0)
        add(world, 16, 80.0, 20.0)
    return world


def chosen(world: World, eta: float, *samples: ProfileSample) -> EtaChoice:
    log = as_dataset(world.log, world.job)
    return choice_at(eta, log, NextDecision.of(log, profiles=samples), profiles=samples)


@pytest.mark.parametrize("policy", POLICIES)
def test_energy_alone_takes_the_frugal_size_time_alone_the_fast_one(policy: str) -> None:
    world = frugal_and_fast(policy)
    assert chosen(world, 0.0) == EtaChoice(eta=0.0, batch_size=64, limit_w=250.0, start=None)
    assert chosen(world, 1.0) == EtaChoice(eta=1.0, batch_size=16, limit_w=250.0, start=None)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("eta", [0.0, 0.3, 0.5, 1.0])
def test_the_choice_is_that_of_the_job_with_that_eta(policy: str, eta: float) -> None:
    world = frugal_and_fast(policy)
    choice = chosen(world, eta)
    world.job = job_of(16, 32, 64, default=32, eta=eta, policy=policy)
    assert (
        choice.batch_size
        == world.decide(settings={"pause_exploration": True}).attempts[-1].batch_size
    )


def profile(b: int, limit_w: float, power_w: float, s: float) -> ProfileSample:
    return ProfileSample(
        batch_size=b, limit_w=limit_w, samples=1000, energy_j=power_w * s, time_s=s
    )


PROFILE = [
    profile(32, 250.0, 200.0, 10.0),
    profile(32, 150.0, 140.0, 12.0),
    profile(32, 100.0, 95.0, 20.0),
]


@pytest.mark.parametrize(("eta", "limit_w"), [(0.0, 250.0), (1.0, 150.0)])
def test_with_a_profile_the_limit_is_that_of_equation_7_at_that_eta(
    eta: float, limit_w: float
) -> None:
    world = World(job_of(32, default=32, eta=0.5), NEEDS)
    add(world, 32, 210.0, 11.0)
    assert chosen(world, eta, *PROFILE).limit_w == limit_w


def test_the_limit_found_decides_between_batch_sizes() -> None:
    """64 looks dear as it ran, at full power; at the limit of Eq.
    7 for energy alone it is the cheaper one.
    """
    world = World(job_of(32, 64, default=32, eta=0.0), NEEDS)
    add(world, 32, 150.0, 10.0)
    add(world, 64, 200.0, 9.0)
    halved = [profile(64, 250.0, 200.0, 9.0), profile(64, 100.0, 90.0, 10.0)]
    assert chosen(world, 1.0).batch_size == 32
    assert chosen(world, 1.0, *halved) == EtaChoice(
        eta=1.0, batch_size=64, limit_w=100.0, start=None
    )


@pytest.mark.parametrize(
    "fields", [{"mode": "observe"}, {"mode": "measure"}, {"power_limits_w": [250.0]}]
)
def test_a_job_that_sets_no_such_limit_keeps_the_one_observed(fields: dict[str, Any]) -> None:
    world = World(job_of(32, default=32, **fields), NEEDS)
    add(world, 32, 200.0, 10.0)
    assert chosen(world, 1.0, *PROFILE).limit_w == 250.0


def test_another_energy_source_is_not_mixed_in() -> None:
    world = frugal_and_fast("zeus")
    world.device = A40
    add(world, 32, 100.0, 1.0)
    assert chosen(world, 1.0).batch_size != 32, (
        "its EpochCost is known here, the others' by translation"
    )
    assert chosen(world, 1.0).limit_w is None, "on the other device"


def test_where_nothing_measures_energy_no_eta_changes_the_choice() -> None:
    world = World(job_of(16, 32, 64, default=32), NEEDS, device=CPU)
    for b, time_s in ((16, 30.0), (32, 20.0), (64, 10.0)) * 3:
        world.add(b, time_s=time_s)
    assert {chosen(world, eta).batch_size for eta in ETAS} == {64}


def test_an_empty_log_answers_the_default() -> None:
    world = World(job_of(16, 32, default=32), NEEDS)
    assert chosen(world, 1.0) == EtaChoice(eta=1.0, batch_size=32, limit_w=None, start=None)


@pytest.mark.parametrize("eta", [1.5, -0.1, math.nan])
def test_an_eta_out_of_range_is_named(eta: float) -> None:
    with pytest.raises(JobSpecError, match="eta"):
        chosen(World(job_of(32, default=32), NEEDS), eta)


@REPRODUCIBLE
@given(jobs_and_logs(), profiles(), st.sampled_from(POLICIES), st.sampled_from(ETAS))
def test_every_log_is_answered(
    job_and_log: tuple[ZeusJob, list[Trial]], profile: list[ProfileSample], policy: str, eta: float
) -> None:
    job = ZeusJob.from_dict({**job_and_log[0].to_dict(), "policy": policy})
    log = as_dataset(
        [
            *job_and_log[1],
            make_trial(99, 32, State.CONVERGED, job=job, epochs=math.nan, time_s=math.inf),
        ],
        job,
    )
    choice = choice_at(eta, log, NextDecision.of(log, profiles=profile), profiles=profile)
    assert choice.batch_size in job.batch_sizes
    assert choice.limit_w is None or math.isfinite(choice.limit_w)
