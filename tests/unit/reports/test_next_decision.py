"""One decision for all that is said of the next run: that of the whole log,
as the store makes it.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.model.deadline import InTime
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import BATCH_SIZE, Phase, ProfileSample, State
from airflow_provider_zeus.reports.belief_table import BatchSizeStatus, belief_table
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.eta_choices import choice_at
from airflow_provider_zeus.reports.next_run import NextDecision, upcoming
from airflow_provider_zeus.reports.savings import saving
from tests.unit.optimizer.world import World, job_of

JOB = job_of(32, 64, default=32, policy="knowledge_gradient", eta=1.0)
NEEDS = {32: 10.0, 64: 10.0, 128: 15.0}
EARLIER = "acc >= 0.8"


def decided(made: World, *samples: ProfileSample, **settings: Any) -> NextDecision:
    return NextDecision.of(
        as_dataset(made.log, made.job), profiles=samples, trials=made.log, settings=settings
    )


def named(made: World, *samples: ProfileSample, **settings: Any) -> set[int | None]:
    """The batch sizes that the parts of a page name as the one that runs where nothing is tried."""
    log = as_dataset(made.log, made.job)
    one = decided(made, *samples, **settings)
    found = saving(log, rng=random.Random(0), profiles=samples, decided=one)
    table = belief_table(log, profiles=samples, decided=one)
    stars = {row.batch_size for row in table.lines if row.standing is BatchSizeStatus.INCUMBENT}
    assert found.best is not None
    following = upcoming(log, found.base, one, profiles=samples)
    return {found.best.batch_size, following.batch_size, *stars}


def test_out_of_memory_under_an_earlier_target_is_known_to_the_next_run() -> None:
    made = World(job_of(64, 128, default=64, policy="knowledge_gradient"), NEEDS)
    for _ in range(2):
        made.add(64, spec={"target": EARLIER})
    made.died(128, State.FAILED, device_model="V100", out_of_memory=True, spec={"target": EARLIER})
    for _ in range(3):
        made.add(64)
    assert decided(made).attempts == made.decide().attempts
    assert [a.batch_size for a in decided(made).attempts] == [64]
    assert "The target changed after run 3" in decided(made).attempts[0].why


def test_after_a_run_that_did_not_use_its_batch_size_the_next_one_takes_the_incumbent() -> None:
    made = World(replace(JOB, audit=0.0, default_batch_size=64), NEEDS)
    for _ in range(3):
        made.add(64)
    made.add(64, reasons={BATCH_SIZE: "no step was counted"})
    assert decided(made).attempts == made.decide().attempts
    assert decided(made).attempts[0].why.startswith("The run before died or taught nothing")


def at_100_w(job: ZeusJob) -> World:
    """64 is the frugal one at 100 W, at which both ran; at 300 W, twice as fast,
    it draws the most.
    """
    made = World(job, NEEDS)
    for b, j in ((32, 1300.0), (64, 1000.0)) * 3:
        made.add(b, time_s=200.0, energy_j=10 * j, power_limit_w=100.0)
    return made


RATES = {
    (32, 100.0): (1.3, 0.02),
    (32, 300.0): (1.2, 0.01),
    (64, 100.0): (1.0, 0.02),
    (64, 300.0): (2.0, 0.01),
}
PROFILE = [
    ProfileSample(batch_size=b, limit_w=w, samples=1000, energy_j=1000 * j, time_s=1000 * s)
    for (b, w), (j, s) in RATES.items()
]


def test_a_deadline_changes_the_size_that_every_part_names() -> None:
    made = World(replace(JOB, finish_by="5 min"), NEEDS)
    for b, s, j in ((32, 15.0, 2000.0), (64, 30.0, 1000.0)) * 3:
        known = made.add(b, time_s=10 * s, energy_j=10 * j)
        planned = replace(known.planned, in_time=InTime(finish_by_s=known.opened_at + 300.0))
        made.log[-1] = replace(known, planned=planned)
    assert named(made) == {32}
    assert named(replace(made, job=JOB)) == {64}


def test_a_pinned_size_is_the_one_that_every_part_names() -> None:
    made = World(replace(JOB, batch_sizes=[32, 64, 128]), NEEDS)
    for b in (32, 64, 128) * 2:
        made.add(b)
    assert named(made, pin_batch_size=128) == {128}
    one = decided(made, pin_batch_size=128)
    found = saving(as_dataset(made.log, made.job), rng=random.Random(0), decided=one)
    assert found.per_run.value == pytest.approx(-5 * 10 * 200.0, rel=0.1), (
        "fifteen epochs instead of ten"
    )
    assert choice_at(0.5, as_dataset(made.log, made.job), one).batch_size == 128


@pytest.mark.parametrize("settings", [{}, {"audit_after": 12}])
def test_a_run_of_the_default_to_measure_it_is_not_what_is_settled(
    settings: dict[str, Any],
) -> None:
    made = World(replace(JOB, audit=0.0 if settings else 0.3), {32: 10.0, 64: 8.0})
    for b in (*[32] * 4, *[64] * 8):
        made.add(b)
    found = decided(made, **settings)
    assert [(a.batch_size, a.phase) for a in found.attempts] == [(32, Phase.AUDIT)]
    assert found.settled.batch_size == 64


def test_no_run_is_spent_on_measuring_a_saving_that_is_sure() -> None:
    made = World(replace(JOB, audit=0.3), {32: 10.0, 64: 6.0})
    for b in (*[32] * 3, *[64] * 4):
        made.add(b)
    assert [(a.batch_size, a.phase) for a in decided(made).attempts] == [(64, Phase.INCUMBENT)]


def test_where_every_size_misses_now_the_one_that_runs_next_is_named() -> None:
    made = World(JOB, NEEDS)
    for state in (State.CONVERGED, State.CONVERGED, *[State.EXHAUSTED] * 3):
        made.add(32, state, 10.0 if state is State.CONVERGED else 100.0)
    (only,) = made.decide().attempts
    assert only.batch_size != 32
    assert decided(made).settled.batch_size == only.batch_size
