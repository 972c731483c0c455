"""``benchmarks.gpu`` on a GPU behind NVML; torch trains on the processor."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from airflow_provider_zeus.power.nvml.library import ask
from benchmarks import gpu as benchmark
from benchmarks.parts import gpu_readings, gpu_training
from benchmarks.parts.gpu_readings import meter_and_polled, update_period
from benchmarks.parts.gpu_training import resnet18
from tests.fake_nvml import FakeNvml, Gpu

REST_W = 60.0
LOAD_W = 230.0
LENGTHS = benchmark.Lengths(
    counter_s=0.5,
    load_s=1.0,
    meter_s=1.0,
    epoch_s=0.3,
    wait_s=0.05,
    pixels=16,
    width=4,
)


@pytest.fixture
def card(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A V100 at rest, and upstream's own search for GPUs begun anew."""
    import zeus.device.gpu as upstream
    from zeus.device.gpu.nvidia import nvml_is_available

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a network is trained faster by one
    monkeypatch.setattr(upstream, "_gpus", None)
    nvml_is_available.cache_clear()
    yield nvml.add(idle_w=REST_W, demand_w=REST_W)
    nvml_is_available.cache_clear()
    torch.set_num_threads(threads)


@contextmanager
def load(card: Gpu) -> Iterator[None]:
    """The GPU draws more."""
    card.demand_w = LOAD_W
    yield
    card.demand_w = REST_W


class ToldTime:
    """The clock of the readings and of the GPU: it goes on by 0.2 ms with each look,
    however busy the host is.
    """

    def __init__(self, nvml: FakeNvml) -> None:
        self._nvml, self.now_s = nvml, time.monotonic() + 1.0

    def perf_counter(self) -> float:
        self.sleep(0.0002)
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self._nvml.tell_time(self.now_s)


@pytest.fixture
def told(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> ToldTime:
    told = ToldTime(nvml)
    monkeypatch.setattr(gpu_readings, "time", told)
    return told


@pytest.mark.slow
# upstream's, of a window shorter than a tick
@pytest.mark.filterwarnings("ignore:The energy consumption")
def test_every_part_is_measured_and_no_setter_is_called(nvml: FakeNvml, card: Gpu) -> None:
    gpu, device = benchmark.opened(on="cpu")
    report = benchmark.measured(gpu, device, "cpu", partial(load, card), LENGTHS)
    assert report["driver"] == "550.54.15"
    assert report["limit_before_w"] == report["limit_after_w"] == 250.0
    assert report["counter"]["period_s"] > 0
    assert report["meter"]["meter_by_polled"] > 0
    assert [row["batch_size"] for row in report["training"]] == [256, 128, 64]
    for row in report["training"]:
        assert row["energy_source"] == "nvml_counter"
        assert row["mean_w"] == pytest.approx(REST_W, rel=0.5)
        # its window lies within ours, on a busy host by how much
        assert row["upstream_j"] / row["upstream_s"] == pytest.approx(REST_W, rel=0.5)
        assert row["upstream_j"] <= row["energy_j"] * 1.1
        assert row["samples"] % row["batch_size"] == 0
    assert [row["share"] for row in report["waits"]] == [
        share for _, share, _ in gpu_training.WAITS
    ]
    assert [name for name in nvml.calls() if "Set" in name] == nvml.sets == []
    text = benchmark.markdown_of(report)
    assert "Tesla V100-SXM2-16GB, driver 550.54.15" in text.splitlines()[0]
    assert all(
        line.count("|") == 9
        for line in text.split("## ResNet-18")[1].split("##")[0].splitlines()
        if line
    )


@pytest.mark.slow
def test_a_loader_that_lets_the_training_wait_is_found(
    nvml: FakeNvml, card: Gpu, tmp_path: Path
) -> None:
    cells = ((0, 0.05, True), (0, 0.8, True), (2, 0.8, True))
    # long enough for the least of a second in which a share is known, also where a busy host makes
    # the sample step slow
    few, much, beside = gpu_training.waits(
        "cpu", str(tmp_path), 4.0, size=4, pixels=16, width=4, cells=cells
    )
    assert 0.0 <= few["found"] < min(much["found"], beside["found"]) < 1.0


def test_counter_that_stands_still_or_fails_has_no_period(nvml: FakeNvml, card: Gpu) -> None:
    still, failing = update_period(lambda: 5.0, 0.05), update_period(lambda: None, 0.05)
    assert (set(still), set(failing)) == ({"missing"}, {"missing"})
    assert " 0 times" in still["missing"]
    assert "read" in failing["missing"]


def test_update_period_of_another_counter(nvml: FakeNvml, card: Gpu, told: ToldTime) -> None:
    card.tick_s = 0.1
    _, device = benchmark.opened(on="cpu")
    found = update_period(device.energy_j, 1.5)
    assert found["period_s"] == pytest.approx(0.1, rel=0.1)
    assert found["update_j"] == pytest.approx(0.1 * REST_W, rel=0.1)


def test_a_counter_that_reads_too_much_shows_against_polling(nvml: FakeNvml, card: Gpu) -> None:
    gpu, device = benchmark.opened(on="cpu")

    @contextmanager
    def biased() -> Iterator[None]:
        with load(card):
            yield
        card.energy_mj += 1e7

    power_mw = partial(ask, "nvmlDeviceGetPowerUsage", gpu.handle)
    found = meter_and_polled(device, power_mw, biased, 0.5)
    assert found["meter_j"] - found["polled_j"] == pytest.approx(10_000, rel=0.2)


def test_a_gpu_without_counter_is_trained_on_and_not_compared(nvml: FakeNvml, card: Gpu) -> None:
    card.has_counter = 0
    gpu, device = benchmark.opened(on="cpu")
    found = meter_and_polled(
        device, partial(ask, "nvmlDeviceGetPowerUsage", gpu.handle), partial(load, card), 1.0
    )
    assert set(found) == {"missing"}
    assert "no counter" in found["missing"]
    device.close()


@pytest.mark.slow
def test_a_batch_size_that_does_not_fit_is_said_and_the_others_are_trained(
    nvml: FakeNvml, card: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = gpu_training._steps_of

    def full(model: Any, shape: tuple[int, ...], on: str) -> Any:
        if shape[0] == 256:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(model, shape, on)

    monkeypatch.setattr(gpu_training, "_steps_of", full)
    large, small = gpu_training.trained("cpu", (64, 256), 0.1, str(tmp_path), pixels=16, width=4)
    assert (set(large), large["batch_size"]) == ({"batch_size", "missing"}, 256)
    assert large["missing"].startswith("OutOfMemoryError: ")
    assert (small["batch_size"], small["energy_source"]) == (64, "nvml_counter")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (None, "NVML lists no GPU"),
        ({"processes": 1}, "1 other process uses the GPU"),
        ({}, "sees no GPU"),
    ],
)
def test_without_a_gpu_of_its_own_it_says_so_and_claims_nothing(
    nvml: FakeNvml,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, int] | None,
    said: str,
) -> None:
    if changes is not None:
        nvml.add(**changes)
    assert benchmark.main(["--out", str(tmp_path / "out")]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("Nothing is measured: ")
    assert said in line
    assert not (tmp_path / "out").exists()


def test_the_network_is_the_one_that_its_name_says() -> None:
    parameters = [p.shape for p in resnet18().parameters()]
    assert sum(p.numel() for p in resnet18().parameters()) == 11_689_512
    assert sum(len(shape) == 4 and shape[-1] > 1 for shape in parameters) == 17, (
        "and one linear layer"
    )
