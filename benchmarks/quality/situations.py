"""Made jobs whose truth is known: the ledger is held against them.

Each kind differs from a stationary job in what its name says. All is drawn from kind and seed
alone, so a job can be made again by its name: the curve of Epochs over batch sizes, the default,
the noise of a run, and what each slice does.
Power and time of an epoch are the simulated V100's of the weather example.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import NamedTuple

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.power.simulated.models import CHIPS
from benchmarks.quality.slice_tables import ETA, GPU, Week, best_point, pair_of
from benchmarks.quality.slice_trainings import Trainings
from benchmarks.simulation.environment import Run
from benchmarks.simulation.scenario import BatchSizeTruth, Epoch, Scenario

SIZES = (16, 32, 64, 128, 256, 512)
SLICES = 40
MOST = 60  # epochs
SAMPLES = 200_000  # of a slice
USUAL = 11.0  # epochs of the size that needs the fewest
LONG = 3.0  # times the epochs: an outlier

Curve = Mapping[int, float]  # log Epochs by batch size
Levels = Callable[[random.Random], list[float]]  # what each slice adds to log Epochs of every size
Curves = Callable[[random.Random, Curve], list[Curve]]  # the curve on each slice


class Default(Enum):
    """How the default batch size is chosen."""

    ABLE = auto()  # any that reaches the target with room to spare
    BEST = auto()
    GOOD = auto()  # any of the best four
    SECOND = auto()  # any of the second to the fourth best
    SMALL = auto()  # any of the smaller half


class Missing(Enum):
    """Which batch sizes miss their target now and then, each by itself."""

    NONE = auto()
    DEFAULT = auto()
    BEST = auto()
    LARGE = auto()  # the larger half
    ALL = auto()


class Job(NamedTuple):
    """A made job. Epochs that a size needs beyond :data:`MOST` are infinite."""

    default: int
    weeks: Sequence[Week]
    jitter_sd: float

    @property
    def truths(self) -> list[Scenario]:
        """What each slice's batch sizes cost."""
        return [Scenario(pair_of(week, self.default, max_epochs=MOST), ETA) for week in self.weeks]

    def spec(self, policy: str, audit: float) -> ZeusJob:
        """The job as a task names it."""
        return ZeusJob(
            job_id="series",
            batch_sizes=list(SIZES),
            default_batch_size=self.default,
            target="loss <= 1",
            max_epochs=MOST,
            policy=policy,
            audit=audit,
        )


def _level(_: random.Random) -> list[float]:
    return [0.0] * SLICES


def _rising(rng: random.Random) -> list[float]:
    slope = rng.uniform(0.015, 0.035)
    return [slope * t for t in range(SLICES)]


def _falling(rng: random.Random) -> list[float]:
    return [0.7 - rise for rise in _rising(rng)]


def _walk(rng: random.Random) -> list[float]:
    at = 0.0
    levels = []
    for _ in range(SLICES):
        at += rng.gauss(0.0, 0.12)
        levels.append(at)
    return levels


def _season(rng: random.Random) -> list[float]:
    phase = rng.uniform(0.0, math.tau)
    return [0.35 * math.sin(math.tau * t / 7 + phase) for t in range(SLICES)]


def _same(_: random.Random, curve: Curve) -> list[Curve]:
    return [curve] * SLICES


def _tilting(rng: random.Random, curve: Curve) -> list[Curve]:
    phase = rng.uniform(0.0, math.tau)
    tilts = [0.2 * math.sin(math.tau * t / 10 + phase) for t in range(SLICES)]
    return [{b: curve[b] + tilt * math.log2(b / 64) for b in SIZES} for tilt in tilts]


def _another(rng: random.Random, curve: Curve) -> list[Curve]:
    since = rng.randint(10, 22)
    return [curve] * since + [_curve(rng)] * (SLICES - since)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What is special about a made job; by default nothing is."""

    levels: Levels = _level
    curves: Curves = _same
    default: Default = Default.ABLE
    missing: Missing = Missing.NONE
    miss_share: float = 0.0  # of the runs of a size that misses
    hopeless_share: float = 0.0  # of slices that every size misses
    outlier_share: float = 0.0  # of runs that take LONG
    noise_sd: float | None = None  # of a run's log Epochs; None: drawn for the job
    jitter_sd: float = 0.02  # of the log energy and time of a run
    first_default: float = 1.0  # times the epochs of the default on the first slice


KINDS: Mapping[str, Kind] = {
    "stationary": Kind(),
    "noisy": Kind(noise_sd=0.35),
    "slow up": Kind(levels=_rising),
    "slow down": Kind(levels=_falling),
    "walk": Kind(levels=_walk),
    "season": Kind(levels=_season),
    "season tilts the curve": Kind(curves=_tilting),
    "another curve": Kind(curves=_another),
    "outliers": Kind(outlier_share=0.08),
    "slices that all miss": Kind(hopeless_share=0.12),
    "best size misses": Kind(default=Default.SECOND, missing=Missing.BEST, miss_share=0.3),
    "default misses": Kind(default=Default.GOOD, missing=Missing.DEFAULT, miss_share=0.3),
    "every size misses": Kind(missing=Missing.ALL, miss_share=0.1),
    "large sizes miss": Kind(default=Default.SMALL, missing=Missing.LARGE, miss_share=0.3),
    "default is best": Kind(default=Default.BEST),
    "unlucky first run": Kind(first_default=2.5),
    "lucky first run": Kind(first_default=1 / 1.8),
    "energy and time vary": Kind(jitter_sd=0.08),
}


def made(kind: str, seed: int) -> Job:
    """The job of that kind and seed."""
    how = KINDS[kind]
    rng = random.Random(f"situations/{kind}/{seed}")
    curve = _curve(rng)
    default = _default(rng, how.default, curve)
    missing = _missing(how.missing, default, curve)
    noise_sd = rng.uniform(0.06, 0.18)
    if how.noise_sd is not None:
        noise_sd = how.noise_sd
    levels = how.levels(rng)
    curves = how.curves(rng, curve)
    weeks = []
    for t in range(SLICES):
        hopeless = rng.random() < how.hopeless_share
        epochs = {}
        for b in SIZES:
            log_epochs = curves[t][b] + levels[t] + rng.gauss(0.0, noise_sd)
            needed = math.exp(log_epochs)
            if rng.random() < how.outlier_share:
                needed *= LONG
            if t == 0 and b == default:
                needed *= how.first_default
            misses = b in missing and rng.random() < how.miss_share
            if hopeless or misses or round(needed) > MOST:
                epochs[b] = (math.inf,)
            else:
                epochs[b] = (float(max(round(needed), 1)),)
        weeks.append(Week(f"{t:02d}", SAMPLES, epochs))
    return Job(default, weeks, how.jitter_sd)


def _curve(rng: random.Random) -> Curve:
    """Least at some size, more below it and much more above."""
    best = rng.choice(SIZES)
    below = rng.uniform(0.02, 0.2)
    above = rng.uniform(0.2, 0.6)
    curve = {}
    for b in SIZES:
        octaves = math.log2(b / best)
        slope = above if octaves > 0 else below
        curve[b] = math.log(USUAL) + slope * abs(octaves) + rng.gauss(0.0, 0.03)
    return curve


@cache
def _epoch_cost(b: int) -> float:
    point = best_point(b, SAMPLES)
    return Weights(ETA, CHIPS[GPU].max_limit_w).cost(point.energy_j, point.time_s)


def _ranked(curve: Curve) -> list[int]:
    """The sizes, the cheapest first."""
    return sorted(SIZES, key=lambda b: math.exp(curve[b]) * _epoch_cost(b))


def _default(rng: random.Random, how: Default, curve: Curve) -> int:
    ranked = _ranked(curve)
    able = [b for b in SIZES if math.exp(curve[b]) < 0.6 * MOST]
    if how is Default.BEST:
        return ranked[0]
    if how is Default.GOOD:
        return rng.choice(ranked[:4])
    if how is Default.SECOND:
        return rng.choice(ranked[1:4])
    if how is Default.SMALL:
        return rng.choice(SIZES[:3])
    return rng.choice(able)


def _missing(how: Missing, default: int, curve: Curve) -> Collection[int]:
    if how is Missing.DEFAULT:
        return (default,)
    if how is Missing.BEST:
        return (_ranked(curve)[0],)
    if how is Missing.LARGE:
        return SIZES[3:]
    if how is Missing.ALL:
        return SIZES
    return ()


class JitteryTrainings(Trainings):
    """Trainings whose energy and time vary by themselves:
    a run's factor is its slice's and size's.
    """

    jitter_sd = 0.0

    def _run(
        self, arm: BatchSizeTruth, limit_w: float, epoch: Epoch, allowed: float, excess: Epoch
    ) -> Run:
        run = super()._run(arm, limit_w, epoch, allowed, excess)
        rng = random.Random(f"jitter/{self.seed}/{self._week.slice_key}/{arm.batch_size}")
        factor = math.exp(rng.gauss(0.0, self.jitter_sd))
        return run._replace(
            energy_j=run.energy_j * factor, time_s=run.time_s * factor, cost=run.cost * factor
        )


def trainings(job: Job, spec: ZeusJob, seed: int) -> JitteryTrainings:
    """The trainings of a made job."""
    found = JitteryTrainings(job.weeks, job.truths, spec, seed)
    found.jitter_sd = job.jitter_sd
    return found
