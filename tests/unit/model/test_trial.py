"""What a trial says of itself: the attempt after it, and who took it over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_zeus.model.trial import (
    BY_HAND,
    REDELIVERED,
    SUPERSEDED,
    Decision,
    Observation,
    Phase,
    PlannedAttempt,
)
from tests.unit.store.test_store_rules import FIRST, SECOND, trial

STAND_IN = PlannedAttempt(batch_size=16, phase=Phase.INCUMBENT, why="less memory")
RELIEF = PlannedAttempt(batch_size=16, phase=Phase.INCUMBENT, why="another one")
DECISION = Decision(
    attempts=(FIRST, SECOND), seed=1, policy="zeus", stand_in=STAND_IN, reliefs=(RELIEF,)
)


def test_the_next_attempt_is_that_of_the_plan() -> None:
    assert trial().following() == SECOND
    assert trial(planned=SECOND).following() is None


def test_a_size_that_is_known_names_the_attempt() -> None:
    second = trial(planned=SECOND, decision=DECISION)
    assert second.following(16) == RELIEF
    lacked_memory = replace(second, observation=Observation(out_of_memory=True))
    assert lacked_memory.following(16) == STAND_IN


def test_a_size_outside_of_the_list_follows_the_plan() -> None:
    assert trial().following(10) == SECOND


def test_a_size_that_the_plan_lacks_fits_a_small_slice() -> None:
    fitted = trial().following(64)
    assert fitted is not None
    assert fitted.batch_size == 64
    assert fitted.why.startswith("The slice has fewer samples than batch size 16")


def test_after_a_pruned_attempt_the_size_alone_tells() -> None:
    pruned = trial(planned=replace(FIRST, round=7))
    assert pruned.following() is None
    assert pruned.following(32) == SECOND


@pytest.mark.parametrize("reason", [f"{SUPERSEDED} 2", REDELIVERED, f"{BY_HAND} by ann"])
def test_a_trial_says_who_took_it_over(reason: str) -> None:
    assert trial(reason=reason).lost_to == reason


@pytest.mark.parametrize("reason", [None, "lease expired", "out of memory"])
def test_a_trial_that_nobody_took_over_belongs_to_its_run(reason: str | None) -> None:
    assert trial(reason=reason).lost_to is None


@pytest.mark.parametrize(
    ("figures", "gpu_s"),
    [
        ({"time_s": 10.0, "data_wait_s": 2.0}, 8.0),
        ({"time_s": 10.0, "data_wait_s": 30.0}, 40.0),
        ({"time_s": 10.0}, None),
        ({"data_wait_s": 2.0}, None),
        ({"time_s": 0.0, "data_wait_s": 2.0}, None),
    ],
)
def test_the_time_that_gpus_waited_for_data_is_not_known_without_both_figures(
    figures: dict[str, float], gpu_s: float | None
) -> None:
    assert Observation(device_count=4, **figures).data_wait_gpu_s == gpu_s  # type: ignore[arg-type]
