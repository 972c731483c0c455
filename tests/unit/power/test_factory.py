"""From a name to a device, and what "auto" finds on hosts of all kinds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.power.cpu import EstimateDevice
from airflow_provider_zeus.power.device import NoneDevice
from airflow_provider_zeus.power.factory import HostSettings, device_of, open_device
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from tests.fake_nvml import FakeNvml
from tests.unit.power.conftest import ROOT


def test_auto_takes_the_gpu_before_an_estimate(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.add()
    device = open_device("auto", state_dir=tmp_path, host=HostSettings(cpu_watts=8.0))
    assert isinstance(device, NvmlDevice)
    assert device.info.energy_source == "nvml_counter"
    assert device.limit_range() is not None


def test_read_only_reaches_the_gpu(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.add()
    assert (
        open_device(
            "auto", state_dir=tmp_path, host=HostSettings(power_read_only=True)
        ).limit_range()
        is None
    )


def test_max_power_is_the_gpus_own_and_else_the_users(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.add()
    assert open_device("auto", state_dir=tmp_path, max_power_w=99.0).info.max_power_w == 250.0
    nvml.fail("nvmlDeviceGetPowerManagementLimitConstraints", 3)
    device = open_device("auto", state_dir=tmp_path, max_power_w=99.0)
    assert device.info.max_power_w == 99.0
    assert "LimitConstraints: not supported" in device.missing["limit_range"]
    assert (
        "LimitConstraints: not supported"
        in open_device("auto", state_dir=tmp_path).missing["max_power_w"]
    )


@pytest.mark.parametrize(
    ("cpu_watts", "kind", "source"), [(None, NoneDevice, None), (8.0, EstimateDevice, "estimate")]
)
def test_auto_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cpu_watts: float | None,
    kind: type,
    source: str | None,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    device = open_device(
        "auto", state_dir=tmp_path, max_power_w=65.0, host=HostSettings(cpu_watts=cpu_watts)
    )
    assert isinstance(device, kind)
    assert (device.info.energy_source, device.info.max_power_w) == (source, 65.0)
    assert (device.energy_j() is None) == (source is None)


def test_none_says_what_was_looked_for_and_the_remedy(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.add()
    nvml.lose_driver()
    why = open_device("auto", state_dir=tmp_path).missing["energy_j"]
    assert why.startswith("no source of energy. nvmlInit: the NVIDIA driver is not loaded; load it")
    assert why.endswith("or set [zeus] cpu_watts for an estimate")


def test_a_host_without_the_library(tmp_path: Path) -> None:
    """In a process of its own, where nothing was loaded yet;
    a real driver's library would be found first.
    """
    code = f"""
import ctypes
try:
    ctypes.CDLL("libnvidia-ml.so.1")
except OSError:
    from airflow_provider_zeus.power.factory import open_device
    print(open_device("auto", state_dir={str(tmp_path)!r}).missing["energy_j"])
else:
    print("here")
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    child = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    if child.stdout == "here\n":
        pytest.skip("this host has an NVIDIA driver")
    assert "libnvidia-ml.so.1 was not found" in child.stdout


def test_nvml_by_name_is_a_gpu_or_an_error(
    nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.add()
    assert isinstance(open_device("nvml", state_dir=tmp_path), NvmlDevice)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(
        JobSpecError, match=r"ZeusJob\.device = 'nvml': CUDA_VISIBLE_DEVICES.*'auto'"
    ):
        open_device("nvml", state_dir=tmp_path, host=HostSettings(cpu_watts=8.0))


def test_mode_off_looks_for_nothing(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.add()
    job = ZeusJob(
        batch_sizes=[32],
        default_batch_size=32,
        target="acc >= 0.9",
        max_epochs=1,
        window=2,
        mode="off",
    )
    assert isinstance(device_of(job, tmp_path), NoneDevice)
    assert nvml.calls() == {}


def test_opening_neither_reads_nor_sets_more_than_it_must(nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.add()
    open_device("auto", state_dir=tmp_path)
    assert nvml.sets == []
    assert sum(nvml.calls().values()) < 12
