"""The estimate for trainings on CPUs: seconds of busy cores x watts of one."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from airflow_provider_zeus.errors import DeviceError, JobSpecError
from airflow_provider_zeus.power import cpu
from airflow_provider_zeus.power.cpu import EstimateDevice, cpu_seconds
from airflow_provider_zeus.power.meter import Span, edge
from tests.unit.power.conftest import wait_for

BURN = "import time\nwhile time.process_time() < {}: pass\n"


def burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_busy_seconds_cost_the_watts_and_idle_ones_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # what other tests have left works on, or ends
    monkeypatch.setattr(cpu, "_children", lambda _: [])
    device = EstimateDevice(10.0)
    busy = Span(edge(device))
    idle = Span()
    burn(0.3)
    busy.close(edge(device))
    idle.since = edge(device)
    time.sleep(0.2)
    idle.close(edge(device))
    assert busy.energy_j == pytest.approx(3.0, abs=0.3)
    assert idle.time_s >= 0.2
    assert idle.energy_j == pytest.approx(0.0, abs=0.3)


def test_children_count_while_they_live_and_once_when_they_have_ended() -> None:
    device = EstimateDevice(10.0)
    before_j = device.energy_j()
    code = BURN.format(0.4) + "print(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        living_j = device.energy_j() - before_j
        assert living_j >= 4.0 - 0.2
        child.communicate(b"\n")
    ended_j = device.energy_j() - before_j
    assert living_j - 0.2 <= ended_j <= living_j + 3.0  # the end of an interpreter, ticks of 10 ms


def test_grandchildren_count() -> None:
    def of_others_s() -> float:
        return cpu_seconds() - time.process_time()

    before_s = of_others_s()
    inner = BURN.format(0.3) + "input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        wait_for(lambda: of_others_s() - before_s > 0.28, within_s=60.0)
        child.communicate(b"\n")


def test_it_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    device = EstimateDevice(10.0)
    first_j = device.energy_j()
    # a child nobody waited for
    monkeypatch.setattr("airflow_provider_zeus.power.cpu.cpu_seconds", lambda: 0.0)
    assert device.energy_j() == first_j > 0


def test_what_it_is() -> None:
    device = EstimateDevice(10.0)
    cores = len(os.sched_getaffinity(0))
    assert (device.info.energy_source, device.info.max_power_w) == ("estimate", 10.0 * cores)
    assert EstimateDevice(10.0, 65.0).info.max_power_w == 65.0
    assert device.info.model
    assert (device.limit_range(), device.limit_w(), device.uuid, device.restore_record()) == (
        None,
        None,
        None,
        None,
    )
    with pytest.raises(DeviceError, match="no power limit"):
        device.set_limit_w(100.0)


@pytest.mark.parametrize("cpu_watts", [0.0, -1.0, float("nan"), float("inf")])
def test_watts_must_be_a_power(cpu_watts: float) -> None:
    with pytest.raises(JobSpecError, match="cpu_watts"):
        EstimateDevice(cpu_watts)


def test_a_reading_is_quick() -> None:
    device = EstimateDevice(10.0)
    start_s = time.process_time()
    for _ in range(20):
        device.energy_j()
    assert (time.process_time() - start_s) / 20 < 0.05
