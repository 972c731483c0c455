"""Equations 2, 3, 5 and 7 on numbers computed by hand."""

from __future__ import annotations

import pytest

from airflow_provider_zeus.model.cost import Rates, Weights, best_limit, observed_cost
from airflow_provider_zeus.model.trial import DeviceInfo, Observation, ProfileSample
from airflow_provider_zeus.units import energy_text, time_text
from tests.strategies import CPU, V100
from tests.unit.optimizer.world import World, job_of

HALF = Weights(eta=0.5, max_power_w=250.0)
JOB = job_of(32, default=32)


def sample(limit_w: float, energy_j: float, time_s: float, samples: int = 100) -> ProfileSample:
    return ProfileSample(
        batch_size=32, limit_w=limit_w, samples=samples, energy_j=energy_j, time_s=time_s
    )


@pytest.mark.parametrize(("eta", "cost"), [(0.0, 30_000.0), (0.5, 27_000.0), (1.0, 24_000.0)])
def test_equation_2_weighs_energy_against_time_at_maxpower(eta: float, cost: float) -> None:
    assert Weights(eta, 250.0).cost(24_000.0, 120.0) == cost


@pytest.mark.parametrize("eta", [0.0, 0.3, 1.0])
def test_equation_3_is_equation_2_by_average_power(eta: float) -> None:
    """C = (eta x AvgPower + (1 - eta) x MAXPOWER) x TTA, with Eq. 1: energy = TTA x AvgPower."""
    average_power_w = 200.0
    tta_s = 120.0
    cost = Weights(eta, 250.0).cost(average_power_w * tta_s, tta_s)
    assert cost == pytest.approx((eta * average_power_w + (1 - eta) * 250.0) * tta_s)


def test_equation_5_is_epochs_by_the_cost_of_one_epoch() -> None:
    # 10 s an epoch at 200 W of 250 W: (0.5 x 200 + 0.5 x 250) x 10 = 2250 J
    world = World(JOB, {32: 6.0})
    world.add(32)
    arm = world.arms()[32]
    assert arm.epoch_cost == pytest.approx(2250.0)
    assert arm.mean == pytest.approx(6 * 2250.0)


def test_equation_7_takes_the_limit_of_the_cheapest_sample() -> None:
    slow = sample(150, 140.0, 1.2)
    middle = sample(200, 150.0, 1.0)
    fast = sample(250, 190.0, 0.9)
    # per sample: (70 + 150) / 100, (75 + 125) / 100, (95 + 112.5) / 100
    assert best_limit([fast, middle, slow], HALF) == (200, pytest.approx(2.0))
    assert best_limit([fast, middle, slow], Weights(0.0, 250.0)) == (250, pytest.approx(2.25))
    assert best_limit([fast, middle, slow], Weights(1.0, 250.0)) == (150, pytest.approx(1.4))


def test_equation_7_adds_the_windows_of_one_limit_before_it_compares() -> None:
    lucky = sample(150, 50.0, 0.5)
    unlucky = sample(150, 350.0, 3.5)
    steady = sample(200, 100.0, 1.0)
    assert best_limit([lucky, unlucky, steady], HALF) == (200, pytest.approx(1.75))


def test_of_two_equal_costs_the_lower_limit_wins() -> None:
    assert best_limit([sample(250, 100.0, 1.0), sample(200, 100.0, 1.0)], HALF) == (
        200,
        pytest.approx(1.75),
    )


@pytest.mark.parametrize(("slowdown", "limit_w"), [(1.2, 250), (1.25, 200), (2.0, 150)])
def test_a_limit_may_slow_training_so_much(slowdown: float, limit_w: float) -> None:
    profile = [sample(250, 200.0, 0.8), sample(200, 150.0, 1.0), sample(150, 140.0, 1.5)]
    weights = Weights(1.0, 250.0, slowdown=slowdown)
    found = best_limit(profile, weights)
    assert found is not None
    assert found[0] == limit_w
    assert best_limit(profile, weights.hurried()) == (250, pytest.approx(250.0 * 0.8 / 100))


def test_a_slowdown_is_against_the_highest_limit_measured_which_is_always_permitted() -> None:
    weights = Weights(1.0, 250.0, slowdown=1.05)
    assert best_limit(
        [sample(250, 200.0, 1.0), sample(200, 150.0, 0.9), sample(150, 1.0, 1.06)], weights
    ) == (
        200,
        pytest.approx(1.5),
    )
    assert best_limit([sample(150, 140.0, 1.5)], weights) == (150, pytest.approx(1.4))


@pytest.mark.parametrize(
    "broken", [sample(100, 0.0, 1.0), sample(100, 1.0, 0.0), sample(100, 5.0, 1.0, samples=0)]
)
def test_a_window_too_short_to_be_read_is_not_a_free_limit(broken: ProfileSample) -> None:
    assert best_limit([broken], HALF) is None
    assert best_limit([broken, sample(200, 100.0, 1.0)], HALF) == (200, pytest.approx(1.75))


def test_time_alone_where_nothing_measures_energy() -> None:
    weights = Weights.of(JOB, CPU)
    assert weights.time_alone
    assert weights.cost(None, 12.0) == 12.0
    assert weights.text(12.0) == "12 s"


def test_time_alone_where_maxpower_is_needed_and_unknown() -> None:
    nameless = DeviceInfo(model="X", energy_source="nvml_poll")
    assert Weights.of(JOB, nameless).time_alone
    assert Weights.of(job_of(32, default=32, max_power_w=300), nameless) == Weights(0.5, 300.0)


def test_energy_alone_needs_no_maxpower() -> None:
    weights = Weights.of(
        job_of(32, default=32, eta=1.0), DeviceInfo(model="X", energy_source="nvml_poll")
    )
    assert not weights.time_alone
    assert weights.cost(700.0, 12.0) == 700.0


def test_the_job_s_own_maxpower_wins() -> None:
    assert Weights.of(job_of(32, default=32, max_power_w=180), V100).max_power_w == 180


def test_energy_that_is_missing_is_an_error_where_it_counts() -> None:
    with pytest.raises(ValueError, match="energy_j is None"):
        HALF.cost(None, 10.0)


def test_observed_cost_includes_profiling() -> None:
    seen = Observation(energy_j=24_000.0, time_s=120.0, excess_j=4_000.0, excess_s=20.0)
    assert observed_cost(seen, HALF) == 27_000.0
    assert observed_cost(Observation(time_s=120.0), HALF) is None
    assert observed_cost(Observation(energy_j=1.0), HALF) is None


def test_rates_split_training_from_the_rest_and_leave_profiling_out() -> None:
    seen = Observation(
        epochs=4,
        samples=2_000,
        energy_j=5_000,
        time_s=50,
        rest_j=800,
        rest_s=8,
        excess_j=200,
        excess_s=2,
    )
    rates = Rates.of(seen)
    assert rates == Rates(j_per_sample=2.0, s_per_sample=0.02, rest_j=200.0, rest_s=2.0, epochs=4)
    # an epoch of 1000 samples: 0.5 x (2000 + 200) + 0.5 x 250 x (20 + 2)
    assert rates.epoch_cost(1_000.0, HALF) == pytest.approx(1100 + 2750)


def test_an_attempt_that_ended_within_its_first_epoch_has_a_part_of_one() -> None:
    seen = Observation(samples=250, samples_per_epoch=1_000.0, energy_j=500, time_s=5)
    rates = Rates.of(seen)
    assert rates == Rates(j_per_sample=2.0, s_per_sample=0.02, rest_j=0.0, rest_s=0.0, epochs=0.25)


def test_without_a_count_of_samples_everything_counts_per_epoch() -> None:
    rates = Rates.of(Observation(epochs=4, energy_j=4_200, time_s=44, excess_j=200, excess_s=4))
    assert rates == Rates(j_per_sample=0.0, s_per_sample=0.0, rest_j=1_000.0, rest_s=10.0, epochs=4)
    assert rates.epoch_cost(None, HALF) == pytest.approx(500 + 1250)


@pytest.mark.parametrize(
    "seen",
    [
        Observation(epochs=0, samples=10, time_s=5.0),
        Observation(samples=10, time_s=5.0),
        Observation(epochs=1, samples=10),
        Observation(epochs=1, samples=10, time_s=0.0),
        Observation(epochs=1, samples=10, time_s=5.0, rest_s=6.0),
        Observation(epochs=1, time_s=5.0, excess_s=5.0),
    ],
)
def test_too_little_measured_gives_no_rates(seen: Observation) -> None:
    assert Rates.of(seen) is None


def test_a_reading_of_0_joules_is_a_missing_one() -> None:
    rates = Rates.of(Observation(epochs=1, samples=10, time_s=5.0, energy_j=0.0))
    assert rates is not None
    assert rates.epoch_cost(10.0, HALF) is None
    assert rates.epoch_cost(10.0, Weights(0.0, 250.0)) == pytest.approx(1250.0)


def test_a_cost_per_sample_says_nothing_of_an_epoch_of_unknown_size() -> None:
    rates = Rates.of(Observation(epochs=1, samples=10, time_s=5.0, energy_j=100.0))
    assert rates is not None
    assert rates.epoch_cost(None, HALF) is None


def test_the_text_of_a_cost_is_that_of_the_pages() -> None:
    assert HALF.text(54_321) == "15.1 Wh"
    assert HALF.of_both == " of energy and time together", "or it would be read as energy"
    assert Weights(1.0, 300.0).of_both == ""
    assert Weights(1.0, 300.0).text(54_321) == energy_text(54_321)
    assert Weights(0.0, 1.0, time_alone=True).text(7_205.3) == time_text(7_205.3)
