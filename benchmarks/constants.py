"""What each constant of the policies changes: ``python -m benchmarks.constants --traces DIR [--series DIR]``.

Replays every workload of the folder with each constant of ``optimizer/`` halved and doubled, 2 |B| |P| recurrences per
seed, with common random numbers, and prints the tables of ``docs/knowledge-gradient.md``: the change of the expected
regret [C*], mean over the pairs of workload and GPU, with 95 % intervals over the seeds. Constants of ``arms`` and
``thompson`` are replayed under the policy ``zeus``, all others under ``knowledge_gradient``. Integers stay at least 1;
all points of a grid are scaled. The policy was tuned on these traces: the tables do not show what suits other jobs.

``--series`` replays the retraining series of a folder, too; the tables then show the change of their total cost [%],
mean over series and default batch sizes. Every figure is simulated; nothing is trained.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import pkgutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from airflow_provider_zeus import optimizer
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Decision
from airflow_provider_zeus.optimizer.knowledge_gradient import slice_filter
from airflow_provider_zeus.optimizer.knowledge_gradient.acquisition import NormalGrid
from airflow_provider_zeus.optimizer.policy import choose
from airflow_provider_zeus.simulation.driver import replay as replay_job
from airflow_provider_zeus.simulation.environment import Log
from airflow_provider_zeus.simulation.scenario import Scenario
from airflow_provider_zeus.simulation.traces import Traces
from benchmarks.command import add, chosen_traces, command, on_all_cores, parser_of
from benchmarks.quality.slice_tables import defaults_of, read_series, tables_in
from benchmarks.replays import spent_by
from benchmarks.report import mean_ci, plus_minus, table

FACTORS = {"halved": 0.5, "doubled": 2.0}
AT = 20  # recurrences after which regret is compared, beside the end
KG = "knowledge_gradient"


class Constant(NamedTuple):
    """One constant of ``optimizer/``: where it is, what it means, and where its value comes from."""

    module: str  # below optimizer
    name: str
    meaning: str
    source: str
    highest: float = math.inf  # largest value that has a meaning

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
_DRIFT = "tuned on drift scenarios"
_ALL = "tuned on these traces and the two series"
_KEPT = "an earlier search, then kept"
DECIDING = (
    Constant(_GP, "SLOPE", "KG-2: prior d log Epochs / d log b above the default", _TUNED),
    Constant(_GP, "TREND_SD", "KG-3: sd of the linear trend, per octave", _TUNED),
    Constant(_GP, "SMOOTH_SD", "KG-3: sd of the smooth part", _TUNED),
    Constant(_GP, "LENGTH_OCTAVES", "KG-3: its length scale [octaves]", _TUNED),
    Constant(_GP, "OWN_SD", "KG-3: sd of a size's deviation from its neighbours", _TUNED),
    Constant(_GP, "P_FAIL", "KG-9, KG-21: a complete run misses by chance", _TUNED, 0.99),
    Constant(_SF, "NOISE_SD", "KG-4: median of the prior of the noise sd", _KEPT),
    Constant(_SF, "NOISE_LOG_SD", "KG-4: sd of its logarithm", _KEPT),
    Constant(_SF, "SLICE_SD", "KG-4: median of the prior of the difficulty's sd", _KEPT),
    Constant(_SF, "SLICE_LOG_SD", "KG-4: sd of its logarithm", _KEPT),
    Constant(_SF, "P_ALIKE", "KG-4: prior probability that slices are equally hard", _ALL, 0.99),
    Constant(_SF, "CORRELATION", "KG-5: of the difficulties of consecutive slices", _ALL, 0.99),
    Constant(_SF, "FORGETTING_JUMP", "KG-6: jump after which the shape is unknown again", _ALL),
    Constant("slices", "OUT_OF_REACH", "missed slices in a row that teach", "judgement"),
    Constant(_AQ, "OCTAVES", "KG-19: distance of a candidate from a converged size", _TUNED),
    Constant(_AQ, "BEYOND_FACTOR", "KG-20: cost factor where one more run is needed", "tuned on static scenarios"),
    Constant(_AQ, "CAUTION", "KG-22: sd of ln C(b) - ln C(default) that count against b", _ALL),
    Constant(_DC, "EXTRA_SHARE", "KG-23: share of the default's cost that tries may cost", _ALL),
    Constant(_AQ, "HORIZON", "KG-26, KG-28: recurrences that will use an answer", _ALL),
    Constant(_AQ, "LOSS_AVERSION", "KG-27: joules saved that make up for one lost", _ALL),
    Constant("learn", "KNOWN_RUNS", "KG-33: converged runs before a size can show a change", "judgement"),
    Constant("drift", "MOST_SDS", "KG-33: sd that a surprise counts at most", "derived: 1 < evidence < 2 of them"),
    Constant("drift", "JUMP", "KG-34: prior sd of a jump of log Epochs", _DRIFT),
    Constant("drift", "LOG_BAYES_FACTOR", "KG-34: evidence needed", _DRIFT),
    Constant("drift", "SURPRISES", "KG-34: newest surprises that may show a change", _DRIFT),
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
    Constant(_EC, "SMOOTH_SD", "KG-14: sd of the smooth deviation", _TUNED),
    Constant(_EC, "LENGTH_OCTAVES", "KG-14: its length scale [octaves]", _TUNED),
    Constant(_EC, "OWN_SD", "KG-14: sd of a size's own deviation", _TUNED),
    Constant(_EC, "LEVEL_SD", "KG-14: sd of the level", "convention: vague prior"),
    Constant(_EC, "_R_GRID", "KG-13: grid of log r [sd]", "convention: ± 4 sd"),
    Constant(_GP, "LEVEL_SD", "KG-3, KG-6: sd of the level", "convention: vague prior"),
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
TABLES = {"Epochs and decisions": DECIDING, "EpochCost, grids, bounds on memory, the other policy": OTHERS}
CONSTANTS = DECIDING + OTHERS
WORDS = {("belief", "TARGET_IS_NEW"), ("learn", "_MOST_TARGET")}  # of the sentence of a decision alone
DERIVED = ("NOISE", "DIFFICULTY", "_LOG_PRIOR")  # of slice_filter, by its _grid()


class Variant(NamedTuple):
    """Replays of one policy with one constant scaled; ``constant`` None: with all values as they are."""

    traces: Path
    gpus: tuple[str, ...]
    workloads: tuple[str, ...]
    series: Path | None
    seeds: int
    policy: str
    constant: Constant | None = None
    factor: float = 1.0


class Recurring(NamedTuple):
    """A job, what holds in its recurrences (the last for all that follow), and how often it recurs."""

    job: ZeusJob
    truths: Sequence[Scenario]
    recurrences: int


class Outcome(NamedTuple):
    """Figures of one variant, one entry per seed."""

    regret_20: list[float]  # [C*], mean over the pairs
    regret_end: list[float]
    series_cost: list[float]  # mean over the series of the logarithm of the total cost
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
    pairs, series = _jobs(*variant[:4])
    found, digest, constant = Outcome([], [], [], ""), hashlib.sha256(), variant.constant
    with patched(constant, constant.scaled(variant.factor)) if constant else nullcontext():
        for seed in range(variant.seeds):
            curves = [_replay(pair, variant.policy, seed, digest).expected_regret() for pair in pairs]
            found.regret_20.append(statistics.fmean(c[min(AT, len(c)) - 1] for c in curves))
            found.regret_end.append(statistics.fmean(c[-1] for c in curves))
            costs = [spent_by(_replay(each, variant.policy, seed, digest)) for each in series]
            found.series_cost.append(statistics.fmean(map(math.log, costs)) if costs else 0.0)
    return found._replace(decisions=digest.hexdigest())


def _replay(what: Recurring, policy: str, seed: int, digest: Any) -> Log:
    """Replay a job under a policy. Every decision is added to ``digest``."""
    job, (first, *_) = replace(what.job, policy=policy), what.truths

    def recorded(*args: Any, **kwargs: Any) -> Decision:
        decision = choose(*args, **kwargs)
        for a in decision.attempts:
            bounds = (a.bound_cost, a.bound_epochs, a.max_epoch_cost)  # equal but for rounding is equal
            digest.update(repr((a.batch_size, a.phase, *(b and f"{b:.9g}" for b in bounds))).encode())
        return decision

    return replay_job(first, job, what.recurrences, seed, dict(enumerate(what.truths)), choose=recorded)


@cache
def _jobs(
    traces: Path, gpus: tuple[str, ...], workloads: tuple[str, ...], series: Path | None
) -> tuple[list[Recurring], list[Recurring]]:
    """The pairs of workload and GPU; and the series, each with its three defaults."""
    whole = [Scenario(pair) for pair in Traces(traces).pairs(gpus, workloads)]
    tables = [read_series(path) for path in tables_in(series)] if series else []
    slices = [
        Recurring(table.job(b, KG), table.truths(b), len(table.weeks))
        for table in tables
        for b in dict.fromkeys(defaults_of(table).values())
    ]
    return [Recurring(s.job(), [s], s.pair.recurrences) for s in whole], slices


def rows_of(
    constants: Sequence[Constant], outcomes: Mapping[tuple[Constant | str, float], Outcome], *, series: bool
) -> list[list[str]]:
    """Rows of a table. ``outcomes``: by constant and factor; with the present values by policy and 1."""
    rows = []
    for c in constants:
        now, cells, equal = outcomes[c.policy, 1.0], [], []
        for name, factor in FACTORS.items():
            then = outcomes[c, factor]
            if then.decisions == now.decisions:
                cells += ["="] * (3 if series else 2)
                equal.append(name)
                continue
            cells += [_change(now.regret_20, then.regret_20), _change(now.regret_end, then.regret_end)]
            if series:
                percent = [100 * math.expm1(b - a) for a, b in zip(now.series_cost, then.series_cost, strict=True)]
                cells.append(f"{plus_minus(mean_ci(percent), '+.1f')} %")
        module = c.module.removeprefix(f"{KG}.")
        rows.append([f"`{c.name}`", f"`{module}`", str(c), c.meaning, c.source, *cells, ", ".join(equal)])
    return rows


def _change(now: Sequence[float], then: Sequence[float]) -> str:
    return plus_minus(mean_ci([b - a for a, b in zip(now, then, strict=True)]), "+.2f")


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; 2 where it cannot be run."""
    parser = parser_of(__doc__, "--traces --gpus --workloads")
    parser.add_argument("--series", type=Path, help="folder of retraining series; default: none")
    args = add(parser, "--seeds --jobs", seeds=5).parse_args(arguments)
    chosen_traces(args)
    base = Variant(args.traces, tuple(args.gpus), tuple(args.workloads), args.series, args.seeds, "")
    pairs, series = _jobs(*base[:4])
    policies = list(dict.fromkeys(c.policy for c in CONSTANTS))
    variants = [base._replace(policy=policy) for policy in policies]
    variants += [base._replace(policy=c.policy, constant=c, factor=f) for c in CONSTANTS for f in FACTORS.values()]
    found = on_all_cores(outcome_of, variants, args.jobs)
    outcomes = {(v.constant or v.policy, v.factor): o for v, o in zip(variants, found, strict=True)}
    print(f"Mean over {len(pairs)} pairs{f' and {len(series)} series' if series else ''}, {args.seeds} seeds.")
    for policy in policies:
        at_20, at_end = (mean_ci(figure) for figure in outcomes[policy, 1.0][:2])
        print(f"{policy}: regret {at_20[0]:.2f} C* after {AT} recurrences, {at_end[0]:.2f} C* at the end")
    figures = [f"at {AT}", "end", *(["series"] if series else [])]
    head = ["constant", "module", "value", "meaning", "source"]
    head += [*(f"{name}: {figure}" for name in FACTORS for figure in figures), "no effect here"]
    for title, constants in TABLES.items():
        rows = table(head, rows_of(constants, outcomes, series=bool(series)))
        print("\n".join(["", f"{title}: {len(constants)} constants", "", *rows]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
