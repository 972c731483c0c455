"""Chart of the cost of each run of a DAG's tab, and what charts over runs share. Pure: plain data in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import SURE, Estimate
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.plugin.charts.chart_parts import (
    LINE,
    ROW_PX,
    Box,
    CostAxis,
    Option,
    base,
    hollow,
    interval_band,
    label_rows,
    label_width_px,
    line,
    mark_lines,
    number,
    plain,
    scatter,
    size_colour,
)
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.views.dag_known import HistoryBreak, RunKey
from airflow_provider_zeus.plugin.views.models import Chart, RunRow, Table
from airflow_provider_zeus.units import counted

NOT_NEEDED = "not needed"
LARGE = 120  # runs above which there is a slider
CROSS, DASH = "path://M0,0L10,10M10,0L0,10", "path://M0,4L10,4L10,6L0,6Z"
HALF_ROUND = "path://M0,5A5,5 0 0 1 10,5L10,10L0,10Z"  # between a circle and a square
MARKS = {  # symbols of points, by what they say
    CROSS: "Cross: missed its target.",
    "triangle": "Triangle: failed, or kept no model.",
    "diamond": "Diamond, such as {}: the size before the arrow was given up; the cost is of both.",
    "rect": "Square: from the earlier model.",
    HALF_ROUND: "Half round: from the earlier model, shrunk.",
}
START_MARKS: dict[str, str] = {Start.WARM: "rect", Start.SHRUNK: HALF_ROUND}


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
    none = (State.RUNNING.value, State.NO_DATA.value)
    units = [None if r.cost.value is None or r.state in none else r.unit for r in rows]
    newest = next(filter(None, units), None)
    shown = [row for row, unit in zip(rows, units, strict=True) if newest and (is_idle(row) or unit == newest)]
    return shown[::-1]


def is_idle(row: RunRow) -> bool:
    """Whether the run trained nothing since an earlier model is still good."""
    return row.state == State.NOT_NEEDED.value


def left_out(rows: Sequence[RunRow], shown: Sequence[RunRow]) -> str:
    """A sentence on the rows that are not shown; empty where there are none. ``shown``: by :func:`charted`."""
    running = sum(r.state == State.RUNNING.value for r in rows)
    empty = sum(r.state == State.NO_DATA.value for r in rows)
    others = len(rows) - running - empty - len(shown)
    parts = [f"{counted(running, 'run')} still running"] if running else []
    parts += [f"{counted(empty, 'run')} without data"] if empty else []
    parts += [f"{counted(others, 'run')} whose cost is not known in this unit"] if others else []
    return f"Not in the chart: {' and '.join(parts)}." if parts else ""


def cost_chart(
    rows: Sequence[RunRow],
    weights: Weights,
    curves: Sequence[ComparisonCurve] = (),
    breaks: Sequence[HistoryBreak] = (),
    whole: tuple[float, str] | None = None,
) -> Chart:
    """Chart of cost over runs, with a point per run in the colour of its batch size.

    :param rows: newest first, as ``costs.rows_of`` gives them.
    :param weights: of energy and time in the cost.
    :param curves: in the unit of the newest row.
    :param whole: the cost that is 100 % where it is of both; None: the first run's.
    """
    title, shown = "Cost of each run", charted(rows)
    if not shown:
        return Chart(title=title, note=f"No run of known cost yet. {left_out(rows, shown)}".strip())
    keys = [row_key(row) for row in shown]
    curves = [curve for curve in curves if any(key in curve.values for key in keys)]
    drawn = [v for curve in curves for key in keys if (v := curve.values.get(key)) is not None]
    highest = max([row.cost.value or 0.0 for row in shown] + [v.high or v.value or 0.0 for v in drawn])
    first = next((cost for row in shown if (cost := row.cost.value)), 1.0)
    weights = weights._replace(time_alone=shown[0].unit == "s")
    axis = CostAxis.of(highest, weights, whole or (first, "the first run"))
    few = len(shown) <= 40  # else what no legend names alone has a label
    changed = [few and (i == 0 or _size(row) != _size(shown[i - 1])) for i, row in enumerate(shown)]
    changes = [i for i, row in enumerate(shown) if changed[i] or "→" in _sizes(row)]
    changes.sort(key=lambda i: "→" not in _sizes(shown[i]))  # what no legend names has its label first
    step_px, high_px = 440.0 / len(shown), 120.0  # of the smallest such chart without its margins
    labels = [
        Box(
            step_px * i,
            high_px * (shown[i].cost.value or 0.0) / (highest or 1.0),
            label_width_px(_sizes(shown[i])),
        )
        for i in changes
    ]
    rows_up = dict(zip(changes, label_rows(labels), strict=True))
    points = [_point(i, row, axis, rows_up.get(i)) for i, row in enumerate(shown)]
    trained = [row for row in shown if not is_idle(row)]
    chosen = [row for row in trained if _size(row) is not None]
    trained_points = [point for row, point in zip(shown, points, strict=True) if not is_idle(row)]
    sources = list(dict.fromkeys(row.source.text for row in trained))
    series: list[Option] = []
    for source in sources:  # a thin line each: figures of different sources do not compare
        at = [p["value"] for p, row in zip(trained_points, trained, strict=True) if row.source.text == source]
        path = line("", LINE, at) | {"silent": True, "lineStyle": {"color": LINE, "width": 1, "opacity": 0.6}}
        series.append(path)
    series += _dots(trained, trained_points, several=len(sources) > 1)
    idle = [{"value": [i, 0], "tip": plain(f"{label(r)}\n{r.state_why}")} for i, r in enumerate(shown) if is_idle(r)]
    series += [scatter(NOT_NEEDED, 9, hollow(LINE), idle, symbol=DASH)] if idle else []
    for curve in curves:
        series += _comparison(curve, keys, axis.size)
    if marks := [(keys.index(each.run), each.label) for each in breaks if each.run in keys]:
        series.append(vertical_lines(marks))
    option = over_runs(shown, axis.name, series, zero=True, right=110 if curves else 24)
    if not chosen and len(option["legend"]["data"]) == 1:
        option["legend"]["data"], option["grid"]["bottom"] = [], option["grid"]["bottom"] - 28
    legend = ["Colour and number: batch size." if chosen else "Each point is a run, measured as it is."]
    legend += ["Filled: the best known, or one that was set. Hollow: exploring."] if chosen else []
    last = {point["symbol"]: _sizes(row) for row, point in zip(trained, trained_points, strict=True)}
    legend += [said.format(last[symbol]) for symbol, said in MARKS.items() if symbol in last]
    note = " ".join([*legend, *(each.text for each in breaks), left_out(rows, shown)]).strip()

    def told(row: RunRow) -> str:
        return axis.text(row.cost.value or 0.0) + (f" with batch size {_size(row)}" if chosen else "")

    cheap, newest = min(trained, key=lambda r: r.cost.value or 0.0), trained[-1]
    explored = f", {sum(r.explored for r in trained)} of them exploring" if chosen else ""
    text = (
        f"Cost of {counted(len(trained), 'run')}, oldest first{explored}. Newest: {told(newest)}. Cheapest: "
        f"{told(cheap)}. The table holds the same figures."
    )
    return Chart(title=title, option=option, text=text, note=note, table=_table(title, shown, keys, curves, axis))


def over_runs(shown: Sequence[RunRow], axis: str, series: Sequence[Option], *, zero: bool, right: int = 24) -> Option:
    """An ECharts option whose horizontal axis is the runs, oldest first. ``zero``: the vertical axis starts at 0."""
    large, marked = len(shown) > LARGE, any("markLine" in s for s in series)  # a mark's label is above the chart
    names = [s["name"] for s in series if s["name"]]
    if SURE in names:  # it is drawn before the line that it is of, and named after it
        first = names.index(SURE)
        names[first : first + 2] = reversed(names[first : first + 2])
    option = base(
        grid={"left": 64, "right": right, "top": 46 if marked else 30, "bottom": 92 if large else 64},
        legend={
            "type": "scroll",
            "bottom": 0,
            "itemWidth": 18,
            "itemGap": 6,
            "data": [{"name": name, "icon": "rect"} if name == SURE else name for name in names],
        },
        xAxis={"type": "category", "data": [label(row) for row in shown], "axisLabel": {"hideOverlap": True}},
        yAxis={
            "type": "value",
            "name": axis,
            "nameGap": 28 if marked else 12,
            "boundaryGap": [0, "8%"],  # room for the label of the highest point, below the axis' name
            **({"min": 0} if zero else {}),
        },
        series=list(series),
    )
    if large:
        option["dataZoom"] = [{"type": "slider", "bottom": 28, "height": 18, "brushSelect": False}]
    return option


def vertical_lines(at: Sequence[tuple[int, str]]) -> Option:
    """A series of vertical lines at runs, given by index and label."""
    data = [{"xAxis": i, "label": {"formatter": plain(text)}} for i, text in at]
    return {"type": "line", "name": "", "data": [], "markLine": mark_lines(data, type="solid")}


def _table(
    title: str, shown: Sequence[RunRow], keys: Sequence[RunKey], curves: Sequence[ComparisonCurve], axis: CostAxis
) -> Table:
    def text(estimate: Estimate | None) -> str:
        if estimate is None or estimate.value is None:
            return "–"
        ends = (estimate.value, estimate.low, estimate.high)
        value, low, high = (axis.text(v or 0.0) for v in ends)
        return value if estimate.low is None or estimate.low == estimate.high else f"{value} ({low} to {high})"

    found = [
        [
            label(row),
            words.size(_size(row)),
            "–" if is_idle(row) or _size(row) is None else "yes" if row.explored else "no",
            NOT_NEEDED if is_idle(row) else axis.text(row.cost.value or 0.0),
            *(text(curve.values.get(key)) for curve in curves),
            row.source.text,
        ]
        for row, key in zip(reversed(shown), reversed(keys), strict=True)
    ]
    columns = ["Run", "Batch size", "Exploring", axis.name.capitalize(), *(curve.name for curve in curves), "Source"]
    numeric = [False, True, False, True, *(True for _ in curves), False]
    return Table(caption=title, columns=columns, numeric=numeric, rows=found)


def _point(i: int, row: RunRow, axis: CostAxis, row_up: int | None) -> Option:
    """``row_up``: by how many rows its label is raised; None: it has none."""
    with_model = row.state in [state.value for state in State if state.kept_model or state is State.DONE]
    usual = START_MARKS.get(row.attempts[-1].start or "", "circle")
    missed = row.state == State.EXHAUSTED.value
    symbol = CROSS if missed else "triangle" if not with_model else "diamond" if "→" in _sizes(row) else usual
    sizes = ", ".join(f"{words.size(t.batch_size)} ({t.state_text})" for t in row.attempts)
    lines = [
        label(row),
        *([f"{axis.text(row.cost.value or 0.0)} of {axis.whole}"] if axis.whole else []),
        f"energy {row.energy.text}, time {row.time.text}",
        f"batch size {sizes}" if _size(row) is not None else row.state_text,
        f"{row.phase}, power limit {row.limit.text}, {row.source.text}",
    ]
    value = [i, number((row.cost.value or 0.0) / axis.size)]
    point: Option = {"value": value, "tip": plain("\n".join(lines)), "symbol": symbol}
    if row.explored or missed:
        point["itemStyle"] = hollow(size_colour(_size(row)))
    if row_up is not None and row_up < 2 and _size(row) is not None:
        point["label"] = {"show": True, "formatter": _sizes(row), "offset": [0, -ROW_PX * row_up]}
    return point


def _comparison(curve: ComparisonCurve, keys: Sequence[RunKey], size: float) -> list[Option]:
    """A comparison as a line, with its intervals as a band."""
    found = [(i, curve.values[key]) for i, key in enumerate(keys) if key in curve.values]
    band = interval_band([(i, v.low, v.high) for i, v in found], size, step="middle")
    data = [[i, number((v.value or 0.0) / size)] for i, v in found]
    # the default's line is mostly the upper one: the names of two lines that meet stay apart
    apart = [0, 8 if curve.dash == "dotted" else -8]
    label = {"show": len(found) > 1, "formatter": curve.name.partition(" at ")[0], "offset": apart}
    return [*band, line(curve.name, LINE, data, curve.dash) | {"silent": True, "step": "middle", "endLabel": label}]


def _dots(shown: Sequence[RunRow], points: Sequence[Option], *, several: bool) -> list[Option]:
    """The points by batch size, and by energy source where there are several."""
    groups: dict[tuple[int | None, str], list[Option]] = {}
    for row, point in zip(shown, points, strict=True):
        groups.setdefault((_size(row), row.source.text if several else ""), []).append(point)
    px, found = 11 if len(shown) <= LARGE else 7, list[Option]()
    for (size, source), data in sorted(groups.items(), key=lambda group: (group[0][0] or 0, group[0][1])):
        name = ("measured" if size is None else str(size)) + (f" ({source})" if source else "")
        style = {"color": size_colour(size), "opacity": 1}
        found.append(scatter(name, px, style, data) | {"label": {"position": "top"}, "z": 3})  # over all lines
    return found


def _size(row: RunRow) -> int | None:
    return row.attempts[-1].batch_size


def _sizes(row: RunRow) -> str:
    """The size that it trained, after those that were given up before it: "16→64"."""
    gone = [tried.batch_size for tried in row.attempts[:-1] if tried.state == State.GIVEN_UP.value]
    return "→".join(map(words.size, (*gone, _size(row))))


def label(row: RunRow) -> str:
    """Label of a run on an axis: its slice of the data, else when it began (UTC)."""
    mapped = "" if row.map_index is None else f" [{row.map_index}]"
    began = f"{datetime.fromtimestamp(row.began_at, UTC):%Y-%m-%d %H:%M}"
    return plain(f"{row.slice_text or began}{mapped}"[:80])
