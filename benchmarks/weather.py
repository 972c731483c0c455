"""Real drift: the weather example's 40 weeks, measured once, then replayed under many seeds.

``python -m benchmarks.weather measure --out FILE`` trains every slice at every batch size with the example's own code;
it goes on where it was interrupted. ``python -m benchmarks.weather replay`` holds the policies against always training
at the default batch size, for the example's default and two others. Time and energy are a simulated V100's.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import POLICIES
from airflow_provider_zeus.simulation.environment import Run
from airflow_provider_zeus.simulation.scenario import Epoch
from benchmarks.command import add, on_all_cores
from benchmarks.quality.slice_tables import TABLE, Points, Week, read, weeks_of
from benchmarks.quality.slice_tables import points as simulated
from benchmarks.quality.slice_trainings import baselines, replay, truths_of
from benchmarks.quality.weather_measure import example_job, measure
from benchmarks.report import mean_ci, table

DEFAULTS = (32, 256, 2048)
FIGURES = ("cost", "energy_j", "time_s")
HEAD = [
    "default",
    "policy",
    "against always the default at",
    "cost",
    "energy",
    "time",
    "even from week",
    "even at last",
]


class Totals(NamedTuple):
    """One replay against one baseline."""

    ratios: tuple[float, ...]  # of the sums of FIGURES
    even_from: float  # week from which on the sum of costs stays at or below the baseline's; inf: never


class Replay(NamedTuple):
    """What is kept of one seed."""

    against: Mapping[str, Totals]
    below_target: int
    baseline_below_target: int
    attempts: int
    given_up: int
    explored: float  # share of the cost that left no model: what was given up, profiling
    kept: tuple[int, ...]  # batch size of each week's model


def one_seed(weeks: Sequence[Week], job: ZeusJob, seed: int, points: Points = simulated) -> Replay:
    """Replay one seed and hold it against both baselines."""
    log, fixed = replay(weeks, job, seed, points), baselines(weeks, job, seed, points)
    spent = [total(runs) for runs in log.runs]
    wasted = math.fsum(lost(run, last=run is runs[-1]) for runs in log.runs for run in runs)
    return Replay(
        against={name: totals(spent, runs) for name, runs in fixed.items()},
        below_target=sum(not runs[-1].reached for runs in log.runs),
        baseline_below_target=sum(not run.reached for run in fixed["full power"]),
        attempts=sum(log.attempts),
        given_up=sum(log.attempts) - len(log),
        explored=wasted / math.fsum(e.cost for e in spent),
        kept=tuple(log.batch_size),
    )


def total(runs: Sequence[Run]) -> Epoch:
    """What a week cost, everything included."""
    energy_j, time_s, cost = (math.fsum(getattr(run, f) for run in runs) for f in ("energy_j", "time_s", "cost"))
    return Epoch(energy_j, time_s, cost)


def lost(run: Run, *, last: bool) -> float:
    """Cost [J] of what left no model."""
    return run.excess.cost if last else run.cost


def totals(ours: Sequence[Epoch], theirs: Sequence[Epoch | Run]) -> Totals:
    """Sums over the weeks."""
    sums = [math.fsum(getattr(e, f) for e in ours) / math.fsum(getattr(e, f) for e in theirs) for f in FIGURES]
    behind = [a > b for a, b in zip(accumulate(e.cost for e in ours), accumulate(e.cost for e in theirs), strict=True)]
    last = max((week for week, above in enumerate(behind, 1) if above), default=0)
    return Totals(tuple(sums), math.inf if behind[-1] else last + 1)


def report(weeks: Sequence[Week], seeds: int, jobs: int | None = None) -> str:
    """The tables, in Markdown."""
    found: dict[tuple[int, str], list[Replay]] = {(b, policy): [] for b in DEFAULTS for policy in POLICIES}
    parts = [(*variant, seed) for variant in found for seed in range(seeds)]
    for part, seen in zip(parts, on_all_cores(partial(_replayed, weeks), parts, jobs), strict=True):
        found[part[:2]].append(seen)
    lines = [
        f"{len(weeks)} weeks, {seeds} seeds; mean and 95 % interval. Simulated power and time, measured epochs.",
        "",
    ]
    lines += table(HEAD, [row for (b, policy), seen in found.items() for row in _rows(b, policy, seen)])
    lines += ["", *table(COUNTS, [_counts(b, policy, seen) for (b, policy), seen in found.items()])]
    lines += ["", "What each week's model was trained with, % of weeks:", ""]
    sizes = [str(b) for b in example_job().batch_sizes]
    lines += table(["default", "policy", *sizes], [_kept(b, policy, seen) for (b, policy), seen in found.items()])
    return "\n".join([*lines, "", *landscape(weeks)])


def _replayed(weeks: Sequence[Week], part: tuple[int, str, int]) -> Replay:
    default_batch_size, policy, seed = part
    job = replace(example_job(), default_batch_size=default_batch_size, policy=policy, job_id="weather")
    return one_seed(weeks, job, seed)


def _rows(default: int, policy: str, seen: Sequence[Replay]) -> list[list[str]]:
    rows = []
    for name in seen[0].against:
        held = [r.against[name] for r in seen]
        ratios = [_percent([t.ratios[i] - 1 for t in held]) for i in range(len(FIGURES))]
        even = [t.even_from for t in held]
        middle = statistics.median_low(even)
        when = f"{middle:.0f}" if math.isfinite(middle) else "never"
        rows.append([str(default), policy, name, *ratios, when, f"{sum(map(math.isfinite, even)) / len(even):.0%}"])
    return rows


COUNTS = ["default", "policy", "below target", "baseline's", "attempts", "given up", "cost without a model"]


def _counts(default: int, policy: str, seen: Sequence[Replay]) -> list[str]:
    names = ("below_target", "baseline_below_target", "attempts", "given_up")
    means = [f"{statistics.fmean(getattr(r, name) for r in seen):.2f}" for name in names]
    return [str(default), policy, *means, f"{statistics.fmean(r.explored for r in seen):.1%}"]


def _kept(default: int, policy: str, seen: Sequence[Replay]) -> list[str]:
    kept = [b for r in seen for b in r.kept]
    return [str(default), policy, *(f"{100 * kept.count(b) / len(kept):.0f}" for b in example_job().batch_sizes)]


def landscape(weeks: Sequence[Week]) -> list[str]:
    """What each batch size would have cost, always, at its best power limit; failed trainings pay for theirs."""
    every = truths_of(weeks, example_job())
    sizes = example_job().batch_sizes
    at = {b: [t.arms[b].run(t.pair.max_epochs) for t in every] for b in sizes}
    cost = {b: math.fsum(e * t.arms[b].epoch.cost for (e, _), t in zip(at[b], every, strict=True)) for b in sizes}
    least, best = min(cost.values()), [t.best for t in every]
    rows = [
        ["total cost, cheapest = 1", *(f"{cost[b] / least:.2f}" for b in sizes)],
        ["trainings below target", *(f"{1 - statistics.fmean(chance for _, chance in at[b]):.1%}" for b in sizes)],
        ["mean epochs", *(f"{statistics.fmean(e for e, _ in at[b]):.1f}" for b in sizes)],
        ["weeks in which it is cheapest", *(str(best.count(b)) for b in sizes)],
    ]
    ideal = math.fsum(t.best_cost for t in every) / least
    note = f"The cheapest batch size of each week, known beforehand: {ideal:.2f}."
    return [*table(["always", *map(str, sizes)], rows), "", note]


def _percent(values: Sequence[float]) -> str:
    mean, half = mean_ci(values)
    return f"{100 * mean:+.1f} ± {100 * half:.1f} %"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; 2 where it cannot be run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weather", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    one = commands.add_parser("measure", help="train what the table lacks")
    add(one, "--out --jobs", out=TABLE)
    two = commands.add_parser("replay", help="hold the policies against the default")
    two.add_argument("--table", type=Path, default=TABLE)
    two.add_argument("--seeds", type=int, default=100)
    add(two, "--jobs")
    args = parser.parse_args(arguments)
    if args.what == "measure":
        done = measure(args.out, args.jobs or os.cpu_count() or 1)
        print(f"{args.out}: {done} trainings more")
        return 0
    weeks = weeks_of(read(args.table))
    if not weeks:
        print(f"{args.table}: no such table. Make it by: python -m benchmarks.weather measure", file=sys.stderr)
        return 2
    print(report(weeks, args.seeds, args.jobs))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
