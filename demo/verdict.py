"""What the runs cost against the baseline, and when that pays. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from demo.ledger import Row

LATEST = 5  # runs after exploration that a projection looks at


def break_even(costs_j: Sequence[float], baseline_j: Sequence[float]) -> int | None:
    """Run (from 1) from which on the sum of costs stays at or below the baseline's; None when it is above at last."""
    behind = [zeus > base for zeus, base in zip(accumulate(costs_j), accumulate(baseline_j), strict=True)]
    if not behind or behind[-1]:
        return None
    return len(behind) - next((i for i, b in enumerate(reversed(behind)) if b), len(behind)) + 1


def verdict(rows: Sequence[Row]) -> list[str]:
    """Totals against the baseline, then the break-even, each in a sentence; a loss reads as plainly as a saving."""
    known = [(row, row.cost_j, row.baseline) for row in rows if row.cost_j is not None and row.baseline is not None]
    if not known:
        return ["No run has both its cost and its baseline yet: there is nothing to compare."]
    costs, bases = [cost for _, cost, _ in known], [base.cost_j for _, _, base in known]
    lines = [f"{_runs(len(known))} against always training at {known[0][2].batch_size} and full power:"]
    lines.append(_against("cost", "kJ", costs, bases))
    energy = [(row.energy_j, base.energy_j) for row, _, base in known if row.energy_j is not None]
    time = [(row.time_s / 60, base.time_s / 60) for row, _, base in known if row.time_s is not None]
    lines.append(_against("energy", "kJ", [a for a, _ in energy], [b for _, b in energy]))
    lines.append(_against("time", "min", [a for a, _ in time], [b for _, b in time]))
    if len(known) < len(rows):
        lines.append(f"{_runs(len(rows) - len(known))} left out: the cost or the baseline is not known.")
    return [*lines, _break_even_text([row for row, _, _ in known], costs, bases)]


def _against(what: str, unit: str, ours: Sequence[float], theirs: Sequence[float]) -> str:
    scale = 1000.0 if unit == "kJ" else 1.0
    a, b = sum(ours) / scale, sum(theirs) / scale
    change = 100 * (a / b - 1) if b else 0.0
    word = "less" if change < 0 else "MORE"
    return f"  {what:<7}{a:9.1f} {unit:<3} against {b:9.1f} {unit:<3}: {abs(change):.0f} % {word}"


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _break_even_text(rows: Sequence[Row], costs: Sequence[float], bases: Sequence[float]) -> str:
    run = break_even(costs, bases)
    if run is not None:
        key = rows[run - 1].slice_key
        return f"Break-even: run {run} ({key}); from there on the sum stays at or below the baseline's."
    behind_j = sum(costs) - sum(bases)
    head = f"Not even after {_runs(len(rows))}: {behind_j / 1000:.1f} kJ above the baseline."
    savings = [b - c for row, c, b in zip(rows, costs, bases, strict=True) if row.exploiting][-LATEST:]
    if not savings:
        return f"{head} No run has used what was learnt yet, so when it breaks even cannot be told."
    mean_j = sum(savings) / len(savings)
    latest = f"The latest {_runs(len(savings))} after exploration"
    if mean_j <= 0:
        return f"{head} {latest} saved nothing either, so when it breaks even cannot be told."
    more = math.ceil(behind_j / mean_j)
    return (
        f"{head} {latest} saved {mean_j / 1000:.1f} kJ each: if that goes on, it is even after about {more} more. "
        "That is a projection, not a promise."
    )
