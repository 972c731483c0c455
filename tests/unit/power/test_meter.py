"""Energy and time between two moments."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.power.device import NoneDevice
from airflow_provider_zeus.power.factory import open_device
from airflow_provider_zeus.power.meter import Reading, Span, edge, read
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from airflow_provider_zeus.power.simulated.state_file import COUNTER_MJ, StateFile


def test_a_span_reads_time_energy_and_mean_power(gpu: SimulatedGpu) -> None:
    span = Span(edge(gpu))
    for _ in range(1000):
        gpu.on_step(256)
    span.close(edge(gpu))
    step_s, power_w = gpu.load.step(gpu.chip, 256, 250.0)
    assert span.time_s == pytest.approx(1000 * step_s)
    assert span.energy_j == pytest.approx(1000 * step_s * power_w, rel=0.005)
    assert span.power_w == pytest.approx(power_w, rel=0.005)
    assert (span.reason, span.since) == (None, None)


def test_spans_nest_add_up_and_count_their_open_parts_only(gpu: SimulatedGpu) -> None:
    whole = Span(edge(gpu))
    parts = []
    every_other = Span()
    for index, batch_size in enumerate((64, 256, 1024)):
        part = Span(edge(gpu))
        if index % 2 == 0:
            every_other.since = edge(gpu)
        for _ in range(30):
            gpu.on_step(batch_size)
        whole.advance(edge(gpu))
        part.close(edge(gpu))
        every_other.close(edge(gpu))
        parts.append(part)
    assert whole.time_s == pytest.approx(sum(p.time_s for p in parts))
    assert whole.energy_j == pytest.approx(sum(p.energy_j for p in parts))
    assert every_other.time_s == pytest.approx(parts[0].time_s + parts[2].time_s)
    assert every_other.energy_j == pytest.approx(parts[0].energy_j + parts[2].energy_j)
    gpu.on_step(64)
    before_s = whole.time_s
    whole.advance(edge(gpu))
    assert whole.time_s > before_s


def test_nothing_happened_is_zero_and_has_no_mean_power(gpu: SimulatedGpu) -> None:
    span = Span(edge(gpu))
    span.close(edge(gpu))
    assert (span.time_s, span.energy_j, span.power_w) == (0.0, 0.0, None)


def test_a_counter_that_goes_back_is_unknown_for_good_and_time_goes_on(
    gpu: SimulatedGpu, tmp_path: Path
) -> None:
    for _ in range(20):
        gpu.on_step(256)
    span = Span(edge(gpu))
    slots = StateFile(str(tmp_path / "simulated-v100-shufflenet.gpu")).slots
    slots[COUNTER_MJ] -= 2000.0
    span.advance(edge(gpu))
    for _ in range(20):
        gpu.on_step(256)
    span.close(edge(gpu))
    assert (span.energy_j, span.power_w) == (None, None)
    assert "went back by 2 J:" in span.reason
    assert span.time_s == pytest.approx(20 * gpu.load.step(gpu.chip, 256, 250.0)[0])


def test_a_span_between_two_ticks_has_no_mean_power(gpu: SimulatedGpu) -> None:
    span = Span(edge(gpu))
    gpu.on_step(8)  # 38 ms of the 100 that the counter needs
    span.close(edge(gpu))
    assert span.time_s > 0
    assert span.power_w is None


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


def test_the_device_is_synchronised_before_an_edge_and_never_to_look_at_it(tmp_path: Path) -> None:
    gpu = _Recording("v100", load="shufflenet", state_file=tmp_path / "gpu")
    gpu.calls = []
    span = Span(edge(gpu))
    gpu.on_step(8)
    span.advance(read(gpu))
    gpu.on_step(8)
    span.close(edge(gpu))
    assert gpu.calls == [
        "synchronize",
        "now_s",
        "on_step",
        "now_s",
        "on_step",
        "synchronize",
        "now_s",
    ]


def test_without_a_source_time_is_measured_and_energy_has_a_reason(tmp_path: Path) -> None:
    device = open_device("none", state_dir=tmp_path, max_power_w=65.0)
    span = Span(edge(device))
    time.sleep(0.02)
    span.close(edge(device))
    assert span.time_s >= 0.02
    assert span.energy_j is None
    assert (span.reason or "").endswith(f": {device.missing['energy_j']}")
    assert "no source of energy" in device.missing["energy_j"]
    assert "use device=" in device.missing["energy_j"]
    assert device.info.model
    assert device.info.max_power_w == 65.0


def test_the_none_device_has_no_limit() -> None:
    device = NoneDevice()
    assert (device.limit_range(), device.limit_w(), device.uuid, device.restore_record()) == (
        None,
        None,
        None,
        None,
    )
    with pytest.raises(DeviceError, match="no power limit"):
        device.set_limit_w(100.0)


def test_a_counter_that_stands_still_measures_nothing() -> None:
    span = Span(Reading(100.0, 0.0))
    span.advance(Reading(100.0, 0.5))
    assert span.still == "", "too short to tell"
    assert span.short == "it was shorter than a tick of the energy counter"
    span.advance(Reading(100.0, 12.0))
    assert span.still == "the energy counter stood still for 12 s"
    span.advance(Reading(100.1, 13.0))
    assert span.still == span.short == ""
