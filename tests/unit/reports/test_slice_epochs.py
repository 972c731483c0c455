"""Epochs that a batch size would have needed on the slices of a log."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.slice_epochs import DRAWS, SliceEpochs, estimates, run_id, slice_epochs
from tests.strategies import REPRODUCIBLE, jobs_and_logs
from tests.unit.optimizer.world import World, job_of

JOB = job_of(16, 32, 64, default=32, policy="knowledge_gradient", max_epochs=40)


def fitted(world: World) -> SliceEpochs:
    found = slice_epochs(as_dataset(world.log, world.job), np.random.default_rng(0))
    assert found is not None
    return found


def world_of(*runs: tuple[int, float, State]) -> World:
    world = World(JOB, {})
    for b, epochs, state in runs:
        world.add(b, state, epochs)
    return world


def test_a_size_that_ran_to_an_end_is_exact() -> None:
    done, missed = State.CONVERGED, State.EXHAUSTED
    epochs = fitted(world_of((32, 10.0, done), (64, 9.0, done), (32, 40.0, missed), (64, 12.0, done)))
    default = epochs.of(32)
    assert np.ptp(default[:, [0, 2]], axis=0).tolist() == [0.0, 0.0]
    assert default[0, [0, 2]].tolist() == [10.0, 40.0]
    assert np.ptp(default[:, [1, 3]], axis=0).min() > 0
    runs = list(epochs.column)
    assert [epochs.measured(run, 32) for run in runs] == [True, False, True, False]
    assert not epochs.measured(("elsewhere",), 32)


def test_a_run_that_was_given_up_is_a_lower_bound() -> None:
    world = world_of(*[(32, 10.0, State.CONVERGED)] * 4, (32, 14.0, State.GIVEN_UP))
    last = fitted(world).of(32)[:, -1]
    assert last.min() == 14.0
    assert np.ptp(last) > 0


def test_a_slice_that_every_run_missed_is_likely_to_be_missed_by_another_size() -> None:
    history = [(64, 9.0, State.CONVERGED)] * 10 + [(32, 10.0, State.CONVERGED)] * 10
    epochs = fitted(world_of(*history, (64, 40.0, State.EXHAUSTED), (64, 9.0, State.CONVERGED)))
    missed = (epochs.of(32) == 40.0).mean(0)
    assert 0.6 < missed[-2] < 0.95
    assert missed[-1] < 0.2
    never = fitted(world_of(*history, (64, 9.0, State.CONVERGED)))
    assert (never.of(32)[:, -1] == 40.0).mean() < 0.01, "nothing has ever missed"


def test_the_newest_slice_and_estimates_by_hand() -> None:
    epochs = fitted(world_of(*[(32, 10.0, State.CONVERGED), (64, 5.0, State.CONVERGED)] * 6))
    ratio = epochs.on_newest_slice(32).mean() / epochs.on_newest_slice(64).mean()
    assert ratio == pytest.approx(2.0, rel=0.2)
    one, exact = estimates(np.array([[float(n), 7.0] for n in range(101)]))
    assert (one.value, one.low, one.high) == (50.0, 5.0, 95.0)
    assert (exact.value, exact.low, exact.high) == (7.0, 7.0, 7.0)


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
    assert draws.shape == (DRAWS, len({run_id(t) for t in as_dataset(log, job).of_target().trials}))
    own = [t.observation.epochs for t in log if t.batch_size == job.default_batch_size and t.observation.epochs]
    assert draws.max() <= max(float(job.max_epochs or 1), *own, 1.0)
    assert np.isfinite(draws).all()
    again = log.copy()
    shuffled.shuffle(again)
    other = slice_epochs(as_dataset(again, job).of_target(), np.random.default_rng(0))
    assert other is not None
    assert np.array_equal(other.of(job.default_batch_size), draws)


def test_the_intervals_hold_on_logs_that_the_model_made() -> None:
    """Difficulty autoregressive with sd .4, noise .15, the default runs first and every tenth time."""
    covered = []
    for seed in range(40):
        rng, s, world, truth = random.Random(seed), 0.0, World(JOB, {}), 0.0
        for n in range(25):
            s = 0.9 * s + 0.4 * math.sqrt(1 - 0.81) * rng.gauss(0, 1)
            needs = {32: 10 * math.exp(s + rng.gauss(0, 0.15)), 64: 7 * math.exp(s + rng.gauss(0, 0.15))}
            world.add(32 if n % 10 == 0 else 64, State.CONVERGED, min(needs[32 if n % 10 == 0 else 64], 40.0))
            truth += min(needs[32], 40.0)
        total = estimates(fitted(world).of(32).sum(1, keepdims=True))[0]
        covered.append((total.low or 0.0) <= truth <= (total.high or 0.0))
    assert 0.8 <= sum(covered) / len(covered) <= 1.0
