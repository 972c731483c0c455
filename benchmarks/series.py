"""Real retraining series: does a policy beat always training the default? ``python -m
benchmarks.series``.

    python -m benchmarks.series                                             # the 40 weeks of the weather example
    python -m benchmarks.series --table bike.csv --max-epochs 60 --seeds 40 --report bike.json

A table holds, for each slice of dated data, batch size and training seed, the epochs that a
training needs to the slice's target (columns ``slice, batch_size, seed, epochs, s_per_epoch``;
``epochs`` is empty where it was not reached within ``--max-epochs``; default: the most that any
training of the table needed). Power was not measured, so one power limit of 100 W holds: nothing
that the limit saves hides what the batch size costs. Slices come in their order, once; a replay's
seed says which of the measured trainings each slice and batch size gets, whoever trains it.

Three defaults: the smallest size, the largest, and the one that is cheapest where every slice uses
it (near-optimal). Policies: the product's two; ``zeus_0_16``, upstream's optimizer
(``benchmarks.quality.choosers``); ``hill_climbing``, which doubles or halves the batch size as long
as a run gets cheaper; ``default``, always the default. Ratios are total cost over that of always
training the default; their 95 % intervals come from the replays' seeds alone,
since a series is one sample of its kind.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from airflow_provider_zeus.model.job_checks import POLICIES
from benchmarks.command import command, on_all_cores, option, positive
from benchmarks.quality.choosers import BASELINES, DEFAULT, HILL_CLIMBING, PACKAGE, package
from benchmarks.quality.slice_tables import Series, defaults_of, read_series, weather
from benchmarks.quality.slice_trainings import Trainings, replay
from benchmarks.report import percent, ratio_of, table, write_json
from benchmarks.simulation.environment import Log

NAMES = (*POLICIES, PACKAGE, HILL_CLIMBING, DEFAULT)
SIMPLE = {PACKAGE: package, **BASELINES}  # they know no slices
BEST = "best_fixed"
PAPERS = "zeus"


class Totals(NamedTuple):
    """One replay."""

    cost: float
    below_target: int  # recurrences
    without_model: int
    attempts: int  # most of one recurrence
    overdraft: float  # most that it ever was behind always the default, in runs of the default


def play(series: Series, part: tuple[str, int, int]) -> Totals:
    """One replay: (policy, default batch size, seed)."""
    log = replayed(series, part)
    spent = math.fsum(run.cost for runs in log.runs for run in runs)
    return Totals(
        spent, log.runs_below_target, log.runs_without_model, max(log.attempts), log.overdraft()
    )


def replayed(series: Series, part: tuple[str, int, int]) -> Log:
    """The same with every run."""
    policy, default, seed = part
    truths = series.truths(default)
    if policy in POLICIES:
        return replay(series.weeks, truths, series.job(default, policy), seed)
    env = Trainings(series.weeks, truths, series.job(default, POLICIES[0]), seed)
    return SIMPLE[policy](truths[0], len(truths), seed, dict(enumerate(truths)), env=env)


def figures(ours: Sequence[Totals], baselines: Mapping[str, Sequence[Totals]]) -> dict[str, Any]:
    """Figures of one policy and default over all seeds: ratios of total cost, and counts.

    :param baselines: replays of always the default, of the best fixed size,
        and of the paper's policy.
    """
    against = {
        name: ratio_of([t.cost for t in ours], [t.cost for t in of])
        for name, of in baselines.items()
    }
    return {
        "total_vs_default": against[DEFAULT].value,
        "low": against[DEFAULT].low,
        "high": against[DEFAULT].high,
        "vs_best_fixed": against[BEST].value,
        "vs_paper": against[PAPERS].to_json(),
        "runs_below_target": statistics.fmean(t.below_target for t in ours),
        "runs_without_model": sum(t.without_model for t in ours),
        "attempts": max(t.attempts for t in ours),
        "overdraft": max(t.overdraft for t in ours),
    }


def measure(
    series: Series, policies: Sequence[str], seeds: Sequence[int], jobs: int | None = None
) -> dict[str, Any]:
    """{policy: {"small" | "near_optimal" | "large": figures}}."""
    chosen = defaults_of(series)
    wanted = list(dict.fromkeys([*policies, PAPERS, DEFAULT]))
    parts = [(p, b, seed) for p in wanted for b in dict.fromkeys(chosen.values()) for seed in seeds]
    found: dict[tuple[str, int], list[Totals]] = defaultdict(list)
    for part, totals in zip(parts, on_all_cores(partial(play, series), parts, jobs), strict=True):
        found[part[:2]].append(totals)
    best = found[DEFAULT, chosen["near_optimal"]]
    baselines = {
        b: {DEFAULT: found[DEFAULT, b], BEST: best, PAPERS: found[PAPERS, b]}
        for b in chosen.values()
    }
    return {
        policy: {
            kind: {"batch_size": b, **figures(found[policy, b], baselines[b])}
            for kind, b in chosen.items()
        }
        for policy in policies
    }


def markdown(measured: Mapping[str, Any]) -> list[str]:
    """The figures as a table."""
    head = ["policy", "default", "total against always the default", "against the paper's policy"]
    head += ["against the best fixed size", "below target"]
    rows = []
    for policy, kinds in measured.items():
        for kind, f in kinds.items():
            total = percent([f["total_vs_default"], f["low"], f["high"]])
            fixed = f"{100 * (f['vs_best_fixed'] - 1):+.1f} %"
            size = f"{f['batch_size']} ({kind})"
            below = f"{f['runs_below_target']:.1f}"
            rows.append([policy, size, total, percent(f["vs_paper"]), fixed, below])
    return table(head, rows)


@command(
    "--seeds --report --jobs",
    option(
        "--table", type=Path, help="CSV file of a series; default: the weather example's 40 weeks"
    ),
    option(
        "--max-epochs",
        type=positive,
        help="epochs at which a training ends; default: the table's most",
    ),
    option("--policy", choices=NAMES, default=POLICIES[0]),
    seeds=40,
)
def main(args: argparse.Namespace) -> None:
    """Run what the command line says; 2 where it cannot be run."""
    series = read_series(args.table, args.max_epochs) if args.table else weather()
    baselines = [name for name in (PAPERS, HILL_CLIMBING) if name != args.policy]
    found = measure(series, [args.policy, *baselines], range(args.seeds), args.jobs)
    print(f"{len(series.weeks)} slices, {args.seeds} seeds; simulated power, measured epochs.\n")
    print("\n".join(markdown(found)))
    report = {"policy": args.policy, "seeds": args.seeds, "slices": len(series.weeks)}
    report |= {
        "defaults": found[args.policy],
        "baselines": {name: found[name] for name in baselines},
    }
    write_json(args.report, report)
