"""What the run handle costs a training: microseconds per step outside profiling windows.

``python -m benchmarks.run_handle``: each loop is timed with the handle and bare, in turns, in the same process; the
best of the rounds counts. The handle runs without energy source, as on a host whose GPU answers at once: what is
measured is this package, not a driver. A step may cost 5 us.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Phase, PlannedAttempt
from airflow_provider_zeus.training.protocol.events import ResultWriter
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun

STEPS = 20_000
ROUNDS = 7
MOST_US = 5.0
BATCH_SIZE = 64


def main() -> int:
    """Print the figures as JSON; the exit status is 1 when a step costs more than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="none", help="as a job names it; a simulated one adds its own arithmetic")
    device = parser.parse_args().device
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(device, Path(folder))
    print(json.dumps(figures, indent=2))
    return int(any(f["added_us"] > MOST_US for f in figures.values()))


def measure(device: str, folder: Path) -> dict[str, dict[str, float]]:
    """Figures of both kinds of loop on a device."""
    run = ZeusRun.from_plan(_plan(device, folder), sink=ResultWriter(folder / "result"))
    best: dict[str, list[float]] = {}
    for _ in run.epochs():
        for _ in range(ROUNDS):
            for name, with_handle, bare in _loops(run):
                times = _per_step_us(with_handle), _per_step_us(bare)
                best[name] = [min(a, b) for a, b in zip(best.get(name, times), times, strict=True)]
        run.report(accuracy=1.0)
    return {
        name: {
            "us": round(with_us, 3),
            "bare_us": round(bare_us, 3),
            "added_us": round(with_us - bare_us, 3),
            "ratio": round(with_us / bare_us, 2),
        }
        for name, (with_us, bare_us) in best.items()
    }


def _loops(run: ZeusRun) -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    def step() -> None:
        for _ in range(STEPS):
            run.step()

    def no_step() -> None:
        for _ in range(STEPS):
            _nothing()

    yield "run.step()", step, no_step
    wrapped = run.data_loader(_Numbers(), batch_sampler=_Batches())
    yield "run.data_loader", lambda: _exhaust(wrapped), lambda: _exhaust(wrapped.loader)


def _nothing() -> None:
    """The least that a step of a training could be."""


def _exhaust(batches: Any) -> None:
    for _ in batches:
        pass


def _per_step_us(loop: Callable[[], None]) -> float:
    began_s = perf_counter()
    loop()
    return (perf_counter() - began_s) / STEPS * 1e6


class _Numbers:
    """A data set that gives a whole batch at once and as cheaply as can be, so that the handle's share is seen."""

    def __len__(self) -> int:
        return STEPS * BATCH_SIZE

    def __getitems__(self, indices: Any) -> Any:
        import torch

        return [torch.empty(())]


class _Batches:
    batch_size = BATCH_SIZE

    def __iter__(self) -> Iterator[range]:
        return iter([range(BATCH_SIZE)] * STEPS)

    def __len__(self) -> int:
        return STEPS


def _plan(device: str, folder: Path) -> Plan:
    job = ZeusJob(
        batch_sizes=[BATCH_SIZE],
        default_batch_size=BATCH_SIZE,
        target="accuracy >= 0.9",
        max_epochs=1,
        device=device,
        mode="measure",
    )
    return Plan(
        job_id="benchmark",
        ti_id="benchmark",
        number=1,
        first_attempt=1,
        spec=job.to_dict(),
        attempts=(PlannedAttempt(batch_size=BATCH_SIZE, phase=Phase.INCUMBENT, why="Benchmark."),),
        state_dir=str(folder),
    )


if __name__ == "__main__":
    raise SystemExit(main())
