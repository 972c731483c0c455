"""Tables of siblings for ``benchmarks.family``: ``python -m benchmarks.siblings --out DIR``

Trains the network of ``benchmarks.starts`` from a cold start to its target, on each slice of each airport's weather, or
of each of the four carriers that have most flights, at every batch size; the learning rate follows the square root of
the size. One CSV file for each member, ``weather_JFK.csv``, in the form that ``benchmarks.series --table`` reads.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.command import command, on_all_cores, option, positive
from benchmarks.quality.dated_series import Dated, members
from benchmarks.quality.slice_tables import COLUMNS
from benchmarks.starts import MOST, Trainings, fresh, trained

SIZES = (16, 32, 64, 128, 256, 512, 1024)
MEMBERS = 4  # at most

Cells = list[tuple[int, int, int, float | str, float]]  # as COLUMNS


def cells(data: Dated, steps: int, sizes: Sequence[int], seed: int) -> Cells:
    """Epochs to the target of each slice at each size, empty where it was missed, and CPU seconds of an epoch."""
    reference, found = Trainings(data, 64, 0, steps), Cells()
    for t, part in enumerate(reference.slices):
        for size in sizes:
            rng = np.random.default_rng((7 * t, seed, size))
            begin, start_s = fresh(data.x.shape[1], float(data.y.mean()), rng), time.process_time()
            done = trained(begin, part, size, rng, reference.targets[t], MOST)
            epoch_s = (time.process_time() - start_s) / done.epochs
            found.append((t, size, seed, float(done.epochs) if done.reached else "", epoch_s))
    return found


def write(path: Path, found: Cells) -> None:
    """A table; an epoch takes the median of its batch size."""
    typical = {b: statistics.median(s for _, size, _, _, s in found if size == b) for b in {cell[1] for cell in found}}
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        rows.writerows((t, b, seed, epochs, f"{typical[b]:.6g}") for t, b, seed, epochs, _ in sorted(found))


@command(
    "--seeds --jobs",
    option("--series", nargs="+", choices=["weather", "flights"], default=["weather", "flights"]),
    option("--out", type=Path, required=True, help="folder of the tables"),
    option("--steps", type=positive, default=40, help="the newest slices of each member"),
    seeds=2,
)
def main(args: argparse.Namespace) -> None:
    """Train, write the tables."""
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.series:
        for member, data in members(name, MEMBERS).items():
            by_seed = on_all_cores(partial(cells, data, args.steps, SIZES), range(args.seeds), args.jobs)
            write(args.out / f"{name}_{member}.csv", [cell for found in by_seed for cell in found])
