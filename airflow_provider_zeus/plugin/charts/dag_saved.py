"""Chart of the sum saved over runs, with the cost of exploration and the break-even run. Pure: plain data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.plugin.charts.chart_parts import COLOURS, interval_band, line, number, plain, scale
from airflow_provider_zeus.plugin.charts.dag_charts import label, over_runs, row_key, vertical_lines
from airflow_provider_zeus.plugin.text import saved_text, words
from airflow_provider_zeus.plugin.views.dag_known import run_key
from airflow_provider_zeus.plugin.views.models import Chart, RunRow, Table
from airflow_provider_zeus.reports.savings import Savings
from airflow_provider_zeus.units import three_digits

SUM, EXPLORED = "saved so far", "spent on exploration so far"


class _Sum(NamedTuple):
    """Sums up to a run [J or s]."""

    row: RunRow
    saved: float
    low: float | None
    high: float | None
    explored: float | None


def saved_chart(saving: Savings, rows: Sequence[RunRow], weights: Weights) -> Chart:
    """Chart of the sum saved against the default batch size at full power; below 0 it is a loss.

    :param rows: newest first, all runs of ``saving`` among them.
    :param weights: a cost of energy and time together is told in runs of the default.
    """
    title, unit = "Sum saved", saving.cost.unit

    by_key, steps = {row_key(row): row for row in rows}, saving.steps
    parts = [step.exploration for step in steps]
    explored_so_far = [None] * len(parts) if None in parts else accumulate(part or 0.0 for part in parts)
    sums = [
        _Sum(row, step.saved.value or 0.0, step.saved.low, step.saved.high, cost)
        for step, cost in zip(steps, explored_so_far, strict=True)
        if (row := by_key.get(run_key(step.run.trials[-1])))
    ]
    if not sums or any(step.saved.value is None for step in steps):  # a sum without it would be wrong
        why = saving.cost.saved.reason or "a figure of one of the runs is not known"
        return Chart(title=title, note=f"What was saved is not known: {why}.")
    drawn = [v for s in sums for v in (s.saved, s.low, s.high, s.explored) if v is not None]
    most = max(abs(v) for v in drawn)
    size, name = scale(most, unit)
    axis = f"{weights.one_alone} saved [{name}]"
    if not weights.one_alone and (whole := saving.default_now):
        size, axis = whole[0], f"energy and time saved [runs of {whole[1]}]"

    def cell(value: float | None) -> str:
        if value is None:
            return "–"
        text = (
            words.cost(abs(value), unit, most).text if weights.one_alone else f"{three_digits(abs(value) / size)} runs"
        )
        return f"{'−' if value < 0 else ''}{text}"

    def told(s: _Sum) -> str:
        explored = "exploration not known" if s.explored is None else f"exploration {cell(s.explored)}"
        return f"{'saved' if s.saved >= 0 else 'lost'} {cell(abs(s.saved))}, {explored}"

    shown = [s.row for s in sums]
    saved = [
        {
            "value": [i, number(s.saved / size)],
            "tip": plain(f"{label(s.row)}\n{told(s)}"),
        }
        for i, s in enumerate(sums)
    ]
    explored = [{"value": [i, number(s.explored / size)]} for i, s in enumerate(sums) if s.explored is not None]
    band = interval_band([(i, s.low, s.high) for i, s in enumerate(sums)], size)
    series = [*band, line(SUM, COLOURS[0], saved), line(EXPLORED, COLOURS[1], explored, "dashed")]
    if len(sums) == 1:  # no line shows it
        series = [each | {"symbol": "circle", "symbolSize": 8} for each in series]
    even = saving.break_even_run
    if even is not None and even > 1:
        series.append(vertical_lines([(even - 1, "break-even")]))
    option = over_runs(shown, f"{axis}; below 0: lost", series, zero=False)
    option["tooltip"]["trigger"] = "axis"
    note = f"Against {saved_text.against(saving.default_batch_size)}, on the same slices of the data."
    table = Table(
        caption=title,
        columns=["Run", "Saved so far", "at least (5 %)", "at most (95 %)", "Exploration so far"],
        numeric=[False, True, True, True, True],
        rows=[[label(s.row), *(cell(v) for v in (s.saved, s.low, s.high, s.explored))] for s in reversed(sums)],
    )
    text = f"Running total after the newest run: {told(sums[-1])}."
    return Chart(title=title, option=option, text=text, note=note, table=table)
