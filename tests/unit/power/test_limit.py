"""Setting limits from within a living training."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.power.limit import LimitControl
from airflow_provider_zeus.power.none import NoneDevice
from airflow_provider_zeus.power.simulated import SimulatedGpu

from .conftest import records, wait_for

Guardians = Callable[[], list[int]]


def test_the_limit_found_comes_back_and_nobody_stays(gpu: SimulatedGpu, tmp_path: Path, guardians: Guardians) -> None:
    gpu.set_limit_w(225.0)
    with LimitControl(gpu, tmp_path) as control:
        assert control.found_w == 225.0
        for limit_w in (200.0, 125.0, 175.0):
            assert control.set_w(limit_w)
            assert gpu.limit_w() == limit_w
        assert len(guardians()) == len(records(tmp_path)) == 1
    assert gpu.limit_w() == 225.0
    assert guardians() == records(tmp_path) == []


def test_the_limit_found_comes_back_after_an_exception(gpu: SimulatedGpu, tmp_path: Path, guardians: Guardians) -> None:
    def train() -> None:
        with LimitControl(gpu, tmp_path) as control:
            control.set_w(100.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert gpu.limit_w() == 250.0
    assert guardians() == records(tmp_path) == []


def test_no_change_needs_no_guardian(gpu: SimulatedGpu, tmp_path: Path, guardians: Guardians) -> None:
    with LimitControl(gpu, tmp_path / "never-made") as control:
        assert control.set_w(250.0)
        assert guardians() == []
    assert not (tmp_path / "never-made").exists()


def test_guardian_starts_quickly(gpu: SimulatedGpu, tmp_path: Path) -> None:
    waits_s = []
    for _ in range(5):
        with LimitControl(gpu, tmp_path) as control:
            start_s = time.perf_counter()
            assert control.set_w(150.0)
            waits_s.append(time.perf_counter() - start_s)
    assert min(waits_s) < 0.1


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
def test_a_users_limit_out_of_range_is_named(limit_w: float, gpu: SimulatedGpu, tmp_path: Path) -> None:
    with (
        LimitControl(gpu, tmp_path) as control,
        pytest.raises(
            JobSpecError, match=rf"ZeusJob.power_limits_w = {limit_w}: out of range.*use limits from 100 to 250 W"
        ),
    ):
        control.grid_w([150.0, limit_w])


def test_a_device_without_limits_has_no_grid_and_sets_none(tmp_path: Path, guardians: Guardians) -> None:
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
    assert caplog.text.count("180.0 W, which was not set here") == 1
    assert guardians() == records(tmp_path) == []


def test_a_limit_set_by_an_admin_is_left_alone_at_once(
    gpu: SimulatedGpu, tmp_path: Path, caplog: pytest.LogCaptureFixture, guardians: Guardians
) -> None:
    with LimitControl(gpu, tmp_path) as control:
        control.set_w(150.0)
        gpu.set_limit_w(180.0)
        assert not control.set_w(125.0)
        assert not control.can_set
        assert guardians() == []
    assert gpu.limit_w() == 180.0
    assert len(caplog.records) == 1


def test_without_a_guardian_no_limit_is_set(
    gpu: SimulatedGpu, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for state_dir, executable in ((tmp_path / "file", sys.executable), (tmp_path, "/bin/false"), (tmp_path, "/no")):
        (tmp_path / "file").touch()
        monkeypatch.setattr(sys, "executable", executable)
        caplog.clear()
        with LimitControl(gpu, state_dir) as control:
            assert not control.set_w(150.0)
            assert gpu.limit_w() == 250.0
            assert not control.can_set
        assert len(caplog.records) == 1
        assert "guardian of the power limit" in caplog.text
        assert records(tmp_path) == []


def test_a_killed_guardian_ends_the_setting_of_limits(
    gpu: SimulatedGpu, tmp_path: Path, caplog: pytest.LogCaptureFixture, guardians: Guardians
) -> None:
    with LimitControl(gpu, tmp_path) as control:
        control.set_w(150.0)
        status = Path(f"/proc/{guardians()[0]}/stat")
        os.kill(guardians()[0], signal.SIGKILL)
        wait_for(lambda: status.read_text().rpartition(") ")[2].startswith("Z"), within_s=2.0)  # ended, not waited for
        assert not control.set_w(125.0)
        assert gpu.limit_w() == 250.0
        assert records(tmp_path) == []
    assert len(caplog.records) == 1


def test_what_a_dead_trial_left_behind_is_not_taken_for_the_limit_found(gpu: SimulatedGpu, tmp_path: Path) -> None:
    gpu.set_limit_w(125.0)
    with LimitControl(gpu, tmp_path, found_earlier_w=(225.0, 125.0)) as control:
        assert control.grid_w()[0] == control.found_w == 225.0
        assert gpu.limit_w() == 225.0, "also where this training changes nothing"
        assert control.set_w(150.0)
    assert gpu.limit_w() == 225.0


def test_a_lower_limit_of_an_admin_is_kept_after_a_trial_died(gpu: SimulatedGpu, tmp_path: Path) -> None:
    gpu.set_limit_w(150.0)
    with LimitControl(gpu, tmp_path, found_earlier_w=(225.0, 125.0)) as control:
        assert control.grid_w()[0] == control.found_w == 150.0
        assert control.set_w(125.0)
    assert gpu.limit_w() == 150.0


def test_a_forked_child_that_leaves_the_block_touches_nothing(gpu: SimulatedGpu, start, guardians: Guardians) -> None:
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


def test_a_signal_handler_that_raises_while_a_limit_is_set_loses_nothing(gpu: SimulatedGpu, start) -> None:
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
