"""Jobs made by a seeded generator, whose truth is known:
each has one trouble that a policy has to stand.

==============================  ========================================================================================
trouble                         what befalls the job
==============================  ========================================================================================
nothing                         slices differ in difficulty, runs are noisy; so in every other job here, too
season                          a tilt of the curve that comes and goes every ten slices
moved at 20, 40, 60             from this run on another curve holds, whose knee lies three doublings or more away
default misses 30 %             of its runs, whatever the slice
a size fails always             one that lies between the default and the best size
first default run x2, x4        it alone takes so many times as long
first slice x3                  every size takes three times as long on it
slice 1, 2, 1 and 2 missed      by every size
10 % of slices hopeless         no size reaches their target
==============================  ========================================================================================

A curve is flat up to a knee and rises beyond it, while an epoch gets cheaper with the batch size;
so the best size is close to the knee. An author gives ``ROOM`` times the epochs that the default is
expected to need. Everything is drawn from the seed alone:
two troubles of one seed befall the same job.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from benchmarks.quality.slice_tables import SAMPLES, Series, Week

SIZES = (16, 32, 64, 128, 256, 512, 1024)
SLICES = 80
USUAL = 12.0  # epochs at the knee
ROOM = 3.0
CORRELATION = 0.9  # of difficulties of two slices
WAVE = 10  # slices of a season
FAR = 3  # doublings
SHARE_MISSED = 0.3
SHARE_HOPELESS = 0.1
SEEDS = 1_000_000  # more than are ever asked for
AUDIT = 0.02  # of a job by default

SMALL = "small"
NEAR = "near_optimal"
LARGE = "large"
FIRST_BEST = "best at first"  # of a job whose best size moves

Need = dict[int, float]  # batch size -> epochs to the target; inf: it is never reached


class World(NamedTuple):
    """What a job's trainings need."""

    needs: Sequence[Need]  # of each slice
    expected: Sequence[Need]  # the same without noise of the runs and difficulty of the slices
    epoch_s: Mapping[int, float]

    def best(self, since: int = 0, until: int = SLICES) -> int:
        """The size that is cheapest where every slice of these uses it."""

        def cost(b: int) -> float:
            return self.epoch_s[b] * math.fsum(need[b] for need in self.needs[since:until])

        return min(SIZES, key=cost)


class MadeJob(NamedTuple):
    """A job, and the truth about it."""

    series: Series
    default: int

    @property
    def best(self) -> int:
        """The size that is cheapest where every slice uses it; what it missed is trained again."""

        def cost(b: int) -> float:
            runs = [week.epochs[b][0] for week in self.series.weeks]
            reached = sum(map(math.isfinite, runs))
            epochs = math.fsum(min(run, self.series.max_epochs) for run in runs)
            return self.series.epoch_s[b] * epochs / reached if reached else math.inf

        return min(SIZES, key=cost)


def world(seed: int, *, moved_at: int | None = None, season: bool = False) -> World:
    """Draw a job."""
    rng = random.Random(f"world/{seed}")
    hard_sd = rng.uniform(0.1, 0.3)
    noise_sd = rng.uniform(0.05, 0.2)
    tilt = rng.uniform(0.1, 0.3)
    knee = rng.choice(SIZES)
    overhead = rng.choice(SIZES[2:])
    epoch_s = {b: 1.0 + overhead / b for b in SIZES}
    before = _curve(rng, knee)
    after = _curve(rng, rng.choice([b for b in SIZES if abs(math.log2(b / knee)) >= FAR]))
    difficulty = rng.gauss(0.0, hard_sd)
    needs: list[Need] = []
    expected: list[Need] = []
    for t in range(SLICES):
        moved = moved_at is not None and t >= moved_at
        curve = after if moved else before
        slope = tilt * math.sin(math.tau * t / WAVE) if season else 0.0
        usual = {b: curve[b] + slope * math.log2(b / SIZES[len(SIZES) // 2]) for b in SIZES}
        expected.append({b: math.exp(usual[b]) for b in SIZES})
        needs.append({b: math.exp(usual[b] + difficulty + rng.gauss(0.0, noise_sd)) for b in SIZES})
        fresh_sd = hard_sd * math.sqrt(1.0 - CORRELATION**2)
        difficulty = CORRELATION * difficulty + rng.gauss(0.0, fresh_sd)
    return World(needs, expected, epoch_s)


def _curve(rng: random.Random, knee: int) -> Need:
    """Log Epochs by size."""
    below = rng.uniform(0.0, 0.1)
    above = rng.uniform(0.4, 0.7)
    found = {}
    for b in SIZES:
        octaves = math.log2(b / knee)
        slope = above if octaves > 0 else -below
        found[b] = math.log(USUAL) + slope * octaves + rng.gauss(0.0, 0.03)
    return found


Harm = Callable[[World, int, random.Random], None]  # befalls the needs of a job with this default


class Trouble(NamedTuple):
    """One trouble, and the defaults from which jobs begin."""

    defaults: Sequence[str | int]
    harm: Harm
    moved_at: int | None = None
    season: bool = False
    longest: float = 1.0  # times as long as usual that a run takes


def _no_harm(found: World, default: int, rng: random.Random) -> None: ...


def _default_misses(found: World, default: int, rng: random.Random) -> None:
    for need in found.needs:
        if rng.random() < SHARE_MISSED:
            need[default] = math.inf


def _size_fails(found: World, default: int, rng: random.Random) -> None:
    place = SIZES.index(default)
    failing = SIZES[place + rng.choice((1, 2))]
    for need in found.needs:
        need[failing] = math.inf


def _first_run_long(factor: float, found: World, default: int, rng: random.Random) -> None:
    found.needs[0][default] *= factor


def _first_slice_long(factor: float, found: World, default: int, rng: random.Random) -> None:
    for b in SIZES:
        found.needs[0][b] *= factor


def _slices_missed(slices: Sequence[int], found: World, default: int, rng: random.Random) -> None:
    for t in slices:
        found.needs[t].update(dict.fromkeys(SIZES, math.inf))


def _some_hopeless(found: World, default: int, rng: random.Random) -> None:
    slices = [t for t in range(SLICES) if rng.random() < SHARE_HOPELESS]
    _slices_missed(slices, found, default, rng)


THREE = (SMALL, NEAR, LARGE)
MOVED_DEFAULTS = (*THREE, FIRST_BEST)
MISSES = "default misses 30 %"
FAILS = "a size fails always"
STUCK: Mapping[str, Harm] = {
    "slice 1 missed": partial(_slices_missed, (0,)),
    "slice 2 missed": partial(_slices_missed, (1,)),
    "slices 1 and 2 missed": partial(_slices_missed, (0, 1)),
    "10 % of slices hopeless": _some_hopeless,
}
UNLUCKY = {
    "first default run x4": Trouble((NEAR,), partial(_first_run_long, 4.0), longest=4.0),
    "first default run x2": Trouble((NEAR,), partial(_first_run_long, 2.0), longest=2.0),
    "first slice x3": Trouble((NEAR,), partial(_first_slice_long, 3.0), longest=3.0),
}
MOVED = {f"moved at {at}": Trouble(MOVED_DEFAULTS, _no_harm, moved_at=at) for at in (20, 40, 60)}
TROUBLES: Mapping[str, Trouble] = {
    "nothing": Trouble(THREE, _no_harm),
    "season": Trouble((NEAR,), _no_harm, season=True),
    **MOVED,
    MISSES: Trouble((64, 256), _default_misses),
    FAILS: Trouble((64, SIZES[0]), _size_fails),
    **UNLUCKY,
    **{name: Trouble(THREE, harm) for name, harm in STUCK.items()},
}
FAMILIES = {
    **dict.fromkeys(MOVED, "moved"),
    **dict.fromkeys(UNLUCKY, "unlucky"),
    **dict.fromkeys(STUCK, "slices missed"),
    MISSES: "default misses",
    FAILS: "a size fails",
}  # troubles of one kind


def made_job(name: str, kind: str | int, seed: int) -> MadeJob:
    """The job of this trouble, default and seed."""
    found = _drawn(name, kind, seed)
    again = 0
    while name == FAILS and not _hides(found):
        again += 1
        found = _drawn(name, kind, seed + SEEDS * again)
    return found


def _drawn(name: str, kind: str | int, seed: int) -> MadeJob:
    trouble = TROUBLES[name]
    found = world(seed, moved_at=trouble.moved_at, season=trouble.season)
    default = _default_of(found, kind, trouble)
    usual = max(need[default] for need in found.expected)
    most = math.ceil(ROOM * trouble.longest * usual)
    trouble.harm(found, default, random.Random(f"harm/{seed}"))
    weeks = [
        Week(str(t), SAMPLES, {b: (_whole(need[b], most),) for b in SIZES})
        for t, need in enumerate(found.needs)
    ]
    return MadeJob(Series(weeks, most, found.epoch_s, audit=AUDIT), default)


def _hides(found: MadeJob) -> bool:
    """Whether the size that always fails lies between the default and the best size."""
    between = [b for b in SIZES if found.default < b < found.best]
    return any(math.isinf(min(w.epochs[b][0] for w in found.series.weeks)) for b in between)


def _default_of(found: World, kind: str | int, trouble: Trouble) -> int:
    if kind == SMALL:
        return SIZES[0]
    if kind == LARGE:
        return SIZES[-1]
    if kind == NEAR:
        return found.best()
    if kind == FIRST_BEST:
        return found.best(until=trouble.moved_at or SLICES)
    return int(kind)


def _whole(epochs: float, most: int) -> float:
    """A target is looked at after each epoch, up to ``max_epochs``."""
    needed = max(round(epochs), 1) if math.isfinite(epochs) else math.inf
    return float(needed) if needed <= most else math.inf
