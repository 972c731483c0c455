"""Another weight over the same log: what would be chosen, and what a run would spend."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import ProfileSample, State, Trial
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.slice_epochs import slice_epochs
from airflow_provider_zeus.reports.what_if import Forecast, what_if
from tests.strategies import A40, CPU, REPRODUCIBLE, jobs_and_logs, make_trial, profiles
from tests.unit.optimizer.world import World, job_of

POLICIES = ("zeus", "knowledge_gradient")
NEEDS = {16: 10.0, 32: 10.0, 64: 10.0}


def add(world: World, b: int, power_w: float, epoch_s: float, **fields: Any) -> None:
    """Ten epochs of 1000 samples at this power."""
    time_s = 10 * epoch_s
    world.add(b, epochs=10.0, time_s=time_s, energy_j=time_s * power_w, **{"power_limit_w": 250.0, **fields})


def frugal_and_fast(policy: str) -> World:
    """64 is fast at 240 W, 16 frugal: twice as long at 80 W; 32 lies between in neither."""
    world = World(job_of(16, 32, 64, default=32, eta=0.1, policy=policy), NEEDS)
    for _ in range(3):
        add(world, 32, 200.0, 15.0)
        add(world, 64, 240.0, 10.0)
        add(world, 16, 80.0, 20.0)
    return world


def test_a_gain_below_a_joule_is_one() -> None:
    found = what_if(as_dataset(frugal_and_fast("zeus").log, frugal_and_fast("zeus").job), eta=1.0)
    gains = [replace(found, gain=Estimate(value=1.0, low=low, high=2.0)).gains for low in (0.01, 0.0, -0.01, None)]
    assert gains == [True, False, False, False]


@pytest.mark.parametrize("policy", POLICIES)
def test_energy_alone_takes_the_frugal_size_time_alone_the_fast_one(policy: str) -> None:
    world = frugal_and_fast(policy)
    found = what_if(as_dataset(world.log, world.job), eta=1.0)
    assert (found.now.batch_size, found.then.batch_size) == (64, 16)
    assert (found.now.eta, found.then.eta) == (0.1, 1.0)
    assert found.now.time_s.value == pytest.approx(100.0, rel=0.05)
    assert found.now.energy_j.value == pytest.approx(24_000.0, rel=0.05)
    assert found.then.energy_j.value == pytest.approx(16_000.0, rel=0.05)
    assert found.then.cost.value == pytest.approx(found.then.energy_j.value)
    assert found.then.unit == "J"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("eta", [0.0, 0.3, 0.5, 1.0])
def test_the_choice_is_that_of_the_job_with_that_eta(policy: str, eta: float) -> None:
    world = frugal_and_fast(policy)
    found = what_if(as_dataset(world.log, world.job), eta=eta).then
    world.job = job_of(16, 32, 64, default=32, eta=eta, policy=policy)
    last = world.decide().attempts[-1]
    assert (found.batch_size, found.why) == (last.batch_size, last.why)


def profile(b: int, limit_w: float, power_w: float, s: float) -> ProfileSample:
    return ProfileSample(batch_size=b, limit_w=limit_w, samples=1000, energy_j=power_w * s, time_s=s)


PROFILE = [profile(32, 250.0, 200.0, 10.0), profile(32, 150.0, 140.0, 12.0), profile(32, 100.0, 95.0, 20.0)]


def test_with_a_profile_the_limit_is_that_of_equation_7_at_that_eta() -> None:
    world = World(job_of(32, default=32, eta=0.0), NEEDS)
    add(world, 32, 210.0, 11.0, rest_s=10.0, rest_j=1_000.0)  # 110 s and 23.1 kJ, slower than profiled
    found = what_if(as_dataset(world.log, world.job), eta=1.0, profiles=PROFILE)
    assert (found.now.limit_w, found.now.limit_source) == (250.0, "profile")
    assert (found.then.limit_w, found.then.limit_source) == (150.0, "profile")
    assert found.now.time_s.value == pytest.approx(110.0)
    assert found.then.time_s.value == pytest.approx(100.0 * 1.2 + 10.0)  # training scales, validation stays
    assert found.then.energy_j.value == pytest.approx(22_100.0 * (140 * 12) / (200 * 10) + 1_000.0)


def test_the_limit_found_decides_between_batch_sizes() -> None:
    """64 looks dear as it ran, at full power; at the limit of Eq. 7 for energy alone it is the cheaper one."""
    world = World(job_of(32, 64, default=32, eta=0.0), NEEDS)
    add(world, 32, 150.0, 10.0)
    add(world, 64, 200.0, 9.0)
    halved = [profile(64, 250.0, 200.0, 9.0), profile(64, 100.0, 90.0, 10.0)]
    assert what_if(as_dataset(world.log, world.job), eta=1.0).then.batch_size == 32
    then = what_if(as_dataset(world.log, world.job), eta=1.0, profiles=halved).then
    assert (then.batch_size, then.limit_w) == (64, 100.0)
    assert then.energy_j.value == pytest.approx(90.0 * 100)


@pytest.mark.parametrize("fields", [{"mode": "observe"}, {"mode": "measure"}, {"power_limits_w": [250.0]}])
def test_a_job_that_sets_no_such_limit_keeps_the_one_observed(fields: dict[str, Any]) -> None:
    world = World(job_of(32, default=32, **fields), NEEDS)
    add(world, 32, 200.0, 10.0)
    then = what_if(as_dataset(world.log, world.job), eta=1.0, profiles=PROFILE).then
    assert then.limit_w == 250.0
    assert then.energy_j.value == pytest.approx(20_000.0)


def test_another_energy_source_is_not_mixed_in() -> None:
    world = frugal_and_fast("zeus")
    world.device = A40
    add(world, 32, 100.0, 1.0)
    here = what_if(as_dataset(world.log, world.job), eta=1.0)
    assert here.then.batch_size != 32, "its EpochCost is known here, the others' by translation"
    assert here.then.energy_j.value is None
    assert here.then.energy_j.reason is not None
    there = as_dataset(world.log, world.job, ("V100", 1, "nvml_counter"))
    assert what_if(there, eta=1.0).then.energy_j.value is not None


def test_where_nothing_measures_energy_only_time_is_answered() -> None:
    world = World(job_of(32, default=32), NEEDS, device=CPU)
    world.add(32)
    found = what_if(as_dataset(world.log, world.job), eta=1.0)
    assert (found.then.unit, found.then.eta) == ("s", 0.0)
    assert found.then.cost.value == found.then.time_s.value == pytest.approx(100.0)
    assert found.then.energy_j.value is None
    assert "energy" in (found.then.energy_j.reason or "")


def test_an_empty_log_answers_the_default_and_why_it_knows_no_more() -> None:
    then = what_if(as_dataset([], job_of(16, 32, default=32)), eta=1.0).then
    assert then.batch_size == 32
    assert all(e.value is None and e.reason for e in estimates(then))


@pytest.mark.parametrize("eta", [1.5, -0.1, math.nan])
def test_an_eta_out_of_range_is_named(eta: float) -> None:
    with pytest.raises(JobSpecError, match="eta"):
        what_if(as_dataset([], job_of(32, default=32)), eta=eta)


def estimates(prospect: Forecast) -> list[Estimate]:
    return [v for f in fields(prospect) if isinstance(v := getattr(prospect, f.name), Estimate)]


@REPRODUCIBLE
@given(jobs_and_logs(), profiles(), st.sampled_from(POLICIES), st.sampled_from([0.0, 0.4, 1.0]))
def test_every_log_is_answered_in_numbers_or_reasons(
    job_and_log: tuple[ZeusJob, list[Trial]], profile: list[ProfileSample], policy: str, eta: float
) -> None:
    job = ZeusJob.from_dict({**job_and_log[0].to_dict(), "policy": policy})
    log = [*job_and_log[1], make_trial(99, 32, State.CONVERGED, job=job, epochs=math.nan, time_s=math.inf)]
    found = what_if(as_dataset(log, job), eta=eta, profiles=profile)
    for prospect in (found.now, found.then):
        assert prospect.batch_size in job.batch_sizes
        for e in estimates(prospect):
            if e.value is None:
                assert e.reason
            else:
                assert math.isfinite(e.value)
                assert e.low is not None
                assert e.high is not None
                assert 0 <= e.low <= e.value <= e.high < math.inf


def test_another_choice_is_recommended_only_where_it_surely_gains() -> None:
    world = frugal_and_fast("knowledge_gradient")
    sure = what_if(as_dataset(world.log, world.job), eta=1.0)
    assert (sure.same, sure.gains) == (False, True)
    assert sure.gain.value == pytest.approx(24_000.0 - 16_000.0, rel=0.15)
    same = what_if(as_dataset(world.log, world.job), eta=0.15)
    assert (same.same, same.gains) == (True, False)
    close = World(job_of(16, 32, 64, default=32, eta=0.1, policy="knowledge_gradient"), NEEDS)
    for _ in range(3):
        add(close, 32, 200.0, 15.0)
        add(close, 64, 161.0, 10.0)
        add(close, 16, 80.0, 20.0)
    undecided = what_if(as_dataset(close.log, close.job), eta=1.0)
    assert (undecided.now.batch_size, undecided.then.batch_size) == (64, 16)
    assert (undecided.gain.low or 0.0) < 0 < (undecided.gain.high or 0.0)
    assert not undecided.gains


@pytest.mark.parametrize("policy", POLICIES)
def test_today_is_what_runs_though_other_limits_would_make_another_choice(policy: str) -> None:
    """Had 64 run at its best limit it would be the cheaper one; the policy knows what it did cost, and runs 32."""
    world = World(job_of(32, 64, default=32, eta=1.0, policy=policy), NEEDS)
    for _ in range(3):
        add(world, 32, 150.0, 10.0)
        add(world, 64, 200.0, 9.0)
    halved = [profile(64, 250.0, 200.0, 9.0), profile(64, 100.0, 90.0, 10.0)]
    found = what_if(as_dataset(world.log, world.job), profiles=halved)
    runs_now = world.decide(settings={"pause_exploration": True}, profiles=halved).attempts[-1].batch_size
    assert found.now.batch_size == found.then.batch_size == runs_now == 32
    assert found.same


def test_what_an_epoch_costs_varies_and_so_does_what_is_gained() -> None:
    """Each second run of a size draws three times as much: two runs of each do not show which one is cheaper."""
    sure, vague = (World(job_of(16, 64, default=16, eta=0.0), NEEDS) for _ in range(2))
    for factor in (0.5, 1.5):
        for world, draws in ((sure, 1.0), (vague, factor)):
            add(world, 16, 80.0 * draws, 20.0)
            add(world, 64, 240.0 * draws, 10.0)
    found, doubtful = (what_if(as_dataset(world.log, world.job), eta=1.0) for world in (sure, vague))
    assert (found.now.batch_size, found.then.batch_size) == (64, 16)
    assert (doubtful.now.batch_size, doubtful.then.batch_size) == (64, 16)
    assert found.gains
    assert not doubtful.gains
    assert (doubtful.gain.high or 0.0) - (doubtful.gain.low or 0.0) > 1.5 * (found.gain.high or 0.0)


def test_a_fit_that_was_made_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = frugal_and_fast("knowledge_gradient")
    epochs = slice_epochs(as_dataset(world.log, world.job), np.random.default_rng(0))
    again = what_if(as_dataset(world.log, world.job), eta=1.0)
    monkeypatch.setattr("airflow_provider_zeus.reports.what_if.slice_epochs", lambda *_: pytest.fail("fitted again"))
    found = what_if(as_dataset(world.log, world.job), eta=1.0, epochs=epochs)
    assert found.gain.value == pytest.approx(again.gain.value or 0.0, rel=0.02)


def test_what_was_observed_stands_beside_what_is_believed() -> None:
    world = frugal_and_fast("knowledge_gradient")
    found = what_if(as_dataset(world.log, world.job), eta=1.0)
    assert (found.now.observed.runs, found.then.observed.runs) == (3, 3)
    assert found.then.observed.energy_j == pytest.approx(16_000.0)
    assert found.then.observed.time_s == pytest.approx(200.0)
    assert found.then.observed.cost == pytest.approx(16_000.0)
    elsewhere = what_if(
        as_dataset(world.log, world.job), eta=1.0, profiles=[profile(b, 100.0, 60.0, 20.0) for b in (16, 32, 64)]
    )
    assert elsewhere.then.observed.runs == 0, "no run at that limit"
    assert elsewhere.then.observed.energy_j is None


def test_a_limit_that_differs_by_rounding_is_the_same_choice() -> None:
    world = frugal_and_fast("knowledge_gradient")
    found = what_if(as_dataset(world.log, world.job))
    assert found.same
    assert replace(found, then=replace(found.then, limit_w=250.4)).same
    assert not replace(found, then=replace(found.then, limit_w=200.0)).same
