"""Retraining series made by a seeded generator, whose truth is known: the ledger is held against them.

======================  ================================================================================================
kind                    how log Epochs(slice, b) comes about, beside a curve, a difficulty that drifts, and noise
======================  ================================================================================================
slices differ           nothing else
regimes                 every twelve slices or so another curve, so that another size may be best
season                  a tilt of the curve that comes and goes every ten slices
outliers                one run in twenty takes three times as long
======================  ================================================================================================

Everything is drawn from the kind and the seed alone: curve (a best size, and how steep each side is), sd of difficulty
(.1 to .4) and noise (.05 to .25), the share of a step that is overhead. So a series can be made again by its name.
"""

from __future__ import annotations

import math
import random

from benchmarks.quality.slice_tables import SAMPLES, Series, Week

SIZES, SLICES, TRAININGS, MOST = (16, 32, 64, 128, 256, 512), 40, 2, 100
MADE = ("slices differ", "regimes", "season", "outliers")
CORRELATION, USUAL = 0.9, 12.0  # of difficulties of two slices; epochs of the best size
OUTLIERS, LONG = 0.05, 3.0


def made(kind: str, seed: int) -> Series:
    """The series of that kind and seed."""
    rng = random.Random(f"made/{kind}/{seed}")
    hard_sd, noise_sd, overhead = rng.uniform(0.1, 0.4), rng.uniform(0.05, 0.25), rng.choice(SIZES)
    curve, difficulty, weeks = _curve(rng), rng.gauss(0.0, hard_sd), []
    changes, at = set[int](), 0
    while kind == "regimes" and (at := at + rng.randint(8, 16)) < SLICES:
        changes.add(at)  # another curve begins before it
    tilt = rng.uniform(0.1, 0.35)
    for t in range(SLICES):
        curve = _curve(rng) if t in changes else curve
        slope = tilt * math.sin(math.tau * t / 10) if kind == "season" else 0.0
        now = {b: curve[b] + difficulty + slope * math.log2(b / SIZES[len(SIZES) // 2]) for b in SIZES}
        epochs = {b: tuple(_epochs(rng, e, noise_sd, kind) for _ in range(TRAININGS)) for b, e in now.items()}
        weeks.append(Week(str(t), SAMPLES, epochs))
        difficulty = CORRELATION * difficulty + rng.gauss(0.0, hard_sd * math.sqrt(1 - CORRELATION**2))
    return Series(weeks, MOST, {b: 1.0 + overhead / b for b in SIZES})


def _curve(rng: random.Random) -> dict[int, float]:
    """Log Epochs by size: least at some size, more below it and much more above."""
    best, below, above = rng.choice(SIZES), rng.uniform(0.0, 0.15), rng.uniform(0.2, 0.7)
    octaves = {b: math.log2(b / best) for b in SIZES}
    return {
        b: math.log(USUAL) + (above if x > 0 else below) * abs(x) + rng.gauss(0.0, 0.03) for b, x in octaves.items()
    }


def _epochs(rng: random.Random, log_epochs: float, noise_sd: float, kind: str) -> float:
    long = LONG if kind == "outliers" and rng.random() < OUTLIERS else 1.0
    needed = max(round(long * math.exp(log_epochs + rng.gauss(0.0, noise_sd))), 1)
    return float(needed) if needed <= MOST else math.inf
