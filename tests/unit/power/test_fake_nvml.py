"""The fake driver itself, through the unmodified pynvml:
it is what the tests of the NVML device stand on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from tests import fake_nvml
from tests.fake_nvml import FakeNvml
from tests.unit.power.conftest import ROOT, wait_for

pynvml = pytest.importorskip("pynvml")


@pytest.fixture
def handle(nvml: FakeNvml):
    nvml.add()
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def test_pynvml_speaks_to_it_in_this_process(handle, nvml: FakeNvml) -> None:
    assert hasattr(pynvml.nvmlLib, "fake_nvml_create")
    assert pynvml.nvmlDeviceGetName(handle) == "Tesla V100-SXM2-16GB"
    assert pynvml.nvmlDeviceGetUUID(handle) == "GPU-00000001-1111-2222-3333-444455556666"
    assert pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle) == [100_000, 250_000]
    assert pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) == 250_000
    assert pynvml.nvmlDeviceGetMigMode(handle) == [0, 0]
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    assert nvml.calls()["nvmlDeviceGetName"] == 1


def test_a_child_process_finds_it_by_its_name(nvml: FakeNvml) -> None:
    nvml.add("NVIDIA A40")
    code = (
        "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0);"
        " print(n.nvmlDeviceGetName(h)); n.nvmlDeviceSetPowerManagementLimit(h, 150000)"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert child.stdout == "NVIDIA A40\n"
    assert nvml.sets == [150.0]


def test_without_a_state_there_is_no_driver(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAKE_NVML_STATE")
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlInit()


def test_energy_moves_in_ticks_with_time_and_power(handle, nvml: FakeNvml) -> None:
    start_s = time.monotonic() + 1.0
    took_s = 0.3
    seen = []
    for ms in range(301):
        nvml.tell_time(start_s + ms / 1000)
        seen.append(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))
    jumps_mj = {round(b - a) for a, b in pairwise(seen) if a != b}
    assert jumps_mj == {4800}  # 240 W x 20 ms
    assert seen[-1] - seen[0] == pytest.approx(240_000 * took_s, abs=2 * 4800)
    assert pynvml.nvmlDeviceGetPowerUsage(handle) == 240_000


def test_power_settles_on_a_new_limit_and_a_floor_or_another_cap_shows(
    handle, nvml: FakeNvml
) -> None:
    start_s = time.monotonic() + 1.0
    nvml.tell_time(start_s)
    pynvml.nvmlDeviceSetPowerManagementLimit(handle, 100_000)
    assert pynvml.nvmlDeviceGetPowerManagementLimit(handle) == 100_000
    assert pynvml.nvmlDeviceGetPowerUsage(handle) > 150_000
    nvml.tell_time(start_s + 2.0)
    assert pynvml.nvmlDeviceGetPowerUsage(handle) == 100_000
    gpu = nvml.gpu(0)
    gpu.floor_w = 120.0
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) == 120_000
    gpu.floor_w = 0.0
    gpu.cap_w = 90.0
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) == 90_000


@pytest.mark.parametrize(
    ("field", "value", "function", "error"),
    [
        ("may_set", 0, "nvmlDeviceSetPowerManagementLimit", "NoPermission"),
        ("has_counter", 0, "nvmlDeviceGetTotalEnergyConsumption", "NotSupported"),
        ("has_power", 0, "nvmlDeviceGetPowerUsage", "NotSupported"),
        ("has_mig_mode", 0, "nvmlDeviceGetMigMode", "NotSupported"),
        ("lost", 1, "nvmlDeviceGetName", "GpuIsLost"),
    ],
)
def test_what_a_gpu_refuses(
    handle, nvml: FakeNvml, field: str, value: int, function: str, error: str
) -> None:
    setattr(nvml.gpu(0), field, value)
    with pytest.raises(getattr(pynvml, f"NVMLError_{error}")):
        getattr(pynvml, function)(handle, *([150_000] if "Set" in function else []))


def test_failures_on_demand(handle, nvml: FakeNvml) -> None:
    nvml.fail("nvmlDeviceGetName", 999, after=1, times=2)
    results = []
    for _ in range(4):
        try:
            results.append(pynvml.nvmlDeviceGetName(handle) and "ok")
        except pynvml.NVMLError_Unknown:
            results.append("unknown")
    assert results == ["ok", "unknown", "unknown", "ok"]


def test_a_killed_process_leaves_no_lock_behind(nvml: FakeNvml) -> None:
    nvml.add()
    code = (
        "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\nwhile True:"
        " n.nvmlDeviceGetName(h)"
    )
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}
        ) as child:
            before = nvml.calls().get("nvmlDeviceGetName", 0)
            wait_for(
                lambda before=before: nvml.calls().get("nvmlDeviceGetName", 0) > before,
                within_s=60.0,
            )
            child.kill()
        pynvml.nvmlInit()  # hangs where the lock is still held


def test_a_forked_process_must_initialise_it_itself(handle, nvml: FakeNvml) -> None:
    if (pid := os.fork()) == 0:
        code = 1
        try:
            pynvml.nvmlDeviceGetName(handle)
        except pynvml.NVMLError_Uninitialized:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert nvml.abused == 1


def test_it_is_built_once(nvml: FakeNvml) -> None:
    built = fake_nvml.compiled()
    made_ns = built.stat().st_mtime_ns
    fake_nvml.compiled.cache_clear()
    assert fake_nvml.compiled().stat().st_mtime_ns == made_ns
