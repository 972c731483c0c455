"""What the default policy costs on the jobs of ``made_jobs``: figures of each trouble and default.

A job counts as stuck where its last ``LAST`` recurrences cost more than ``STUCK`` times what the
best fixed size would have cost on their slices; slices that no size reaches are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.command import on_all_cores
from benchmarks.quality.made_jobs import TROUBLES, made_job
from benchmarks.quality.slice_trainings import replay
from benchmarks.replays import OURS
from benchmarks.simulation.environment import Log
from benchmarks.simulation.scenario import Scenario

LAST = 20
STUCK = 1.4


class Cell(NamedTuple):
    """One trouble, and the default from which its jobs begin."""

    trouble: str
    default: str | int

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"{self.trouble}, {self.default}"


class Played(NamedTuple):
    """What is kept of one job."""

    vs_default: float  # its cost over that of always the default
    vs_best: float  # over that of the best fixed size, both for each run that reached its target
    below_target: int  # recurrences
    stuck: bool
    overdraft: float


def cells() -> list[Cell]:
    """All of them."""
    return [Cell(name, kind) for name, trouble in TROUBLES.items() for kind in trouble.defaults]


def play(part: tuple[Cell, int]) -> Played:
    """Replay one job: (cell, seed)."""
    cell, seed = part
    job = made_job(cell.trouble, cell.default, seed)
    truths = job.series.truths(job.default)
    log = replay(job.series.weeks, truths, job.series.job(job.default, OURS), seed)
    best_size = job.best
    best = [truth.run_cost(best_size) for truth in truths]
    spent = _spent(log)
    below_target = sum(not runs[-1].reached for runs in log.runs)
    # a fixed size may miss on most slices: what it costs there buys no model
    reached = max(len(log.runs) - below_target, 1)
    best_reached = sum(math.isfinite(week.epochs[best_size][0]) for week in job.series.weeks)
    return Played(
        vs_default=spent / math.fsum(log.default_cost),
        vs_best=(spent / reached) / (math.fsum(best) / best_reached),
        below_target=below_target,
        stuck=_is_stuck(log, truths, best),
        overdraft=log.overdraft(),
    )


def _spent(log: Log) -> float:
    return math.fsum(run.cost for runs in log.runs for run in runs)


def _is_stuck(log: Log, truths: Sequence[Scenario], best: Sequence[float]) -> bool:
    """``best``: cost of a run of the best fixed size, by recurrence."""
    reachable = [t for t, truth in enumerate(truths) if math.isfinite(truth.best_cost)]
    last = [t for t in reachable if t >= len(truths) - LAST]
    ours = math.fsum(run.cost for t in last for run in log.runs[t])
    return ours > STUCK * math.fsum(best[t] for t in last)


def run_all(seeds: Sequence[int], jobs: int | None = None) -> dict[Cell, list[Played]]:
    """The jobs of each cell, one for each seed."""
    parts = [(cell, seed) for cell in cells() for seed in seeds]
    found: dict[Cell, list[Played]] = {}
    for (cell, _), one in zip(parts, on_all_cores(play, parts, jobs), strict=True):
        found.setdefault(cell, []).append(one)
    return found
