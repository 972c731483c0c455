"""A real torch training in ``measure`` mode; used by :mod:`benchmarks.gpu`."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_provider_zeus.model.trial import DATA_WAIT
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun
from benchmarks.run_handle import plan_of

WARM_UP = 5  # steps before anything is timed
MATRIX = 4096  # rows of the load
WAITS = (
    *((workers, share, True) for workers in (0, 2, 4) for share in (0.05, 0.2, 0.5, 0.8)),
    *((2, share, False) for share in (0.0, 0.5)),
)


@contextmanager
def matrix_load(device: str, rows: int = MATRIX) -> Iterator[None]:
    """Multiply matrices, one after the other, until left."""
    import torch

    stop = threading.Event()
    a = torch.randn(rows, rows, device=device)

    def work() -> None:
        while not stop.is_set():
            for _ in range(4):
                torch.mm(a, a)
            _wait(device)

    thread = threading.Thread(target=work, name="load", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def resnet18(width: int = 64, classes: int = 1000) -> Any:
    """A residual network of 18 layers, for images of three colours."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                *_normed(before, after, 3, stride), nn.ReLU(), *_normed(after, after, 3, 1)
            )
            same = before == after and stride == 1
            self.by_pass = (
                nn.Identity() if same else nn.Sequential(*_normed(before, after, 1, stride))
            )

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.body(x) + self.by_pass(x))

    def _normed(before: int, after: int, kernel: int, stride: int) -> list[nn.Module]:
        turned = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)
        return [turned, nn.BatchNorm2d(after)]

    layers = [*_normed(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = width
    for stage in range(4):
        after = width * 2**stage
        layers += [Block(before, after, 1 if stage == 0 else 2), Block(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def trained(
    on: str,
    sizes: Sequence[int],
    seconds: float,
    folder: str,
    *,
    pixels: int = 224,
    width: int = 64,
) -> list[dict[str, Any]]:
    """One epoch of so many seconds per batch size,
    as the run handle observed it and as upstream's monitor did.
    """
    theirs: dict[int, dict[str, float]] = {}
    lines: list[ResultLine] = []

    def train(run: ZeusRun) -> None:
        step = _steps_of(resnet18(width), (run.batch_size, 3, pixels, pixels), on)
        steps = _steps_within(step, seconds, on)
        monitor = upstream_monitor()
        for _ in run.epochs():
            monitor.begin_window("epoch", sync_execution=on != "cpu")
            for _ in range(steps):
                step()
                run.step()
            window = monitor.end_window("epoch", sync_execution=on != "cpu")
            theirs[run.batch_size] = {"upstream_j": window.total_energy, "upstream_s": window.time}
            run.report(accuracy=0.0)  # below any target: the next batch size is next

    ZeusRun.from_plan(_plan(sizes, folder), sink=lines.append).train(train)
    return [
        _observed(line, theirs.get(line.batch_size or 0, {}))
        for line in lines
        if line.kind == "end"
    ]


def waits(
    on: str,
    folder: str,
    seconds: float,
    *,
    size: int = 64,
    pixels: int = 224,
    width: int = 64,
    cells: Sequence[tuple[int, float, bool]] = WAITS,
) -> list[dict[str, Any]]:
    """What is found of a loader that lets a training wait for a known share of its time.

    :param seconds: that each cell takes.
    :param cells: workers of the loader, the share, and whether each step is waited for; behind
        queued steps the processor waits while the GPU works.
    """
    from torch.utils.data import DataLoader

    queued = _steps_of(resnet18(width), (size, 3, pixels, pixels), on)

    def step() -> None:
        queued()
        _wait(on)

    for _ in range(WARM_UP):
        step()
    step_s = statistics.median(_timed_us(step, 1, on) for _ in range(5 * WARM_UP)) / 1e6
    lines: list[ResultLine] = []
    found: list[dict[str, Any]] = []
    for workers, share, waited_for in cells:
        cycle_s = step_s / (1.0 - share)
        batch_s = max(workers, 1) * cycle_s if workers or not waited_for else cycle_s - step_s
        batches: Any = SlowBatches(max(math.ceil(seconds / cycle_s), WARM_UP), size, batch_s)
        loader: Any = DataLoader(batches, batch_size=None, num_workers=workers)

        def train(
            run: ZeusRun,
            loader: Any = loader,
            one: Callable[[], None] = step if waited_for else queued,
        ) -> None:
            for _ in run.epochs():
                for _ in run.data_loader(loader):
                    one()
                _wait(on)
                run.report(accuracy=0.0)

        ZeusRun.from_plan(plan_of([size], 1, folder, mode="measure"), sink=lines.append).train(
            train
        )
        end = next(line for line in reversed(lines) if line.kind == "end")
        seen = end.observation
        row = {
            "workers": workers,
            "share": share,
            "waited_for": waited_for,
            "found": end.notes.get("data_wait"),
        }
        found.append(
            {
                **row,
                "gpu_busy": seen and seen.gpu_busy,
                "named": bool(seen and DATA_WAIT in seen.reasons),
            }
        )
    return found


class SlowBatches:
    """A data set of batches that take so long to make, each."""

    def __init__(self, count: int, size: int, batch_s: float) -> None:
        self._count = count
        self._size = size
        self._batch_s = batch_s

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        import torch

        time.sleep(self._batch_s)
        return torch.zeros(self._size)


def upstream_monitor() -> Any:
    """Upstream's monitor of the first GPU; it reads alone."""
    from zeus.monitor import ZeusMonitor

    return ZeusMonitor(gpu_indices=[0], cpu_indices=[])


def _steps_of(model: Any, shape: tuple[int, ...], on: str) -> Callable[[], None]:
    import torch

    model = model.to(on)
    inputs = torch.randn(*shape, device=on)
    labels = torch.randint(0, 10, shape[:1], device=on)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def _steps_within(step: Callable[[], None], seconds: float, on: str) -> int:
    def few() -> None:
        for _ in range(WARM_UP):
            step()

    few()
    return max(math.ceil(seconds / _timed_us(few, WARM_UP, on) * 1e6), WARM_UP)


def _timed_us(loop: Callable[[], None], steps: int, on: str) -> float:
    _wait(on)
    began_s = time.perf_counter()
    loop()
    _wait(on)
    return (time.perf_counter() - began_s) / steps * 1e6


def _wait(on: str) -> None:
    if on != "cpu":
        import torch

        torch.cuda.synchronize()


def _observed(line: ResultLine, upstream: dict[str, float]) -> dict[str, Any]:
    seen = line.observation
    if seen is None or not seen.samples or not seen.time_s:
        return {"batch_size": line.batch_size, "missing": line.reason}
    return {
        "batch_size": line.batch_size,
        "samples": seen.samples,
        "time_s": seen.time_s,
        "energy_j": seen.energy_j,
        "energy_source": seen.energy_source,
        "limit_w": seen.power_limit_w,
        "samples_per_s": seen.samples / seen.time_s,
        "j_per_sample": seen.energy_j / seen.samples if seen.energy_j else None,
        "mean_w": seen.energy_j / seen.time_s if seen.energy_j else None,
        "reasons": dict(seen.reasons),
        **upstream,
    }


def _plan(sizes: Sequence[int], folder: str) -> Plan:
    """One epoch at each size, the largest first:
    where its memory does not suffice the others are still trained.
    """
    return plan_of(sorted(sizes, reverse=True), 1, folder, mode="measure")
