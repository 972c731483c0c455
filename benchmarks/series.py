"""Real retraining series: does a policy beat always training the default? ``python -m benchmarks.series``.

    python -m benchmarks.series                                             # the 40 weeks of the weather example
    python -m benchmarks.series --table bike.csv --max-epochs 60 --seeds 40 --report bike.json

A table holds, for each slice of dated data, batch size and training seed, the epochs that a training needs to the
slice's target (columns ``slice, batch_size, seed, epochs, s_per_epoch``; ``epochs`` is empty where it was not reached
within ``--max-epochs``). Power was not measured, so one power limit of 100 W holds: nothing that the limit saves hides
what the batch size costs. Slices come in their order, once; a replay's seed says which of the measured trainings each
slice and batch size gets, whoever trains it.

Three defaults: the smallest size, the largest, and the one that is cheapest where every slice uses it (near-optimal).
Policies: the product's two; ``hill_climbing``, which doubles or halves the batch size as long as a run gets cheaper;
``default``, always the default. Ratios are total cost over that of always training the default; their 95 % intervals
come from the replays' seeds alone, since a series is one sample of its kind.
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

from airflow_provider_zeus.errors import JobSpecError, ZeusError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import POLICIES
from airflow_provider_zeus.model.trial import Phase, PlannedAttempt
from airflow_provider_zeus.simulation.rows import rows_of
from airflow_provider_zeus.simulation.scenario import Scenario
from airflow_provider_zeus.simulation.traces import PowerMeasurement
from benchmarks.cores import on_all_cores
from benchmarks.paper import table
from benchmarks.ratios import ratio_of
from benchmarks.weather_replay import Runs, Trainings, replay
from benchmarks.weather_table import MAX_EPOCHS, TABLE, Week, pair_of, read, weeks_of
from benchmarks.weather_table import points as simulated

COLUMNS = ("slice", "batch_size", "seed", "epochs", "s_per_epoch")
POWER_W = 100.0  # one power limit, and what is drawn at it
SAMPLES = 1_000_000  # per epoch: only ratios count
HILL_CLIMBING, DEFAULT = "hill_climbing", "default"
NAMES = (*POLICIES, HILL_CLIMBING, DEFAULT)
KINDS = ("small", "near_optimal", "large")


class Series(NamedTuple):
    """The slices of one table, and what an epoch takes at each batch size."""

    weeks: Sequence[Week]
    max_epochs: int
    epoch_s: Mapping[int, float]  # empty: the weather example's simulated GPU

    @property
    def batch_sizes(self) -> list[int]:
        """Those of every slice, ascending."""
        return sorted(set.intersection(*(set(week.epochs) for week in self.weeks)))

    def points(self, batch_size: int, samples: int) -> tuple[PowerMeasurement, ...]:
        """An epoch at each power limit."""
        if not self.epoch_s:
            return simulated(batch_size, samples)[-1:]
        return (PowerMeasurement(POWER_W, self.epoch_s[batch_size], POWER_W),)

    def truths(self, default_batch_size: int) -> list[Scenario]:
        """What each slice's batch sizes cost."""
        return [Scenario(pair_of(w, default_batch_size, self.points, self.max_epochs)) for w in self.weeks]

    def job(self, default_batch_size: int, policy: str) -> ZeusJob:
        """The job that recurs over the slices."""
        return ZeusJob(
            job_id="series",
            batch_sizes=self.batch_sizes,
            default_batch_size=default_batch_size,
            target="loss <= 1",
            max_epochs=self.max_epochs,
            policy=policy,
        )


def read_series(path: Path, max_epochs: int) -> Series:
    """A table's series. Raises JobSpecError that names file, line and column."""
    epochs: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    seconds: dict[int, list[float]] = defaultdict(list)
    for row in rows_of("--table", path, COLUMNS, f"Give a CSV file with the columns {', '.join(COLUMNS)}"):
        b = row.whole("batch_size")
        needed = row.number("epochs") if row.cells["epochs"] else math.inf
        epochs[row.text("slice")][b].append(needed if needed <= max_epochs else math.inf)
        seconds[b].append(row.number("s_per_epoch"))
    weeks = [Week(key, SAMPLES, {b: tuple(e) for b, e in found.items()}) for key, found in epochs.items()]
    if not weeks or not set.intersection(*(set(week.epochs) for week in weeks)):
        raise JobSpecError.of(
            "--table", str(path), "has no batch size that every slice was trained with", "Complete it"
        )
    return Series(weeks, max_epochs, {b: statistics.median(s) for b, s in seconds.items()})


def weather() -> Series:
    """The series of the weather example, at full power."""
    return Series(weeks_of(read(TABLE)), MAX_EPOCHS, {})


def defaults_of(series: Series) -> dict[str, int]:
    """The three defaults. Near-optimal: least total cost of all slices; a run that misses pays ``max_epochs``."""
    sizes = series.batch_sizes
    totals = dict.fromkeys(sizes, 0.0)
    for truth in series.truths(sizes[0]):
        for b in sizes:
            totals[b] += truth.arms[b].run(truth.pair.max_epochs)[0] * truth.arms[b].epoch.cost
    return {"small": sizes[0], "near_optimal": min(sizes, key=lambda b: totals[b]), "large": sizes[-1]}


class Totals(NamedTuple):
    """One replay."""

    cost: float
    below_target: int  # recurrences


def play(series: Series, part: tuple[str, int, int]) -> Totals:
    """One replay: (policy, default batch size, seed)."""
    policy, default, seed = part
    job = series.job(default, policy if policy in POLICIES else POLICIES[0])
    truths = series.truths(default)
    if policy in POLICIES:
        log = replay(series.weeks, job, seed, truths=truths)
    else:
        log = climb(series, truths, job, seed, moves=policy == HILL_CLIMBING)
    spent = math.fsum(run.spent.cost for runs in log for run in runs)
    return Totals(spent, sum(not runs[-1].reached for runs in log))


def climb(series: Series, truths: Sequence[Scenario], job: ZeusJob, seed: int, *, moves: bool) -> list[Runs]:
    """Hill climbing by doubling and halving: what many people do by hand. Without ``moves``: always the default.

    A recurrence at the present size, then one at its neighbour in the present direction; the neighbour becomes the
    present size where it was cheaper, else the direction turns. Where a neighbour misses the target, the present size
    trains in the same recurrence; where both directions have failed, ten recurrences pass before the next try.
    """
    trainings, log = Trainings(job, seed), []
    sizes, at, direction, wait, failures = series.batch_sizes, job.default_batch_size, 1, 1, 0
    last_cost = math.inf
    for week, truth in zip(series.weeks, truths, strict=True):
        runs: Runs = []
        neighbour = sizes.index(at) + direction
        if moves and not wait and 0 <= neighbour < len(sizes):
            runs.append(trainings.attempt(week, truth, _planned(sizes[neighbour])))
            cheaper = runs[0].reached and runs[0].spent.cost < last_cost
            if cheaper:
                at, last_cost, failures = sizes[neighbour], runs[0].spent.cost, 0
            else:
                direction, failures = -direction, failures + 1
            wait = 10 if failures >= 2 else 1
        elif moves and not wait:
            direction, failures, wait = -direction, failures + 1, 1
        if not runs or not runs[-1].reached:
            runs.append(trainings.attempt(week, truth, _planned(at)))
            last_cost, wait = runs[-1].spent.cost, max(wait - 1, 0)
        log.append(runs)
    return log


def _planned(batch_size: int) -> PlannedAttempt:
    return PlannedAttempt(batch_size=batch_size, phase=Phase.PINNED, why="A baseline's choice.")


def figures(ours: Sequence[Totals], default: Sequence[Totals], best: Sequence[Totals]) -> dict[str, float]:
    """Figures of one policy and default over all seeds: ratios of total cost, and the mean recurrences below target."""
    against = ratio_of([t.cost for t in ours], [t.cost for t in default])
    return {
        "total_vs_default": against.value,
        "low": against.low,
        "high": against.high,
        "vs_best_fixed": ratio_of([t.cost for t in ours], [t.cost for t in best]).value,
        "runs_below_target": statistics.fmean(t.below_target for t in ours),
    }


def measure(series: Series, policies: Sequence[str], seeds: int, jobs: int | None = None) -> dict[str, Any]:
    """{policy: {"small" | "near_optimal" | "large": figures}}."""
    chosen = defaults_of(series)
    wanted = list(dict.fromkeys([*policies, DEFAULT]))
    parts = [(p, b, seed) for p in wanted for b in dict.fromkeys(chosen.values()) for seed in range(seeds)]
    found: dict[tuple[str, int], list[Totals]] = defaultdict(list)
    for part, totals in zip(parts, on_all_cores(partial(play, series), parts, jobs), strict=True):
        found[part[:2]].append(totals)
    best = found[DEFAULT, chosen["near_optimal"]]
    return {
        policy: {
            kind: {"batch_size": b, **figures(found[policy, b], found[DEFAULT, b], best)} for kind, b in chosen.items()
        }
        for policy in policies
    }


def markdown(measured: Mapping[str, Any]) -> list[str]:
    """The figures as a table."""
    head = ["policy", "default", "total against always the default", "against the best fixed size", "below target"]
    rows = []
    for policy, kinds in measured.items():
        for kind, f in kinds.items():
            low, high = (f"{100 * (f[name] - 1):+.1f}" for name in ("low", "high"))
            total = f"{100 * (f['total_vs_default'] - 1):+.1f} % [{low}, {high}]"
            fixed = f"{100 * (f['vs_best_fixed'] - 1):+.1f} %"
            rows.append([policy, f"{f['batch_size']} ({kind})", total, fixed, f"{f['runs_below_target']:.1f}"])
    return table(head, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; 2 where it cannot be run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, help="CSV file of a series; default: the weather example's 40 weeks")
    parser.add_argument("--max-epochs", type=int, default=MAX_EPOCHS, help="epochs at which a training ends")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--policy", choices=NAMES, default=POLICIES[0])
    parser.add_argument("--report", type=Path, help="write the figures there, as JSON")
    parser.add_argument("--jobs", type=int, help="processes; default: one per core")
    args = parser.parse_args(arguments)
    try:
        series = read_series(args.table, args.max_epochs) if args.table else weather()
    except ZeusError as error:
        print(error, file=sys.stderr)
        return 2
    baselines = [name for name in ("zeus", HILL_CLIMBING) if name != args.policy]
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
