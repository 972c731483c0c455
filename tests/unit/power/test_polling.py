"""Energy of GPUs without a counter: their power, polled."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest

from airflow_provider_zeus.power.meter import Span, edge
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from airflow_provider_zeus.power.nvml.library import NvmlAnswer
from airflow_provider_zeus.power.polling import PolledEnergy, spaced_s
from tests.fake_nvml import FakeNvml, Gpu
from tests.unit.power.conftest import wait_for


def test_without_a_counter_power_is_polled_from_the_first_question_on(
    card: Gpu, nvml: FakeNvml, wait: Callable[[float], None]
) -> None:
    card.has_counter = 0
    others = pollers()  # of devices that are not collected yet
    device = NvmlDevice()
    assert device.info.energy_source == "nvml_poll"
    opened = nvml.calls()["nvmlDeviceGetPowerUsage"]
    assert pollers() <= others
    span = Span(edge(device))
    wait_for(lambda: nvml.calls()["nvmlDeviceGetPowerUsage"] >= opened + 5, within_s=60.0)
    for demand_w in (240.0, 140.0):
        card.demand_w = demand_w
        for _ in range(100):
            wait(0.01)
            device.energy_j()  # as the thread does
    span.close(edge(device))
    assert span.time_s == pytest.approx(2.0)
    assert span.energy_j == pytest.approx(240 + 140, rel=0.05)
    device.close()


def test_power_is_read_and_added_while_no_other_thread_does() -> None:
    free: list[bool] = []

    def power_mw() -> NvmlAnswer:
        free.append(energy._lock.acquire(blocking=False))
        return NvmlAnswer(200_000, 0, "")

    energy = PolledEnergy(power_mw, every_s=60.0)
    energy.read_j()
    assert free == [False]


def pollers() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name == "zeus-power"}


@pytest.mark.parametrize("how", ["close", "forget"])
def test_polling_ends_with_its_device(card: Gpu, nvml: FakeNvml, how: str) -> None:
    card.has_counter = 0
    others = pollers()  # of devices that are not collected yet
    device = NvmlDevice()
    assert device.energy_j() == 0.0
    (poller,) = pollers() - others
    assert poller.daemon
    polled = nvml.calls()["nvmlDeviceGetPowerUsage"]
    wait_for(lambda: nvml.calls()["nvmlDeviceGetPowerUsage"] > polled, within_s=60.0)
    if how == "close":
        device.close()
    else:
        gc.disable()
        try:
            del device
            wait_for(lambda: not poller.is_alive(), within_s=60.0)
        finally:
            gc.enable()
    wait_for(lambda: not poller.is_alive(), within_s=60.0)


def test_polling_that_stalled_never_yields_a_smaller_sum() -> None:
    """Whatever held the interpreter up: what was drawn meanwhile is not known, now and later."""
    times_s = iter([0.0, 0.0, 2.0, 2.0, 5.5, 5.5, 6.0, 6.0])
    polled = PolledEnergy(lambda: NvmlAnswer(100_000), every_s=3600.0, clock=lambda: next(times_s))
    assert polled.read_j().value == 0.0
    assert polled.read_j().value == pytest.approx(200.0)
    for _ in range(2):
        answer = polled.read_j()
        assert answer.value is None
        assert "stalled for 3.5 s" in answer.problem
    polled.close()


def test_polling_that_fails_says_so_and_a_short_failure_is_bridged(
    card: Gpu, nvml: FakeNvml, wait: Callable[[float], None]
) -> None:
    card.has_counter = 0
    device = NvmlDevice()
    span = Span(edge(device))
    polled = nvml.calls()["nvmlDeviceGetPowerUsage"]
    nvml.fail("nvmlDeviceGetPowerUsage", 999, times=2)
    # by the thread
    wait_for(lambda: nvml.calls()["nvmlDeviceGetPowerUsage"] >= polled + 3, within_s=60.0)
    wait(0.45)
    span.advance(edge(device))
    assert span.energy_j == pytest.approx(240 * 0.45)
    nvml.fail("nvmlDeviceGetPowerUsage", 15)
    span.advance(edge(device))
    assert span.energy_j is None
    assert "the GPU is lost" in span.reason
    device.close()


def test_a_reading_that_takes_long_is_made_so_rarely_that_energy_is_not_known() -> None:
    now_s = 0.0

    def power_mw() -> NvmlAnswer:
        nonlocal now_s
        now_s += 0.3
        return NvmlAnswer(100_000)

    polled = PolledEnergy(power_mw, every_s=3600.0, clock=lambda: now_s)
    assert polled.read_j().value == 0.0
    now_s += spaced_s(0.3)
    answer = polled.read_j()
    assert answer.value is None
    assert "read too rarely to add it up: a reading takes 300 ms" in answer.problem
    polled.close()
    assert 0.3 / (0.3 + spaced_s(0.3)) == pytest.approx(0.02)
