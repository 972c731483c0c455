"""The best batch size in hindsight, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.trial import ProfileSample, State
from airflow_provider_zeus.reports.best_fixed import BestFixed, best_fixed
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from tests.unit.optimizer.world import World, job_of

JOB = job_of(16, 32, 64, default=32)


def world() -> World:
    made = World(JOB, {16: 20.0, 32: 10.0, 64: 8.0})
    add(made, 32, 10.0)
    add(made, 64, 8.0)
    return made


def add(made: World, b: int, epochs: float, state: State = State.CONVERGED, power_w: float = 100.0, **f: Any) -> None:
    made.add(
        b, state, epochs, **{"time_s": 10 * epochs, "energy_j": 10 * epochs * power_w, "power_limit_w": 150.0, **f}
    )


def found(made: World, *samples: ProfileSample, size: float | None = 1000.0) -> tuple[BestFixed | None, Weights]:
    log = as_dataset(made.log, JOB)
    weights = Weights.of(JOB, log.device)
    return best_fixed(log, weights, size, LimitProfiles.of(samples)), weights


def test_the_cheapest_of_those_that_reached_the_target() -> None:
    made = world()
    add(made, 16, 1.0, State.GIVEN_UP)  # cheap, because it was cut off
    best, weights = found(made)
    assert best is not None
    assert (best.batch_size, best.limit_w, best.epochs) == (64, None, 8.0)
    assert best.run(1000.0, weights) == pytest.approx(weights.cost(8 * 10 * 100.0, 80.0))
    assert best.run(2000.0, weights) == pytest.approx(2 * weights.cost(8 * 10 * 100.0, 80.0)), "a slice twice as large"


def test_a_run_below_its_target_makes_it_dearer() -> None:
    made = world()
    add(made, 64, 30.0, State.EXHAUSTED)
    best, _ = found(made)
    assert best is not None
    assert best.batch_size == 32


def test_it_is_costed_at_its_best_power_limit() -> None:
    made = world()
    frugal = [
        ProfileSample(batch_size=32, limit_w=150.0, samples=1000, energy_j=1000.0, time_s=10.0),
        ProfileSample(batch_size=32, limit_w=100.0, samples=1000, energy_j=200.0, time_s=10.0),
    ]
    best, weights = found(made, *frugal)
    assert best is not None
    assert (best.batch_size, best.limit_w) == (32, 100.0)
    assert best.run(1000.0, weights) == pytest.approx(weights.cost(10 * 200.0, 100.0))


def test_nothing_is_best_of_nothing() -> None:
    made = World(JOB, {16: 20.0, 32: 10.0, 64: 8.0})
    assert found(made)[0] is None
    add(made, 32, 10.0, State.EXHAUSTED)
    assert found(made)[0] is None, "it has not reached the target"
    add(made, 32, 10.0)
    assert found(made, size=None)[0] is None, "what it costs on a slice of unknown size cannot be told"
