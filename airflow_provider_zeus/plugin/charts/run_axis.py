"""Shared parts of charts over the runs of a job: the axis, the run of a point, marks at runs.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_provider_zeus.model.estimate import SURE
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.plugin.answer_parts import RunRow
from airflow_provider_zeus.plugin.charts.chart_parts import (
    LEGEND,
    NAME_ABOVE,
    Option,
    base,
    grid,
    mark_lines,
    plain,
)

RunKey = tuple[str, str, int]
LARGE = 120  # more points than that cannot be told apart


@dataclass(frozen=True, slots=True)
class HistoryBreak:
    """A run from which on older runs no longer count."""

    run: RunKey
    label: str
    text: str


def run_key(trial: Trial) -> RunKey:
    """The run (and task, and map index) that a trial belongs to."""
    return trial.origin.run_id, trial.origin.task_id, trial.origin.map_index


def row_key(row: RunRow) -> RunKey:
    """Identity of a row's run."""
    map_index = row.map_index
    if map_index is None:
        map_index = -1
    return row.run_id, row.task_id, map_index


def label(row: RunRow) -> str:
    """Label of a run on an axis: its slice of the data, else when it began (UTC)."""
    # The slice tells more than the clock: reruns of one slice stand side by side.
    name = row.slice_text
    if not name:
        name = f"{datetime.fromtimestamp(row.began_at, UTC):%Y-%m-%d %H:%M}"
    if row.map_index is not None:
        name += f" [{row.map_index}]"
    # A training may name its slices at any length, and with braces.
    return plain(name[:80])


def over_runs(
    shown: Sequence[RunRow], axis: str, series: Sequence[Option], *, zero: bool
) -> Option:
    """An ECharts option whose horizontal axis is the runs.

    ``zero``: the vertical axis starts at 0.
    """
    y_axis: Option = {
        "type": "value",
        "name": axis,
        "nameGap": 12,
        "nameTextStyle": NAME_ABOVE,
        # Room for the label of the highest point, which would cover the axis' name.
        "boundaryGap": [0, "8%"],
    }
    if zero:
        y_axis["min"] = 0
    option = base(
        grid=grid(bottom=64),
        legend=LEGEND | {"itemWidth": 18, "itemGap": 6, "data": _legend(series)},
        xAxis={"type": "category", "data": [label(row) for row in shown]},
        yAxis=y_axis,
        series=list(series),
    )
    if any("markLine" in part for part in series):  # a mark's label needs room above the chart
        option["yAxis"]["nameGap"] = 28
        option["grid"]["top"] = 46
    if len(shown) > LARGE:
        option["grid"]["bottom"] = 92
        option["dataZoom"] = [{"type": "slider", "bottom": 28, "height": 18, "brushSelect": False}]
    return option


def _legend(series: Sequence[Option]) -> list[str | Option]:
    names: list[str | Option] = [part["name"] for part in series if part["name"]]
    if SURE in names:
        # An interval is drawn first, or it would cover its line; the line is named first.
        interval = names.index(SURE)
        names[interval] = names[interval + 1]
        names[interval + 1] = {"name": SURE, "icon": "rect"}
    return names


def vertical_lines(at: Sequence[tuple[int, str]]) -> Option:
    """A series of vertical lines at runs, given by index and label."""
    data = [{"xAxis": i, "label": {"formatter": plain(text)}} for i, text in at]
    return {"type": "line", "name": "", "data": [], "markLine": mark_lines(data, type="solid")}
