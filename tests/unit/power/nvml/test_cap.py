"""What ``airflow zeus doctor`` says of the cap and of a locked clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_zeus.cli import checks_host
from airflow_provider_zeus.power.device import DeviceGroup
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from airflow_provider_zeus.power.nvml.visible import find_gpus
from airflow_provider_zeus.training.profiling.measurement_windows import CapWatch, Seen
from tests.fake_nvml import FakeNvml


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        (
            {"demand_w": 74.0},
            "ok",
            (
                "the training draws 74 W, and the lowest limit is 100 W: no limit holds it back, at"
                " a mean clock of"
            ),
        ),
        (
            {"demand_w": 300.0},
            "ok",
            "the limit of 250 W binds 100 % of the time, at a mean clock of 1380 MHz",
        ),
        (
            {"demand_w": 300.0, "has_violations": 0},
            "ok",
            "the limit of 250 W binds 100 % of the time",
        ),
        (
            {},
            "ok",
            "the limit of 250 W does not bind now, at a mean clock of 1380 MHz; a lower one may",
        ),
        ({"busy_percent": 3.0}, "ok", "the GPU does not work now"),
        ({"clock_mhz": 900.0}, "warning", "the clock stays at 900 of 1530 MHz under load"),
        ({"clock_mhz": 900.0, "reasons": 0x40}, "ok", "the limit of 250 W does not bind now"),
    ],
    ids=str,
)
def test_doctor_says_whether_the_cap_binds(
    nvml: FakeNvml, wait: Callable[[float], None], changes: dict[str, Any], status: str, said: str
) -> None:
    nvml.add(**changes)
    found = checks_host.cap(NvmlDevice(), wait)
    assert (found.status, said in found.finding) == (status, True), found.finding
    assert nvml.sets == []


def test_a_driver_that_tells_nothing_of_clocks_is_no_failure(nvml: FakeNvml) -> None:
    nvml.add()
    for name in (
        "ViolationStatus",
        "CurrentClocksEventReasons",
        "CurrentClocksThrottleReasons",
        "ClockInfo",
    ):
        nvml.fail(f"nvmlDeviceGet{name}", 3)
    assert NvmlDevice().clocks() is None


def test_of_several_gpus_any_may_be_held_back(
    nvml: FakeNvml, wait: Callable[[float], None]
) -> None:
    nvml.add()
    nvml.add(demand_w=300.0, clock_mhz=1200.0)
    group = DeviceGroup([NvmlDevice(gpu=gpu) for gpu in find_gpus(2)])
    before = group.clocks()
    wait(10.0)
    now = group.clocks()
    assert before is not None
    assert now is not None
    assert (now.sm_mhz, now.max_mhz, now.reasons) == (1200.0, 1530.0, 4)
    assert now.capped_s - before.capped_s == pytest.approx(10.0, abs=0.1)  # type: ignore[operator]


def test_what_passed_before_a_piece_began_is_not_seen(
    nvml: FakeNvml, wait: Callable[[float], None]
) -> None:
    """Training steps that end while the clocks still settle close a piece that none has opened."""
    nvml.add(demand_w=300.0)
    device = NvmlDevice()
    watch = CapWatch(device)
    piece = Seen()
    wait(10.0)
    watch.close(250.0, device.now_s(), piece)
    watch.open(device.now_s())
    wait(1.0)
    watch.close(250.0, device.now_s(), piece)
    assert watch.at[250.0].share == pytest.approx(1.0, abs=0.01)
    assert len(piece.clocks) == 1
