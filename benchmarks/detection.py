"""Which changes of the data the filter finds, and how often it finds one where there is none.

    python -m benchmarks.detection [--seeds 120]

Jobs of five batch sizes, three quarters of the runs with one of them, the others with any. Log
Epochs is a curve over the sizes, a difficulty of the slice (an autoregressive process), and noise.
Before run 15 all sizes begin to need ``FACTORS`` times the epochs, for good. A job is found where
an alarm comes within 6, or 12, runs of the change. False alarms are counted in jobs of 100 runs in
which nothing changes. The seeds of the generator are ``(job, 10 x factor)``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from airflow_provider_zeus.optimizer.knowledge_gradient.epochs import EpochsModel
from airflow_provider_zeus.optimizer.slices import Slice, SliceRun
from benchmarks.command import command, on_all_cores, took
from benchmarks.report import table

SIZES = (32, 64, 128, 256, 512)
DEFAULT = 128
MOST_EPOCHS = 1000.0
# of the runs are of the usual size
CURVE = (0.05, 0.0, 0.1, 0.3, 0.6)
LEVEL = 2.5
CORRELATION = 0.9  # of the difficulties of two slices
USUAL = 1
SHARE = 0.75
DIFFICULTIES = (0.1, 0.3)
NOISES = (0.1, 0.25)
FACTORS = (1.5, 2.0, 3.2, 0.5)
SHIFT = 15
AFTER = 12
QUIET = 100
WITHIN = (6, 12)


class Cell(NamedTuple):
    """Jobs of one kind."""

    difficulty: float  # sd
    noise: float  # sd
    factor: float  # 1: nothing changes
    seeds: int


def job(cell: Cell, seed: int) -> list[Slice]:
    """The slices of one job, a run on each."""
    quiet = cell.factor == 1
    n = QUIET if quiet else SHIFT + AFTER
    rng = np.random.default_rng([seed, 7 if quiet else int(10 * cell.factor)])
    difficulty = rng.normal(0, cell.difficulty)
    found = []
    for t in range(n):
        i = USUAL if rng.random() < SHARE else int(rng.integers(len(SIZES)))
        changed = math.log(cell.factor) if t >= SHIFT else 0.0
        epochs = max(
            round(math.exp(LEVEL + CURVE[i] + difficulty + rng.normal(0, cell.noise) + changed)), 1
        )
        found.append(
            Slice.of(str(t), (SliceRun(t + 1, SIZES[i], float(epochs), True),), MOST_EPOCHS)
        )
        rest = cell.difficulty * math.sqrt(1 - CORRELATION**2)
        difficulty = CORRELATION * difficulty + rng.normal(0, rest)
    return found


def alarms(slices: Sequence[Slice]) -> list[int]:
    """After how many runs each alarm comes."""
    model = None
    seen = 0
    found = []
    for t in range(1, len(slices) + 1):
        model = EpochsModel(SIZES, DEFAULT, MOST_EPOCHS, slices[:t], model)
        if len(model.changes) > seen:
            found.append(t)
        seen = len(model.changes)
    return found


def play(cell: Cell) -> list[float]:
    """Share of the jobs found within 6 and 12 runs; where nothing changes, alarms per 100 runs."""
    of_jobs = [alarms(job(cell, seed)) for seed in range(cell.seeds)]
    if cell.factor == 1:
        return [fmean(100 * len(found) / QUIET for found in of_jobs)]
    first = [next((t - SHIFT for t in found if t > SHIFT), math.inf) for found in of_jobs]
    return [fmean(t <= most for t in first) for most in WITHIN]


@command("--seeds --jobs", seeds=120)
def main(args: argparse.Namespace) -> None:
    """Run what the command line says."""
    factors = (*FACTORS, 1.0)
    rows = [(difficulty, noise) for difficulty in DIFFICULTIES for noise in NOISES]
    cells = [Cell(*row, factor, args.seeds) for row in rows for factor in factors]
    found = dict(zip(cells, on_all_cores(play, cells, args.jobs), strict=True))
    head = ["difficulty sd, noise sd", *(f"x{factor:g}" for factor in FACTORS), "false alarms"]
    lines = [
        [
            f"{difficulty:g}, {noise:g}",
            *(
                " / ".join(f"{s:.0%}" for s in found[Cell(difficulty, noise, f, args.seeds)])
                for f in FACTORS
            ),
            f"{found[Cell(difficulty, noise, 1.0, args.seeds)][0]:.2f}",
        ]
        for difficulty, noise in rows
    ]
    quiet = fmean(alarms[0] for cell, alarms in found.items() if cell.factor == 1)
    print("\n".join(table(head, lines)))
    print(f"{quiet:.2f} false alarms per 100 runs in the mean; {args.seeds} seeds, {took(args)}")
