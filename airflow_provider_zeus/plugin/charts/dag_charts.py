"""Chart of the cost of each run of a DAG's tab, and what charts over runs share. Pure: plain data in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.plugin.charts.chart_parts import (
    COLOURS,
    LINE,
    Option,
    base,
    hollow,
    interval_band,
    line,
    mark_lines,
    number,
    plain,
    scale,
    scatter,
)
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.views.dag_known import HistoryBreak, RunKey
from airflow_provider_zeus.plugin.views.models import Chart, RunRow, Table
from airflow_provider_zeus.units import cost_text, counted

NOT_NEEDED = "not needed"
LARGE = 120  # runs above which there is a slider
LEGEND = (
    "Colour, and number where it changes: batch size of the run's last attempt. Filled: exploited. Hollow: explored. "
    "Diamond: an attempt before it was given up. Triangle: no model was kept."
)

MEASURED = "Each point is a run, measured as it is. Triangle: it failed."


@dataclass(frozen=True, slots=True)
class ComparisonCurve:
    """The cost of each run under an alternative [J or s], drawn beside the runs."""

    name: str
    values: Mapping[RunKey, Estimate]  # with a value; the intervals are drawn as a band
    dash: str = "dashed"  # dashed | dotted


def row_key(row: RunRow) -> RunKey:
    """Identity of a row's run."""
    return row.run_id, row.task_id, -1 if row.map_index is None else row.map_index


def charted(rows: Sequence[RunRow]) -> list[RunRow]:
    """The rows that one chart can show, oldest first: ended, with a known cost in the unit of the newest such run.

    Runs that were not needed are among them where another row is.
    """
    known = [r for r in rows if r.cost.value is not None and r.state not in (State.RUNNING.value, State.NO_DATA.value)]
    return [r for r in reversed(rows) if known and (is_idle(r) or (r in known and r.unit == known[0].unit))]


def is_idle(row: RunRow) -> bool:
    """Whether the run trained nothing since an earlier model is still good."""
    return row.state == State.NOT_NEEDED.value


def left_out(rows: Sequence[RunRow]) -> str:
    """A sentence on the rows that :func:`charted` leaves out; empty where there are none."""
    running = sum(r.state == State.RUNNING.value for r in rows)
    empty = sum(r.state == State.NO_DATA.value for r in rows)
    others = len(rows) - running - empty - len(charted(rows))
    parts = [f"{counted(running, 'run')} still running"] if running else []
    parts += [f"{counted(empty, 'run')} without data"] if empty else []
    parts += [f"{counted(others, 'run')} whose cost is not known in this unit"] if others else []
    return f"Not in the chart: {' and '.join(parts)}." if parts else ""


def cost_chart(
    rows: Sequence[RunRow], curves: Sequence[ComparisonCurve] = (), breaks: Sequence[HistoryBreak] = ()
) -> Chart:
    """Chart of cost over runs, with a point per run in the colour of its batch size.

    :param rows: newest first, as ``costs.rows_of`` gives them.
    :param curves: in the unit of the newest row.
    """
    title, shown = "Cost of each run", charted(rows)
    if not shown:
        return Chart(title=title, note=f"No run of known cost yet. {left_out(rows)}".strip())
    keys = [row_key(row) for row in shown]
    curves = [curve for curve in curves if any(key in curve.values for key in keys)]
    drawn = [v for curve in curves for key in keys if (v := curve.values.get(key)) is not None]
    highest = max([row.cost.value or 0.0 for row in shown] + [v.high or v.value or 0.0 for v in drawn])
    size, unit = scale(highest, shown[0].unit)
    few, sizes = len(shown) <= 40, sorted({_size(row) for row in shown}, key=lambda size: size or 0)
    colours = {b: COLOURS[i % len(COLOURS)] for i, b in enumerate(sizes)}
    points = [
        _point(i, row, size, colours[_size(row)], labelled=few and (i == 0 or _size(row) != _size(shown[i - 1])))
        for i, row in enumerate(shown)
    ]
    trained = [row for row in shown if not is_idle(row)]
    chosen = [row for row in trained if _size(row) is not None]
    trained_points = [point for row, point in zip(shown, points, strict=True) if not is_idle(row)]
    sources = list(dict.fromkeys(row.source.text for row in trained))
    series: list[Option] = []
    for source in sources:  # a thin line each: figures of different sources do not compare
        at = [p["value"] for p, row in zip(trained_points, trained, strict=True) if row.source.text == source]
        path = line("", LINE, at) | {"silent": True, "lineStyle": {"color": LINE, "width": 1, "opacity": 0.6}}
        series.append(path)
    series += _dots(trained, trained_points, colours, several=len(sources) > 1)
    idle = [{"value": [i, 0], "tip": plain(f"{label(r)}\n{r.state_why}")} for i, r in enumerate(shown) if is_idle(r)]
    series += [scatter(NOT_NEEDED, 9, hollow(LINE), idle, symbol="diamond")] if idle else []
    for curve in curves:
        series += _comparison(curve, keys, size)
    if marks := [(keys.index(each.run), each.label) for each in breaks if each.run in keys]:
        series.append(vertical_lines(marks))
    option = over_runs(shown, f"cost [{unit}]", series, zero=True, right=110 if curves else 24)
    dots = [s["name"] for s in series if s["type"] == "scatter" and s["name"]]
    option["legend"]["data"] = [*dots, *(curve.name for curve in curves)]
    note = " ".join([LEGEND if chosen else MEASURED, *(each.text for each in breaks), left_out(rows)]).strip()
    cheap, newest = min(trained, key=lambda r: r.cost.value or 0.0), trained[-1]
    explored = f", {sum(r.explored for r in trained)} of them explored" if chosen else ""
    text = (
        f"Cost of {counted(len(trained), 'run')}, oldest first{explored}. Newest: {newest.cost.text}{_with(newest)}. "
        f"Cheapest: {cheap.cost.text}{_with(cheap)}. The table holds the same figures."
    )
    return Chart(title=title, option=option, text=text, note=note, table=_table(title, shown, keys, curves))


def over_runs(shown: Sequence[RunRow], axis: str, series: Sequence[Option], *, zero: bool, right: int = 24) -> Option:
    """An ECharts option whose horizontal axis is the runs, oldest first. ``zero``: the vertical axis starts at 0."""
    large = len(shown) > LARGE
    option = base(
        grid={"left": 64, "right": right, "top": 46, "bottom": 92 if large else 64},
        legend={"type": "scroll", "bottom": 0, "data": [s["name"] for s in series if s["name"]]},
        xAxis={"type": "category", "data": [label(row) for row in shown], "axisLabel": {"hideOverlap": True}},
        yAxis={"type": "value", "name": axis, "nameGap": 28, **({"min": 0} if zero else {})},
        series=list(series),
    )
    if large:
        option["dataZoom"] = [{"type": "slider", "bottom": 28, "height": 18, "brushSelect": False}]
    return option


def vertical_lines(at: Sequence[tuple[int, str]]) -> Option:
    """A series of vertical lines at runs, given by index and label."""
    data = [{"xAxis": i, "label": {"formatter": plain(text)}} for i, text in at]
    return {"type": "line", "name": "", "data": [], "markLine": mark_lines(data, type="solid")}


def _table(title: str, shown: Sequence[RunRow], keys: Sequence[RunKey], curves: Sequence[ComparisonCurve]) -> Table:
    def text(estimate: Estimate | None, unit: str) -> str:
        if estimate is None or estimate.value is None:
            return "–"
        value, low, high = estimate.value, estimate.low, estimate.high
        if low is None or high is None or low == high:
            return cost_text(value, unit)
        return f"{cost_text(value, unit)} ({cost_text(low, unit)} to {cost_text(high, unit)})"

    found = [
        [
            label(row),
            words.size(_size(row)),
            "–" if is_idle(row) or _size(row) is None else "explored" if row.explored else "exploited",
            NOT_NEEDED if is_idle(row) else row.cost.text,
            *(text(curve.values.get(key), row.unit) for curve in curves),
            row.source.text,
        ]
        for row, key in zip(reversed(shown), reversed(keys), strict=True)
    ]
    columns = ["Run", "Batch size", "Explored", "Cost", *(curve.name for curve in curves), "Source"]
    numeric = [False, True, False, True, *(True for _ in curves), False]
    return Table(caption=title, columns=columns, numeric=numeric, rows=found)


def _point(i: int, row: RunRow, size: float, colour: str, *, labelled: bool) -> Option:
    given_up = State.GIVEN_UP.value in [tried.state for tried in row.attempts[:-1]]
    with_model = row.state in [state.value for state in State if state.kept_model or state is State.DONE]
    symbol = "triangle" if not with_model else "diamond" if given_up else "circle"
    sizes = ", ".join(f"{words.size(t.batch_size)} ({t.state_text})" for t in row.attempts)
    lines = [
        label(row),
        f"cost {row.cost.text} ({row.cost.exact})",
        f"energy {row.energy.text}, time {row.time.text}",
        f"batch size {sizes}" if _size(row) is not None else row.state_text,
        f"{row.phase}, power limit {row.limit.text}, {row.source.text}",
    ]
    value = [i, number((row.cost.value or 0.0) / size)]
    point: Option = {"value": value, "tip": plain("\n".join(lines)), "symbol": symbol}
    if row.explored:
        point["itemStyle"] = hollow(colour)
    named = labelled and _size(row) is not None
    return {**point, "label": {"show": True, "formatter": str(_size(row))}} if named else point


def _comparison(curve: ComparisonCurve, keys: Sequence[RunKey], size: float) -> list[Option]:
    """A comparison as a line, with its intervals as a band."""
    found = [(i, curve.values[key]) for i, key in enumerate(keys) if key in curve.values]
    band = interval_band(f"{curve.name}, 90 %", [(i, v.low, v.high) for i, v in found], size, step="middle")
    data = [[i, number((v.value or 0.0) / size)] for i, v in found]
    # the default's line is mostly the upper one: the names of two lines that meet stay apart
    apart = [0, 8 if curve.dash == "dotted" else -8]
    label = {"show": True, "formatter": curve.name.partition(",")[0], "offset": apart}
    return [*band, line(curve.name, LINE, data, curve.dash) | {"silent": True, "step": "middle", "endLabel": label}]


def _dots(
    shown: Sequence[RunRow], points: Sequence[Option], colours: Mapping[int | None, str], *, several: bool
) -> list[Option]:
    """The points by batch size, and by energy source where there are several."""
    groups: dict[tuple[int | None, str], list[Option]] = {}
    for row, point in zip(shown, points, strict=True):
        groups.setdefault((_size(row), row.source.text if several else ""), []).append(point)
    px = 11 if len(shown) <= LARGE else 7
    return [
        scatter(
            f"{_name(size)} ({source})" if source else _name(size), px, {"color": colours[size], "opacity": 1}, data
        )
        | {"label": {"position": "top"}}
        for (size, source), data in sorted(groups.items(), key=lambda group: (group[0][0] or 0, group[0][1]))
    ]


def _size(row: RunRow) -> int | None:
    return row.attempts[-1].batch_size


def _name(size: int | None) -> str:
    """Of the points of a batch size."""
    return "measured" if size is None else str(size)


def _with(row: RunRow) -> str:
    return "" if _size(row) is None else f" with batch size {_size(row)}"


def label(row: RunRow) -> str:
    """Label of a run on an axis: its slice of the data, else its id."""
    mapped = "" if row.map_index is None else f" [{row.map_index}]"
    return plain(f"{row.slice_text or row.run_id}{mapped}"[:80])
