"""Time against energy: the points and their front."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import ProfileSample, State, Trial
from airflow_provider_zeus.reports.belief_table import belief_table
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.pareto import OperatingPoint, marked, pareto
from tests.strategies import A40, REPRODUCIBLE, jobs_and_logs, profiles
from tests.unit.optimizer.world import World, job_of

JOB = job_of(16, 32, 64, default=32)
NEEDS = {16: 12.0, 32: 10.0, 64: 9.0}


def point(tta_s: float, eta_j: float, batch_size: int = 32) -> OperatingPoint:
    return OperatingPoint(
        batch_size=batch_size, limit_w=None, tta_s=tta_s, eta_j=eta_j, runs=1, observed=True
    )


@REPRODUCIBLE
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=12))
def test_the_front_is_what_no_other_point_beats(pairs: Sequence[tuple[int, int]]) -> None:
    found = marked([point(t, e, i + 1) for i, (t, e) in enumerate(pairs)])
    assert sorted((p.tta_s, p.eta_j) for p in found) == sorted(pairs)
    for p in found:
        beaten = any(
            t <= p.tta_s and e <= p.eta_j and (t, e) != (p.tta_s, p.eta_j) for t, e in pairs
        )
        assert p.on_front is not beaten


def test_points_are_means_of_the_runs_at_one_size_and_limit_without_profiling() -> None:
    world = World(JOB, NEEDS)
    world.add(32, epochs=8.0, power_limit_w=200.0)
    world.add(
        32,
        epochs=12.0,
        power_limit_w=200.0,
        time_s=130.0,
        energy_j=25_000.0,
        excess_s=10.0,
        excess_j=1_000.0,
    )
    world.add(32, epochs=10.0, power_limit_w=250.0)
    world.add(64, State.GIVEN_UP, epochs=1.0, power_limit_w=200.0)
    world.add(64, power_limit_w=200.0, energy_j=None)
    world.add(64, power_limit_w=200.0, spec={"target": "acc >= 0.5"})
    points = pareto(as_dataset(world.log, JOB))
    assert [(p.batch_size, p.limit_w, p.runs) for p in points] == [(32, 200.0, 2), (32, 250.0, 1)]
    assert points[0].tta_s == pytest.approx((80 + 120) / 2)
    assert points[0].eta_j == pytest.approx((16_000 + 24_000) / 2)


def test_another_device_is_another_front() -> None:
    world = World(JOB, NEEDS)
    world.add(32)
    v100 = world.device.where
    world.device = A40
    world.add(64)
    assert [p.batch_size for p in pareto(as_dataset(world.log, JOB))] == [64]
    assert [p.batch_size for p in pareto(as_dataset(world.log, JOB, v100))] == [32]


def test_a_limit_that_was_only_profiled_is_worked_out_and_says_so() -> None:
    world = World(JOB, NEEDS)
    world.add(32, power_limit_w=200.0)  # 100 s, 20 kJ
    slow, fast = (
        ProfileSample(batch_size=32, limit_w=w, samples=100, energy_j=e, time_s=t)
        for w, e, t in ((150.0, 150.0, 1.25), (200.0, 200.0, 1.0))
    )
    points = pareto(as_dataset(world.log, JOB), profiles=[slow, fast])
    assert [(p.limit_w, p.observed, p.tta_s, p.eta_j) for p in points] == [
        (200.0, True, 100.0, 20_000.0),
        (150.0, False, 125.0, 15_000.0),
    ]
    assert all(p.on_front for p in points)


@REPRODUCIBLE
@given(jobs_and_logs(), profiles())
def test_no_log_gives_a_point_that_is_no_number(
    job_and_log: tuple[ZeusJob, list[Trial]], profile: list[ProfileSample]
) -> None:
    job, log = job_and_log
    points = pareto(as_dataset(log, job), profiles=profile)
    assert all(
        0 < p.tta_s < float("inf") and 0 < p.eta_j < float("inf") and p.runs > 0 for p in points
    )
    assert any(p.on_front for p in points) is bool(points)


def test_a_run_counts_as_on_a_typical_slice() -> None:
    world = World(JOB, NEEDS)
    easy = world.add(32, epochs=5.0, power_limit_w=200.0)
    usual = world.add(32, epochs=10.0, power_limit_w=200.0)
    hardness = {easy.recurrence: 0.5, usual.recurrence: 1.0}
    (raw,), (typical,) = (pareto(as_dataset(world.log, JOB), hardness=h) for h in (None, hardness))
    assert typical.tta_s == pytest.approx(usual.observation.time_s)
    assert typical.eta_j == pytest.approx(usual.observation.energy_j)
    assert raw.tta_s == pytest.approx(0.75 * typical.tta_s)
    (line,) = [
        r
        for r in belief_table(as_dataset(world.log, JOB), hardness=hardness).lines
        if r.batch_size == 32
    ]
    assert line.typical == pytest.approx((line.observed[1],) * 2)
    assert line.observed[0] == pytest.approx(0.5 * line.observed[1])
