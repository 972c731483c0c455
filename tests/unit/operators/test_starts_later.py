"""Operators that wait: they defer, sleep or start, and train whatever becomes of the wait."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferralError, TaskDeferred

from airflow_provider_zeus.decorators.zeus import ZeusDecoratedOperator
from airflow_provider_zeus.operators import mixins, schedule
from airflow_provider_zeus.operators.schedule import PlannedWait
from airflow_provider_zeus.operators.start_trigger import ZeusStartTrigger
from airflow_provider_zeus.operators.train import ZeusTrainOperator
from tests.unit.optimizer.world import job_of

JOB = job_of(32, default=32, start_within="8 h", start_signal="carbon")


def operator(kind: Any = ZeusTrainOperator, **job: Any) -> Any:
    made = kind(task_id="train", job=job or JOB, python_callable=lambda run: {"size": 32})
    made.train_now = lambda context: {"trained": True}
    return made


@pytest.fixture
def context() -> dict[str, Any]:
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(
        dag_id="d",
        task_id="train",
        xcom_push=lambda key, value: pushed.update({key: value}),
        pushed=pushed,
    )
    return {"ti": ti}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Callable[[PlannedWait | None], None]:
    return lambda wait: monkeypatch.setattr(schedule, "planned_wait", lambda *a, **k: wait)


def in_s(seconds: float) -> PlannedWait:
    now_s = time.time()
    return PlannedWait(
        signal="carbon",
        why="It waits.",
        until_s=now_s + seconds,
        latest_s=now_s + 2 * seconds,
        duration_s=60.0,
    )


def test_a_long_wait_is_deferred_and_said_before(context: Any, waits: Any) -> None:
    wait = in_s(3600.0)
    waits(wait)
    with pytest.raises(TaskDeferred) as deferred:
        operator().wait_for_start(context)
    trigger = deferred.value.trigger
    assert isinstance(trigger, ZeusStartTrigger)
    assert (trigger.start_s, trigger.latest_s, trigger.duration_s) == (
        wait.until_s,
        wait.latest_s,
        60.0,
    )
    assert deferred.value.method_name == "resume"
    assert deferred.value.timeout is not None
    assert deferred.value.timeout.total_seconds() == pytest.approx(7200 + 900, abs=60)
    assert context["ti"].pushed["zeus_wait"]["why"] == "It waits."


def test_a_short_wait_is_slept(context: Any, waits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(mixins, "time", SimpleNamespace(time=time.time, sleep=slept.append))
    waits(in_s(100.0))
    one = operator()
    one.wait_for_start(context)
    assert slept == [pytest.approx(100.0, abs=30)]
    assert one.waited_since_s == pytest.approx(time.time(), abs=60), "what it saved is known later"


@pytest.mark.parametrize("wait", [None, PlannedWait(signal="carbon", why="It starts at once.")])
def test_what_does_not_wait_goes_on(context: Any, waits: Any, wait: PlannedWait | None) -> None:
    waits(wait)
    one = operator()
    one.wait_for_start(context)
    assert ("zeus_wait" in context["ti"].pushed) == (wait is not None)
    assert one.waited_since_s is None


def test_a_job_that_never_waits_asks_for_nothing(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(schedule, "planned_wait")
    plain = {"batch_sizes": [32], "default_batch_size": 32, "target": "acc >= 1", "max_epochs": 3}
    operator(**plain).wait_for_start(context)


def test_an_xcom_that_cannot_be_pushed_changes_nothing(context: Any, waits: Any) -> None:
    def fails(key: str, value: Any) -> None:
        raise OSError("gone")

    context["ti"].xcom_push = fails
    waits(in_s(3600.0))
    with pytest.raises(TaskDeferred):
        operator().wait_for_start(context)


@pytest.mark.parametrize("kind", [ZeusTrainOperator, ZeusDecoratedOperator])
def test_it_trains_after_the_wait_and_where_the_wait_has_failed(
    context: Any, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one = operator(kind)
    assert one.resume_execution("resume", {"event": {"start_s": 1.0}}, context) == {"trained": True}
    assert not caplog.messages
    with caplog.at_level(logging.WARNING):
        assert one.resume_execution("__fail__", {"error": "Trigger failure"}, context) == {
            "trained": True
        }
    assert (
        "the wait for a cheaper start failed (Trigger failure). The training begins now."
        in caplog.text
    )


@pytest.mark.parametrize("kind", [ZeusTrainOperator, ZeusDecoratedOperator])
def test_a_trigger_of_the_author_that_failed_fails_the_task(context: Any, kind: Any) -> None:
    one = operator(kind, start_within=None, start_signal=None)
    with pytest.raises(TaskDeferralError, match="Trigger failure"):
        one.resume_execution("__fail__", {"error": "Trigger failure"}, context)
