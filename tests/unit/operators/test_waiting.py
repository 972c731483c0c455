"""Whether a task waits for a cheaper start: by the log and the signal; every fault means to start at once."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zeus.errors import JobSpecError, SignalError, StoreError
from airflow_provider_zeus.model.deadline import InTime
from airflow_provider_zeus.model.trial import State, Trial, TrialKey
from airflow_provider_zeus.operators import schedule, start_trigger
from airflow_provider_zeus.operators.schedule import PlannedWait, durations
from airflow_provider_zeus.operators.start_trigger import ZeusStartTrigger
from airflow_provider_zeus.signals import reading
from airflow_provider_zeus.signals.forecast import WAITS, Start
from airflow_provider_zeus.signals.series import Series, Step, Unit
from tests.golden import Table
from tests.strategies import make_trial
from tests.unit.optimizer.world import job_of

HOUR_S = 3600.0
NOW_S = datetime(2127, 1, 10, 20, tzinfo=UTC).timestamp()
JOB = job_of(32, default=32)
WHY = Table("waiting")


def ran(
    n: int,
    run_id: str,
    time_s: float | None,
    state: State = State.CONVERGED,
    dag_id: str = "d",
    try_number: int = 1,
) -> Trial:
    trial = make_trial(n, 32, state, job=JOB, time_s=time_s)
    origin = replace(trial.origin, dag_id=dag_id, run_id=run_id, try_number=try_number)
    return replace(trial, origin=origin, key=TrialKey(f"{dag_id}-{run_id}-{try_number}", n))


LOG = [ran(n, f"r{n}", 1800.0 + n) for n in range(1, 4)]


def hourly(*values: float) -> Series:
    steps = [Step(NOW_S + i * HOUR_S, NOW_S + (i + 1) * HOUR_S, v) for i, v in enumerate(values)]
    return Series.of(Unit.parse("g/kWh"), steps)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What is behind the borders: the log, and the signal."""
    behind = SimpleNamespace(log=LOG, series=hourly(*[300.0] * 4, *[100.0] * 20))

    def opened(*_: Any, **__: Any) -> Any:
        if isinstance(behind.log, Exception):
            raise behind.log
        return SimpleNamespace(trials=lambda job_id, last: behind.log[-last:])

    def read(*_: Any) -> Series:
        if isinstance(behind.series, Exception):
            raise behind.series
        return behind.series

    monkeypatch.setattr(schedule, "open_store", opened)
    monkeypatch.setattr(reading, "signal_series", read)
    return behind


def wait(run_type: str = "scheduled", now_s: float = NOW_S, **fields: Any) -> PlannedWait | None:
    job = job_of(32, default=32, **{"start_within": "8 h", "start_signal": "carbon", **fields})
    dag_run = SimpleNamespace(run_type=run_type, run_after=datetime.fromtimestamp(NOW_S, UTC))
    context = {"dag_run": dag_run, "dag": SimpleNamespace(timezone=UTC)}
    return schedule.planned_wait(
        job, context, job_id="d.train", conn_id="zeus_default", now_s=now_s
    )


def test_it_waits_for_the_cheapest_hour_and_says_until_when_and_why(world: SimpleNamespace) -> None:
    found = wait()
    assert found is not None
    assert found.until_s == NOW_S + 4 * HOUR_S
    assert found.latest_s == NOW_S + 8 * HOUR_S
    assert found.duration_s == 1802.0
    WHY.check("a cheaper hour is ahead", found.why)
    assert found.xcom()["until"] == "2127-01-11T00:00:00+00:00"


def test_the_connection_of_a_jobs_own_signal_is_not_named(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages show why a run waits, also to those who may not read Connections."""
    found = wait(start_signal="grid_of_us")
    assert found is not None
    WHY.check("a cheaper hour by a signal of the job's own", found.why)

    def fails(*_: Any) -> Any:
        raise SignalError.of("grid_of_us", "Connection 'grid_of_us' gave no answer")

    monkeypatch.setattr(reading, "signal_series", fails)
    failed = wait(start_signal="grid_of_us")
    assert failed is not None
    WHY.check("a signal of the job's own gives no answer", failed.why)


def test_never_later_than_the_deadline_allows(world: SimpleNamespace) -> None:
    assert wait(finish_by="5 h").until_s == NOW_S + 4 * HOUR_S  # type: ignore[union-attr]
    early = wait(finish_by="4 h")
    assert early is not None
    assert early.until_s is None
    assert early.latest_s == pytest.approx(NOW_S + 4 * HOUR_S - 1803.0 - schedule.QUEUE_S)


def test_the_window_begins_with_the_run_so_a_retry_has_what_is_left_of_it(
    world: SimpleNamespace,
) -> None:
    early = wait(start_within="5 h", now_s=NOW_S + 1 * HOUR_S)
    late = wait(start_within="5 h", now_s=NOW_S + 6 * HOUR_S)
    assert early is not None
    assert late is not None
    assert early.until_s == NOW_S + 4 * HOUR_S
    WHY.check("the latest start has come", late.why)


AT_ONCE = {
    "waiting would save too little": hourly(*[300.0] * 4, *[290.0] * 20),
    "now is the cheapest hour": hourly(*[100.0] * 4, *[290.0] * 20),
    "the signal gives no answer": SignalError.of("carbon", "no answer"),
    "the signal takes too long": TimeoutError(),
    "the signal has no value": Series.of(Unit.parse("g/kWh"), []),
    "the signal has no forecast": hourly(300.0),
}


@pytest.mark.parametrize("situation", AT_ONCE)
def test_any_other_case_starts_at_once_and_says_why(world: SimpleNamespace, situation: str) -> None:
    world.series = AT_ONCE[situation]
    found = wait()
    assert found is not None
    assert found.until_s is None
    WHY.check(situation, found.why)


def test_a_plan_that_fails_is_the_signal_s_fault_and_not_the_log_s(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan_start(*_: Any, **__: Any) -> Start:
        raise JobSpecError.of("series", "over 40000 steps", "too long", "ask for a shorter span")

    monkeypatch.setattr(reading, "plan_start", plan_start)
    found = wait()
    assert found is not None
    WHY.check("a plan fails", found.why)


def test_a_plan_that_takes_long_is_not_waited_for(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(reading, "plan_start", lambda *_, **__: over.wait(60))
    monkeypatch.setattr(reading, "ALL_S", 0.1)
    try:
        found = wait()
        assert not over.is_set()
    finally:
        over.set()
    assert found is not None
    WHY.check("a plan takes too long", found.why)


@pytest.mark.parametrize(
    ("situation", "log"),
    [
        ("no run has been recorded", []),
        ("the log is gone", StoreError("gone")),
        ("the log is odd", RuntimeError("odd")),
    ],
)
def test_without_a_log_it_starts_at_once(world: SimpleNamespace, situation: str, log: Any) -> None:
    world.log = log
    found = wait()
    assert found is not None
    assert found.until_s is None
    WHY.check(situation, found.why)


def test_a_window_that_is_longer_than_the_schedule_s_interval_is_named(
    world: SimpleNamespace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "interval_s", lambda _: 8 * HOUR_S)
    wait()
    assert not caplog.messages
    monkeypatch.setattr(schedule, "interval_s", lambda _: HOUR_S)
    wait()
    (said,) = caplog.messages
    WHY.check("the window is longer than the interval", said)


def test_how_long_a_run_takes_counts_all_of_its_attempts() -> None:
    log = [
        ran(1, "a", 10.0, State.GIVEN_UP),
        ran(2, "a", 100.0),
        ran(3, "b", 50.0),
        ran(4, "c", None, State.RUNNING),
    ]
    assert durations(log) == (80.0, 110.0)
    assert durations(log[3:]) is None
    assert durations([]) is None
    failed = ran(5, "b", 30.0, State.FAILED, try_number=2)
    assert durations([*log, failed, ran(6, "b", 60.0, try_number=3)]) == (85.0, 110.0), (
        "and of the try that ended well"
    )
    assert durations([*log, ran(5, "b", None, State.RUNNING, try_number=2)]) == (80.0, 110.0)
    pruned = [replace(trial, decision=replace(trial.decision, attempts=())) for trial in log]
    assert durations(pruned) == (80.0, 110.0)


@pytest.mark.parametrize(("time_95_s", "most_s"), [(200.0, 200.0), (60.0, 100.0)])
def test_a_run_takes_as_long_as_the_longest_known_or_believed(
    time_95_s: float, most_s: float
) -> None:
    newest = ran(2, "b", 50.0)
    in_time = InTime(finish_by_s=NOW_S, time_95_s=time_95_s)
    believed = replace(newest.planned, in_time=in_time)
    newest = replace(newest, decision=replace(newest.decision, attempts=(believed,)))
    assert durations([ran(1, "a", 100.0), newest]) == (75.0, most_s)


def test_two_dags_that_share_a_job_and_a_schedule_are_two_runs() -> None:
    log = [
        ran(2 * n + i, f"scheduled__{n}", 3600.0, dag_id=dag)
        for n in range(4)
        for i, dag in enumerate(("eu", "us"))
    ]
    assert durations(log) == (3600.0, 3600.0)


def test_runs_that_train_nothing_hide_no_run_that_did(world: SimpleNamespace) -> None:
    world.log = [
        *LOG,
        *(ran(n, f"r{n}", None, State.NOT_NEEDED) for n in range(4, 4 + 8 * schedule.USUAL)),
    ]
    found = wait()
    assert found is not None
    assert found.duration_s == 1802.0


def test_what_is_waited_for_has_to_be_named() -> None:
    with pytest.raises(JobSpecError, match=r"ZeusJob\.start_within = '28800 s': needs a signal"):
        job_of(32, default=32, start_within=timedelta(hours=8))


class Clock:
    """Time that passes when something sleeps."""

    def __init__(self) -> None:
        self.now_s, self.slept = NOW_S, list[float]()

    def time(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def fired(
    monkeypatch: pytest.MonkeyPatch, plans: Any, start_s: float, latest_s: float
) -> tuple[float, Any, Clock]:
    """(when the trigger fired, its event, the clock); ``plans``: seconds -> the start planned then, or an error."""
    clock = Clock()

    def planned(signal: str, now_s: float, *_: object) -> tuple[Start, str]:
        found = plans(now_s)
        if isinstance(found, Exception):
            raise found
        return Start(found, WAITS, 300.0, 100.0), "g/kWh"

    monkeypatch.setattr(start_trigger, "planned_start", planned)
    monkeypatch.setattr(start_trigger, "time", SimpleNamespace(time=clock.time))
    monkeypatch.setattr(start_trigger.asyncio, "sleep", clock.sleep)
    trigger = ZeusStartTrigger(start_s, latest_s, 1800.0, "carbon", "zeus_default")

    async def first() -> Any:
        return await anext(trigger.run())

    event = asyncio.run(first())
    return clock.now_s - NOW_S, event.payload, clock


def test_the_trigger_fires_at_the_start_and_looks_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_s, event, clock = fired(
        monkeypatch, lambda _: NOW_S + 7200.0, NOW_S + 7200.0, NOW_S + 9000.0
    )
    assert (at_s, event) == (7200.0, {"start_s": NOW_S + 7200.0})
    assert max(clock.slept) == start_trigger.ZeusStartTrigger.replan_s


def test_a_forecast_that_changes_moves_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier, _, _ = fired(
        monkeypatch, lambda now_s: max(now_s, NOW_S + 3600.0), NOW_S + 7200.0, NOW_S + 9000.0
    )
    assert earlier == 3600.0
    later, _, _ = fired(monkeypatch, lambda _: NOW_S + 8000.0, NOW_S + 7200.0, NOW_S + 9000.0)
    assert later == 8000.0


def test_it_never_fires_after_the_latest_start_nor_within_the_first_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    latest, _, _ = fired(monkeypatch, lambda _: NOW_S + 1e6, NOW_S + 7200.0, NOW_S + 9000.0)
    assert latest == 9000.0
    at_once, _, _ = fired(monkeypatch, lambda now_s: now_s, NOW_S + 7200.0, NOW_S + 9000.0)
    assert at_once == start_trigger.ZeusStartTrigger.first_s


def test_a_trigger_that_is_taken_over_after_its_first_start_asks_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new triggerer knows the start as first planned, not where it had moved to."""
    later, _, _ = fired(monkeypatch, lambda _: NOW_S + 3600.0, NOW_S - 60.0, NOW_S + 9000.0)
    assert later == 3600.0
    latest, _, _ = fired(monkeypatch, lambda _: NOW_S + 3600.0, NOW_S - 60.0, NOW_S - 1.0)
    failing, _, _ = fired(
        monkeypatch, lambda _: SignalError.of("carbon", "no answer"), NOW_S - 60.0, NOW_S + 9000.0
    )
    assert (latest, failing) == (
        start_trigger.ZeusStartTrigger.first_s,
        start_trigger.ZeusStartTrigger.first_s,
    )


def test_a_signal_that_fails_leaves_the_start_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    at_s, _, _ = fired(
        monkeypatch, lambda _: SignalError.of("carbon", "no answer"), NOW_S + 7200.0, NOW_S + 9000.0
    )
    assert at_s == 7200.0


def test_a_trigger_that_is_taken_over_goes_on_from_what_it_was_given() -> None:
    path, arguments = ZeusStartTrigger(1.0, 2.0, 3.0, "carbon", "zeus_default").serialize()
    assert path == "airflow_provider_zeus.operators.start_trigger.ZeusStartTrigger"
    assert ZeusStartTrigger(**arguments).serialize() == (path, arguments)
