"""What this package measures on a real GPU, whose settings it leaves alone:
``python -m benchmarks.gpu --out DIR``.

The counter's update period, the meter against polled power over a minute, how much of the time the
power limit binds at rest and under load and at which clock, and a residual network of 18 layers
trained in ``measure`` mode, at three batch sizes beside the public code's monitor and behind
loaders that let it wait. Takes about four minutes; writes ``gpu.json`` and ``gpu.md``. Without a
GPU, without torch's CUDA or where somebody else uses the GPU it says so,
writes nothing and exits with 0.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_zeus import __version__
from airflow_provider_zeus.errors import DeviceError, ZeusError
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from airflow_provider_zeus.power.nvml.library import ask
from airflow_provider_zeus.power.nvml.visible import Gpu, find_gpus
from benchmarks.command import command, needs
from benchmarks.parts.gpu_readings import Load, cap_and_clock, meter_and_polled, update_period
from benchmarks.parts.gpu_training import WAITS, matrix_load, trained, waits
from benchmarks.report import table, write_report

BATCH_SIZES = (256, 128, 64)


@dataclass(frozen=True)
class Lengths:
    """How long each part takes."""

    counter_s: float = 10.0
    load_s: float = 10.0
    meter_s: float = 60.0
    epoch_s: float = 20.0
    wait_s: float = 5.0
    pixels: int = 224
    width: int = 64


def opened(*, on: str = "cuda") -> tuple[Gpu, NvmlDevice]:
    """The first GPU that CUDA shows, to read alone.

    Raises DeviceError and JobSpecError: nothing can be measured.
    """
    gpu = find_gpus(1)[0]
    # before CUDA is in use: the only process on it is ours
    device = NvmlDevice(read_only=True, gpu=gpu)
    if device.info.energy_source is None:
        raise DeviceError(device.missing.get("energy_j", "the GPU's energy cannot be read"))
    for module in ("torch", "zeus"):
        needs(module)
    import torch

    if on == "cuda" and not torch.cuda.is_available():
        raise DeviceError(f"torch {torch.__version__} sees no GPU; install a build of it with CUDA")
    return gpu, device


def measured(gpu: Gpu, device: NvmlDevice, on: str, load: Load, lengths: Lengths) -> dict[str, Any]:
    """All parts, one after the other, and the limit in force before and after them.

    :param on: torch's name of the device that trains.
    """
    limit_w = device.limit_w()
    power_mw = partial(ask, "nvmlDeviceGetPowerUsage", gpu.handle)
    report: dict[str, Any] = {**_described(gpu, device), "limit_before_w": limit_w}
    with load():
        _say("counter", lengths.counter_s)
        has_one = device.info.energy_source == "nvml_counter"
        none = {"missing": "this GPU has no counter"}
        report["counter"] = update_period(device.energy_j, lengths.counter_s) if has_one else none
    _say("meter against polling", lengths.meter_s)
    report["meter"] = meter_and_polled(device, power_mw, load, lengths.meter_s)
    _say("cap and clock", 2 * lengths.load_s)
    report["cap"] = cap_and_clock(device, load, lengths.load_s)
    with tempfile.TemporaryDirectory() as folder:
        _say("training", lengths.epoch_s * len(BATCH_SIZES))
        report["training"] = trained(
            on, BATCH_SIZES, lengths.epoch_s, folder, pixels=lengths.pixels, width=lengths.width
        )
        _say("waits for batches", lengths.wait_s * len(WAITS))
        report["waits"] = waits(
            on, folder, lengths.wait_s, pixels=lengths.pixels, width=lengths.width
        )
    return {**report, "limit_after_w": device.limit_w()}


def _described(gpu: Gpu, device: NvmlDevice) -> dict[str, Any]:
    import torch

    driver = ask("nvmlSystemGetDriverVersion")
    return {
        "device": gpu.model,
        "driver": None if driver.problem else driver.value,
        "energy_source": device.info.energy_source,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "airflow_provider_zeus": __version__,
    }


def _say(what: str, seconds: float) -> None:
    print(f"{what}: about {seconds:.0f} s", flush=True)


def markdown_of(report: Mapping[str, Any]) -> str:
    """``gpu.md``."""
    about = (
        f"{report['device']}, driver {report['driver']}, torch {report['torch']},"
        f" {report['energy_source']}"
    )
    rows = [
        [
            "power limit before, after [W]",
            f"{_n(report['limit_before_w'])}, {_n(report['limit_after_w'])}",
        ]
    ]
    rows += _rows("counter", report["counter"])
    rows += _rows("meter", report["meter"]) + _rows("cap", report["cap"])
    trained_at = [
        "samples_per_s",
        "mean_w",
        "j_per_sample",
        "energy_j",
        "upstream_j",
        "time_s",
        "upstream_s",
    ]
    lines = [
        f"# Measured on a real GPU: {about}",
        "",
        *table(["what", "figure"], rows),
        "",
        "## ResNet-18",
        "",
    ]
    lines += table(
        ["batch size", *trained_at],
        [
            [str(row["batch_size"]), *(_n(row.get(name)) for name in trained_at)]
            for row in report["training"]
        ],
    )
    lines += [
        "",
        "## Waits for batches",
        "",
        "Share of the time that the loader lets the training wait:",
        "",
    ]
    figures = ("share", "found", "gpu_busy")
    rows = [
        [
            str(row["workers"]),
            "waited for" if row["waited_for"] else "queued",
            *(_n(row[name]) for name in figures),
            "yes" if row["named"] else "no",
        ]
        for row in report["waits"]
    ]
    lines += table(["workers", "steps", "made", "found", "GPU busy", "named"], rows)
    return "\n".join(lines) + "\n"


def _rows(part: str, found: Mapping[str, Any]) -> list[list[str]]:
    return [
        [f"{part}: {name}", value if isinstance(value, str) else _n(value)]
        for name, value in found.items()
    ]


def _n(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


@command("--out", out=Path("gpu-report"))
def main(args: argparse.Namespace) -> None:
    """Measure and write, or say in one line why nothing is measured; always 0."""
    try:
        gpu, device = opened()
    except ZeusError as error:
        print(f"Nothing is measured: {str(error).rstrip('.')}.")
        return
    report = measured(gpu, device, "cuda", partial(matrix_load, "cuda"), Lengths())
    write_report(args.out, report, markdown_of(report), "gpu")
    print(args.out / "gpu.md")
