"""What each run would have cost with the batch size that runs now, worked out by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.deadline import InTime
from airflow_provider_zeus.model.trial import ProfileSample, State
from airflow_provider_zeus.reports.baseline import Baseline, BestFixed, fixed
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from airflow_provider_zeus.reports.next_run import NextDecision
from tests.unit.optimizer.world import World, job_of

JOB = job_of(16, 32, 64, default=32, policy="knowledge_gradient")


def world() -> World:
    made = World(JOB, {16: 20.0, 32: 10.0, 64: 8.0})
    for _ in range(3):
        add(made, 32, 10.0)
        add(made, 64, 6.0)
    return made


def add(
    made: World,
    b: int,
    epochs: float,
    state: State = State.CONVERGED,
    power_w: float = 100.0,
    **f: Any,
) -> None:
    made.add(
        b,
        state,
        epochs,
        **{"time_s": 10 * epochs, "energy_j": 10 * epochs * power_w, "power_limit_w": None, **f},
    )


def found(made: World, *samples: ProfileSample) -> tuple[BestFixed | None, Weights]:
    log = as_dataset(made.log, made.job)
    profiled = LimitProfiles.of(samples)
    weights = Weights.of(made.job, log.device)
    ends = NextDecision.of(log, profiles=samples).settled
    return fixed(
        ends, log, Baseline.of(log, profiled, random.Random(0)), weights, profiled
    ), weights


def test_it_is_the_batch_size_that_runs_where_nothing_is_tried() -> None:
    made = world()
    best, weights = found(made)
    assert best is not None
    decided = made.decide(settings={"pause_exploration": True}).attempts[-1].batch_size
    assert (best.batch_size, best.limit_w) == (decided, None) == (64, None)
    own = (made.log[1].key.ti_id,)
    assert best.epochs[own] == 6.0, "its own run"
    assert best.run(own, 1000.0, weights) == pytest.approx(weights.cost(6 * 10 * 100.0, 60.0))
    assert best.run(own, 2000.0, weights) == pytest.approx(
        2 * weights.cost(6 * 10 * 100.0, 60.0)
    ), "twice the slice"
    assert best.epochs[made.log[0].key.ti_id,] == pytest.approx(6.0, rel=0.3), (
        "estimated where the default ran"
    )


def test_an_audit_that_is_due_makes_the_default_no_cheapest_size() -> None:
    made = World(replace(JOB, batch_sizes=[32, 64], audit=0.3), {32: 10.0, 64: 8.0})
    for b in (*[32] * 4, *[64] * 8):
        made.add(b)
    assert [a.batch_size for a in made.decide().attempts] == [32]
    best, _ = found(made)
    assert best is not None
    assert best.batch_size == 64


def test_it_is_costed_at_its_best_power_limit() -> None:
    made = World(JOB, {16: 20.0, 32: 10.0, 64: 8.0})
    for _ in range(3):
        add(made, 32, 10.0, power_limit_w=150.0)
    frugal = [
        ProfileSample(batch_size=32, limit_w=150.0, samples=1000, energy_j=1000.0, time_s=10.0),
        ProfileSample(batch_size=32, limit_w=100.0, samples=1000, energy_j=200.0, time_s=10.0),
    ]
    best, weights = found(made, *frugal)
    assert best is not None
    assert (best.batch_size, best.limit_w) == (32, 100.0)
    assert best.run((made.log[0].key.ti_id,), 1000.0, weights) == pytest.approx(
        weights.cost(10 * 200.0, 100.0)
    )


def test_a_deadline_raises_its_power_limit() -> None:
    made = World(JOB, {16: 20.0, 32: 10.0, 64: 8.0})
    for _ in range(3):
        add(made, 32, 10.0, power_limit_w=150.0)
    slow = ProfileSample(batch_size=32, limit_w=100.0, samples=1000, energy_j=200.0, time_s=20.0)
    fast = ProfileSample(batch_size=32, limit_w=150.0, samples=1000, energy_j=5000.0, time_s=10.0)
    log = as_dataset(made.log, made.job)
    profiled = LimitProfiles.of([slow, fast])
    base = Baseline.of(log, profiled, random.Random(0))
    ends = NextDecision.of(log).settled
    found = []
    due = InTime(finish_by_s=1e9)
    for known in (None, replace(due, slowdown=1.5), replace(due, slowdown=1.0, hurry=True)):
        best = fixed(
            replace(ends, in_time=known), log, base, Weights.of(made.job, log.device), profiled
        )
        found.append(best and best.limit_w)
    assert found == [100.0, 150.0, 150.0]


def test_nothing_is_best_of_nothing() -> None:
    made = World(JOB, {16: 20.0, 32: 10.0, 64: 8.0})
    assert found(made)[0] is None
    add(made, 32, 10.0, State.EXHAUSTED)
    assert found(made)[0] is None, "the default has not reached the target"
