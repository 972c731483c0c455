"""Cost of the runs against the baseline, and the break-even. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

from airflow_provider_zeus.model.trial import State
from demo.baseline import Baseline
from demo.run_costs import HALF, RunCost

LATEST = 5  # runs after exploration that a projection uses


def break_even(costs_j: Sequence[float], baseline_j: Sequence[float]) -> int | None:
    """Return the run (from 1) after which the sum of costs stays at or below the baseline's;
    None if it ends above.
    """
    behind = [
        zeus > base for zeus, base in zip(accumulate(costs_j), accumulate(baseline_j), strict=True)
    ]
    if not behind or behind[-1]:
        return None
    return len(behind) - next((i for i, b in enumerate(reversed(behind)) if b), len(behind)) + 1


@dataclass(frozen=True, slots=True)
class Pair:
    """A run and its baseline.

    Where the run kept no model, the baseline counts as 0 and the run's cost is a loss.
    """

    row: RunCost
    cost_j: float
    base: Baseline

    @property
    def weight(self) -> float:
        """1 where the baseline counts, else 0."""
        return float(self.row.kept)

    @property
    def base_j(self) -> float:
        """Cost that counts for the baseline [J]."""
        return self.base.cost_j * self.weight

    @property
    def saved_j(self) -> float:
        """What the run saved [J]; below 0: a loss."""
        return self.base_j - self.cost_j


def verdict(rows: Sequence[RunCost]) -> list[str]:
    """Return the totals against the baseline, then the break-even, a line each."""
    pairs = [
        Pair(row, row.cost_j, row.baseline)
        for row in rows
        if row.cost_j is not None and row.baseline is not None
    ]
    if not pairs:
        return ["No run has both its cost and its baseline yet: there is nothing to compare."]
    lines = [
        f"{_runs(len(pairs))} against always training at {pairs[0].base.batch_size} and full power:"
    ]
    lines.append(_against("cost", "Wh", [p.cost_j for p in pairs], [p.base_j for p in pairs]))
    energy = [
        (p.row.energy_j, p.base.energy_j * p.weight) for p in pairs if p.row.energy_j is not None
    ]
    time = [
        (p.row.time_s / 60, p.base.time_s / 60 * p.weight)
        for p in pairs
        if p.row.time_s is not None
    ]
    lines.append(
        _against("energy", "Wh", [ours for ours, _ in energy], [base for _, base in energy])
    )
    lines.append(_against("time", "min", [ours for ours, _ in time], [base for _, base in time]))
    if len(pairs) < len(rows):
        lines.append(
            f"{_runs(len(rows) - len(pairs))} left out: the cost or the baseline is not known."
        )
    if lost := sum(not p.row.kept for p in pairs):
        lines.append(f"{_runs(lost)} kept no model: that cost counts, the baseline's does not.")
    return [*lines, _break_even_text(pairs), *_hardest(pairs)]


def _hardest(pairs: Sequence[Pair]) -> list[str]:
    """Why the dearest week was dear, where its data were hard for the baseline, too."""
    worst, usual_j = max(pairs, key=lambda p: p.cost_j), median(p.base.cost_j for p in pairs)
    if worst.base.cost_j < 1.5 * usual_j:
        return []
    tried = [str(b) for b, state in worst.row.attempts if state is State.GIVEN_UP]
    return [
        f"{worst.row.slice_key} cost the most, {HALF.text(worst.cost_j)}: its data are hard at any"
        f" size (the baseline took {HALF.text(worst.base.cost_j)} there, {HALF.text(usual_j)} in a"
        " usual week)" + (f", and {' and '.join(tried)} was tried and given up." if tried else ".")
    ]


def _against(what: str, unit: str, ours: Sequence[float], theirs: Sequence[float]) -> str:
    scale = 1.0 if unit == "min" else 3600.0
    a = sum(ours) / scale
    b = sum(theirs) / scale
    change = 100 * (a / b - 1) if b else 0.0
    word = "less" if change < 0 else "MORE"
    return f"  {what:<7}{a:9.1f} {unit:<10} against {b:9.1f} {unit:<10}: {abs(change):.0f} % {word}"


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _break_even_text(pairs: Sequence[Pair]) -> str:
    run = break_even([p.cost_j for p in pairs], [p.base_j for p in pairs])
    if run is not None:
        key = pairs[run - 1].row.slice_key
        return (
            f"Break-even: run {run} ({key}); from there on the sum stays at or below the"
            " baseline's."
        )
    behind_j = -sum(p.saved_j for p in pairs)
    head = f"Not even after {_runs(len(pairs))}: {HALF.text(behind_j)} above the baseline."
    savings = [p.saved_j for p in pairs if p.row.exploiting][-LATEST:]
    if not savings:
        return f"{head} No run has used what was learned yet, so the break-even is unknown."
    mean_j = sum(savings) / len(savings)
    latest = f"The latest {_runs(len(savings))} after exploration"
    if mean_j <= 0:
        return f"{head} {latest} saved nothing either, so the break-even is unknown."
    more = math.ceil(behind_j / mean_j)
    return (
        f"{head} {latest} saved {HALF.text(mean_j)} each: at that rate it breaks even after about"
        f" {more} more. That is a projection, not a promise."
    )
