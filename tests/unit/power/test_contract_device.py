"""What every device promises (``power.device.Device``).

A new device is one more function in ``DEVICES``.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.model.trial import DeviceInfo
from airflow_provider_zeus.power.cpu import EstimateDevice
from airflow_provider_zeus.power.device import Device, DeviceGroup, NoneDevice
from airflow_provider_zeus.power.factory import open_nvml
from airflow_provider_zeus.power.limits.record import open_port
from airflow_provider_zeus.power.simulated.gpu import open_simulated
from tests.fake_nvml import FakeNvml
from tests.unit.power.conftest import wait_for
from tests.unit.power.test_rapl import Host

SOURCES = {"nvml_counter", "nvml_poll", "rapl", "estimate", "simulated"}


def one_gpu(nvml: FakeNvml, folder: Path) -> Device:
    nvml.add()
    return open_nvml(
        read_only=False, max_power_w=None, power_socket="", gpus=1, processes=1, lock=None
    )


def two_gpus(nvml: FakeNvml, folder: Path) -> Device:
    nvml.add()
    nvml.add()
    return open_nvml(
        read_only=False, max_power_w=None, power_socket="", gpus=2, processes=1, lock=None
    )


def gpu_to_read_only(nvml: FakeNvml, folder: Path) -> Device:
    nvml.add()
    return open_nvml(
        read_only=True, max_power_w=None, power_socket="", gpus=1, processes=1, lock=None
    )


def simulated(nvml: FakeNvml, folder: Path) -> Device:
    return open_simulated("simulated:v100/shufflenet", folder)


def two_simulated(nvml: FakeNvml, folder: Path) -> Device:
    return DeviceGroup(
        [open_simulated("simulated:v100/shufflenet", folder, number) for number in (1, 2)]
    )


def processors(nvml: FakeNvml, folder: Path) -> Device:
    return Host(folder / "powercap").device()


def estimate(nvml: FakeNvml, folder: Path) -> Device:
    return EstimateDevice(10.0, 250.0)


def none(nvml: FakeNvml, folder: Path) -> Device:
    return NoneDevice(None)


DEVICES = (
    one_gpu,
    two_gpus,
    gpu_to_read_only,
    simulated,
    two_simulated,
    processors,
    estimate,
    none,
)


@pytest.fixture(params=DEVICES, ids=lambda opened: opened.__name__)
def device(request: pytest.FixtureRequest, nvml: FakeNvml, tmp_path: Path) -> Device:
    opened: Callable[[FakeNvml, Path], Device] = request.param
    return opened(nvml, tmp_path)


def test_its_identity_is_plain_and_stays(device: Device) -> None:
    info = device.info
    assert isinstance(info, DeviceInfo)
    assert info == device.info
    assert info.model
    assert info.count >= 1
    assert info.energy_source is None or info.energy_source in SOURCES
    assert info.max_power_w is None or info.max_power_w > 0
    assert device.uuid is None or isinstance(device.uuid, str)


def test_time_and_energy_never_go_back(device: Device) -> None:
    seen = []
    for _ in range(5):
        device.on_step(64)
        sum(range(200_000))
        device.synchronize()
        seen.append((device.now_s(), device.energy_j()))
    assert [now_s for now_s, _ in seen] == sorted(now_s for now_s, _ in seen)
    read = [energy_j for _, energy_j in seen if energy_j is not None]
    assert read == sorted(read)
    assert len(read) in (0, len(seen))


def test_what_cannot_be_read_is_none_with_a_reason(device: Device) -> None:
    if device.info.energy_source is None:
        assert device.energy_j() is None
    for name, value in (("energy_j", device.energy_j()), ("limit_w", device.limit_w())):
        if value is None:
            assert device.missing[name].strip(), name
        else:
            assert value >= 0
            assert name not in device.missing


def test_a_limit_is_set_within_its_range_and_nowhere_else(device: Device) -> None:
    limits = device.limit_range()
    if limits is None:
        with pytest.raises(DeviceError):
            device.set_limit_w(150.0)
        return
    found_w = device.limit_w()
    grid_w = limits.grid_w()
    assert grid_w[0] == limits.max_w
    assert grid_w == tuple(sorted(grid_w, reverse=True))
    for limit_w in (limits.min_w, *grid_w):
        device.set_limit_w(limit_w)
        assert device.limit_w() == limit_w
    for beyond_w in (limits.min_w - 1, limits.max_w + 1):
        with pytest.raises(DeviceError, match=r"\d W"):
            device.set_limit_w(beyond_w)
        assert device.limit_w() == limits.min_w, "the last one that was accepted"
    assert found_w is not None
    device.set_limit_w(found_w)


def test_its_limit_can_be_given_back_without_this_process(device: Device) -> None:
    limits = device.limit_range()
    if limits is None:
        return
    record = json.loads(json.dumps(device.restore_record(), allow_nan=False))
    device.set_limit_w(limits.min_w)
    for port in map(open_port, record):
        assert port.limit_w() == limits.min_w
        port.set_limit_w(limits.max_w)
    assert device.limit_w() == limits.max_w


def test_it_may_be_closed_twice_and_leaves_no_file_open(device: Device) -> None:
    device.energy_j()
    device.close()
    before = open_files()
    device.close()
    wait_for(lambda: open_files() <= before, within_s=60.0)  # threads of others open some, too


def open_files() -> int:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sum(Path(f"/proc/self/fd/{number}").exists() for number in range(min(most, 1024)))
