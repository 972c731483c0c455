"""Algorithm 3 on scripted histories: which batch size is explored when, and when a pruned one returns."""

from __future__ import annotations

import pytest

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import DeviceInfo, Phase, State
from tests.strategies import A40
from tests.unit.optimizer.world import NEVER, World, job_of

SIZES = (8, 16, 32, 64, 128)
NEEDS = {8: NEVER, 16: 12.0, 32: 10.0, 64: 9.0, 128: NEVER}


def sliding() -> ZeusJob:
    return job_of(16, 32, 64, default=32, window=6)


def test_the_order_of_algorithm_3() -> None:
    world = World(job_of(*SIZES, default=32), NEEDS)
    # the default, smaller until failure, larger until failure
    assert world.runs(5) == [32, 16, 8, 64, 128]
    assert world.runs(3) == [64, 32, 16]  # what converged, from the cheapest
    assert world.decide().attempts[0].phase is Phase.SAMPLE


def test_what_lies_behind_a_failure_is_not_explored() -> None:
    world = World(job_of(*SIZES, default=128), {**NEEDS, 128: 10.0, 64: 11.0, 32: NEVER})
    assert world.runs(3) == [128, 64, 32]
    assert world.runs(2) == [128, 64]
    assert not {8, 16} & set(world.runs(20))


def test_a_default_that_fails_still_leads_both_ways() -> None:
    world = World(job_of(*SIZES, default=32), {**NEEDS, 32: NEVER})
    assert world.runs(5) == [32, 16, 8, 64, 128]
    assert world.runs(2) == [64, 16]


def test_a_failure_in_round_2_keeps_the_neighbours_that_converged() -> None:
    world = World(
        job_of(*SIZES, default=128), dict(zip(SIZES, (14.0, 13.0, 12.0, 11.0, 10.0), strict=True))
    )
    world.runs(5)
    world.epochs = {**world.epochs, 64: NEVER}
    assert world.runs(2) == [128, 64]
    assert set(world.arms()) == set(SIZES)
    assert world.decide().attempts[0].phase is Phase.SAMPLE


def test_every_exploring_attempt_but_the_first_is_bounded_and_backed_by_the_incumbent() -> None:
    world = World(job_of(*SIZES, default=32), NEEDS)
    (alone,) = world.run().attempts
    assert (alone.batch_size, alone.phase, alone.round, alone.bounded) == (
        32,
        Phase.EXPLORE,
        1,
        False,
    )
    first, then = world.run().attempts
    assert (first.batch_size, first.phase, first.round) == (16, Phase.EXPLORE, 1)
    assert first.bound_cost == pytest.approx(2 * 10 * 2250.0)
    assert first.bound_epochs is None  # 16 was never measured: only its cost can be bounded
    assert first.bound_samples_per_epoch == 1000.0
    assert (then.batch_size, then.phase, then.bounded) == (32, Phase.INCUMBENT, False)


def test_a_size_that_does_not_fit_the_device_ends_the_walk() -> None:
    world = World(job_of(*SIZES, default=32), {**NEEDS, 128: 5.0})
    world.runs(3)
    world.add(64, State.FAILED, epochs=0.0, phase=Phase.EXPLORE, round_=1, out_of_memory=True)
    assert 128 not in world.runs(20)
    assert 64 not in world.runs(1)


def test_a_default_that_does_not_fit_gives_way_to_the_next_smaller() -> None:
    world = World(job_of(*SIZES, default=64), NEEDS)
    world.add(64, State.FAILED, epochs=0.0, phase=Phase.EXPLORE, round_=1, out_of_memory=True)
    (start,) = world.run().attempts
    assert (start.batch_size, start.bounded) == (32, False)
    assert (start.phase, start.round) == (Phase.EXPLORE, 1)
    assert world.decide(device=A40).attempts[0].batch_size == 64  # another GPU may have the memory


def test_where_nothing_fits_the_default_is_run_anyway() -> None:
    world = World(job_of(16, 32, default=32), {})
    for b in (16, 32):
        world.add(b, State.FAILED, epochs=0.0, out_of_memory=True)
    assert [a.batch_size for a in world.decide().attempts] == [32]


def test_a_new_batch_size_next_to_the_others_is_explored() -> None:
    world = World(job_of(16, 32, default=32), NEEDS)
    world.runs(6)
    world.job = job_of(16, 32, 64, default=32)
    assert world.runs(2) == [64, 64]
    assert 64 in world.arms()


def test_a_new_batch_size_beyond_a_failure_is_tried_once() -> None:
    world = World(job_of(8, 16, 32, default=32), {**NEEDS, 4: 3.0})
    world.runs(8)
    world.job = job_of(4, 8, 16, 32, default=32)
    first, then = world.run().attempts
    assert (first.batch_size, first.phase, first.bounded, then.bounded) == (
        4,
        Phase.RETURN,
        True,
        False,
    )
    assert 4 in world.arms()
    assert world.decide().attempts[0].phase is Phase.SAMPLE


def test_a_new_batch_size_that_fails_is_not_tried_again_within_the_window() -> None:
    world = World(job_of(8, 16, 32, default=32), {**NEEDS, 4: NEVER})
    world.runs(8)
    world.job = job_of(4, 8, 16, 32, default=32)
    assert world.runs(30).count(4) == 1


def test_an_arm_that_left_the_window_is_tried_once_and_pruned_sizes_return() -> None:
    world = World(sliding(), {16: NEVER, 32: 10.0, 64: 50.0})
    # 64 needs 50 epochs, more than twice the 10 of 32: given up
    assert world.runs(3) == [32, 16, 64]
    assert world.runs(1) == [32]
    assert set(world.arms()) == {32}
    world.epochs = {16: NEVER, 32: 10.0, 64: 4.0}  # the data have changed; 64 is not tried now
    history = [world.run().attempts[0] for _ in range(12)]
    returned = [a.batch_size for a in history if a.phase is Phase.RETURN]
    # the smaller of two equally near ones first; 32 may leave the window later
    assert returned[:2] == [16, 64]
    assert returned.count(64) == 1  # from then on an arm again
    assert all(a.bounded for a in history if a.phase is Phase.RETURN)
    arms = world.arms()
    assert min(arms, key=lambda b: arms[b].mean) == 64


def test_an_arm_whose_only_run_slides_out_while_exploration_goes_on_returns() -> None:
    world = World(job_of(8, 16, 32, default=32, window=6), {8: 11.0, 16: 12.0, 32: 10.0})
    assert world.runs(3) == [32, 16, 8]
    for _ in range(5):
        world.add(32, phase=Phase.INCUMBENT)  # concurrent runs
    world.epochs = {8: 11.0, 16: NEVER, 32: 10.0}
    # 16 fails now, so 8 keeps the one run that has left the window
    assert world.runs(2) == [32, 16]
    assert set(world.arms()) == {32}
    returned, _ = world.run().attempts
    assert (returned.batch_size, returned.phase) == (8, Phase.RETURN)


def test_a_size_that_was_never_reached_is_tried_when_a_window_has_passed() -> None:
    world = World(job_of(8, 16, 32, default=32, window=6), {8: 11.0, 16: NEVER, 32: 10.0})
    assert 8 not in world.runs(6)
    assert 8 in world.runs(6)


def test_sizes_measured_on_another_gpu_only_are_tried_once_each_here() -> None:
    world = World(job_of(16, 32, 64, default=32), NEEDS)
    world.runs(10)
    world.device = A40
    moved = [world.run() for _ in range(4)]
    # the cheapest on the old one first
    assert [d.attempts[0].batch_size for d in moved[:3]] == [64, 32, 16]
    assert {d.attempts[0].phase for d in moved[:3]} == {Phase.RETURN}
    assert not moved[0].attempts[0].bounded  # it is the incumbent
    # measured here by now
    assert [d.attempts[0].bound_cost for d in moved[1:3]] == [pytest.approx(2 * 9 * 2500.0)] * 2
    assert moved[3].attempts[0].phase is Phase.SAMPLE
    assert world.arms()[16].mean_epochs == 12.0  # Epochs(b) came along


def test_a_cost_taken_from_another_gpu_ranks_but_stops_no_run() -> None:
    world = World(job_of(16, 32, 64, default=32), NEEDS)
    world.runs(2)
    world.device = A40
    first, then = world.decide().attempts
    assert (first.batch_size, first.phase, then.batch_size) == (64, Phase.EXPLORE, 32)
    assert (first.bound_cost, first.bound_epochs) == (None, 100.0)


def test_a_size_whose_runs_here_have_no_cost_is_not_tried_repeatedly() -> None:
    world = World(job_of(16, 32, default=32), NEEDS)
    for round_ in (1, 2):
        world.add(32, phase=Phase.EXPLORE, round_=round_)
        # the GPU was shared
        world.add(16, phase=Phase.EXPLORE, round_=round_, time_s=None, energy_j=None)
    assert world.decide().attempts[0].phase is Phase.SAMPLE


def test_where_no_run_has_a_cost_the_default_runs_for_that_reason() -> None:
    world = World(job_of(32, default=32), NEEDS)
    for round_ in (1, 2):
        world.add(32, phase=Phase.EXPLORE, round_=round_, time_s=None, energy_j=None)
    (only,) = world.decide().attempts
    assert (only.phase, only.bounded) == (Phase.INCUMBENT, False)
    assert "known cost here" in only.why


def test_the_same_gpu_with_another_energy_source_is_measured_again() -> None:
    world = World(job_of(16, 32, default=32), NEEDS)
    world.runs(6)
    world.device = DeviceInfo(model="V100", max_power_w=250.0, energy_source="nvml_poll")
    moved = [world.run().attempts[0] for _ in range(3)]
    assert [(a.batch_size, a.phase) for a in moved[:2]] == [(32, Phase.RETURN), (16, Phase.RETURN)]
    assert moved[2].phase is Phase.SAMPLE


def test_round_2_continues_from_its_start_even_if_another_size_is_cheaper_now() -> None:
    world = World(job_of(8, 16, 32, 64, default=8), {8: 11.0, 16: 12.0, 32: 13.0, 64: 10.0})
    assert world.runs(4) == [8, 16, 32, 64]
    world.epochs = {8: 11.0, 16: NEVER, 32: 13.0, 64: 30.0}
    assert world.runs(3) == [64, 32, 16]
    assert world.decide().attempts[0].phase is Phase.SAMPLE
