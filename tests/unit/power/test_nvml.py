"""The NVML device on the fake driver: readings, limits, and what is refused."""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.power import nvml_library, nvml_limits
from airflow_provider_zeus.power.device import LimitRange
from airflow_provider_zeus.power.limit import LimitControl
from airflow_provider_zeus.power.meter import Span, edge
from airflow_provider_zeus.power.nvml import NvmlDevice
from airflow_provider_zeus.power.nvml_library import Answer
from airflow_provider_zeus.power.nvml_limits import grid_step_w
from airflow_provider_zeus.power.nvml_poll import PolledEnergy
from tests.fake_nvml import FakeNvml, Gpu

from .conftest import wait_for

SETTER = "nvmlDeviceSetPowerManagementLimit"


@pytest.fixture
def gpu(nvml: FakeNvml) -> Gpu:
    return nvml.add()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


# ---------------------------------------------------------------------- readings
def test_what_it_is(gpu: Gpu) -> None:
    device = NvmlDevice()
    assert device.info.model == "Tesla V100-SXM2-16GB"
    assert (device.info.count, device.info.max_power_w, device.info.energy_source) == (1, 250.0, "nvml_counter")
    assert device.uuid == gpu.uuid.decode()
    assert device.limit_range() == LimitRange(min_w=100.0, max_w=250.0, step_w=25.0)
    assert (device.limit_w(), device.missing) == (250.0, {})


def test_energy_is_that_of_the_counter_and_time_that_of_the_host(gpu: Gpu) -> None:
    device = NvmlDevice()
    span = Span(edge(device))
    time.sleep(0.25)
    span.close(edge(device))
    assert span.time_s == pytest.approx(0.25, abs=0.1)
    assert span.energy_j == pytest.approx(240 * span.time_s, abs=2 * 240 * gpu.tick_s)


def test_a_counter_that_goes_back_is_unknown_with_the_reason(gpu: Gpu) -> None:
    device = NvmlDevice()
    gpu.energy_mj = 5e6
    span = Span(edge(device))
    gpu.energy_mj = 0.0  # the driver was reloaded
    span.close(edge(device))
    assert span.energy_j is None
    assert "went back" in span.reason


def test_a_reading_that_fails_once_is_unknown_with_the_reason_and_said_once(
    gpu: Gpu, nvml: FakeNvml, caplog: pytest.LogCaptureFixture
) -> None:
    device = NvmlDevice()
    span, later = Span(edge(device)), Span()
    nvml.fail("nvmlDeviceGetTotalEnergyConsumption", 999, times=3)
    for _ in range(3):
        span.advance(edge(device))
    assert "nvmlDeviceGetTotalEnergyConsumption: an unknown error" in device.missing["energy_j"]
    later.open(edge(device))
    later.close(edge(device))
    assert (later.reason, device.missing) == (None, {})
    assert span.energy_j is None
    assert "nvmlDeviceGetTotalEnergyConsumption: an unknown error" in span.reason
    assert len(warnings(caplog)) == 1


def test_synchronise_waits_for_a_torch_that_uses_cuda(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    cuda = SimpleNamespace(is_initialized=lambda: bool(calls), synchronize=lambda: calls.append("synchronize"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    device = NvmlDevice()
    device.synchronize()
    assert calls == []
    calls.append("first use")
    device.synchronize()
    assert calls == ["first use", "synchronize"]

    def broken() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    cuda.synchronize = broken
    device.synchronize()  # the training's own calls tell


# ---------------------------------------------------------------------- polling
def test_without_a_counter_power_is_polled_from_the_first_question_on(gpu: Gpu, nvml: FakeNvml) -> None:
    gpu.has_counter = 0
    device = NvmlDevice()
    assert device.info.energy_source == "nvml_poll"
    opened = nvml.calls()["nvmlDeviceGetPowerUsage"]
    time.sleep(0.25)
    assert nvml.calls()["nvmlDeviceGetPowerUsage"] == opened
    span = Span(edge(device))
    time.sleep(0.3)
    changed_s, gpu.demand_w = time.perf_counter(), 140.0
    time.sleep(0.3)
    assert nvml.calls()["nvmlDeviceGetPowerUsage"] >= opened + 5
    span.close(edge(device))
    at_140_s = time.perf_counter() - changed_s
    assert span.energy_j == pytest.approx(240 * (span.time_s - at_140_s) + 140 * at_140_s, rel=0.1)
    device.close()


def pollers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "zeus-power"]


@pytest.mark.parametrize("how", ["close", "forget"])
def test_polling_ends_with_its_device(gpu: Gpu, how: str) -> None:
    gpu.has_counter = 0
    device = NvmlDevice()
    assert device.energy_j() == 0.0
    assert len(pollers()) == 1
    assert pollers()[0].daemon
    if how == "close":
        device.close()
    else:
        gc.disable()
        try:
            del device
            wait_for(lambda: not pollers(), within_s=1.0)
        finally:
            gc.enable()
    wait_for(lambda: not pollers(), within_s=1.0)


def test_polling_that_stalled_never_yields_a_smaller_sum() -> None:
    """Whatever held the interpreter up: what was drawn meanwhile is not known, now and later."""
    polled = PolledEnergy(lambda: Answer(100_000), every_s=60.0, stalled_s=0.05)
    assert polled.read_j().value == 0.0
    time.sleep(0.02)
    assert polled.read_j().value == pytest.approx(2.0, rel=0.5)
    time.sleep(0.1)
    for _ in range(2):
        answer = polled.read_j()
        assert answer.value is None
        assert "stalled for 0.1 s" in answer.problem
    polled.close()


def test_polling_that_fails_says_so_and_a_short_failure_is_bridged(gpu: Gpu, nvml: FakeNvml) -> None:
    gpu.has_counter = 0
    device = NvmlDevice()
    span = Span(edge(device))
    nvml.fail("nvmlDeviceGetPowerUsage", 999, times=2)  # polls, most likely
    time.sleep(0.45)
    span.advance(edge(device))
    assert span.energy_j == pytest.approx(240 * span.time_s, rel=0.1)
    nvml.fail("nvmlDeviceGetPowerUsage", 15)
    span.advance(edge(device))
    assert span.energy_j is None
    assert "the GPU is lost" in span.reason
    device.close()


# ---------------------------------------------------------------------- limits
@pytest.mark.parametrize(
    ("min_w", "max_w", "step_w", "limits"),
    [
        (100.0, 250.0, 25.0, 7),  # V100 PCIe
        (150.0, 300.0, 25.0, 7),  # V100 SXM
        (100.0, 300.0, 25.0, 9),  # A40
        (100.0, 350.0, 25.0, 11),
        (100.0, 400.0, 30.0, 11),  # A100 SXM
        (150.0, 450.0, 30.0, 11),
        (200.0, 700.0, 50.0, 11),  # H100, H200 SXM
        (200.0, 1000.0, 75.0, 11),  # B200
        (60.0, 70.0, 10.0, 2),  # T4
        (40.0, 72.0, 10.0, 4),  # L4
        (400.0, 600.0, 25.0, 9),
    ],
)
def test_the_grid_fits_the_range(min_w: float, max_w: float, step_w: float, limits: int) -> None:
    assert grid_step_w(max_w - min_w) == step_w
    grid = LimitRange(min_w=min_w, max_w=max_w, step_w=step_w).grid_w()
    assert len(grid) == limits
    assert max(grid) == max_w


def test_a_limit_is_set_and_seen(gpu: Gpu, nvml: FakeNvml) -> None:
    device = NvmlDevice()
    device.set_limit_w(175.0)
    assert (device.limit_w(), gpu.limit_w, nvml.sets) == (175.0, 175.0, [175.0])
    assert nvml.calls()["nvmlDeviceGetEnforcedPowerLimit"] == 1


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (4, r"power limit = 150 W: .*no permission\. Run as root or with CAP_SYS_ADMIN, or set mode='measure'\."),
        (2, r"power limit = 150 W: out of range\. Use 100 to 250 W\."),
        (3, r"not supported by this GPU or driver\. .*mode='measure'"),
        (15, r"the GPU is lost; look at dmesg, reset it or reboot the host\. .*mode='measure'"),
        (999, r"an unknown error of the driver\. If it persists set mode='measure'"),
        (1, r"NVML is not initialised\. If it persists set mode='measure'"),
    ],
)
def test_a_refused_limit_names_the_remedy(gpu: Gpu, nvml: FakeNvml, code: int, said: str) -> None:
    device = NvmlDevice()
    nvml.fail(SETTER, code)
    with pytest.raises(DeviceError, match=said):
        device.set_limit_w(150.0)


@pytest.mark.parametrize("limit_w", [99.0, 251.0, math.nan, math.inf, -100.0])
def test_a_limit_out_of_range_never_reaches_the_library(gpu: Gpu, nvml: FakeNvml, limit_w: float) -> None:
    with pytest.raises(DeviceError, match=r"out of range\. Use 100 to 250 W"):
        NvmlDevice().set_limit_w(limit_w)
    assert nvml.sets == []


@pytest.mark.parametrize(("field", "value", "in_force"), [("floor_w", 130.0, "130 W"), ("deaf", 1, "250 W")])
def test_a_limit_that_does_not_take_is_refused(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, field: str, value: float, in_force: str
) -> None:
    monkeypatch.setattr(nvml_limits, "TAKES_EFFECT_S", 0.05)
    device = NvmlDevice()
    setattr(gpu, field, value)
    with pytest.raises(DeviceError, match=f"the driver took it, but {in_force} is in force.*mode='measure'"):
        device.set_limit_w(100.0)


def test_another_cap_below_the_limit_found_does_not_hinder_giving_it_back(gpu: Gpu, nvml: FakeNvml, tmp_path) -> None:
    gpu.cap_w = 220.0
    with LimitControl(NvmlDevice(), tmp_path) as control:
        assert control.set_w(150.0)
    assert (gpu.limit_w, nvml.sets) == (250.0, [150.0, 250.0])


@pytest.mark.parametrize("function", ["nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"])
@pytest.mark.parametrize(("code", "lines"), [(3, 0), (999, 1)])
def test_a_limit_that_cannot_be_read_back_is_not_doubted_loudly(
    gpu: Gpu, nvml: FakeNvml, caplog: pytest.LogCaptureFixture, function: str, code: int, lines: int
) -> None:
    device = NvmlDevice()
    nvml.fail(function, code)
    for limit_w in (200.0, 150.0, 100.0):
        device.set_limit_w(limit_w)
    assert gpu.limit_w == 100.0
    assert len(warnings(caplog)) == lines


def test_read_only_never_reaches_the_setter(gpu: Gpu, nvml: FakeNvml, tmp_path) -> None:
    device = NvmlDevice(read_only=True)
    with pytest.raises(DeviceError, match="power_read_only"):
        device.set_limit_w(150.0)
    assert device.limit_range() is None
    assert device.limit_w() == 250.0
    assert device.info.max_power_w == 250.0
    with LimitControl(device, tmp_path, found_earlier_w=(250.0, 250.0)) as control:
        assert not control.set_w(150.0)
    assert SETTER not in nvml.calls()


def test_no_permission_is_said_once_and_the_training_goes_on(
    gpu: Gpu, nvml: FakeNvml, tmp_path, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.may_set = 0
    with LimitControl(NvmlDevice(), tmp_path) as control:
        assert [control.set_w(w) for w in (200.0, 150.0)] == [False, False]
    assert nvml.sets == [200.0]
    assert len(warnings(caplog)) == 1
    assert "CAP_SYS_ADMIN" in caplog.text


# ---------------------------------------------------------------------- shared GPUs
def shared(device: NvmlDevice, reason: str) -> None:
    """Neither energy nor limits, and both say why; time still is measured."""
    assert device.info.energy_source is None
    assert device.energy_j() is None
    assert device.limit_range() is None
    assert reason in device.missing["energy_j"]
    assert reason in device.missing["limit_range"]
    assert device.now_s() > 0
    with pytest.raises(DeviceError, match=reason):
        device.set_limit_w(150.0)


def test_a_mig_slice(gpu: Gpu, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.mig_enabled = 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpu.mig_uuid.decode())
    device = NvmlDevice(max_power_w=40.0)
    shared(device, "MIG slice shares")
    assert (device.uuid, device.limit_w()) == (gpu.mig_uuid.decode(), None)
    assert "MIG" in device.missing["limit_w"]
    assert (device.info.model, device.info.max_power_w) == ("Tesla V100-SXM2-16GB MIG 1g.5gb", 40.0)
    assert nvml.sets == []


def test_a_gpu_cut_into_mig_slices(gpu: Gpu, nvml: FakeNvml) -> None:
    gpu.mig_enabled = 1
    shared(NvmlDevice(), "cut into MIG slices")
    assert nvml.sets == []


@pytest.mark.parametrize(("processes", "said"), [(1, "1 other process uses"), (3, "3 other processes use")])
def test_a_gpu_on_which_others_compute(gpu: Gpu, nvml: FakeNvml, processes: int, said: str) -> None:
    gpu.processes = processes
    shared(NvmlDevice(), said)
    assert nvml.sets == []


@pytest.mark.parametrize(("processes", "source"), [(1, "nvml_counter"), (2, None)])
def test_ourselves_on_the_gpu_are_no_others(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, processes: int, source: str | None
) -> None:
    gpu.processes = processes
    cuda = SimpleNamespace(is_initialized=lambda: True, synchronize=lambda: None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert NvmlDevice().info.energy_source == source


def test_an_older_driver_is_asked_for_processes_in_its_own_way(gpu: Gpu, nvml: FakeNvml) -> None:
    nvml.fail("nvmlDeviceGetComputeRunningProcesses_v3", 13)
    assert NvmlDevice().info.energy_source == "nvml_counter"
    gpu.processes = 1
    shared(NvmlDevice(), "1 other process")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("nvmlDeviceGetComputeRunningProcesses_v3", "whether other processes use the GPU is not known"),
        ("nvmlDeviceGetMigMode", "whether the GPU is cut into MIG slices is not known"),
    ],
)
def test_what_cannot_be_known_counts_as_shared(gpu: Gpu, nvml: FakeNvml, function: str, said: str) -> None:
    nvml.fail(function, 999)
    shared(NvmlDevice(), said)


# ---------------------------------------------------------------------- forks
def in_a_fork(check) -> None:
    """Run ``check`` in a forked child and fail where it fails there."""
    if (pid := os.fork()) == 0:
        code = 1
        try:
            check()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_forked_process_starts_anew(gpu: Gpu, nvml: FakeNvml) -> None:
    device = NvmlDevice()
    before = nvml.calls()["nvmlInit"]

    def check() -> None:
        assert device.energy_j() is not None
        assert device.limit_w() == 250.0

    in_a_fork(check)
    assert nvml.calls()["nvmlInit"] == before + 1
    assert nvml.abused == 0
    assert device.energy_j() is not None


def test_a_forked_process_does_not_go_on_polling_in_silence(gpu: Gpu) -> None:
    gpu.has_counter = 0
    device = NvmlDevice()
    assert device.energy_j() == 0.0

    def check() -> None:
        assert device.energy_j() is None
        assert "forked" in device.missing["energy_j"]

    in_a_fork(check)
    device.close()


def test_the_library_is_initialised_once(gpu: Gpu, nvml: FakeNvml) -> None:
    for _ in range(3):
        NvmlDevice()
    assert nvml.calls()["nvmlInit"] == 1


def test_a_missing_binding_is_named(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py is not installed" in nvml_library.ask("nvmlDeviceGetCount").problem


def test_the_restore_record_is_plain_json(gpu: Gpu) -> None:
    record = NvmlDevice().restore_record()
    assert record == json.loads(json.dumps(record))
    assert (record["kind"], record["uuid"]) == ("nvml", gpu.uuid.decode())
    assert len(record["boot_id"]) == 36
