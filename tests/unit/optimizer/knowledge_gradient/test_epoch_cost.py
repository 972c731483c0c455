"""EpochCost of sizes that were not measured: an affine step time, its prior from the power, and its variance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.optimizer.arms import loads
from airflow_provider_zeus.optimizer.knowledge_gradient.epoch_cost import predicted
from airflow_provider_zeus.optimizer.knowledge_gradient.gp import Vector
from tests.strategies import REPRODUCIBLE, V100
from tests.unit.optimizer.world import World, job_of

SIZES = (8, 16, 32, 64, 128, 256, 512)
LEVELS = st.floats(1e-3, 1e12)
HALVES = st.floats(0.01, 30.0)  # as a multiple of the size known


def found(
    known: dict[int, float],
    elsewhere: dict[int, float] | None = None,
    loads: dict[int, float] | None = None,
) -> tuple[Vector, Vector]:
    """Predicted log EpochCost and its standard deviation."""
    answer = predicted(SIZES, known, elsewhere or {}, 64, loads)
    assert answer is not None
    return answer[0], np.sqrt(answer[1])


def affine(level: float, half: float) -> dict[int, float]:
    """EpochCost of a step time ``a + c b``."""
    return {b: level * (1 + half / b) for b in SIZES}


def test_nothing_known_anywhere_is_none() -> None:
    assert predicted((16, 32), {}, {}, 32) is None
    assert predicted((16, 32), {64: 5.0}, {}, 32) is None, (
        "only a size outside the list was measured"
    )


@REPRODUCIBLE
@given(st.dictionaries(st.sampled_from(SIZES), LEVELS, min_size=1), st.floats(0.0, 2.0))
def test_measured_sizes_are_exact_and_all_others_finite_and_uncertain(
    known: dict[int, float], load: float
) -> None:
    mean, sd = found(known, loads=dict.fromkeys(known, load))
    for b, log_cost, deviation in zip(SIZES, mean, sd, strict=True):
        if b in known:
            assert log_cost == pytest.approx(math.log(known[b]))
            assert deviation == 0
        else:
            assert math.isfinite(log_cost)
            assert deviation > 0.01


@REPRODUCIBLE
@given(LEVELS, HALVES, st.sampled_from([0.1, 0.3, 0.6, 0.9]))
def test_an_affine_truth_is_recovered_from_two_sizes(
    level: float, half: float, load: float
) -> None:
    truth = affine(level, 32 * half)
    mean, sd = found({b: truth[b] for b in (32, 64)}, loads={32: load, 64: load})
    off = np.abs(mean - np.log([truth[b] for b in SIZES]))
    assert (off[[1, 4]] < 0.1).all(), "one octave away"
    assert (off <= 2.5 * sd + 1e-9).all()


@REPRODUCIBLE
@given(LEVELS, st.floats(0.0, 1.0))
def test_uncertainty_grows_with_the_distance_from_measured_sizes(level: float, load: float) -> None:
    for known in ({64: level}, {64: level, 128: 0.9 * level}):
        _, sd = found(known, loads=dict.fromkeys(known, load))
        assert (np.diff(sd[:4]) < 0).all()
        assert (np.diff(sd[SIZES.index(max(known)) :]) > 0).all()


def test_a_second_measured_size_reduces_the_uncertainty_of_the_others() -> None:
    one = found({64: 100.0})[1]
    two = found({64: 100.0, 32: 110.0})[1]
    assert (two[[0, 1, 4, 5]] < one[[0, 1, 4, 5]]).all()


def test_a_size_between_two_measured_ones_is_less_uncertain_than_one_beyond() -> None:
    _, sd = found({16: 130.0, 64: 100.0})
    assert sd[2] < sd[1 + 3]


def test_where_the_device_waits_larger_sizes_are_expected_to_be_cheaper_than_where_it_works() -> (
    None
):
    waits, works = (found({64: 100.0}, loads={64: load})[0] for load in (0.15, 0.7))
    assert waits[4] < works[4] < math.log(100.0)
    assert waits[3] == works[3]
    assert waits[2] > works[2] > math.log(100.0)


def test_two_measured_sizes_outweigh_the_power() -> None:
    truth = affine(100.0, 96.0)
    known = {b: truth[b] for b in (32, 64)}
    waits, works = (found(known, loads=dict.fromkeys(known, load))[0] for load in (0.15, 0.9))
    assert works[4] == pytest.approx(waits[4], abs=0.05)


def test_another_gpu_s_curve_is_expected_at_another_level() -> None:
    there = {16: 40.0, 32: 10.0, 64: 5.0}
    mean, _ = found({32: 100.0}, there)
    assert np.exp(mean[1:4]) == pytest.approx([400.0, 100.0, 50.0], rel=0.02)
    alone, sd = found({}, there)
    assert np.exp(alone[1:4]) == pytest.approx([40.0, 10.0, 5.0])
    assert (sd[1:4] == 0).all()


def test_loads_are_the_share_of_maxpower_that_training_drew_on_this_device() -> None:
    world = World(job_of(16, 32, 64, default=32), {16: 12.0, 32: 10.0, 64: 9.0}, power_w=100.0)
    world.add(32)
    world.power_w = 200.0
    world.add(32)
    world.add(64)
    world.add(16, device_model="A40")
    assert loads(world.belief, V100) == pytest.approx({32: 0.6, 64: 0.8})
    assert loads(world.belief, None) == {}


def test_without_a_sample_count_the_load_is_that_of_the_whole_epoch() -> None:
    world = World(job_of(16, 32, default=32), {16: 12.0, 32: 10.0}, power_w=100.0)
    world.add(32, samples=None, samples_per_epoch=None)
    assert loads(world.belief, V100) == pytest.approx({32: 0.4})


def test_without_energy_the_load_is_unknown() -> None:
    world = World(job_of(16, 32, default=32), {16: 12.0, 32: 10.0})
    world.add(32, energy_j=None)
    assert loads(world.belief, V100) == {}
