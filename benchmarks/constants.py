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

import hashlib
import importlib
import math
import pkgutil
import time
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
from airflow_provider_zeus.simulation.driver import replay as replay_job
from airflow_provider_zeus.simulation.environment import Log
from benchmarks.command import add, chosen_traces, command, on_all_cores, parser_of
from benchmarks.quality.case_set import Cases, Recurring, recurring
from benchmarks.replays import spent_by
from benchmarks.report import mean_ci, plus_minus, table

FACTORS = {"halved": 0.5, "doubled": 2.0}
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


_GP, _SF, _EC = f"{KG}.gp", f"{KG}.slice_filter", f"{KG}.epoch_cost"
_AQ, _DC = f"{KG}.acquisition", f"{KG}.decision_context"
_SP = f"{KG}.slice_paths"
_TUNED = "tuned on these traces"
_STATIC = "tuned on static scenarios"
_DRIFT = "tuned on drift scenarios"
_ALL = "tuned on these traces and the two series"
_KEPT = "an earlier search, then kept"
DECIDING = (
    Constant(_GP, "SLOPE", "KG-2: prior d log Epochs / d log b above the default", _TUNED, off=0.0),
    Constant(_GP, "TREND_SD", "KG-3: sd of the linear trend, per octave", _TUNED, off=1e-3),
    Constant(_GP, "SMOOTH_SD", "KG-3: sd of the smooth part", _TUNED, off=1e-3),
    Constant(_GP, "LENGTH_OCTAVES", "KG-3: its length scale [octaves]", _TUNED),
    Constant(_GP, "OWN_SD", "KG-3: sd of a size's deviation from its neighbours", _TUNED, off=1e-3),
    Constant(_GP, "P_FAIL", "KG-9, KG-21: a complete run misses by chance", _TUNED, 0.99, off=1e-6),
    Constant(_SF, "P_ALIKE", "KG-4: prior probability that slices are equally hard", _ALL, 0.99, off=1.0 - 1e-9),
    Constant(_SF, "CORRELATION", "KG-5: of the difficulties of consecutive slices", _ALL, 0.99, off=0.0),
    Constant("slices", "OUT_OF_REACH", "missed slices in a row that teach", "judgement", off=1),
    Constant(_AQ, "OCTAVES", "KG-19: distance of a candidate from a converged size", _TUNED),
    Constant(_AQ, "BEYOND_FACTOR", "KG-20: cost factor where one more run is needed", _STATIC, off=1.0),
    Constant(_AQ, "CAUTION", "KG-22: sd of ln C(b) - ln C(default) that count against b", _ALL, off=0.0),
    Constant(_DC, "EXTRA_SHARE", "KG-23: share of the default's cost that tries may cost", _ALL, off=0.0),
    Constant(_AQ, "HORIZON", "KG-26, KG-28: recurrences that will use an answer", _ALL),
    Constant(_AQ, "LOSS_AVERSION", "KG-27: joules saved that make up for one lost", _ALL, off=0.0),
    Constant(_SF, "JUMP", "KG-6: sd of a lasting change of log Epochs", _DRIFT),
    Constant(_SF, "HAZARD", "KG-33: prior probability that the data change before a slice", _DRIFT, off=1e-30),
    Constant(_SF, "KEPT", "KG-33: newest slices before which a change is looked for", "convention: bounded time"),
)
OTHERS = (
    Constant(_EC, "R_SHARE", "KG-16: expected r / default where no power is known", _TUNED),
    Constant(_EC, "R_SD", "KG-13: sd of log r", _TUNED),
    Constant(_EC, "IDLE_LOAD", "KG-15: share of MAXPOWER drawn while waiting", "measured: V100 .15, A40 .28"),
    Constant(_EC, "FULL_LOAD", "KG-15: share drawn while always working", "measured .47 to .8; then " + _TUNED),
    Constant(_EC, "MIN_WORK", "KG-15: least share of a step that is work", _TUNED),
    Constant(_EC, "MAX_WORK", "KG-15: greatest share of a step that is work", _TUNED, 0.99),
    Constant(_EC, "TREND_SD", "KG-14: sd of a trend around the curve, per octave", _TUNED),
    Constant(_EC, "TREND_ELSEWHERE_SD", "KG-17: the same around another GPU's curve", "judgement"),
    Constant(_EC, "OWN_SD", "KG-14: sd of a size's own deviation", _TUNED),
    Constant(_EC, "LEVEL_SD", "KG-14: sd of the level", "convention: vague prior"),
    Constant(_EC, "_R_GRID", "KG-13: grid of log r [sd]", "convention: ± 4 sd"),
    Constant(_GP, "LEVEL_SD", "KG-3: sd of the level", "convention: vague prior"),
    Constant(_SF, "NOISE_SDS", "KG-4: grid of the noise sd", _KEPT),
    Constant(_SF, "SLICE_SDS", "KG-4: grid of the difficulty's sd, beside 0", _KEPT),
    Constant(_SF, "DROPPED_BELOW", "ln P over the best pair's, below which one is dropped", "convention: bounded time"),
    Constant(_AQ, "_OUTCOMES", "KG-24: grid of the log cost of a run [sd]", "convention: ± 3 sd"),
    Constant(_AQ, "_EPOCH_COSTS", "KG-29: grid of the unmeasured log EpochCost [sd]", "convention: ± 1.5 sd"),
    Constant(_AQ, "BISECTION_WIDTH", "KG-30: log EpochCost searched on each side", "convention"),
    Constant(_AQ, "BISECTION_STEPS", "KG-30: halvings of that interval", "precision: 2 / 2^5 = 6 %"),
    Constant(f"{KG}.policy", "HARD", "epoch ratio from which a slice is called hard", "words only"),
    Constant(_DC, "AUDIT_GAP", "KG-32: recurrences between two audits", "judgement"),
    Constant(
        _SP, "UNLIKELY", "ln P over the best pair's, below which pages do not draw one", "convention: bounded time"
    ),
    Constant(_SP, "_JITTER", "variance added so that a covariance has an inverse", "precision"),
    Constant(
        "belief", "RECURRENCES_KEPT", "newest recurrences told apart from their retries", "convention: bounded memory"
    ),
    Constant("belief", "RATES_KEPT", "KG-18: newest trials whose rates are averaged", "convention: bounded memory"),
    Constant("belief", "STRUCK_FOR", "recurrences for which an error bars a size", "judgement"),
    Constant("learn", "FAILURES_KEPT", "failures remembered", "convention: bounded memory"),
    Constant("arms", "RELATIVE_SD", "relative run-to-run sd before any is seen", "paper, section 3.2: 14 %"),
    Constant("thompson", "ROUNDS", "rounds of pruning exploration", "paper, Algorithm 3, line 2"),
)

_ST, _STP, _EP = "starts", f"{KG}.start_policy", f"{KG}.epochs"
_SEEN = "tuned on five of the series of docs/starts.md"
_FA = f"{KG}.family"
RELATIVES = (  # of jobs in a family: replayed by benchmarks.family, and by no case here
    Constant(_FA, "FAR", "KG-37: share of a curve's prior variance that is a job's own", "judgement"),
    Constant(_FA, "P_NO_FAMILY", "KG-39: prior probability that the others do not concern a job", "judgement"),
    Constant(_FA, "P_STRANGER", "KG-38: prior probability that one member is no relative", "judgement"),
    Constant(_FA, "MOST_TOLD", "KG-36: most that one job tells, x the prior's precision", "judgement"),
    Constant(_FA, "MOST_SD", "KG-36: farthest that it lies off the prior's mean [sd]", "judgement"),
    Constant(
        _FA, "REACHED_BY", "KG-19: members that have to have reached a size before it is near for others", "judgement"
    ),
    Constant(_FA, "LEAST_TOLD", "KG-35: least that counts as told, x the prior's precision", "precision"),
    Constant(_FA, "MOST_GROWTH", "log2 of the most that an epoch's cost rises per doubling, as told", "judgement"),
)
STARTS = (  # of jobs that choose where a training starts: replayed by benchmarks.starts, and by no case here
    Constant(_STP, "LEVEL", "ln Epochs of a start that has not run, against a cold one's", "seven real series"),
    Constant(_STP, "LEVEL_SD", "sd of that", "seven real series"),
    Constant(_STP, "WALK_SD", "sd of its change from run to run while the start does not run", _SEEN),
    Constant(_STP, "NEWEST", "newest runs of a start whose mean is what it costs", "judgement"),
    Constant(_EP, "START_NOISE", "variance of a run that is not cold, x that of a cold one", _SEEN),
    Constant(_EP, "START_WALK_SD", "sd of the change of a start's level between its runs", _SEEN),
    Constant(_ST, "RUNS_KEPT", "newest runs of each start that teach it", "convention: bounded time"),
    Constant(_ST, "PAYS_TIMES", "cold runs that the saving since the last one pays before one is due", "judgement"),
    Constant(_ST, "Z_SURE", "sd by which a start serves worse before it is out", "convention: one-sided 95 %"),
    Constant(_ST, "RATIO_SD", "sd of the log quality in service where few are known", "judgement"),
    Constant(_ST, "RATIO_RUNS", "runs that this counts as", "judgement"),
    Constant(_ST, "LONGEST_PAUSE", "cold runs after starts that could not be taken, at most", "judgement"),
)


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
    Rule("decision_context.DecisionContext.returning", _nothing, "a size that has not run for a window is tried again"),
    Rule("decision_context.DecisionContext.predictions", _though_missed, "whose newest run missed is no incumbent"),
    Rule("decision_context.loads", _no_loads, "KG-15: the power drawn says how much of a step is work"),
)


TABLES: dict[str, Sequence[Constant | Rule]] = {
    "Rules, and constants of Epochs and decisions": (*RULES, *DECIDING),
    "EpochCost, grids, bounds on memory, the other policy": OTHERS,
}
CONSTANTS = DECIDING + OTHERS + STARTS + RELATIVES
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
    return found + [Variant(cases, c.policy, c, factor) for c in scaled for factor in FACTORS.values()]


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


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; 2 where it cannot be run."""
    parser = parser_of(__doc__, "--traces --every --series --max-epochs", every=8)
    parser.add_argument("--mlperf", type=Path, help="folder of MLPerf's convergence points; default: none")
    parser.add_argument("--deciding", action="store_true", help="the constants and rules that decide alone")
    args, start = add(parser, "--seeds --jobs", seeds=1).parse_args(arguments), time.monotonic()
    chosen_traces(args)
    cases = Cases(args.traces, args.series, tuple(args.max_epochs), args.mlperf, seeds=args.seeds, every=args.every)
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
    print(f"{time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
