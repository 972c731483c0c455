"""The next run is the one that the service would decide, with what it takes on the newest slice."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.model.deadline import InTime
from airflow_provider_zeus.model.trial import Phase, State
from airflow_provider_zeus.reports.baseline import Baseline
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from airflow_provider_zeus.reports.next_run import NextDecision, Upcoming, upcoming
from tests.unit.optimizer.world import World, job_of

JOB = job_of(16, 32, 64, default=32, policy="knowledge_gradient")


def world(runs: int, **changes: Any) -> World:
    made = World(replace(JOB, **changes), {16: 20.0, 32: 10.0, 64: 6.0})
    for _ in range(runs):
        for b in (32, 64, 16):
            made.add(b)
    return made


def next_of(made: World, **settings: Any) -> Upcoming:
    log = as_dataset(made.log, made.job)
    base = Baseline.of(log, LimitProfiles.of(()), random.Random(0))
    return upcoming(log, base, NextDecision.of(log, trials=made.log, settings=settings))


def test_it_is_the_decision_of_the_log() -> None:
    for runs in (1, 4):
        made = world(runs)
        assert next_of(made).attempts == made.decide().attempts
    assert next_of(made).batch_size == 64
    spent = made.log[1].observation
    assert spent.energy_j is not None
    assert next_of(made).epochs.value == pytest.approx(6.0, rel=0.1)
    assert next_of(made).energy_j.value == pytest.approx(spent.energy_j, rel=0.1)
    assert next_of(made).time_s.value == pytest.approx(spent.time_s, rel=0.1)


def test_a_policy_that_draws_is_shown_as_the_next_run_will_draw() -> None:
    made = World(replace(JOB, policy="zeus"), {})
    chosen = set()
    for n in range(24):
        made.epochs = {16: 9.0 + n % 4, 32: 9.0 + n % 5, 64: 9.0 + n % 3}  # hardly any differs
        decided = made.run().attempts
        if n > 12:
            chosen.add(decided[0].batch_size)
            assert next_of(made).attempts == made.decide().attempts
    assert len(chosen) > 1, "else nothing was drawn"


def test_a_live_setting_is_obeyed() -> None:
    pinned = next_of(world(4), pin_batch_size=16)
    assert (pinned.batch_size, [a.phase for a in pinned.attempts]) == (16, [Phase.PINNED])
    assert pinned.epochs.value == pytest.approx(20.0, rel=0.1)
    audited = next_of(world(4), audit_after=12)
    assert (audited.batch_size, audited.attempts[0].phase) == (32, Phase.AUDIT)


def test_a_batch_size_that_never_ran_here_has_no_figures() -> None:
    made = World(JOB, {16: 20.0, 32: 10.0, 64: 6.0})
    made.add(32)
    unknown = next_of(made, pin_batch_size=64)
    assert unknown.energy_j.value is None
    assert "64" in (unknown.energy_j.reason or "")
    failed = World(JOB, {16: 20.0, 32: 10.0, 64: 6.0})
    failed.add(32, State.EXHAUSTED)
    assert "default" in (next_of(failed, pause_exploration=True).energy_j.reason or "")


def test_the_next_run_is_decided_with_the_room_that_the_newest_one_had() -> None:
    made = world(4, finish_by="06:00")
    assert "deadline" not in next_of(made).attempts[-1].why, "no run had a deadline yet"
    known = replace(
        made.log[-1].planned, in_time=InTime(finish_by_s=made.log[-1].opened_at + 600.0)
    )
    made.log[-1] = replace(made.log[-1], planned=known)
    assert "until the deadline it is 10 min 00 s." in next_of(made).attempts[-1].why
    again = replace(
        made.log[-1],
        number=made.number,
        key=replace(made.log[-1].key, attempt=2),
        opened_at=made.log[-1].opened_at + 60.0,
    )
    second = replace(made, log=[*made.log, again])
    assert "it is 10 min 00 s." in next_of(second).attempts[-1].why, "its first attempt began it"
    without = replace(made, job=replace(made.job, finish_by=None))
    assert "deadline" not in next_of(without).attempts[-1].why
