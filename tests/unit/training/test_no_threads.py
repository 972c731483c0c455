"""A host that gives no thread, and no process: the training runs and says what is missing."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from pathlib import Path

import pytest

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.power.limits import control
from airflow_provider_zeus.power.limits.guardian_client import GuardianClient
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from airflow_provider_zeus.store.sql.sqlite_file import turn
from airflow_provider_zeus.training.heartbeat import Heartbeat
from airflow_provider_zeus.training.run import ZeusRun
from tests.fake_nvml import FakeNvml
from tests.unit.training.conftest import SAMPLES, Kit, incumbent, loop, steps


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.usefixtures("no_threads")
def test_a_training_runs_without_a_heartbeat(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    kit.run(incumbent(256), heartbeat_s=0.01).train(loop)
    assert kit.ends()[-1].state is State.CONVERGED
    assert kit.last().energy_j
    assert kit.gpu.limit_w() == 250.0
    assert any("no heartbeats" in r.getMessage() for r in caplog.records)


@pytest.mark.usefixtures("no_threads")
def test_a_heartbeat_that_never_began_can_be_stopped() -> None:
    Heartbeat(lambda: None, 1.0).stop()


@pytest.mark.usefixtures("no_threads")
def test_polled_energy_is_known_as_far_as_its_readings_go(nvml: FakeNvml) -> None:
    nvml.add(has_counter=0)
    device = NvmlDevice()
    readings = [device.energy_j() for _ in range(3)]
    assert None not in readings
    assert readings == sorted(readings)
    assert device.missing.get("energy_j") is None


def test_a_thread_that_is_to_be_had_later_polls_from_then_on(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.add(has_counter=0)
    device = NvmlDevice()
    with monkeypatch.context() as patched:
        patched.setattr(
            threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError("no"))
        )
        device.energy_j()
    others = set(threading.enumerate())
    device.energy_j()
    begun = {t.name for t in threading.enumerate() if t not in others}
    assert begun - {"zeus-call"} == {"zeus-power"}, "which asks the driver in a thread, each time"
    device.close()


@pytest.mark.usefixtures("no_threads")
def test_a_writer_that_cannot_queue_writes_all_the_same(tmp_path: Path) -> None:
    with turn(tmp_path / "zeus.db", 1.0), turn(tmp_path / "zeus.db", 1.0):
        pass


def test_a_training_runs_without_a_guardian(
    kit: Kit, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(control, "GuardianClient", GuardianClient)  # the real one
    monkeypatch.setattr(subprocess, "Popen", no_process)
    kit.run(incumbent(256)).train(loop)
    assert kit.ends()[-1].state is State.CONVERGED
    assert kit.last().power_limit_w == kit.gpu.limit_w() == 250.0
    assert any("guardian" in r.getMessage() for r in caplog.records)


@pytest.mark.usefixtures("no_threads")
def test_power_points_that_nothing_sends_stay_few(kit: Kit) -> None:
    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            for _ in range(12):
                steps(run, 100 * SAMPLES)
                waiting.append(len(run.progress.live._meter.points))
            run.report(acc=1.0)

    waiting: list[int] = []
    kit.run(incumbent(256)).train(train)
    assert kit.last().time_s > 2000, "a point a second would be more"
    assert 100 < max(waiting) <= 1000
    (end,) = kit.ends()
    assert end.points[-1].t_s == pytest.approx(kit.last().time_s, abs=2.0)
