"""What each rule and constant of the default policy is worth: the same cases once more without it.

Figures are the change of a case's total cost [%], with common random numbers: the mean over cases
and seeds with its 95 % interval, and the worst case in brackets. Above 0: the rule pays. ``=``: the
same decisions in all replays. The policy was tuned on the traces and on some of the series, so the
table does not show what suits other jobs.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from airflow_provider_zeus import optimizer
from airflow_provider_zeus.model.trial import Decision
from airflow_provider_zeus.optimizer.knowledge_gradient.acquisition import Predictions
from airflow_provider_zeus.optimizer.knowledge_gradient.decision_context import DecisionContext
from airflow_provider_zeus.optimizer.policy import choose
from airflow_provider_zeus.optimizer.situation import Situation
from benchmarks.command import on_all_cores
from benchmarks.quality.case_set import Cases, Recurring, recurring
from benchmarks.replays import spent_by
from benchmarks.report import mean_ci, plus_minus, table
from benchmarks.simulation.driver import replay
from benchmarks.simulation.environment import Log

KG = f"{optimizer.__name__}.knowledge_gradient"


class Constant(NamedTuple):
    """A constant of the policy, and the value at which what it rules is not there."""

    module: str  # below optimizer
    name: str
    off: float | tuple[float, ...]

    def switched_off(self) -> AbstractContextManager[None]:
        """The policy without it."""
        return patched(
            importlib.import_module(f"{optimizer.__name__}.{self.module}"), self.name, self.off
        )


class Rule(NamedTuple):
    """A rule of the policy that has no constant: what stands in its place where it is off."""

    name: str
    path: str  # below optimizer.knowledge_gradient
    off: Callable[..., Any]

    def switched_off(self) -> AbstractContextManager[Any]:
        """The policy without it."""
        return patch(f"{KG}.{self.path}", self.off)


_PREDICTIONS = DecisionContext.predictions


def _though_missed(context: DecisionContext) -> Predictions | None:
    return _PREDICTIONS(context._replace(trusted=context.converged))


def _misses_for_nothing(context: DecisionContext) -> Predictions | None:
    predictions = _PREDICTIONS(context)
    if predictions is None:
        return None
    free = np.zeros(len(predictions.log_miss_cost))
    return predictions._replace(log_miss_cost=free)


def _nothing(*args: object) -> None: ...


def _no_loads(*args: object) -> dict[int, float]:
    return {}


RULES = (
    Rule(
        "misses bar the incumbent", "decision_context.DecisionContext.predictions", _though_missed
    ),
    Rule("the cost of misses", "decision_context.DecisionContext.predictions", _misses_for_nothing),
    Rule("the second look", "policy._second_look", _nothing),
    Rule("the power drawn", "epoch_cost.loads", _no_loads),
)
CONSTANTS = (
    Constant("knowledge_gradient.gp", "SLOPE", 0.0),
    Constant("knowledge_gradient.gp", "TREND_SD", 1e-3),
    Constant("knowledge_gradient.gp", "WALK_SD", 1e-3),
    Constant("knowledge_gradient.gp", "P_FAIL", 1e-6),
    Constant("knowledge_gradient.epochs", "WANDER_SD", 0.0),
    Constant("knowledge_gradient.acquisition", "LOSS_AVERSION", 0.0),
    Constant("knowledge_gradient.decision_context", "MOST_LOST", 1e9),
    Constant("knowledge_gradient.decision_context", "LOST_SHARE", 0.0),
    Constant("knowledge_gradient.slice_filter", "HAZARD", 1e-30),
    Constant("knowledge_gradient.slice_filter", "SLICE_SDS", (0.0, 0.0, 0.0, 0.0)),
)


@contextmanager
def patched(home: ModuleType, name: str, value: object) -> Iterator[None]:
    """Give a constant another value, in the modules that import it, too, and restore it.

    At both ends caches are cleared, and what is computed from constants at import is computed
    again.
    """
    names = [m.name for m in pkgutil.walk_packages(optimizer.__path__, f"{optimizer.__name__}.")]
    modules = [importlib.import_module(module) for module in names]
    before = getattr(home, name)
    # another module may have a constant of the same name: only the same object is the same constant
    users = [m for m in modules if vars(m).get(name) is before]
    try:
        _set(modules, users, name, value)
        yield
    finally:
        _set(modules, users, name, before)


def _set(
    modules: Sequence[ModuleType], users: Sequence[ModuleType], name: str, value: object
) -> None:
    for module in users:
        setattr(module, name, value)
    for f in [f for m in modules for f in vars(m).values() if hasattr(f, "cache_clear")]:
        f.cache_clear()


class Variant(NamedTuple):
    """Replays of all cases without one rule or constant; None: the policy as it is."""

    cases: Cases
    groups: tuple[str, ...]
    without: Constant | Rule | None = None


class Outcome(NamedTuple):
    """What one variant cost."""

    spent: dict[str, list[float]]  # by column: of each case and seed [J]
    below: int  # recurrences below target in all cases
    decisions: str  # digest of every decision, sentences left out


def outcome_of(variant: Variant) -> Outcome:
    """Replay one variant."""
    digest = hashlib.sha256()
    spent: dict[str, list[float]] = {}
    below = 0
    with variant.without.switched_off() if variant.without else nullcontext():
        for name, jobs in recurring(variant.cases, variant.groups).items():
            for job, seed in ((each, seed) for each in jobs for seed in each.seeds):
                log = _replay(job, seed, digest)
                spent.setdefault(name, []).append(spent_by(log))
                below += log.runs_below_target
    return Outcome(spent, below, digest.hexdigest())


def _replay(what: Recurring, seed: int, digest: Any) -> Log:
    """Replay a job. Every decision is added to ``digest``."""

    def recorded(situation: Situation) -> Decision:
        decision = choose(situation)
        for a in decision.attempts:
            # equal but for rounding is equal
            bounds = (a.bound_cost, a.bound_epochs, a.max_epoch_cost)
            digest.update(
                repr((a.batch_size, a.phase, *(b and f"{b:.9g}" for b in bounds))).encode()
            )
        return decision

    return replay(what.first, what.job, what.recurrences, seed, what.shifts, choose=recorded)


def row_of(name: str, now: Outcome, then: Outcome) -> list[str]:
    """How much dearer than now each group is, the mean and the worst of its cases."""
    if then.decisions == now.decisions:
        return [name, "=", *("=" for _ in now.spent), "="]
    return [
        name,
        _dearer(_all(now), _all(then)),
        *(_dearer(now.spent[g], then.spent[g]) for g in now.spent),
        f"{then.below - now.below:+d}",
    ]


def _all(outcome: Outcome) -> list[float]:
    return [spent for of in outcome.spent.values() for spent in of]


def _dearer(now: Sequence[float], then: Sequence[float]) -> str:
    """Mean change of the cost of a case [%], with its 95 % interval over cases and seeds;
    the worst.
    """
    percents = [100 * math.log(b / a) for a, b in zip(now, then, strict=True)]
    return f"{plus_minus(mean_ci(percents), '+.2f')} ({max(percents):+.0f})"


def worth(cases: Cases, groups: Sequence[str], jobs: int | None = None) -> list[str]:
    """The table: what the cases of these groups cost without each rule and constant."""
    rules: tuple[Rule | Constant, ...] = (*RULES, *CONSTANTS)
    whole = Variant(cases, tuple(groups))
    variants = [whole, *(whole._replace(without=rule) for rule in rules)]
    now, *outcomes = on_all_cores(outcome_of, variants, jobs)
    rows = [
        row_of(f"without {rule.name}", now, then)
        for rule, then in zip(rules, outcomes, strict=True)
    ]
    return table(["", "all", *now.spent, "below target"], rows)
