"""The sum saved over runs, with what exploration cost and where the sum breaks even. Plain data. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from airflow_provider_zeus.optimizer.saving import Saving
from airflow_provider_zeus.plugin import words
from airflow_provider_zeus.plugin.dag_known import RunKey, run_key
from airflow_provider_zeus.plugin.figures import COLOURS, SHADE, Option, number, plain, scale
from airflow_provider_zeus.plugin.figures_dag import at_run, label, over_runs, row_key
from airflow_provider_zeus.plugin.models import Chart, Row, Table

TITLE = "Sum saved"
SUM, BAND, TRIED = "saved so far", "90 % interval", "spent on exploration so far"


class _Sum(NamedTuple):
    row: Row
    saved: float
    low: float | None
    high: float | None
    tried: float | None


def saved_chart(saving: Saving, rows: Sequence[Row]) -> Chart:
    """Running total against the default at full power; below 0 it is a loss.

    :param rows: newest first, all runs of ``saving`` among them.
    """
    sums = _sums(saving, {row_key(row): row for row in rows})
    if not sums:
        why = saving.cost.saved.reason or "a figure of one of the runs is not known"
        return Chart(title=TITLE, note=f"What was saved cannot be told: {why}.")
    unit = saving.cost.unit
    drawn = [v for s in sums for v in (s.saved, s.low, s.high, s.tried) if v is not None]
    size, name = scale(max(abs(v) for v in drawn), unit)
    shown = [s.row for s in sums]
    series = [*_band(sums, size), _line(SUM, [s.saved for s in sums], size, "solid", COLOURS[0], _tips(sums, unit))]
    series.append(_line(TRIED, [s.tried for s in sums], size, "dashed", COLOURS[1], None))
    even = saving.break_even_run
    if even is not None and even > 1:
        series.append(at_run(even - 1, "break-even"))
    option = over_runs(shown, f"saved [{name}]; below 0: lost", series, zero=False)
    option["tooltip"]["trigger"] = "axis"
    option["legend"]["data"] = [name for name in (SUM, BAND, TRIED) if any(s["name"] == name for s in series)]
    note = f"Against batch size {saving.default_batch_size}, the default, at full power on the same slices of the data."
    return Chart(title=TITLE, option=option, text=_said(sums[-1], unit), note=note, table=_table(sums, unit))


def _sums(saving: Saving, rows: Mapping[RunKey, Row]) -> list[_Sum]:
    """Nothing where a run's figure is not known: a sum with a gap would tell too much or too little."""
    steps = saving.steps
    each = [(s.baseline.value, s.spent) for s in steps]
    known = [(theirs - ours) for theirs, ours in each if theirs is not None and ours is not None]
    if saving.cost.saved.value is None or len(known) < len(steps):
        return []
    spent = [s.spent or 0.0 for s in steps]
    low = _ends([s.baseline.low for s in steps], spent)
    high = _ends([s.baseline.high for s in steps], spent)
    tried = _ends([s.exploration for s in steps], [0.0] * len(steps))
    found = zip(steps, accumulate(known), low, high, tried, strict=True)
    by_run = [(rows.get(run_key(s.run.trials[-1])), saved, lo, hi, cost) for s, saved, lo, hi, cost in found]
    return [_Sum(row, saved, lo, hi, cost) for row, saved, lo, hi, cost in by_run if row is not None]


def _ends(values: Sequence[float | None], spent: Sequence[float]) -> list[float | None]:
    if None in values:
        return [None] * len(values)
    return list(accumulate((v or 0.0) - s for v, s in zip(values, spent, strict=True)))


def _line(
    name: str, values: Sequence[float | None], size: float, dash: str, colour: str, tips: Sequence[str] | None
) -> Option:
    data = [
        {"value": [i, number(v / size)], **({"tip": tips[i]} if tips else {})}
        for i, v in enumerate(values)
        if v is not None
    ]
    return {
        "type": "line",
        "name": name,
        "symbol": "none",
        "itemStyle": {"color": colour},
        "lineStyle": {"color": colour, "width": 2, "type": dash},
        "data": data,
    }


def _band(sums: Sequence[_Sum], size: float) -> list[Option]:
    """Two stacked lines: the lower end, drawn as nothing, and the width above it."""
    ends = [(i, s.low, s.high) for i, s in enumerate(sums) if s.low is not None and s.high is not None]
    if all(lo == hi for _, lo, hi in ends):
        return []
    hidden: Option = {"type": "line", "symbol": "none", "silent": True, "stack": "band", "stackStrategy": "all"}
    hidden |= {"lineStyle": {"opacity": 0}}
    low = {**hidden, "name": "", "data": [[i, number(lo / size)] for i, lo, _ in ends]}
    width = [[i, number((hi - lo) / size)] for i, lo, hi in ends]
    return [low, {**hidden, "name": BAND, "itemStyle": {"color": SHADE}, "areaStyle": {"color": SHADE}, "data": width}]


def _tips(sums: Sequence[_Sum], unit: str) -> list[str]:
    return [plain(f"{label(s.row)}\n{_sum_text(s.saved, unit)}, {_tried_text(s, unit)}") for s in sums]


def _sum_text(value: float, unit: str) -> str:
    return f"{'saved' if value >= 0 else 'lost'} {words.cost_text(abs(value), unit)}"


def _tried_text(s: _Sum, unit: str) -> str:
    return "exploration not known" if s.tried is None else f"exploration {words.cost_text(s.tried, unit)}"


def _said(last: _Sum, unit: str) -> str:
    return f"Running total after the newest run: {_sum_text(last.saved, unit)}, {_tried_text(last, unit)}."


def _table(sums: Sequence[_Sum], unit: str) -> Table:
    def text(value: float | None) -> str:
        return "–" if value is None else f"{'−' if value < 0 else ''}{words.cost_text(abs(value), unit)}"

    rows = [[label(s.row), text(s.saved), text(s.low), text(s.high), text(s.tried)] for s in reversed(sums)]
    columns = ["Run", "Saved so far", "at least (5 %)", "at most (95 %)", "Exploration so far"]
    return Table(caption=TITLE, columns=columns, numeric=[False, True, True, True, True], rows=rows)
