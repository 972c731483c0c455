"""Real retraining series: does a policy beat always training the default? ``python -m benchmarks.series``.

    python -m benchmarks.series                                             # the 40 weeks of the weather example
    python -m benchmarks.series --table bike.csv --max-epochs 60 --seeds 40 --report bike.json

A table holds, for each slice of dated data, batch size and training seed, the epochs that a training needs to the
slice's target (columns ``slice, batch_size, seed, epochs, s_per_epoch``; ``epochs`` is empty where it was not reached
within ``--max-epochs``; default: the most that any training of the table needed). Power was not measured, so one power
limit of 100 W holds: nothing that the limit saves hides what the batch size costs. Slices come in their order, once; a
replay's seed says which of the measured trainings each slice and batch size gets, whoever trains it.

Three defaults: the smallest size, the largest, and the one that is cheapest where every slice uses it (near-optimal).
Policies: the product's two; ``zeus_0_16``, upstream's optimizer (``benchmarks.choosers``); ``hill_climbing``, which
doubles or halves the batch size as long as a run gets cheaper; ``default``, always the default. Ratios are total cost
over that of always training the default; their 95 % intervals come from the replays' seeds alone, since a series is one
sample of its kind.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from airflow_provider_zeus.errors import ZeusError
from airflow_provider_zeus.model.job_checks import POLICIES
from airflow_provider_zeus.model.trial import Phase, PlannedAttempt
from airflow_provider_zeus.simulation.scenario import Scenario
from benchmarks.baselines import DEFAULT, HILL_CLIMBING, HillClimbing
from benchmarks.choosers import PACKAGE, Package
from benchmarks.cores import on_all_cores
from benchmarks.paper import positive, table
from benchmarks.ratios import ratio_of
from benchmarks.series_table import Series, defaults_of, read_series, weather
from benchmarks.weather_replay import Runs, Trainings, replay
from benchmarks.weather_table import Week

NAMES = (*POLICIES, PACKAGE, HILL_CLIMBING, DEFAULT)
BEST, PAPERS = "best_fixed", "zeus"


class Totals(NamedTuple):
    """One replay."""

    cost: float
    below_target: int  # recurrences
    without_model: int
    attempts: int  # most of one recurrence


def play(series: Series, part: tuple[str, int, int]) -> Totals:
    """One replay: (policy, default batch size, seed)."""
    policy, default, seed = part
    truths = series.truths(default)
    if policy in POLICIES:
        log = replay(series.weeks, series.job(default, policy), seed, truths=truths)
    else:
        log = simple(series, truths, default, seed, policy)
    missed = [runs[-1] for runs in log if not runs[-1].reached]
    given_up = sum(run.planned.bounded for run in missed)
    spent = math.fsum(run.spent.cost for runs in log for run in runs)
    return Totals(spent, len(missed) - given_up, given_up, max(map(len, log)))


def simple(series: Series, truths: Sequence[Scenario], default: int, seed: int, policy: str) -> list[Runs]:
    """A policy that knows no slices: upstream's, hill climbing, or always the default."""
    trainings, log = Trainings(series.job(default, POLICIES[0]), seed), []
    hill = HillClimbing(series.batch_sizes, default)
    package = Package(series.batch_sizes, default, series.max_epochs, seed) if policy == PACKAGE else None
    for week, truth in zip(series.weeks, truths, strict=True):
        runs: Runs = []
        train = partial(_train, trainings, week, truth, runs)
        if package:
            package.recurrence(train)
        elif policy == HILL_CLIMBING:
            hill.recurrence(train)
        else:
            train(default)
        log.append(runs)
    return log


def _train(
    trainings: Trainings, week: Week, truth: Scenario, runs: Runs, batch_size: int, bound_cost: float = math.inf
) -> tuple[bool, float]:
    bound = bound_cost if math.isfinite(bound_cost) else None
    planned = PlannedAttempt(batch_size=batch_size, phase=Phase.PINNED, why="A baseline's choice.", bound_cost=bound)
    runs.append(trainings.attempt(week, truth, planned))
    return runs[-1].reached, runs[-1].spent.cost


def figures(ours: Sequence[Totals], baselines: Mapping[str, Sequence[Totals]]) -> dict[str, Any]:
    """Figures of one policy and default over all seeds: ratios of total cost, and counts.

    :param baselines: replays of always the default, of the best fixed size, and of the paper's policy.
    """
    against = {name: ratio_of([t.cost for t in ours], [t.cost for t in of]) for name, of in baselines.items()}
    return {
        "total_vs_default": against[DEFAULT].value,
        "low": against[DEFAULT].low,
        "high": against[DEFAULT].high,
        "vs_best_fixed": against[BEST].value,
        "vs_paper": against[PAPERS].to_json(),
        "runs_below_target": statistics.fmean(t.below_target for t in ours),
        "runs_without_model": sum(t.without_model for t in ours),
        "attempts": max(t.attempts for t in ours),
    }


def measure(series: Series, policies: Sequence[str], seeds: int, jobs: int | None = None) -> dict[str, Any]:
    """{policy: {"small" | "near_optimal" | "large": figures}}."""
    chosen = defaults_of(series)
    wanted = list(dict.fromkeys([*policies, PAPERS, DEFAULT]))
    parts = [(p, b, seed) for p in wanted for b in dict.fromkeys(chosen.values()) for seed in range(seeds)]
    found: dict[tuple[str, int], list[Totals]] = defaultdict(list)
    for part, totals in zip(parts, on_all_cores(partial(play, series), parts, jobs), strict=True):
        found[part[:2]].append(totals)
    best = found[DEFAULT, chosen["near_optimal"]]
    baselines = {b: {DEFAULT: found[DEFAULT, b], BEST: best, PAPERS: found[PAPERS, b]} for b in chosen.values()}
    return {
        policy: {kind: {"batch_size": b, **figures(found[policy, b], baselines[b])} for kind, b in chosen.items()}
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
            size, below = f"{f['batch_size']} ({kind})", f"{f['runs_below_target']:.1f}"
            rows.append([policy, size, total, percent(f["vs_paper"]), fixed, below])
    return table(head, rows)


def percent(ratio: Sequence[float]) -> str:
    """A ratio of total costs with its interval, as the change that it is."""
    return "{:+.1f} % [{:+.1f}, {:+.1f}]".format(*(100 * (r - 1) for r in ratio))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; 2 where it cannot be run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, help="CSV file of a series; default: the weather example's 40 weeks")
    parser.add_argument(
        "--max-epochs", type=positive, help="epochs at which a training ends; default: the table's most"
    )
    parser.add_argument("--seeds", type=positive, default=40)
    parser.add_argument("--policy", choices=NAMES, default=POLICIES[0])
    parser.add_argument("--report", type=Path, help="write the figures there, as JSON")
    parser.add_argument("--jobs", type=int, help="processes; default: one per core")
    args = parser.parse_args(arguments)
    try:
        series = read_series(args.table, args.max_epochs) if args.table else weather()
    except ZeusError as error:
        print(error, file=sys.stderr)
        return 2
    baselines = [name for name in (PAPERS, HILL_CLIMBING) if name != args.policy]
    found = measure(series, [args.policy, *baselines], args.seeds, args.jobs)
    print(f"{len(series.weeks)} slices, {args.seeds} seeds; simulated power, measured epochs.\n")
    print("\n".join(markdown(found)))
    if args.report:
        report = {"policy": args.policy, "seeds": args.seeds, "slices": len(series.weeks)}
        report |= {"defaults": found[args.policy], "baselines": {name: found[name] for name in baselines}}
        args.report.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
