"""Waiting has a bound, and what may pass is tried again."""

from __future__ import annotations

import threading

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.patience import bounded, outlived, retried


class Times:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept_s: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


def fails(times: int, *, passing: bool = True) -> tuple[list[int], object]:
    """A call that fails so many times."""
    calls: list[int] = []

    def call() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise StoreError(f"no {len(calls)}", passing=passing)
        return "there"

    return calls, call


def test_what_may_pass_is_tried_again_with_longer_pauses() -> None:
    times = Times()
    calls, call = fails(4)
    assert retried(call, 20, clock=times.clock, sleep=times.sleep, chance=lambda: 1.0) == "there"  # type: ignore[arg-type]
    assert len(calls) == 5
    assert times.slept_s == pytest.approx([0.1, 0.2, 0.4, 0.8])


def test_pauses_differ_by_chance_and_have_a_longest() -> None:
    times = Times()
    _, call = fails(8)
    retried(call, 60, clock=times.clock, sleep=times.sleep, chance=iter([0.0, 1.0] * 9).__next__)  # type: ignore[arg-type]
    assert times.slept_s == pytest.approx([0.05, 0.2, 0.2, 0.8, 0.8, 2.0, 1.0, 2.0])


def test_it_is_given_up_when_the_time_is_over_with_the_last_error() -> None:
    times = Times()
    calls, call = fails(10**6)
    with pytest.raises(StoreError) as caught:
        retried(call, 20, clock=times.clock, sleep=times.sleep, chance=lambda: 1.0)  # type: ignore[arg-type]
    assert times.now_s < 20
    assert str(caught.value) == f"no {len(calls)}"


def test_no_pause_lasts_until_the_time_is_over() -> None:
    times = Times()
    calls, call = fails(1)
    with pytest.raises(StoreError, match="no 1"):
        retried(call, 0.1, clock=times.clock, sleep=times.sleep, chance=lambda: 1.0)  # type: ignore[arg-type]
    assert (len(calls), times.slept_s) == (1, [])


def test_what_does_not_pass_is_not_tried_again() -> None:
    times = Times()
    calls, call = fails(1, passing=False)
    with pytest.raises(StoreError, match="no 1"):
        retried(call, 20, clock=times.clock, sleep=times.sleep, chance=lambda: 1.0)  # type: ignore[arg-type]
    assert (len(calls), times.slept_s) == (1, [])


def test_a_call_that_hangs_is_left_behind() -> None:
    over = threading.Event()
    with pytest.raises(TimeoutError):
        bounded(lambda: over.wait(60), 0.05)
    over.set()


def test_its_value_and_its_error_come_back() -> None:
    assert bounded(lambda: None, 60) is None
    with pytest.raises(KeyError):
        bounded(lambda: {}["x"], None)  # type: ignore[var-annotated]


def test_without_a_thread_it_is_called_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    assert bounded(lambda: 3, 1.0) == 3


def test_an_error_of_ours_is_logged_with_its_reason_and_what_is_not_ours_passes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with outlived("close the device"):
        raise OSError("it is gone")
    (record,) = caplog.records
    assert record.getMessage().startswith("Zeus could not close the device (OSError)")
    assert "it is gone" in caplog.text
    for error in (KeyError("of the author"), KeyboardInterrupt(), SystemExit(1)):
        with pytest.raises(type(error)), outlived("close the device", but=(KeyError,)):
            raise error
