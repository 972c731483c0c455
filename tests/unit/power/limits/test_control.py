"""Setting limits from within a living training."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.power.device import NoneDevice
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.power.limits.guardian_client import GuardianClient
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from tests.unit.power.conftest import records, wait_for

Guardians = Callable[[], list[int]]


def test_the_limit_found_comes_back_and_nobody_stays(
    gpu: SimulatedGpu, tmp_path: Path, guardians: Guardians
) -> None:
    gpu.set_limit_w(225.0)
    with LimitControl(gpu, tmp_path) as control:
        assert control.found_w == 225.0
        for limit_w in (200.0, 125.0, 175.0):
            assert control.set_w(limit_w)
            assert gpu.limit_w() == limit_w
        assert len(guardians()) == len(records(tmp_path)) == 1
    assert gpu.limit_w() == 225.0
    assert guardians() == records(tmp_path) == []


def test_the_limit_found_comes_back_after_an_exception(
    gpu: SimulatedGpu, tmp_path: Path, guardians: Guardians
) -> None:
    def train() -> None:
        with LimitControl(gpu, tmp_path) as control:
            control.set_w(100.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert gpu.limit_w() == 250.0
    assert guardians() == records(tmp_path) == []


def test_trainings_that_ask_for_a_little_less_lower_no_limit_for_good(
    gpu: SimulatedGpu, tmp_path: Path
) -> None:
    for limit_w, in_force_w in ((249.6, 250.0), (249.4, 249.4)):
        with LimitControl(gpu, tmp_path) as control:
            assert control.grid_w([limit_w]) == (in_force_w,)
            for asked_w in (200.0, limit_w):
                assert control.set_w(asked_w)
            assert gpu.limit_w() == in_force_w
        assert gpu.limit_w() == 250.0


@pytest.mark.parametrize("rounded", [math.floor, math.ceil, round])
def test_a_driver_that_rounds_keeps_no_limit_for_good(
    gpu: SimulatedGpu,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rounded: Callable[[float], int],
) -> None:
    set_w = gpu.set_limit_w
    monkeypatch.setattr(gpu, "set_limit_w", lambda limit_w: set_w(float(rounded(limit_w))))
    with LimitControl(gpu, tmp_path) as control:
        for limit_w in (150.5, 150.9, 150.1):
            assert control.set_w(limit_w)
            assert gpu.limit_w() == rounded(limit_w)
    assert gpu.limit_w() == 250.0


def test_a_limit_of_another_that_is_near_the_one_found_is_left_alone(
    gpu: SimulatedGpu, tmp_path: Path
) -> None:
    with LimitControl(gpu, tmp_path) as control:
        gpu.set_limit_w(249.8)
        assert not control.set_w(150.0)
    assert gpu.limit_w() == 249.8


def test_no_change_needs_no_guardian(
    gpu: SimulatedGpu, tmp_path: Path, guardians: Guardians
) -> None:
    with LimitControl(gpu, tmp_path / "never-made") as control:
        assert control.set_w(250.0)
        assert guardians() == []
    assert not (tmp_path / "never-made").exists()


def test_grid_is_the_devices_down_from_the_limit_found(gpu: SimulatedGpu, tmp_path: Path) -> None:
    with LimitControl(gpu, tmp_path) as control:
        assert control.grid_w() == (250.0, 225.0, 200.0, 175.0, 150.0, 125.0, 100.0)
        assert control.grid_w([150, 100, 250, 150]) == (250, 150, 100)
    gpu.set_limit_w(160.0)
    with LimitControl(gpu, tmp_path) as control:
        assert control.grid_w() == (160.0, 150.0, 125.0, 100.0)
        assert control.grid_w([250, 120]) == (120,)
        assert control.grid_w([250, 200]) == (160.0,)
        with pytest.raises(ValueError, match="above the limit found, 160 W"):
            control.set_w(175.0)
    assert gpu.limit_w() == 160.0
    gpu.set_limit_w(199.99)  # as a driver that counts in milliwatts may report 200
    with LimitControl(gpu, tmp_path) as control:
        assert control.grid_w() == (199.99, 175.0, 150.0, 125.0, 100.0)
        assert control.grid_w([200, 150]) == (199.99, 150)


@pytest.mark.parametrize("limit_w", [99.0, 300.0])
def test_a_users_limit_out_of_range_is_named(
    limit_w: float, gpu: SimulatedGpu, tmp_path: Path
) -> None:
    with (
        LimitControl(gpu, tmp_path) as control,
        pytest.raises(
            JobSpecError, match=rf"ZeusJob\.power_limits_w = {limit_w}: out of range.* 100 to 250 W"
        ),
    ):
        control.grid_w([150.0, limit_w])


def test_a_device_without_limits_has_no_grid_and_sets_none(
    tmp_path: Path, guardians: Guardians
) -> None:
    with LimitControl(NoneDevice(), tmp_path) as control:
        assert (control.can_set, control.grid_w(), control.set_w(100.0)) == (False, (), False)
        assert guardians() == []


def test_a_refusal_is_one_line_and_the_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, guardians: Guardians
) -> None:
    gpu = SimulatedGpu("v100", load="neumf", state_file=tmp_path / "gpu", may_set_limit=False)
    with LimitControl(gpu, tmp_path) as control:
        assert control.can_set
        assert [control.set_w(w) for w in (200.0, 150.0)] == [False, False]
        assert not control.can_set
        assert "may not set it" in control.why_not_set
        assert guardians() == []
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "may not set it" in caplog.text
    assert gpu.limit_w() == 250.0


def test_a_limit_set_by_an_admin_is_left_alone_at_the_end(
    gpu: SimulatedGpu, tmp_path: Path, caplog: pytest.LogCaptureFixture, guardians: Guardians
) -> None:
    with LimitControl(gpu, tmp_path) as control:
        control.set_w(150.0)
        gpu.set_limit_w(180.0)
    assert gpu.limit_w() == 180.0
    assert caplog.text.count("180.0 W") == 1
    assert guardians() == records(tmp_path) == []


def test_a_limit_set_by_an_admin_is_left_alone_at_once(
    gpu: SimulatedGpu, tmp_path: Path, caplog: pytest.LogCaptureFixture, guardians: Guardians
) -> None:
    with LimitControl(gpu, tmp_path) as control:
        control.set_w(150.0)
        gpu.set_limit_w(180.0)
        assert control.why_not_set == ""
        assert not control.set_w(125.0)
        assert not control.can_set
        assert control.why_not_set == "another process set it to 180 W"
        assert guardians() == []
    assert gpu.limit_w() == 180.0
    assert len(caplog.records) == 1


def test_without_a_guardian_no_limit_is_set(
    gpu: SimulatedGpu,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for state_dir, executable in (
        (tmp_path / "file", sys.executable),
        (tmp_path, "/bin/false"),
        (tmp_path, "/no"),
    ):
        (tmp_path / "file").touch()
        monkeypatch.setattr(sys, "executable", executable)
        caplog.clear()
        with LimitControl(gpu, state_dir) as control:
            assert not control.set_w(150.0)
            assert gpu.limit_w() == 250.0
            assert not control.can_set
        assert len(caplog.records) == 1
        assert "guardian" in caplog.text
        assert records(tmp_path) == []


def kill_guardian(guardians: Guardians) -> int:
    """Its pid, once it has ended and nobody has waited for it."""
    (pid,) = guardians()
    os.kill(pid, signal.SIGKILL)
    wait_for(
        lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z"),
        within_s=60.0,
    )
    return pid


@pytest.mark.parametrize("looked_after_by", ["the next set", "the heartbeat"])
def test_a_killed_guardian_is_replaced(
    gpu: SimulatedGpu, tmp_path: Path, guardians: Guardians, looked_after_by: str
) -> None:
    with LimitControl(gpu, tmp_path) as control:
        control.set_w(150.0)
        killed = kill_guardian(guardians)
        if looked_after_by == "the heartbeat":
            control.keep_guarded()
            (before,) = records(tmp_path)
            assert json.loads(before.read_text())["set_w"] == [250.0, 150.0]
        assert control.set_w(125.0)
        (another,) = guardians()
        assert another != killed
        (record,) = records(tmp_path)
        assert json.loads(record.read_text())["set_w"] == [150.0, 125.0]
    assert gpu.limit_w() == 250.0
    assert guardians() == records(tmp_path) == []


def test_the_heartbeat_starts_no_guardian_that_is_not_needed(
    gpu: SimulatedGpu, tmp_path: Path, guardians: Guardians
) -> None:
    with LimitControl(gpu, tmp_path) as control:
        control.keep_guarded()
        assert guardians() == []
        control.set_w(150.0)
        alive = guardians()
        control.keep_guarded()
        assert guardians() == alive
    control.keep_guarded()
    assert guardians() == records(tmp_path) == []


def test_a_guardian_that_cannot_be_replaced_now_is_replaced_later(
    gpu: SimulatedGpu, tmp_path: Path, guardians: Guardians, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LimitControl(gpu, tmp_path) as control:
        control.set_w(150.0)
        kill_guardian(guardians)
        with monkeypatch.context() as patched:
            patched.setattr(subprocess, "Popen", no_process)
            control.keep_guarded()
            assert len(records(tmp_path)) == 1, "the record stays for the next training"
        assert control.can_set
        control.keep_guarded()
        assert len(guardians()) == len(records(tmp_path)) == 1
    assert gpu.limit_w() == 250.0


def test_where_no_guardian_can_replace_a_killed_one_the_limit_found_comes_back_at_the_next_set(
    gpu: SimulatedGpu, tmp_path: Path, guardians: Guardians, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LimitControl(gpu, tmp_path) as control:
        control.set_w(150.0)
        kill_guardian(guardians)
        monkeypatch.setattr(subprocess, "Popen", no_process)
        assert not control.set_w(125.0)
        assert gpu.limit_w() == 250.0
        assert records(tmp_path) == []


def no_process(*_: object, **__: object) -> None:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_what_a_dead_trial_left_behind_is_not_taken_for_the_limit_found(
    gpu: SimulatedGpu, tmp_path: Path
) -> None:
    gpu.set_limit_w(125.0)
    with LimitControl(gpu, tmp_path, found_earlier_w=(225.0, 125.0)) as control:
        assert control.grid_w()[0] == control.found_w == 225.0
        assert gpu.limit_w() == 225.0, "also where this training changes nothing"
        assert control.set_w(150.0)
    assert gpu.limit_w() == 225.0


def test_a_lower_limit_of_an_admin_is_kept_after_a_trial_died(
    gpu: SimulatedGpu, tmp_path: Path
) -> None:
    gpu.set_limit_w(150.0)
    with LimitControl(gpu, tmp_path, found_earlier_w=(225.0, 125.0)) as control:
        assert control.grid_w()[0] == control.found_w == 150.0
        assert control.set_w(125.0)
    assert gpu.limit_w() == 150.0


def test_a_forked_child_that_leaves_the_block_touches_nothing(
    gpu: SimulatedGpu, start, guardians: Guardians
) -> None:
    trainer = start(
        """
with LimitControl(gpu, state_dir) as control:
    control.set_w(150.0)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        say()
        sys.stdin.readline()
""",
        stdin=-1,
    )
    trainer.hear()
    assert gpu.limit_w() == 150.0
    assert len(guardians()) == 1
    trainer.process.communicate("\n")
    assert gpu.limit_w() == 250.0


def test_a_signal_handler_that_raises_while_a_limit_is_set_loses_nothing(
    gpu: SimulatedGpu, start
) -> None:
    trainer = start("""
class Killed(BaseException): ...
def kill(*_): raise Killed
signal.signal(signal.SIGTERM, kill)
original = gpu.set_limit_w
def set_and_die(limit_w):
    original(limit_w)
    if limit_w == 125.0:
        os.kill(os.getpid(), signal.SIGTERM)
gpu.set_limit_w = set_and_die
try:
    with LimitControl(gpu, state_dir) as control:
        control.set_w(150.0)
        control.set_w(125.0)
except Killed:
    say(limit_w=gpu.limit_w())
""")
    assert trainer.hear() == {"limit_w": 250.0}


def test_a_change_that_another_thread_has_begun_is_given_back_too(
    gpu: SimulatedGpu, tmp_path: Path, guardians: Guardians, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Event()
    answered = Event()
    set_limit_w = gpu.set_limit_w

    def slow(limit_w: float) -> None:
        begun.set()
        answered.wait(60.0)
        set_limit_w(limit_w)

    monkeypatch.setattr(gpu, "set_limit_w", slow)
    control = LimitControl(gpu, tmp_path).__enter__()
    change = Thread(target=control.set_w, args=(100.0,), daemon=True)
    change.start()
    assert begun.wait(60.0)
    end = Thread(target=control.__exit__, args=(None, None, None), daemon=True)
    end.start()
    end.join(0.2)  # it waits for the change
    answered.set()
    change.join(60.0)
    end.join(60.0)
    assert gpu.limit_w() == 250.0
    assert guardians() == records(tmp_path) == []


def test_no_change_begins_once_another_thread_has_given_the_limit_back(
    gpu: SimulatedGpu, tmp_path: Path, guardians: Guardians, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = LimitControl(gpu, tmp_path).__enter__()
    limit_w = gpu.limit_w

    def given_back() -> float | None:
        monkeypatch.setattr(gpu, "limit_w", limit_w)
        control.__exit__(None, None, None)
        return limit_w()

    monkeypatch.setattr(gpu, "limit_w", given_back)
    assert not control.set_w(100.0)
    assert gpu.limit_w() == 250.0
    assert guardians() == records(tmp_path) == []


def test_a_guardian_that_the_heartbeat_starts_ends_with_the_control_of_a_limit_that_another_process_took(
    gpu: SimulatedGpu, tmp_path: Path, guardians: Guardians, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarted = GuardianClient.restarted
    trainings = []

    def meanwhile(dead: GuardianClient) -> GuardianClient:
        trainings.append(Thread(target=control.set_w, args=(125.0,), daemon=True))
        trainings[0].start()
        trainings[0].join(0.2)  # it waits for the new guardian
        return restarted(dead)

    with LimitControl(gpu, tmp_path) as control:
        control.set_w(150.0)
        gpu.set_limit_w(180.0)
        kill_guardian(guardians)
        monkeypatch.setattr(GuardianClient, "restarted", meanwhile)
        control.keep_guarded()
        trainings[0].join(60.0)
        assert not control.can_set
        assert guardians() == records(tmp_path) == []
    assert gpu.limit_w() == 180.0
