"""Readings that stand still: no energy of 0 J is taken for measured,
and the policy goes on with time alone.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.power import polling
from airflow_provider_zeus.power.device import NoneDevice
from airflow_provider_zeus.power.factory import open_device
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from airflow_provider_zeus.power.polling import moves
from tests.fake_nvml import FakeNvml
from tests.unit.power.test_rapl import Host

JOB = ZeusJob(batch_sizes=[8, 16], default_batch_size=8, target="acc >= 0.9", max_epochs=4, eta=0.5)


@pytest.fixture(autouse=True)
def counters_move() -> None:
    """The real one."""


def test_a_counter_that_never_moves(nvml: FakeNvml) -> None:
    card = nvml.add()
    card.tick_s = 1e9
    device = NvmlDevice()
    assert (device.info.energy_source, device.energy_j()) == (None, None)
    assert "energy counter stands still at" in device.missing["energy_j"]
    assert Weights.of(JOB, device.info).time_alone


def test_polled_power_of_nothing(nvml: FakeNvml) -> None:
    card = nvml.add()
    card.has_counter = 0
    card.idle_w = 0.0
    card.demand_w = 0.0
    device = NvmlDevice()
    assert (device.info.energy_source, device.energy_j()) == (None, None)
    assert device.missing["energy_j"].endswith("; its power reads 0 W")


def test_limits_of_nothing_are_no_max_power(nvml: FakeNvml) -> None:
    card = nvml.add()
    card.min_w = card.max_w = 0.0
    device = NvmlDevice()
    assert (device.info.max_power_w, device.limit_range()) == (None, None)
    assert device.missing["max_power_w"] == "its limits read 0 to 0 W"


@pytest.mark.slow
def test_constant_counters_of_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("ZEUS_POWERCAP", str(tmp_path / "powercap"))
    Host(tmp_path / "powercap")
    device = open_device("auto", state_dir=tmp_path)
    assert isinstance(device, NoneDevice)
    assert "the processors' energy counters stand still" in device.missing["energy_j"]
    with pytest.raises(JobSpecError, match="stand still"):
        open_device("rapl", state_dir=tmp_path)


def test_what_moves_is_seen_at_once(nvml: FakeNvml) -> None:
    nvml.add()
    assert NvmlDevice().info.energy_source == "nvml_counter"
    readings = iter([5.0, 5.0, 5.0, 5.1])
    assert moves(lambda: next(readings), within_s=60.0)
    assert not moves(lambda: 5.0, within_s=0.05)


def test_a_host_that_stood_still_meanwhile_makes_no_counter_stand_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock_s = iter([0.0, 30.0])
    stood_still = SimpleNamespace(monotonic=lambda: next(clock_s), sleep=lambda _: None)
    monkeypatch.setattr(polling, "time", stood_still)
    readings = iter([5.0, 5.0, 5.1])
    assert moves(lambda: next(readings))
