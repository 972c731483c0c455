"""What each rule and constant of the policies is worth: ``python -m benchmarks.constants --traces DIR [--series DIR]``.

Replays all cases that the default policy is judged by (``benchmarks.quality.case_set``) with each constant of
``optimizer/`` halved, doubled and, where that means something, at the value at which what it rules is not there;
and without each rule that has no constant. Constants of ``arms`` and ``thompson`` are replayed under ``zeus``, all
others under ``knowledge_gradient``. Integers stay at least 1; all points of a grid are scaled.

Figures are the change of a case's total cost [%], with common random numbers: the mean over cases and seeds with its
95 % interval, and the worst case in brackets. Above 0: the present value is cheaper. ``=``: the same decisions in all
replays. ``--every 8`` takes every eighth drift and the regimes of every eighth pair alone. The policy was tuned on the
traces and on some of the series: the tables do not show what suits other jobs. Every figure is simulated.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import math
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from airflow_provider_zeus import optimizer
from airflow_provider_zeus.model.trial import Decision
from airflow_provider_zeus.optimizer.knowledge_gradient import slice_filter
from airflow_provider_zeus.optimizer.knowledge_gradient.acquisition import NormalGrid, Predictions
from airflow_provider_zeus.optimizer.knowledge_gradient.decision_context import DecisionContext
from airflow_provider_zeus.optimizer.policy import choose
from benchmarks.command import chosen_traces, command, on_all_cores, option, took
from benchmarks.quality.case_set import Cases, Recurring, recurring
from benchmarks.replays import spent_by
from benchmarks.report import mean_ci, plus_minus, table
from benchmarks.simulation.driver import replay as replay_job
from benchmarks.simulation.environment import Log

OFF = "off"
KG = "knowledge_gradient"


class Constant(NamedTuple):
    """One constant of ``optimizer/``: where it is, what it means, and where its value comes from."""

    module: str  # below optimizer
    name: str
    meaning: str
    source: str
    highest: float = math.inf  # largest value that has a meaning
    off: float | None = None  # the value at which what it rules is not there; None: there is none

    @property
    def home(self) -> ModuleType:
        """The module that defines it."""
        return importlib.import_module(f"{optimizer.__name__}.{self.module}")

    @property
    def value(self) -> Any:
        """Its present value."""
        return getattr(self.home, self.name)

    @property
    def policy(self) -> str:
        """The policy under which it is replayed."""
        return "zeus" if self.module in ("arms", "thompson") else KG

    def scaled(self, factor: float) -> Any:
        """The value times ``factor``."""
        if isinstance(self.value, NormalGrid):
            return NormalGrid.of(self.value.z * factor)
        if isinstance(self.value, np.ndarray):
            return self.value * factor
        if isinstance(self.value, tuple):
            return tuple(v * factor for v in self.value)
        return (
            max(1, int(self.value * factor)) if isinstance(self.value, int) else min(self.value * factor, self.highest)
        )

    def __str__(self) -> str:
        points = self.value.z if isinstance(self.value, NormalGrid) else self.value
        if isinstance(points, np.ndarray | tuple):
            return f"{len(points)} points, {points[0]:g} to {points[-1]:g}"
        return f"{points:g}"


PAGE = Path(__file__).resolve().parents[1] / "docs" / "knowledge-gradient.md"
OFF_AT = {  # the value at which what a constant rules is not there
    "gp.SLOPE": 0.0,
    "gp.TREND_SD": 1e-3,
    "gp.SMOOTH_SD": 1e-3,
    "gp.OWN_SD": 1e-3,
    "gp.P_FAIL": 1e-6,
    "slice_filter.P_ALIKE": 1.0 - 1e-9,
    "slice_filter.CORRELATION": 0.0,
    "slices.OUT_OF_REACH": 1,
    "acquisition.BEYOND_FACTOR": 1.0,
    "acquisition.CAUTION": 0.0,
    "decision_context.EXTRA_SHARE": 0.0,
    "acquisition.LOSS_AVERSION": 0.0,
    "slice_filter.HAZARD": 1e-30,
}
MOST = dict.fromkeys(("gp.P_FAIL", "slice_filter.P_ALIKE", "slice_filter.CORRELATION", "epoch_cost.MAX_WORK"), 0.99)


def listed() -> list[tuple[Constant, ...]]:
    """The constants of each table of the page, which says what they mean and where their values come from."""
    found: list[list[Constant]] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| constant | module |"):
            found.append([])
        elif line.startswith("| `"):
            name, module, _, meaning, source = (cell.strip("`") for cell in line.strip("| ").split(" | "))
            key, ours = f"{module}.{name}", Path(optimizer.__path__[0], KG, f"{module}.py").exists()
            path = f"{KG}.{module}" if ours else module
            found[-1].append(Constant(path, name, meaning, source, MOST.get(key, math.inf), OFF_AT.get(key)))
    return [tuple(table) for table in found]


DECIDING, OTHERS, STARTS = listed()  # the last are replayed by benchmarks.starts and no case here


class Rule(NamedTuple):
    """A rule of the policy that has no constant: what stands in its place where it is off."""

    path: str  # below optimizer.knowledge_gradient
    off: Callable[..., Any]
    meaning: str

    @property
    def name(self) -> str:
        """Of the rule in a table."""
        return self.path.rpartition(".")[2]


_PREDICTIONS = DecisionContext.predictions


def _though_missed(context: DecisionContext) -> Predictions | None:
    return _PREDICTIONS(context._replace(missed=frozenset()))


def _nothing(*args: object) -> None: ...


def _no_loads(*args: object) -> dict[int, float]:
    return {}


RULES = (
    Rule("policy._returning", _nothing, "a size that has not run for a window is tried again"),
    Rule("decision_context.DecisionContext.predictions", _though_missed, "whose newest run missed is no incumbent"),
    Rule("decision_context.loads", _no_loads, "KG-15: the power drawn says how much of a step is work"),
)


TABLES: dict[str, Sequence[Constant | Rule]] = {
    "Rules, and constants of Epochs and decisions": (*RULES, *DECIDING),
    "EpochCost, grids, bounds on memory, the other policy": OTHERS,
}
CONSTANTS = DECIDING + OTHERS + STARTS
WORDS = {("belief", "TARGET_IS_NEW"), ("learn", "_MOST_TARGET")}  # of the sentence of a decision alone
DERIVED = ("NOISE", "DIFFICULTY", "_LOG_PRIOR")  # of slice_filter, by its _grid()


class Variant(NamedTuple):
    """Replays of one policy with one constant at another value, or one rule off; neither: as it is.

    ``value``: a factor, or OFF.
    """

    cases: Cases
    policy: str
    constant: Constant | Rule | None = None
    value: float | str = 1.0


class Outcome(NamedTuple):
    """What one variant cost."""

    spent: dict[str, list[float]]  # by group: of each case and seed [J]
    below: int  # recurrences below target in all cases
    decisions: str  # digest of every decision, sentences left out


@contextmanager
def patched(constant: Constant, value: object) -> Iterator[None]:
    """Give a constant another value, in the modules that import it, too, and restore it.

    At both ends caches are cleared, and what is computed from constants at import is computed again.
    """
    names = [m.name for m in pkgutil.walk_packages(optimizer.__path__, f"{optimizer.__name__}.")]
    modules, before = [importlib.import_module(name) for name in names], constant.value
    # another module may have a constant of the same name: only the same object is the same constant
    users = [m for m in modules if vars(m).get(constant.name) is before]
    try:
        _set(modules, users, constant.name, value)
        yield
    finally:
        _set(modules, users, constant.name, before)


def _set(modules: Sequence[ModuleType], users: Sequence[ModuleType], name: str, value: object) -> None:
    for module in users:
        setattr(module, name, value)
    grid = vars(slice_filter)
    grid.update(zip(DERIVED, grid["_grid"](), strict=True))
    for f in [f for m in modules for f in vars(m).values() if hasattr(f, "cache_clear")]:
        f.cache_clear()


def outcome_of(variant: Variant) -> Outcome:
    """Replay one variant."""
    c, digest, found, below = variant.constant, hashlib.sha256(), dict[str, list[float]](), 0
    if isinstance(c, Constant):
        off: Any = patched(c, c.off if variant.value == OFF else c.scaled(float(variant.value)))
    else:
        off = patch(f"{optimizer.__name__}.{KG}.{c.path}", c.off) if c else nullcontext()
    with off:
        for group, jobs in recurring(variant.cases).items():
            for each, seed in product(jobs, variant.cases.drawn(variant.cases.seeds)):
                log = _replay(each, variant.policy, seed, digest)
                found.setdefault(group, []).append(spent_by(log))
                below += log.runs_below_target
    return Outcome(found, below, digest.hexdigest())


def _replay(what: Recurring, policy: str, seed: int, digest: Any) -> Log:
    """Replay a job under a policy. Every decision is added to ``digest``."""
    job = replace(what.job, policy=policy)

    def recorded(*args: Any, **kwargs: Any) -> Decision:
        decision = choose(*args, **kwargs)
        for a in decision.attempts:
            bounds = (a.bound_cost, a.bound_epochs, a.max_epoch_cost)  # equal but for rounding is equal
            digest.update(repr((a.batch_size, a.phase, *(b and f"{b:.9g}" for b in bounds))).encode())
        return decision

    return replay_job(what.first, job, what.recurrences, seed, what.shifts, choose=recorded)


def variants_of(cases: Cases, constants: Sequence[Constant | Rule]) -> list[Variant]:
    """As it is, under each policy that is needed, and each constant at its other values."""
    policies = dict.fromkeys(c.policy if isinstance(c, Constant) else KG for c in constants)
    found = [Variant(cases, policy) for policy in policies]
    found += [Variant(cases, KG, c, OFF) for c in constants if isinstance(c, Rule) or c.off is not None]
    scaled = (c for c in constants if isinstance(c, Constant))
    return found + [Variant(cases, c.policy, c, factor) for c in scaled for factor in (0.5, 2.0)]


def row_of(variant: Variant, now: Outcome, then: Outcome) -> list[str]:
    """How much dearer than now each group is, the mean and the worst of its cases."""
    c = variant.constant
    name = f"`{c.name}` {c}" if isinstance(c, Constant) else f"`{c.name}`" if c else ""
    said = [name, c.meaning if c else "", OFF if variant.value == OFF else f"x {variant.value:g}"]
    if then.decisions == now.decisions:
        return [*said, *("=" for _ in now.spent), "="]
    return [*said, *(_dearer(now.spent[g], then.spent[g]) for g in now.spent), f"{then.below - now.below:+d}"]


def _dearer(now: Sequence[float], then: Sequence[float]) -> str:
    """Mean change of the cost of a case [%], with its 95 % interval over cases and seeds; the worst."""
    percents = [100 * math.log(b / a) for a, b in zip(now, then, strict=True)]
    return f"{plus_minus(mean_ci(percents), '+.2f')} ({max(percents):+.0f})"


@command(
    "--traces --every --series --max-epochs --seeds --jobs",
    option("--mlperf", type=Path, help="folder of MLPerf's convergence points; default: none"),
    option("--deciding", action="store_true", help="the constants and rules that decide alone"),
    every=8,
    seeds=1,
)
def main(args: argparse.Namespace) -> None:
    """Run what the command line says; 2 where it cannot be run."""
    folders = chosen_traces(args).folder, args.series, tuple(args.max_epochs), args.mlperf
    cases = Cases(*folders, seeds=args.seeds, every=args.every)
    sizes = {group: len(jobs) for group, jobs in recurring(cases).items()}
    print(f"Change of the total cost [%]; {args.seeds} seeds; cases: {sizes}")
    for title, constants in TABLES.items():
        if args.deciding and constants is OTHERS:
            continue
        variants = variants_of(cases, constants)
        head = ["constant or rule", "meaning", "at", *sizes, "below target"]
        print("\n".join(["", f"{title}: {len(constants)}", "", *table(head, [])]), flush=True)
        now: dict[str, Outcome] = {}  # by policy; these variants come first
        for variant, then in zip(variants, on_all_cores(outcome_of, variants, args.jobs), strict=True):
            before = now.setdefault(variant.policy, then)
            if variant.constant:
                print(table(row_of(variant, before, then), [])[0], flush=True)
    print(f"{took(args)}")
