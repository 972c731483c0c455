"""The NVML device on the fake driver: readings, GPUs that are shared, forks."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml  # type: ignore[import-untyped]
import pytest

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.power.device import LimitRange
from airflow_provider_zeus.power.meter import Span, edge
from airflow_provider_zeus.power.nvml import library
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from tests.fake_nvml import FakeNvml, Gpu


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_what_it_is(card: Gpu) -> None:
    device = NvmlDevice()
    assert device.info.model == "Tesla V100-SXM2-16GB"
    assert (device.info.count, device.info.max_power_w, device.info.energy_source) == (
        1,
        250.0,
        "nvml_counter",
    )
    assert device.uuid == card.uuid.decode()
    assert device.limit_range() == LimitRange(min_w=100.0, max_w=250.0, step_w=25.0)
    assert (device.limit_w(), device.missing) == (250.0, {})


KNOWS_PROFILES = hasattr(pynvml, "c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t")


@pytest.mark.skipif(not KNOWS_PROFILES, reason="this nvidia-ml-py knows no power profiles")
def test_an_enforced_power_profile_is_a_part_of_the_model(card: Gpu) -> None:
    card.has_power_profiles = 1
    assert NvmlDevice().info.model == "Tesla V100-SXM2-16GB", "none is enforced"
    card.enforced_profiles[0] = 1 << 1 | 1 << 7
    card.enforced_profiles[7] = 1 << 20
    model = "Tesla V100-SXM2-16GB, power profile MAX_Q + LLM_TRAINING + 244"
    assert NvmlDevice().info.model == model
    card.processes = 2
    assert NvmlDevice().info.model == f"{model} (shared)"


def test_a_driver_or_a_binding_without_power_profiles_changes_nothing(
    card: Gpu, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    card.has_power_profiles = 1
    card.enforced_profiles[0] = 1
    function = "nvmlDeviceWorkloadPowerProfileGetCurrentProfiles"
    function_not_found = 13
    nvml.fail(function, function_not_found)
    without = NvmlDevice()
    nvml.heal()
    for name in (function, "c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t"):
        with monkeypatch.context() as patch:
            patch.delattr(f"pynvml.{name}", raising=False)
            device = NvmlDevice()
        assert device.info == without.info
        assert device.missing == {}
    assert without.info.model == "Tesla V100-SXM2-16GB"
    assert NvmlDevice().info.model.endswith(", power profile MAX_P") is KNOWS_PROFILES


def test_time_is_that_of_the_host(card: Gpu) -> None:
    before_s = time.perf_counter()
    assert before_s <= NvmlDevice().now_s() <= time.perf_counter()


def test_energy_is_that_of_the_counter(card: Gpu, wait: Callable[[float], None]) -> None:
    device = NvmlDevice()
    span = Span(edge(device))
    wait(0.25)
    span.close(edge(device))
    assert span.time_s == pytest.approx(0.25)
    assert span.energy_j == pytest.approx(240 * 0.25, abs=240 * card.tick_s)


def test_a_counter_that_goes_back_is_unknown_with_the_reason(card: Gpu) -> None:
    device = NvmlDevice()
    card.energy_mj = 5e6
    span = Span(edge(device))
    card.energy_mj = 0.0  # the driver was reloaded
    span.close(edge(device))
    assert span.energy_j is None
    assert "went back" in span.reason


def test_a_reading_that_fails_once_is_unknown_with_the_reason_and_said_once(
    card: Gpu, nvml: FakeNvml, caplog: pytest.LogCaptureFixture
) -> None:
    device = NvmlDevice()
    span = Span(edge(device))
    later = Span()
    nvml.fail("nvmlDeviceGetTotalEnergyConsumption", 999, times=3)
    for _ in range(3):
        span.advance(edge(device))
    assert "nvmlDeviceGetTotalEnergyConsumption: an unknown error" in device.missing["energy_j"]
    later.since = edge(device)
    later.close(edge(device))
    assert (later.reason, device.missing) == (None, {})
    assert span.energy_j is None
    assert "nvmlDeviceGetTotalEnergyConsumption: an unknown error" in span.reason
    assert len(warnings(caplog)) == 1


def test_synchronise_waits_for_a_torch_that_uses_cuda(
    card: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    cuda = SimpleNamespace(
        is_initialized=lambda: bool(calls), synchronize=lambda: calls.append("synchronize")
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    device = NvmlDevice()
    device.synchronize()
    assert calls == []
    calls.append("first use")
    device.synchronize()
    assert calls == ["first use", "synchronize"]
    cuda.is_current_stream_capturing = lambda: True
    device.synchronize()
    assert calls == ["first use", "synchronize"], "it would void a CUDA graph that is captured"
    cuda.is_current_stream_capturing = lambda: False

    def broken() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    cuda.synchronize = broken
    device.synchronize()  # the training's own calls tell


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


def test_a_mig_slice(card: Gpu, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    card.mig_enabled = 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", card.mig_uuid.decode())
    device = NvmlDevice(max_power_w=40.0)
    shared(device, "MIG slice shares")
    assert (device.uuid, device.limit_w()) == (card.mig_uuid.decode(), None)
    assert "MIG" in device.missing["limit_w"]
    assert (device.info.model, device.info.max_power_w) == ("Tesla V100-SXM2-16GB MIG 1g.5gb", 40.0)
    assert nvml.sets == []


def test_a_gpu_cut_into_mig_slices(card: Gpu, nvml: FakeNvml) -> None:
    card.mig_enabled = 1
    shared(NvmlDevice(), "cut into MIG slices")
    assert nvml.sets == []


@pytest.mark.parametrize(
    ("processes", "said"), [(1, "1 other process uses"), (3, "3 other processes use")]
)
def test_a_gpu_on_which_others_compute(
    card: Gpu, nvml: FakeNvml, processes: int, said: str
) -> None:
    card.processes = processes
    shared(NvmlDevice(), said)
    assert nvml.sets == []


@pytest.mark.parametrize(("processes", "source"), [(1, "nvml_counter"), (2, None)])
def test_ourselves_on_the_gpu_are_no_others(
    card: Gpu, monkeypatch: pytest.MonkeyPatch, processes: int, source: str | None
) -> None:
    card.processes = processes
    cuda = SimpleNamespace(is_initialized=lambda: True, synchronize=lambda: None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert NvmlDevice().info.energy_source == source


def test_an_older_driver_is_asked_for_processes_in_its_own_way(card: Gpu, nvml: FakeNvml) -> None:
    if not hasattr(pytest.importorskip("pynvml"), "nvmlDeviceGetComputeRunningProcesses_v2"):
        pytest.skip(
            "this nvidia-ml-py has no call for drivers before 510; such a GPU then counts as shared"
        )
    nvml.fail("nvmlDeviceGetComputeRunningProcesses_v3", 13)
    assert NvmlDevice().info.energy_source == "nvml_counter"
    card.processes = 1
    shared(NvmlDevice(), "1 other process")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "whether other processes use the GPU is not known",
        ),
        ("nvmlDeviceGetMigMode", "whether the GPU is cut into MIG slices is not known"),
    ],
)
def test_what_cannot_be_known_counts_as_shared(
    card: Gpu, nvml: FakeNvml, function: str, said: str
) -> None:
    nvml.fail(function, 999)
    shared(NvmlDevice(), said)


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


def test_a_forked_process_starts_anew(card: Gpu, nvml: FakeNvml) -> None:
    device = NvmlDevice()
    before = nvml.calls()["nvmlInit"]

    def check() -> None:
        assert device.energy_j() is not None
        assert device.limit_w() == 250.0

    in_a_fork(check)
    assert nvml.calls()["nvmlInit"] == before + 1
    assert nvml.abused == 0
    assert device.energy_j() is not None


def test_a_forked_process_does_not_go_on_polling(card: Gpu) -> None:
    card.has_counter = 0
    device = NvmlDevice()
    assert device.energy_j() == 0.0

    def check() -> None:
        assert device.energy_j() is None
        assert "forked" in device.missing["energy_j"]

    in_a_fork(check)
    device.close()


def test_the_library_is_initialised_once(card: Gpu, nvml: FakeNvml) -> None:
    for _ in range(3):
        NvmlDevice()
    assert nvml.calls()["nvmlInit"] == 1


def test_a_missing_binding_is_named(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py is not installed" in library.ask("nvmlDeviceGetCount").problem


class OtherBinding:
    """As pynvml 11.4.1 and nvidia-ml-py3: texts are bytes, and newer calls are not there."""

    nvmlInit = staticmethod(lambda: None)
    nvmlDeviceGetCount = staticmethod(lambda: 1)
    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)
    nvmlDeviceGetUUID = staticmethod(lambda handle: b"GPU-1")
    nvmlDeviceGetName = staticmethod(lambda handle: b"Tesla V100")


def test_a_wrong_binding_is_named_and_nothing_of_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", OtherBinding)
    monkeypatch.setattr(library, "version", {"pynvml": "11.4.1"}.__getitem__)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for function in ("nvmlDeviceGetUUID", "nvmlDeviceGetTotalEnergyConsumption"):
        answer = library.ask(function, 0)
        assert answer.value is None
        assert (
            "of pynvml 11.4.1, which answers otherwise; pip uninstall pynvml, then pip install"
            in answer.problem
        )
    with pytest.raises(DeviceError, match="pynvml"):
        NvmlDevice().max_power_w  # noqa: B018


@pytest.mark.parametrize("odd", [2**64 - 1, (2, [1]), (1, ())], ids=repr)
def test_a_figure_that_the_driver_does_not_have_is_not_the_bindings_fault(
    card: Gpu, monkeypatch: pytest.MonkeyPatch, odd: Any
) -> None:
    library.ask("nvmlDeviceGetCount")
    function = "nvmlDeviceGetTotalEnergyConsumption"
    if isinstance(odd, tuple):
        function = "nvmlDeviceGetSamples"
    monkeypatch.setattr(sys.modules["pynvml"], function, lambda *_: odd)
    answer = library.ask(function, 0)
    assert answer.value is None
    assert answer.problem == f"{function}: {odd!r} is no figure of it"


@pytest.mark.parametrize("odd", [None, -5, "12", math.nan, (1,)], ids=repr)
def test_an_answer_of_another_kind_is_no_reading(
    card: Gpu, monkeypatch: pytest.MonkeyPatch, odd: Any
) -> None:
    library.ask("nvmlDeviceGetCount")
    for function in (
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetPowerManagementLimit",
        "nvmlDeviceGetPowerManagementLimitConstraints",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetMigMode",
    ):
        monkeypatch.setattr(sys.modules["pynvml"], function, lambda *_: odd)
        assert function in library.ask(function, 0).problem
    device = NvmlDevice()
    assert (device.energy_j(), device.limit_w(), device.busy(), device.limit_range()) == (None,) * 4


def test_the_restore_record_is_plain_json(card: Gpu) -> None:
    (record,) = NvmlDevice().restore_record()
    assert record == json.loads(json.dumps(record))
    assert (record["kind"], record["uuid"]) == ("nvml", card.uuid.decode())


def test_how_much_the_gpu_works(card: Gpu) -> None:
    device = NvmlDevice()
    card.busy_percent = 37.0
    assert device.busy() == 0.37
    card.busy_percent = -1.0
    assert device.busy() is None
    assert "not supported" in device.missing["gpu_busy"]


def test_how_much_the_gpu_worked_is_not_how_it_is_at_the_step_that_asks(
    card: Gpu, wait: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where batches come slowly, the first step after a wait asks:
    at that moment the GPU has rested.
    """
    device = NvmlDevice()
    card.busy_percent = 30.0
    card.resting = 1
    device.busy()
    wait(1.0)
    assert device.busy() == 0.3
    card.has_samples = 0  # an older driver
    assert device.busy() == 0.0
    wait(1.0)
    for answer in (None, (2, [1.0]), (1, [])):
        monkeypatch.setattr(
            sys.modules["pynvml"], "nvmlDeviceGetSamples", lambda *_, answer=answer: answer
        )
        assert device.busy() == 0.0


def test_a_shared_gpu_does_not_tell_how_much_this_training_works_it(card: Gpu) -> None:
    device = NvmlDevice(not_ours="another training uses it")
    assert device.busy() is None
    assert device.missing["gpu_busy"] == "another training uses it"
