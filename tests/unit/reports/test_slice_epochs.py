"""Epochs that a batch size would have needed on the slices of a log."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Origin, State, Trial, TrialKey
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.slice_epochs import DRAWS, SliceEpochs, estimates, slice_epochs
from airflow_provider_zeus.reports.slice_paths import Vector, prior
from tests.strategies import REPRODUCIBLE, jobs_and_logs
from tests.unit.optimizer.world import World, job_of

JOB = job_of(16, 32, 64, default=32, policy="knowledge_gradient", max_epochs=40)


def fitted(world: World) -> SliceEpochs:
    found = slice_epochs(as_dataset(world.log, world.job), np.random.default_rng(0))
    assert found is not None
    return found


def covers(one: Estimate, truth: float) -> bool:
    assert one.low is not None
    assert one.high is not None
    return one.low <= truth <= one.high


def world_of(*runs: tuple[int, float, State]) -> World:
    world = World(JOB, {})
    for b, epochs, state in runs:
        world.add(b, state, epochs)
    return world


def test_a_size_that_ran_to_an_end_is_exact() -> None:
    done = State.CONVERGED
    missed = State.EXHAUSTED
    epochs = fitted(
        world_of((32, 10.0, done), (64, 9.0, done), (32, 40.0, missed), (64, 12.0, done))
    )
    default = epochs.of(32)
    assert np.ptp(default[:, [0, 2]], axis=0).tolist() == [0.0, 0.0]
    assert default[0, [0, 2]].tolist() == [10.0, 40.0]
    assert np.ptp(default[:, [1, 3]], axis=0).min() > 0
    runs = list(epochs.column)
    assert [run in epochs.ended(32) for run in runs] == [True, False, True, False]


def test_a_size_whose_runs_all_went_on_from_an_earlier_model_has_epochs_of_a_cold_one() -> None:
    world = World(replace(JOB, starts=["cold", "warm"]), {})
    for _ in range(4):
        world.add(32, State.CONVERGED, 10.0, start="cold")
    world.add(64, State.CONVERGED, 2.0, start="warm")
    epochs = fitted(world)
    assert epochs.ended(64) == {}
    assert epochs.of(64).mean() > 5.0, "as the other size took, and not as this one did"
    assert epochs.on_newest_slice(64).mean() > 5.0


def test_a_run_that_was_given_up_is_a_lower_bound() -> None:
    world = world_of(*[(32, 10.0, State.CONVERGED)] * 4, (32, 14.0, State.GIVEN_UP))
    last = fitted(world).of(32)[:, -1]
    assert last.min() == 14.0
    assert np.ptp(last) > 0


def test_where_slices_differ_a_hard_one_would_have_been_hard_for_the_default() -> None:
    """The size that ran took twice what it took on the slices before: so would the default."""

    def with_last(factor: float) -> Vector:
        hard = [math.exp(0.6 * math.sin(n / 3)) for n in range(25)]
        before = [
            (32, 10 * d, State.CONVERGED) if n % 2 else (64, 8 * d, State.CONVERGED)
            for n, d in enumerate(hard)
        ]
        means: Vector = (
            fitted(world_of(*before[:-1], (64, 8 * hard[-1] * factor, State.CONVERGED)))
            .of(32)
            .mean(0)
        )
        return means

    usual = with_last(1.0)
    twice = with_last(2.0)
    assert usual[-1] == pytest.approx(10 * math.exp(0.6 * math.sin(8)), rel=0.1)
    assert 1.6 < twice[-1] / usual[-1] < 2.1
    assert twice[:12] == pytest.approx(usual[:12], rel=0.1), "of old slices it tells little"


def test_where_slices_are_alike_one_long_run_is_chance() -> None:
    runs = [(32, 10.0, State.CONVERGED), (64, 8.0, State.CONVERGED)] * 12
    usual = fitted(world_of(*runs, (64, 8.0, State.CONVERGED))).of(32).mean(0)
    twice = fitted(world_of(*runs, (64, 16.0, State.CONVERGED))).of(32).mean(0)
    assert twice[-1] < 1.3 * usual[-1]


def test_a_slice_that_every_run_missed_may_be_out_of_reach_of_another_size() -> None:
    history = [(64, 9.0, State.CONVERGED)] * 10 + [(32, 10.0, State.CONVERGED)] * 10
    epochs = fitted(world_of(*history, (64, 40.0, State.EXHAUSTED), (64, 9.0, State.CONVERGED)))
    missed = (epochs.of(32) == 40.0).mean(0)
    assert 0.1 < missed[-2] < 0.5, "64 may have missed it by itself"
    assert missed[-1] < 0.05
    never = fitted(world_of(*history, (64, 9.0, State.CONVERGED)))
    assert (never.of(32)[:, -1] == 40.0).mean() < 0.01, "nothing has ever missed"


def test_a_loop_that_was_left_below_the_target_is_an_end_and_a_miss() -> None:
    """The default itself would not have taken ``max_epochs`` either."""
    done = State.CONVERGED
    left = State.EXHAUSTED
    alone = fitted(world_of(*[(32, 12.0, done)] * 5, *[(32, 25.0, left)] * 10))
    assert alone.of(32)[0].tolist() == [12.0] * 5 + [25.0] * 10
    assert np.ptp(alone.of(32), axis=0).max() == 0.0
    history = [(64, 9.0, done)] * 10 + [(32, 10.0, done)] * 10
    missed = fitted(world_of(*history, (64, 20.0, left), (64, 9.0, done))).of(32)[:, -2]
    assert 0.1 < (missed == 20.0).mean() < 0.5
    assert (missed == 40.0).mean() < 0.01


def test_misses_in_a_row_are_the_sizes_doing_though_a_run_died_between_them() -> None:
    """As for the policy, which learns nothing from a run that died."""
    missed = (64, 40.0, State.EXHAUSTED)
    died = (64, 0.0, State.FAILED)
    history = [(32, 10.0, State.CONVERGED)] * 10
    row = fitted(world_of(*history, missed, missed, missed)).of(32)[:, 10:]
    interrupted = fitted(world_of(*history, missed, died, missed, died, missed)).of(32)[
        :, [10, 12, 14]
    ]
    assert (row == 40.0).mean() < 0.5
    assert (interrupted == 40.0).mean() == pytest.approx((row == 40.0).mean(), abs=0.05)


def test_after_a_change_of_the_data_the_curve_is_another_one() -> None:
    world = World(JOB, {})
    for n in range(32):
        world.add(
            32 if n % 2 else 64,
            State.CONVERGED,
            10.0 if n < 16 or n % 2 else 30.0,
            data_slice=f"slice {n}",
        )
    epochs = fitted(world)
    assert epochs.of(32).mean(0) == pytest.approx([10.0] * 32, rel=0.2)
    assert epochs.of(64)[:, 1:13:2].mean() == pytest.approx(10.0, rel=0.1)
    assert epochs.of(64)[:, 19::2].mean() == pytest.approx(30.0, rel=0.1)
    assert epochs.on_newest_slice(64).mean() == pytest.approx(30.0, rel=0.1)


def test_a_change_of_the_data_is_part_of_how_hard_a_slice_was() -> None:
    """Beside today's runs an old one of 64 looks as it would be now, not at a third of it."""
    world = World(JOB, {})
    for n in range(32):
        world.add(
            32 if n % 2 else 64,
            State.CONVERGED,
            10.0 if n < 16 or n % 2 else 30.0,
            data_slice=f"slice {n}",
        )
    hard = list(fitted(world).hardness().values())
    assert hard[:16:2] == pytest.approx([1 / 3] * 8, rel=0.25)
    assert hard[1:16:2] == pytest.approx([1.0] * 8, rel=0.2)
    assert hard[16:] == pytest.approx([1.0] * 16, rel=0.2)


def test_the_newest_slice_is_as_hard_as_it_was() -> None:
    hard = [math.exp(0.6 * math.sin(n / 3)) for n in range(24)]
    runs = [
        (32, 10 * d, State.CONVERGED) if n % 2 else (64, 8 * d, State.CONVERGED)
        for n, d in enumerate(hard)
    ]
    for last in (15, 24):
        newest = fitted(world_of(*runs[:last])).on_newest_slice(32).mean()
        assert newest == pytest.approx(10 * hard[last - 1], rel=0.2), (
            f"{hard[last - 1]:.1f} times the usual"
        )


def test_map_indexes_of_one_task_are_runs_of_their_own() -> None:
    world = world_of(
        (32, 10.0, State.CONVERGED), (64, 8.0, State.CONVERGED), (64, 7.0, State.CONVERGED)
    )
    places = [Origin(dag_id="d", run_id="r", task_id="t", map_index=index) for index in (0, 1, 1)]
    log = [replace(trial, origin=origin) for trial, origin in zip(world.log, places, strict=True)]
    found = slice_epochs(as_dataset(log, JOB), np.random.default_rng(0))
    assert found is not None
    assert list(found.column) == [("d", "r", "t", "0"), ("d", "r", "t", "1")]
    assert [len(item.runs) for item in found.slices] == [1, 2]


def test_the_newest_slice_and_estimates_by_hand() -> None:
    epochs = fitted(world_of(*[(32, 10.0, State.CONVERGED), (64, 5.0, State.CONVERGED)] * 6))
    ratio = epochs.on_newest_slice(32).mean() / epochs.on_newest_slice(64).mean()
    assert ratio == pytest.approx(2.0, rel=0.2)
    one, exact = estimates(np.array([[float(n), 7.0] for n in range(101)]))
    assert (one.value, one.low, one.high) == (50.0, 5.0, 95.0)
    assert (exact.value, exact.low, exact.high) == (7.0, 7.0, 7.0)


def test_a_rare_miss_that_is_dear_makes_no_saving_sure() -> None:
    """Its mean was 15 on a slice, and the interval 9 to 11: a run of 12 had "saved 20 %"."""
    draws = np.array([[9.0 + n / 50.0] for n in range(96)] + [[140.0]] * 4)
    (one,) = estimates(draws)
    assert one.value == pytest.approx(15.2, abs=0.1)
    assert one.plus(-12.0).verdict == "undecided"


@REPRODUCIBLE
@given(jobs_and_logs(), st.randoms(use_true_random=False))
def test_every_log_has_draws_within_bounds_in_any_order(
    job_and_log: tuple[ZeusJob, list[Trial]], shuffled: random.Random
) -> None:
    job, log = job_and_log
    found = slice_epochs(as_dataset(log, job).of_target(), np.random.default_rng(0))
    if found is None:
        return
    draws = found.of(job.default_batch_size)
    assert draws.shape == (
        DRAWS,
        len({t.recurrence for t in as_dataset(log, job).of_target().trials}),
    )
    # a miss takes what those of any size took
    seen = [t.observation.epochs for t in log if t.observation.epochs]
    assert draws.max() <= max(float(job.max_epochs or 1), *seen, 1.0)
    assert draws.min() >= min([1.0, *seen])
    assert np.isfinite(draws).all()
    again = log.copy()
    shuffled.shuffle(again)
    other = slice_epochs(as_dataset(again, job).of_target(), np.random.default_rng(0))
    assert other is not None
    assert np.array_equal(other.of(job.default_batch_size), draws)


def made_by_the_model(seed: int, runs: int = 25) -> tuple[World, list[float]]:
    """(A log, what 32 needs on each of its slices); 32 runs first and every tenth time, else 64."""
    rng = np.random.default_rng(seed)
    world = World(JOB, {})
    truth = []
    difficulty = 0.0
    curve = rng.multivariate_normal(*prior(JOB.batch_sizes, 32))
    for n in range(runs):
        difficulty += rng.normal(0.0, 0.1)
        log_epochs = math.log(10) + curve - curve[1] + difficulty + rng.normal(0.0, 0.15, 3)
        needs = dict(zip(JOB.batch_sizes, np.exp(log_epochs).clip(1, 40).tolist(), strict=True))
        b = 64 if n % 10 else 32
        world.add(b, State.CONVERGED, needs[b])
        truth.append(needs[32])
    return world, truth


def test_the_intervals_hold_on_logs_that_the_model_made() -> None:
    sums = []
    runs = []
    errors = []
    for seed in range(60):
        world, truth = made_by_the_model(seed)
        draws = fitted(world).of(32)
        (total,), each = estimates(draws.sum(1, keepdims=True)), estimates(draws)
        sums.append(covers(total, sum(truth)))
        runs += [
            covers(one, needs)
            for n, (one, needs) in enumerate(zip(each, truth, strict=True))
            if n % 10
        ]
        errors.append((total.value or 0.0) / sum(truth) - 1)
    assert 0.80 <= statistics.fmean(sums) <= 0.98
    assert 0.86 <= statistics.fmean(runs) <= 0.94
    assert abs(statistics.fmean(errors)) < 0.05


def test_what_one_size_misses_it_misses_by_itself_unless_others_missed_there_too() -> None:
    def shares(world: World) -> dict[int, float]:
        epochs = fitted(world)
        return {b: float(epochs.misses.share(epochs.sizes[b]).mean()) for b in (32, 64)}

    reaches = [(32, 10.0, State.CONVERGED), (64, 9.0, State.CONVERGED)] * 6
    missed = (64, 40.0, State.EXHAUSTED)
    alone = shares(world_of(*reaches, missed, *reaches))
    assert alone[32] < 0.05 < alone[64] < 0.12, "of 64 one run in thirteen"
    world = world_of(*reaches, missed, (32, 10.0, State.CONVERGED), *reaches)
    world.log[13] = replace(world.log[13], key=TrialKey(world.log[12].key.ti_id, 2))
    shown = shares(world)
    assert shown[32] < 0.02, "32 reached it on that slice"
    assert shown[64] > alone[64]
    every = shares(world_of(*reaches, *[missed, (32, 40.0, State.EXHAUSTED)] * 3))
    assert every[32] > 0.15 < every[64]
    assert shares(world_of(*reaches)) == {32: 0.0, 64: 0.0}


def test_a_default_that_misses_is_not_as_sure_as_a_size_that_never_did() -> None:
    """What the default missed on a third of its slices it would have missed on others,
    where another size ran.
    """
    done = State.CONVERGED
    default = [(32, 10.0, done), (32, 10.0, done), (32, 40.0, State.EXHAUSTED)]
    epochs = fitted(world_of(*default * 4, *[(64, 9.0, done)] * 12))
    on_others = (epochs.of(32)[:, 12:] == 40.0).mean()
    assert 0.2 < on_others < 0.5
    expected = epochs.on_newest_slice(32).mean()
    assert expected == pytest.approx(10 + 30 * on_others, rel=0.1)


def test_no_forecast_is_beyond_the_epochs_that_a_run_may_take() -> None:
    harder = [(32, 10.0 * 1.12**n, State.CONVERGED) for n in range(12)]
    newest = fitted(world_of(*harder, *[(64, 39.0, State.CONVERGED)] * 3)).on_newest_slice(32)
    assert newest.max() <= 40.0


def test_how_hard_each_slice_was() -> None:
    hard = [math.exp(0.6 * math.sin(n / 3)) for n in range(25)]
    world = world_of(
        *[
            (32, 10 * d, State.CONVERGED) if n % 2 else (64, 8 * d, State.CONVERGED)
            for n, d in enumerate(hard)
        ]
    )
    found = list(fitted(world).hardness().values())
    assert np.corrcoef(np.log(found), np.log(hard))[0, 1] > 0.9


def test_no_slice_is_so_easy_that_a_run_on_a_typical_one_takes_more_epochs_than_it_may() -> None:
    """A run of 38 of 40 epochs stood in the chart of beliefs as one of 57 on a typical slice."""
    easy = [(64, 30.0, State.CONVERGED), (32, 9.0, State.CONVERGED)] * 4
    found = fitted(world_of(*easy, *[(32, 38.0, State.CONVERGED)] * 4)).hardness()
    first, *_ = found.values()
    assert 30.0 / first <= 40.0
