"""What a job gains by its siblings. ``python -m benchmarks.family --tables A.csv B.csv C.csv --max-epochs 60``

Replays the tables one after the other, as the jobs of one family: each job hears what those before it have learnt. Up
to four tables come in every order, more of them in each rotation. For each default (see ``benchmarks.series``) it tells
the mean of total cost over that of always training the default, from the second table on: ``alone``, as without a
family, and in the ``family``.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import cache, partial
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

from airflow_provider_zeus.model.family import Told
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.policy import choose, heard_by, learn, told_by
from airflow_provider_zeus.simulation.environment import Log
from benchmarks.command import add, command, on_all_cores, parser_of, positive
from benchmarks.quality.choosers import DEFAULT
from benchmarks.quality.slice_tables import KINDS, Series, defaults_of, read_series
from benchmarks.quality.slice_trainings import replay
from benchmarks.report import table, write_json
from benchmarks.series import play

EVERY_ORDER = 4  # tables


class Replayed(NamedTuple):
    """One job's replay."""

    total: float  # against always the default
    told: Told | None  # at its end


def orders(tables: int) -> list[tuple[int, ...]]:
    """In which orders the tables come: an order is known by their places in the list."""
    if tables <= EVERY_ORDER:
        return list(permutations(range(tables)))
    return [tuple((start + i) % tables for i in range(tables)) for start in range(tables)]


def job_among(series: Series, default: int, seed: int, others: Sequence[Told]) -> Replayed:
    """A replay of one job whose siblings have told what they know before it begins."""
    newest: list[Belief] = []

    def learning(belief: Belief, trial: Trial) -> Belief:
        newest[:] = [learn(belief, trial)]
        return newest[0]

    def choosing(job: Any, belief: Belief, **asked: Any) -> Any:
        return choose(job, belief, family=heard_by(belief, asked["device"], others), **asked)

    job, truths = series.job(default, "knowledge_gradient"), series.truths(default)
    log: Log = replay(series.weeks, job, seed, truths=truths, learn=learning, choose=choosing)
    always = play(series, (DEFAULT, default, seed)).cost
    spent = sum(run.cost for runs in log.runs for run in runs)
    return Replayed(spent / always, told_by(newest[0], None))


def one_seed(tables: Sequence[Series], part: tuple[str, int]) -> tuple[list[float], list[float]]:
    """Ratios of all orders from the second table on: (alone, in the family)."""
    kind, seed = part
    defaults = [defaults_of(series)[kind] for series in tables]

    @cache
    def after(order: tuple[int, ...]) -> Replayed:
        """The last job of an order. What its siblings told does not depend on how the tables go on after it."""
        others = [told for i in range(1, len(order)) if (told := after(order[:i]).told) is not None]
        return job_among(tables[order[-1]], defaults[order[-1]], seed, others)

    whole = [(order, i) for order in orders(len(tables)) for i in range(2, len(order) + 1)]
    return [after((order[i - 1],)).total for order, i in whole], [after(order[:i]).total for order, i in whole]


def measure(tables: Sequence[Series], seeds: int, jobs: int | None = None) -> dict[str, dict[str, float]]:
    """{"alone" | "family": {kind: mean ratio}}."""
    parts = [(kind, seed) for kind in KINDS for seed in range(seeds)]
    found: dict[str, dict[str, float]] = {"alone": {}, "family": {}}
    ratios = dict(zip(parts, on_all_cores(partial(one_seed, tables), parts, jobs), strict=True))
    for kind in KINDS:
        for name, at in (("alone", 0), ("family", 1)):
            found[name][kind] = statistics.fmean(r for seed in range(seeds) for r in ratios[kind, seed][at])
    return found


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; 2 where it cannot be run."""
    parser = parser_of(__doc__)
    parser.add_argument("--tables", type=Path, nargs="+", required=True, help="CSV files of two series or more")
    most = "epochs at which a training ends; default: the most of each table"
    parser.add_argument("--max-epochs", type=positive, help=most)
    args = add(parser, "--seeds --report --jobs", seeds=4).parse_args(arguments)
    tables = [read_series(path, args.max_epochs) for path in args.tables]
    found = measure(tables, args.seeds, args.jobs)
    rows = [[kind, *(f"{found[name][kind]:.3f}" for name in found)] for kind in KINDS]
    print("\n".join(table(["default", *found], rows)))
    write_json(args.report, found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
