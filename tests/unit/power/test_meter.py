"""Measurement windows."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.power.meter import Reading, Window
from airflow_provider_zeus.power.none import NoneDevice
from airflow_provider_zeus.power.open import open_device
from airflow_provider_zeus.power.simulated import SimulatedGpu
from airflow_provider_zeus.power.state_file import COUNTER_MJ, StateFile


def test_a_window_reads_time_energy_and_mean_power(gpu: SimulatedGpu) -> None:
    window = Window(gpu)
    for _ in range(1000):
        gpu.on_step(256)
    reading = window.stop()
    step_s, power_w = gpu.load.step(gpu.chip, 256, 250.0)
    assert reading.time_s == pytest.approx(1000 * step_s)
    assert reading.energy_j == pytest.approx(1000 * step_s * power_w, rel=0.005)
    assert reading.power_w == pytest.approx(power_w, rel=0.005)
    assert (reading.source, reading.reason) == ("simulated", None)


def test_windows_nest_and_add_up(gpu: SimulatedGpu) -> None:
    whole, parts = Window(gpu), []
    for batch_size in (64, 256, 1024):
        part = Window(gpu)
        for _ in range(30):
            gpu.on_step(batch_size)
        parts.append(part.stop())
    reading = whole.stop()
    assert reading.time_s == pytest.approx(sum(p.time_s for p in parts))
    assert reading.energy_j == pytest.approx(sum(p.energy_j for p in parts))
    gpu.on_step(64)
    assert whole.stop().time_s > reading.time_s


def test_nothing_happened_is_zero_and_has_no_mean_power(gpu: SimulatedGpu) -> None:
    reading = Window(gpu).stop()
    assert reading == Reading(time_s=0.0, energy_j=0.0, source="simulated")
    assert reading.power_w is None


def test_a_counter_that_goes_back_is_unknown_not_negative(gpu: SimulatedGpu, tmp_path: Path) -> None:
    for _ in range(20):
        gpu.on_step(256)
    window = Window(gpu)
    StateFile(str(tmp_path / "simulated-v100-shufflenet.gpu")).slots[COUNTER_MJ] = 0.0
    reading = window.stop()
    assert (reading.energy_j, reading.power_w) == (None, None)
    assert "went back" in reading.reason


def test_a_window_between_two_ticks_is_unknown_not_zero(gpu: SimulatedGpu) -> None:
    window = Window(gpu)
    gpu.on_step(8)  # 38 ms of the 100 that the counter needs
    reading = window.stop()
    assert reading.time_s > 0
    assert reading.energy_j is None
    assert "measure for longer" in reading.reason


class _Recording(SimulatedGpu):
    """Writes down in which order it is asked."""

    calls: list[str]

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def now_s(self) -> float:
        self.calls.append("now_s")
        return super().now_s()

    def on_step(self, samples: int) -> None:
        self.calls.append("on_step")
        super().on_step(samples)


def test_the_device_is_synchronised_before_each_edge_and_never_between(tmp_path: Path) -> None:
    gpu = _Recording("v100", load="shufflenet", state_file=tmp_path / "gpu")
    gpu.calls = []
    window = Window(gpu)
    gpu.on_step(8)
    gpu.on_step(8)
    window.stop()
    assert gpu.calls == ["synchronize", "now_s", "on_step", "on_step", "synchronize", "now_s"]


@pytest.mark.parametrize("name", ["none", "auto"])
def test_without_a_source_time_is_measured_and_energy_has_a_reason(name: str, tmp_path: Path) -> None:
    device = open_device(name, state_dir=tmp_path, max_power_w=65.0)
    window = Window(device)
    time.sleep(0.02)
    reading = window.stop()
    assert reading.time_s >= 0.02
    assert (reading.energy_j, reading.source) == (None, None)
    assert "no source of energy" in reading.reason
    assert "use device=" in reading.reason
    assert device.info.model
    assert device.info.max_power_w == 65.0


def test_the_none_device_has_no_limit() -> None:
    device = NoneDevice()
    assert (device.limit_range(), device.limit_w(), device.uuid, device.restore_record()) == (None, None, None, None)
    with pytest.raises(DeviceError, match="no power limit"):
        device.set_limit_w(100.0)
