"""Power limits by NVML: the grid, setting and reading back, refusals with their remedy."""

from __future__ import annotations

import logging
import math

import pytest

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.power.device import LimitRange
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.power.nvml import gpu as nvml_gpu
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice, grid_step_w
from tests.fake_nvml import FakeNvml, Gpu

SETTER = "nvmlDeviceSetPowerManagementLimit"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


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


def test_a_limit_is_set_and_seen(card: Gpu, nvml: FakeNvml) -> None:
    device = NvmlDevice()
    device.set_limit_w(175.0)
    assert (device.limit_w(), card.limit_w, nvml.sets) == (175.0, 175.0, [175.0])
    assert nvml.calls()["nvmlDeviceGetEnforcedPowerLimit"] == 1


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            4,
            (
                r"power limit = 150 W: .*no permission\. Run as root or with CAP_.*power_socket, or"
                r" set mode='measure'\."
            ),
        ),
        (2, r"power limit = 150 W: out of range\. Use 100 to 250 W\."),
        (3, r"not supported by this GPU or driver\. .*mode='measure'"),
        (15, r"the GPU is lost; look at dmesg, reset it or reboot the host\. .*mode='measure'"),
        (999, r"an unknown error of the driver\. If it persists set mode='measure'"),
        (1, r"NVML is not initialised\. If it persists set mode='measure'"),
    ],
)
def test_a_refused_limit_names_the_remedy(card: Gpu, nvml: FakeNvml, code: int, said: str) -> None:
    device = NvmlDevice()
    nvml.fail(SETTER, code)
    with pytest.raises(DeviceError, match=said):
        device.set_limit_w(150.0)


@pytest.mark.parametrize("limit_w", [99.0, 251.0, math.nan, math.inf, -100.0])
def test_a_limit_out_of_range_never_reaches_the_library(
    card: Gpu, nvml: FakeNvml, limit_w: float
) -> None:
    with pytest.raises(DeviceError, match=r"out of range.* 100 to 250 W"):
        NvmlDevice().set_limit_w(limit_w)
    assert nvml.sets == []


@pytest.mark.parametrize(
    ("field", "value", "in_force"), [("floor_w", 130.0, "130 W"), ("deaf", 1, "250 W")]
)
def test_a_limit_that_does_not_take_is_refused(
    card: Gpu, monkeypatch: pytest.MonkeyPatch, field: str, value: float, in_force: str
) -> None:
    monkeypatch.setattr(nvml_gpu, "TAKES_EFFECT_S", 0.05)
    device = NvmlDevice()
    setattr(card, field, value)
    with pytest.raises(DeviceError, match=f"{in_force} is in force.*mode='measure'"):
        device.set_limit_w(100.0)


def test_another_cap_below_the_limit_found_does_not_hinder_giving_it_back(
    card: Gpu, nvml: FakeNvml, tmp_path
) -> None:
    card.cap_w = 220.0
    with LimitControl(NvmlDevice(), tmp_path) as control:
        assert control.set_w(150.0)
    assert (card.limit_w, nvml.sets) == (250.0, [150.0, 250.0])


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"]
)
@pytest.mark.parametrize(("code", "lines"), [(3, 0), (999, 1)])
def test_a_limit_that_cannot_be_read_back_is_not_doubted_loudly(
    card: Gpu,
    nvml: FakeNvml,
    caplog: pytest.LogCaptureFixture,
    function: str,
    code: int,
    lines: int,
) -> None:
    device = NvmlDevice()
    nvml.fail(function, code)
    for limit_w in (200.0, 150.0, 100.0):
        device.set_limit_w(limit_w)
    assert card.limit_w == 100.0
    assert len(warnings(caplog)) == lines


def test_read_only_never_reaches_the_setter(card: Gpu, nvml: FakeNvml, tmp_path) -> None:
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
    card: Gpu, nvml: FakeNvml, tmp_path, caplog: pytest.LogCaptureFixture
) -> None:
    card.may_set = 0
    with LimitControl(NvmlDevice(), tmp_path) as control:
        assert [control.set_w(w) for w in (200.0, 150.0)] == [False, False]
    assert nvml.sets == [200.0]
    assert len(warnings(caplog)) == 1
    assert "CAP_SYS_ADMIN" in caplog.text
