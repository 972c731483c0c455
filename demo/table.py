"""The table of costs per run, as text. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.units import energy_text
from demo.run_costs import HALF, RunCost

MARKS = {
    State.GIVEN_UP: "*",
    State.EXHAUSTED: "~",
    State.FAILED: "!",
    State.ABANDONED: "!",
    State.RUNNING: "?",
}
LEGEND = {"*": "given up", "~": "below its target", "!": "died", "?": "still running"}
HEAD = (
    "slice",
    "batch sizes",
    "limit",
    "epochs",
    "energy",
    "time",
    "cost",
    "baseline",
    "phase",
    "source",
    "why",
)
INDENT = "    "
RIGHT = ("limit", "epochs", "energy", "time", "cost", "baseline")


def table(rows: Sequence[RunCost], width: int | None = None) -> list[str]:
    """Return the table's lines, one per run; in a terminal narrower than it,
    each reason is below its run.
    """
    cells = [HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEAD))]
    lines = [
        "  ".join(_aligned(*each) for each in zip(HEAD, line, widths, strict=True)).rstrip()
        for line in cells
    ]
    if width is not None and max(len(line) for line in lines) > width:
        reason = sum(widths[:-1]) + 2 * (len(widths) - 1)  # where the last column begins
        lines = [part for line in lines for part in _folded(line, reason, width)]
    used = {MARKS[state] for row in rows for _, state in row.attempts if state in MARKS}
    return [
        *lines,
        *([", ".join(f"{mark} {LEGEND[mark]}" for mark in sorted(used))] if used else []),
    ]


def _folded(line: str, reason: int, width: int) -> list[str]:
    below = textwrap.wrap(
        line[reason:], max(width, 40), initial_indent=INDENT, subsequent_indent=INDENT
    )
    return [line[:reason].rstrip(), *below]


def progress(row: RunCost) -> str:
    """Return one run in one line, shown while the demo runs."""
    slice_key, sizes, limit, epochs, energy, time, cost, _, phase, _, _ = _cells(row)
    return (
        f"{slice_key}  {sizes:<10} {limit:>6}  {epochs:>5} epochs  {energy:>8} {time:>6}  cost"
        f" {cost:>8}  {phase}"
    )


def _cells(row: RunCost) -> tuple[str, ...]:
    return (
        row.slice_key,
        " ".join(f"{b}{MARKS.get(state, '')}" for b, state in row.attempts),
        _figure(row.limit_w, "{:.0f} W"),
        _figure(row.epochs, "{:.1f}").removesuffix(".0"),
        _text(row.energy_j, energy_text),
        _figure(row.time_s, "{:.0f} s"),
        _text(row.cost_j, HALF.text),
        _text(row.baseline.cost_j if row.baseline else None, HALF.text),
        row.phase.text,
        row.source or "none",
        row.why,
    )


def _aligned(name: str, text: str, width: int) -> str:
    return text.rjust(width) if name in RIGHT else text.ljust(width)


def _text(joules: float | None, text: Callable[[float], str]) -> str:
    return "-" if joules is None else text(joules)


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
