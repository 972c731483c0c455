"""The posterior of one batch size: Algorithm 2 under a flat prior, with stopped runs and equal costs."""

from __future__ import annotations

import math
import statistics

import pytest

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.trial import DeviceInfo, ProfileSample, State
from airflow_provider_zeus.optimizer.arms import (
    RELATIVE_SD,
    arms_of,
    epoch_costs,
    mean_epochs,
    run_variance,
)
from airflow_provider_zeus.optimizer.belief import RATES_KEPT
from tests.strategies import A40, V100
from tests.unit.optimizer.world import World, job_of

JOB = job_of(16, 32, 64, default=32)
NEEDS = {16: 20.0, 32: 10.0, 64: 8.0}
EPOCH_COST = 2250.0  # 10 s at 200 W, MAXPOWER 250 W, eta 0.5


def world_of(*runs: tuple[int, float]) -> World:
    world = World(JOB, NEEDS)
    for b, epochs in runs:
        world.add(b, epochs=epochs)
    return world


def test_posterior_is_the_mean_and_the_spread_over_root_n() -> None:
    arm = world_of((32, 8.0), (32, 10.0), (32, 12.0)).arms()[32]
    assert arm.mean == pytest.approx(10 * EPOCH_COST)
    assert arm.sd == pytest.approx(statistics.pstdev([8, 10, 12]) / 3**0.5 * EPOCH_COST)
    assert (arm.runs, arm.mean_epochs) == (3, 10.0)


def test_one_run_borrows_the_spread_that_others_show() -> None:
    arms = world_of((32, 8.0), (32, 12.0), (64, 5.0)).arms()
    assert arms[64].sd == pytest.approx(0.2 * 5 * EPOCH_COST)  # 32 spreads by 2 around 10


def test_one_run_alone_spreads_as_the_paper_reports() -> None:
    assert world_of((32, 10.0)).arms()[32].sd == pytest.approx(RELATIVE_SD * 10 * EPOCH_COST)


@pytest.mark.parametrize("epochs", [3.0, 0.1, 1 / 3])
def test_equal_costs_are_no_point_mass(epochs: float) -> None:
    arm = world_of((32, epochs), (32, epochs), (32, epochs)).arms()[32]
    assert arm.sd == pytest.approx(RELATIVE_SD * arm.mean / 3**0.5)


@pytest.mark.parametrize(
    ("converged", "stopped", "mean"),
    [
        ([10.0], [4.0], 10.0),  # stopped below the mean: only "more than 4", which is known
        ([10.0], [10.0], 10.0),
        ([10.0], [30.0], 20.0),
        ([10.0, 12.0], [14.0, 2.0], 12.0),
        ([10.0], [30.0, 15.0], 20.0),  # 15 lies below the mean that 30 makes
    ],
)
def test_a_stopped_run_counts_where_it_raises_the_mean(
    converged: list[float], stopped: list[float], mean: float
) -> None:
    found = mean_epochs(converged, stopped)
    assert found[0] == pytest.approx(mean)
    assert mean_epochs(converged, stopped[::-1]) == found


def test_a_stopped_run_older_than_the_window_is_forgotten() -> None:
    world = World(job_of(16, 32, default=32, window=4), NEEDS)
    world.add(32, State.GIVEN_UP, epochs=50.0)
    world.add(32, epochs=10.0)
    assert world.arms()[32].mean_epochs == 30.0
    for _ in range(3):
        world.add(32, epochs=10.0)
    assert world.arms()[32].mean_epochs == 10.0


def test_epoch_cost_is_the_mean_of_the_runs_here_that_are_like_their_median() -> None:
    world = world_of((32, 10.0))
    for epoch_s in (11.0, 15.0):
        world.epoch_s = {32: epoch_s}
        world.add(32)
    cost = epoch_costs(world.belief, V100, (), Weights.of(JOB, V100))
    assert cost == {32: pytest.approx(1.05 * EPOCH_COST)}, "15 s is unlike the median of 11 s"
    assert epoch_costs(world.belief, A40, (), Weights.of(JOB, A40)) == {}


def test_epoch_cost_forgets_all_but_the_newest_runs() -> None:
    world = world_of(*[(32, 10.0)] * 3)
    world.epoch_s = {32: 20.0}
    for _ in range(RATES_KEPT):
        world.add(32)
    assert world.arms()[32].epoch_cost == pytest.approx(2 * EPOCH_COST)


def test_of_two_runs_that_disagree_the_cheaper_one_counts_and_of_two_that_agree_the_mean() -> None:
    for second_s, cost in ((11.0, 1.05), (20.0, 1.0), (3.0, 0.3)):
        world = world_of((32, 9.0))
        world.epoch_s = {32: second_s}
        world.add(32)
        assert world.arms()[32].epoch_cost == pytest.approx(cost * EPOCH_COST)


def test_a_run_of_less_than_an_epoch_validates_as_the_others_do() -> None:
    world = world_of()
    world.add(32, epochs=10.0, rest_s=40.0, rest_j=40.0 * 200)  # of 100 s and 20 kJ
    validated = 0.4 * EPOCH_COST
    # 5 s of training, a second of waiting
    world.add(64, State.GIVEN_UP, 0.5, rest_s=1.0, rest_j=200.0)
    cost = epoch_costs(world.belief, V100, (), Weights.of(JOB, V100))
    assert cost[32] == pytest.approx(EPOCH_COST)
    assert cost[64] == pytest.approx(0.8 * EPOCH_COST + validated)
    world.add(64, epochs=8.0)
    cost = epoch_costs(world.belief, V100, (), Weights.of(JOB, V100))
    assert cost[64] < 1.01 * EPOCH_COST, "its own validation is known now"


def test_a_log_that_makes_a_smaller_slice_cost_less_than_nothing_has_no_such_cost() -> None:
    """As a log may hold it that another version wrote."""
    world = World(job_of(16, 32, default=32, policy="knowledge_gradient"), NEEDS)
    for size in (1000.0, 1000.0, 10.0):
        world.samples = size
        world.add(32, rest_j=-5_000.0, rest_s=1.0)
    weights = Weights.of(world.job, V100)
    assert all(cost > 0 for cost in epoch_costs(world.belief, V100, (), weights).values())
    attempts = world.decide().attempts
    assert all(a.bound_cost is None or math.isfinite(a.bound_cost) for a in attempts)
    assert "nan" not in " ".join(a.why for a in attempts)


def test_where_no_samples_are_counted_nothing_is_added() -> None:
    world = world_of()
    world.add(32, epochs=10.0, samples=None)
    world.add(64, State.GIVEN_UP, 0.5, samples=None)
    cost = epoch_costs(world.belief, V100, (), Weights.of(JOB, V100))
    assert cost == {32: pytest.approx(EPOCH_COST), 64: pytest.approx(EPOCH_COST)}


def test_the_variance_of_epoch_cost_is_pooled_over_the_sizes() -> None:
    world = world_of((32, 10.0), (64, 8.0))
    weights = Weights.of(JOB, V100)
    assert run_variance(world.belief, V100, weights) == (0.0, {32: 1, 64: 1})
    world.epoch_s = {32: 10.0 * math.exp(0.2)}
    world.add(32)
    variance, runs = run_variance(world.belief, V100, weights)
    assert variance == pytest.approx(0.02)
    assert runs == {32: 2, 64: 1}
    assert run_variance(world.belief, A40, weights) == (0.0, {})


def test_a_profile_gives_the_epoch_cost_of_a_size_that_never_ended_by_itself() -> None:
    world = world_of((32, 10.0))
    profile = [
        ProfileSample(batch_size=64, limit_w=250, samples=100, energy_j=200, time_s=1.0),
        ProfileSample(batch_size=64, limit_w=150, samples=100, energy_j=140, time_s=1.1),
        # its runs are known better
        ProfileSample(batch_size=32, limit_w=250, samples=100, energy_j=9e9, time_s=1.0),
    ]
    costs = epoch_costs(world.belief, V100, profile, Weights.of(JOB, V100))
    assert costs[64] == pytest.approx((0.5 * 140 + 0.5 * 250 * 1.1) / 100 * 1000)
    assert costs[32] == pytest.approx(EPOCH_COST)


def test_slices_of_another_size_cost_what_their_samples_do() -> None:
    world = world_of((32, 10.0), (64, 8.0))
    world.samples = 3000.0
    world.add(32)  # three times the data, three times the time
    arms = world.arms()
    assert arms[32].epoch_cost == pytest.approx(3 * EPOCH_COST)
    assert arms[64].epoch_cost == pytest.approx(3 * EPOCH_COST)  # not run on the larger slice yet


def test_runs_that_name_no_slice_size_are_compared_per_epoch() -> None:
    world = World(JOB, NEEDS)
    for b, time_s in ((32, 100.0), (64, 60.0)):
        world.add(
            b,
            epochs=10.0,
            samples=None,
            samples_per_epoch=None,
            time_s=time_s,
            energy_j=time_s * 200,
        )
    arms = world.arms()
    assert arms[32].epoch_cost == pytest.approx(2250.0)
    assert arms[64].epoch_cost == pytest.approx(1350.0)


def test_the_slice_size_follows_from_samples_and_epochs() -> None:
    world = World(JOB, NEEDS)
    world.add(32, samples_per_epoch=None)
    assert world.arms()[32].epoch_cost == pytest.approx(EPOCH_COST)


def test_two_gpus_are_another_device_than_one() -> None:
    world = world_of((32, 10.0))
    pair = DeviceInfo(model="V100", count=2, max_power_w=500.0, energy_source="nvml_counter")
    assert arms_of(world.belief, epoch_costs(world.belief, pair, (), Weights.of(JOB, pair))) == {}
