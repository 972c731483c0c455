"""A run with a deadline: frugal while there is time, at full power when there is none;
room for the next attempt.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from airflow_provider_zeus.model.deadline import InTime
from airflow_provider_zeus.model.trial import PlannedAttempt, ProfileSample, State
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import SAMPLES, Kit, explore, incumbent, loop, steps

EPOCHS = 40
FULL_W = 250.0


@pytest.fixture
def profile(kit: Kit) -> tuple[ProfileSample, ...]:
    """Complete."""
    kit.run(incumbent(1024), max_epochs=60, eta=1.0).train(loop, epochs=EPOCHS)
    found = kit.profile()
    kit.lines.clear()
    return found


def fastest_s(profile: tuple[ProfileSample, ...], epochs: float = EPOCHS) -> float:
    """Time of so many epochs at the highest limit [s]."""
    top = [s for s in profile if s.limit_w == FULL_W]
    return epochs * SAMPLES * sum(s.time_s for s in top) / sum(s.samples for s in top)


def due(
    attempt: PlannedAttempt, in_s: float, *, known: float | None = EPOCHS, **fields: Any
) -> PlannedAttempt:
    """The attempt with a deadline in so many seconds,
    of a size that is known to need ``known`` epochs.
    """
    log_epochs = None if known is None else (math.log(known), 0.01)
    in_time = InTime(finish_by_s=time.time() + in_s, log_epochs=log_epochs, **fields)
    return replace(attempt, in_time=in_time, bound_samples_per_epoch=float(SAMPLES))


def train_for(
    kit: Kit, attempt: PlannedAttempt, profile: tuple[ProfileSample, ...], **job: Any
) -> list[float]:
    """The limit in force at the end of each epoch [W]."""
    limits: list[float] = []

    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            steps(run)
            limits.append(run.device.limit_w() or 0.0)
            run.report(acc=1.0 if epoch + 1 == EPOCHS else 0.0)

    kit.run(attempt, profile=profile, eta=1.0, max_epochs=60, **job).train(train)
    return limits


def test_the_limit_is_as_low_as_the_time_allows(
    kit: Kit, profile: tuple[ProfileSample, ...]
) -> None:
    limits = [
        train_for(kit, due(incumbent(1024), factor * fastest_s(profile)), profile)[10]
        for factor in (5.0, 1.2, 1.1, 0.9)
    ]
    assert limits == sorted(limits)
    assert limits[0] < limits[2] < limits[3] == FULL_W


@pytest.mark.parametrize("factor", [1.15, 1.5])
def test_it_ends_in_time(kit: Kit, profile: tuple[ProfileSample, ...], factor: float) -> None:
    room_s = factor * fastest_s(profile)
    limits = train_for(kit, due(incumbent(1024), room_s), profile)
    assert kit.last().time_s < room_s  # type: ignore[operator]
    assert limits[0] < FULL_W


def test_a_run_that_falls_behind_is_raised_again(
    kit: Kit, profile: tuple[ProfileSample, ...]
) -> None:
    seen: list[float | None] = []

    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            steps(run)
            if epoch == 10:
                for _ in range(10):  # a pass that is longer than the others
                    steps(run)
            seen.append(run.device.limit_w())
            run.report(acc=1.0 if epoch + 1 == EPOCHS else 0.0)

    attempt = due(incumbent(1024), 1.5 * fastest_s(profile))
    kit.run(attempt, profile=profile, eta=1.0, max_epochs=60).train(train)
    assert seen[5] < seen[20]  # type: ignore[operator]
    assert kit.last().time_s < 1.5 * fastest_s(profile)  # type: ignore[operator]


def test_a_size_that_is_not_known_has_max_epochs_to_go(
    kit: Kit, profile: tuple[ProfileSample, ...]
) -> None:
    assert (
        train_for(kit, due(incumbent(1024), 2 * fastest_s(profile, 60), known=None), profile)[0]
        < FULL_W
    )
    assert (
        train_for(kit, due(incumbent(1024), fastest_s(profile, 55), known=None), profile)[0]
        == FULL_W
    )


def test_in_a_hurry_nothing_but_the_highest_limit_is_measured(kit: Kit) -> None:
    kit.run(due(incumbent(1024), 10.0, slowdown=1.0, hurry=True), eta=1.0, max_epochs=60).train(
        loop, epochs=5
    )
    assert {s.limit_w for s in kit.profile()} <= {FULL_W}
    assert kit.last().power_limit_w == FULL_W


def test_a_try_ends_when_the_incumbent_needs_the_rest(
    kit: Kit, profile: tuple[ProfileSample, ...]
) -> None:
    room_s = 1.5 * fastest_s(profile)
    tried = due(explore(256, bound_epochs=50.0), room_s, reserve_s=1.1 * fastest_s(profile))
    sizes: list[int] = []

    def train(run: ZeusRun) -> None:
        loop(run, epochs=EPOCHS, saved=sizes)

    kit.run(tried, due(incumbent(1024), room_s), profile=profile, eta=1.0, max_epochs=60).train(
        train
    )
    first, last = kit.ends()
    assert (first.state, first.reason) == (
        State.GIVEN_UP,
        "the attempt after it needs the time that is left until the deadline",
    )
    assert last.state is State.CONVERGED
    assert sizes == [1024]
    assert first.observation.time_s + last.observation.time_s < room_s  # type: ignore[union-attr, operator]


@pytest.mark.parametrize("mode", ["observe", "measure"])
def test_modes_that_set_no_limit_train_as_ever(
    kit: Kit, profile: tuple[ProfileSample, ...], mode: str
) -> None:
    assert set(
        train_for(kit, due(incumbent(1024), 10 * fastest_s(profile)), profile, mode=mode)
    ) == {FULL_W}


def test_a_limit_stays_where_a_lower_one_only_just_is_fast_enough(
    kit: Kit, profile: tuple[ProfileSample, ...]
) -> None:
    limits = train_for(kit, due(incumbent(1024), 1.2 * fastest_s(profile)), profile)
    changes = sum(a != b for a, b in pairwise(limits))
    assert changes <= 6, limits
