"""Real trainers in real processes, and the guardians they leave behind, if any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import airflow_provider_zeus
from airflow_provider_zeus.power import cpu
from airflow_provider_zeus.power.cpu import RaplDevice
from airflow_provider_zeus.power.device import NoneDevice
from airflow_provider_zeus.power.limits import guardian_client
from airflow_provider_zeus.power.nvml import gpu as nvml_gpu
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from airflow_provider_zeus.power.polling import PolledEnergy
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from tests.fake_nvml import FakeNvml, Gpu


@pytest.fixture(autouse=True)
def counters_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for a counter to move whose clock it drives itself;
    those of test_still_readings.py do.
    """
    monkeypatch.setattr(cpu, "moves", lambda read: True)
    monkeypatch.setattr(nvml_gpu, "moves", lambda read: True)


ROOT = Path(airflow_provider_zeus.__file__).parents[1]
TRAINER = """
import json, logging, os, signal, sys, time
from airflow_provider_zeus.power.limits import guardian_client
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.power.factory import open_device

def say(**facts):
    print(json.dumps(facts), flush=True)

def fork_worker():
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    return pid

guardian_client.START_S = 60.0
logging.basicConfig()
state_dir = sys.argv[1]
gpu = open_device("simulated:v100/shufflenet", state_dir=state_dir)
"""


class Trainer:
    """A child process that runs the preamble above and then ``body``;
    each ``say(...)`` of it is one line.
    """

    def __init__(self, state_dir: Path, body: str, **popen: object) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAINER + body, str(state_dir)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **popen,
        )

    def hear(self) -> dict:
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    def die(self, signal_number: int) -> None:
        self.process.send_signal(signal_number)
        self.process.wait(60)


def wait_for(condition: Callable[[], bool], within_s: float) -> float:
    """Seconds until ``condition`` holds; fails when it does not hold in time."""
    start_s = time.monotonic()
    while not condition():
        assert time.monotonic() - start_s < within_s, f"not within {within_s} s"
        time.sleep(0.005)
    return time.monotonic() - start_s


def records(state_dir: Path) -> list[Path]:
    """Without the file beside a record that is being written."""
    return sorted(state_dir.glob("limit-*.json"))


@pytest.fixture
def gpu(tmp_path: Path) -> SimulatedGpu:
    return SimulatedGpu(
        "v100", load="shufflenet", state_file=tmp_path / "simulated-v100-shufflenet.gpu"
    )


@pytest.fixture
def card(nvml: FakeNvml) -> Gpu:
    """A V100 of that host: 100 to 250 W, at 250 W, drawing 240 W."""
    return nvml.add()


@pytest.fixture
def wait(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Time is this function's [s]: however busy the host is, a step takes what it is told."""
    clock_s = time.monotonic() + 1.0
    for device in (NvmlDevice, RaplDevice, NoneDevice):
        monkeypatch.setattr(device, "now_s", lambda self: clock_s)
    assert PolledEnergy.__init__.__kwdefaults__
    monkeypatch.setitem(PolledEnergy.__init__.__kwdefaults__, "clock", lambda: clock_s)

    def wait(passed_s: float) -> None:
        nonlocal clock_s
        clock_s += passed_s
        nvml.tell_time(clock_s)

    wait(0.0)
    return wait


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Trainer]]:
    """Start trainers on ``tmp_path``; all are gone after the test."""
    started: list[Trainer] = []

    def start(body: str, **popen: object) -> Trainer:
        started.append(Trainer(tmp_path, body, **popen))
        return started[-1]

    yield start
    for trainer in started:
        trainer.process.kill()
        trainer.process.communicate()


@pytest.fixture(autouse=True)
def guardians(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[int]]]:
    """Pids of the living guardians that this test started, itself or through its trainers;
    none may outlive it.
    """
    monkeypatch.setattr(guardian_client, "START_S", 60.0)  # however busy the host is
    mark = f"ZEUS_TEST={uuid.uuid4().hex}"
    monkeypatch.setenv(*mark.split("="))

    def guardians() -> list[int]:
        return [int(p.name) for p in Path("/proc").glob("[0-9]*") if _is_guardian(p, mark.encode())]

    yield guardians
    wait_for(lambda: not guardians(), within_s=60.0)


def _is_guardian(process: Path, mark: bytes) -> bool:
    try:
        return (
            b"guardian.py" in (process / "cmdline").read_bytes()
            and mark in (process / "environ").read_bytes()
        )
    except OSError:
        return False
