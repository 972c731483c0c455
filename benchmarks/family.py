"""What a job gains by its siblings. ``python -m benchmarks.family --tables A.csv B.csv C.csv --max-epochs 60``

Replays the tables one after the other, as the jobs of one family: each job hears what those before it have learnt. Up
to four tables come in every order, more of them in each rotation. For each default (see ``benchmarks.series``) it tells
the mean of total cost over that of always training the default, from the second table on: ``alone``, as without a
family, and in the ``family``. With ``--at-once N`` so many siblings, each on one of the tables in turn, begin every
slice at the same time instead; beside their cost it tells how many ``tries`` each of them made.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

from airflow_provider_zeus.model.family import Told
from airflow_provider_zeus.model.trial import Decision, Phase, Trial
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.policy import choose, decision_seed, heard_by, learn, prior, told_by
from airflow_provider_zeus.store.sql.families import MOST_MEMBERS
from benchmarks.command import command, on_all_cores, option, positive
from benchmarks.quality.choosers import DEFAULT
from benchmarks.quality.slice_tables import KINDS, Series, defaults_of, read_series
from benchmarks.quality.slice_trainings import Trainings, replay
from benchmarks.report import table, write_json
from benchmarks.series import play
from benchmarks.simulation.driver import Writer
from benchmarks.simulation.environment import Log

EVERY_ORDER = 4  # tables

Figures = dict[str, list[float]]  # by column


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
    log: Log = replay(series.weeks, truths, job, seed, learn=learning, choose=choosing)
    always = play(series, (DEFAULT, default, seed)).cost
    spent = sum(run.cost for runs in log.runs for run in runs)
    return Replayed(spent / always, told_by(newest[0], None))


class Sibling:
    """One of the jobs that begin every slice at once."""

    def __init__(self, series: Series, kind: str, seed: int) -> None:
        default = defaults_of(series)[kind]
        self.series, self.seed = series, seed
        self.told: Told | None = None
        self.job, self.truths = series.job(default, "knowledge_gradient"), series.truths(default)
        self.trainings, self.writer = (
            Trainings(series.weeks, self.truths, self.job, seed),
            Writer(self.job, self.truths[0]),
        )
        self.always = play(series, (DEFAULT, default, seed)).cost
        self.belief, self.cost, self.tries = prior(self.job), 0.0, 0

    def decide(self, others: Sequence[Told] | None, trying: Sequence[int]) -> Decision:
        """``others``: None without a family."""
        device, family = self.truths[0].device, None
        if others is not None:
            self.told = told_by(self.belief, device)
            family = heard_by(self.belief, device, others, trying)
        seed = decision_seed(self.writer.job_id, self.writer.number + 1, self.seed)
        return choose(self.job, self.belief, device=device, seed=seed, family=family)

    def train(self, t: int, decision: Decision) -> None:
        """Run a decision on the t-th slice."""
        week, self.trainings.scenario = self.series.weeks[t], self.truths[t]
        for n, attempt in enumerate(decision.attempts, 1):
            run = self.trainings.attempt(attempt)
            trial = self.writer.open(decision, attempt, n, ti_id=week.slice_key, data_slice=week.slice_key)
            self.belief = learn(self.belief, self.writer.close(trial, run, week.samples_per_epoch))
            self.cost, self.tries = self.cost + run.cost, self.tries + attempt.bounded
            if run.reached:
                break


def at_once(tables: Sequence[Series], members: int, part: tuple[str, int]) -> Figures:
    """Cost against always the default, and tries, of a sibling without a family and in it: their means."""
    each = {name: _played(tables, members, *part, in_family=name == "family") for name in ("alone", "family")}
    costs = {name: [statistics.fmean(s.cost / s.always for s in siblings)] for name, siblings in each.items()}
    return costs | {f"{name}, tries": [statistics.fmean(s.tries for s in of)] for name, of in each.items()}


def _played(tables: Sequence[Series], members: int, kind: str, seed: int, *, in_family: bool) -> list[Sibling]:
    siblings = [Sibling(tables[i % len(tables)], kind, seed * members + i) for i in range(members)]
    for t in range(min(len(series.weeks) for series in tables)):
        decisions: list[Decision] = []
        for each in siblings:  # one after the other, as the lock of their family lets them
            firsts = [decision.attempts[0] for decision in decisions]
            trying = [first.batch_size for first in firsts if first.phase is Phase.EXPLORE]
            told = [other.told for other in siblings if other is not each and other.told is not None]
            others = sorted(told, key=lambda one: -one.learnt)[:MOST_MEMBERS] if in_family else None
            decisions.append(each.decide(others, trying))
        for each, decision in zip(siblings, decisions, strict=True):
            each.train(t, decision)
    return siblings


def one_by_one(tables: Sequence[Series], part: tuple[str, int]) -> Figures:
    """Ratios of all orders from the second table on."""
    kind, seed = part
    defaults = [defaults_of(series)[kind] for series in tables]

    @cache
    def after(order: tuple[int, ...]) -> Replayed:
        """The last job of an order. What its siblings told does not depend on how the tables go on after it."""
        others = [told for i in range(1, len(order)) if (told := after(order[:i]).told) is not None]
        return job_among(tables[order[-1]], defaults[order[-1]], seed, others)

    begun = [order[:i] for order in orders(len(tables)) for i in range(2, len(order) + 1)]
    return {"alone": [after(some[-1:]).total for some in begun], "family": [after(some).total for some in begun]}


def measure(
    work: Callable[[tuple[str, int]], Figures], seeds: int, jobs: int | None = None
) -> dict[str, dict[str, float]]:
    """{"alone" | "family": {kind: mean}}, and whatever else ``work`` tells of a kind of default and a seed."""
    parts = [(kind, seed) for kind in KINDS for seed in range(seeds)]
    found: dict[str, dict[str, list[float]]] = {}
    for (kind, _), figures in zip(parts, on_all_cores(work, parts, jobs), strict=True):
        for name, values in figures.items():
            found.setdefault(name, {}).setdefault(kind, []).extend(values)
    return {name: {kind: statistics.fmean(of[kind]) for kind in KINDS} for name, of in found.items()}


@command(
    "--seeds --report --jobs",
    option("--tables", type=Path, nargs="+", required=True, help="CSV files of two series or more"),
    option("--max-epochs", type=positive, help="epochs at which a training ends; default: the most of each table"),
    option(
        "--at-once",
        type=positive,
        metavar="N",
        help="siblings that begin each slice at the same time; default: one job after the other",
    ),
    seeds=4,
)
def main(args: argparse.Namespace) -> None:
    """Run what the command line says; 2 where it cannot be run."""
    tables = [read_series(path, args.max_epochs) for path in args.tables]
    work = partial(at_once, tables, args.at_once) if args.at_once else partial(one_by_one, tables)
    found = measure(work, args.seeds, args.jobs)
    rows = [[kind, *(f"{found[name][kind]:.3f}" for name in found)] for kind in KINDS]
    print("\n".join(table(["default", *found], rows)))
    write_json(args.report, found)
