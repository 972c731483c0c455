"""Charts over the runs of a DAG's tab: cost of each, and the sum saved. From rows to ECharts options. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_zeus.optimizer.trial import State
from airflow_provider_zeus.plugin.dag_known import Mark, RunKey
from airflow_provider_zeus.plugin.figures import COLOURS, LINE, Option, base, hollow, number, plain, scale
from airflow_provider_zeus.plugin.models import Chart, Row, Table
from airflow_provider_zeus.plugin.words import cost_text

KEPT = (State.CONVERGED.value, State.EXHAUSTED.value)
SMALL, LARGE = 40, 120  # runs up to which points are labelled; above which a slider helps
LEGEND = (
    "Colour, and number where it changes: batch size of the run's last attempt. Filled: exploited. Hollow: explored. "
    "Diamond: an attempt before it was given up. Triangle: no model was kept."
)


@dataclass(frozen=True, slots=True)
class Line:
    """What each run would have cost another way [J or s]."""

    name: str
    values: Mapping[RunKey, float]
    dash: str = "dashed"  # dashed | dotted


def row_key(row: Row) -> RunKey:
    """Which run it is."""
    return row.run_id, row.task_id, -1 if row.map_index is None else row.map_index


def charted(rows: Sequence[Row]) -> list[Row]:
    """The rows that one chart can show, oldest first: over, of known cost, in the unit of the newest such run."""
    known = [r for r in rows if r.cost.value is not None and r.state not in (State.RUNNING.value, State.NO_DATA.value)]
    return [r for r in reversed(known) if r.unit == known[0].unit]


def left_out(rows: Sequence[Row]) -> str:
    """What :func:`charted` leaves out, in a sentence; empty when nothing."""
    running = sum(r.state == State.RUNNING.value for r in rows)
    empty = sum(r.state == State.NO_DATA.value for r in rows)
    others = len(rows) - running - empty - len(charted(rows))
    parts = [f"{_runs(running)} still running"] if running else []
    parts += [f"{_runs(empty)} without data"] if empty else []
    parts += [f"{_runs(others)} whose cost is not known in this unit"] if others else []
    return f"Not in the chart: {' and '.join(parts)}." if parts else ""


def cost_chart(rows: Sequence[Row], lines: Sequence[Line] = (), marks: Sequence[Mark] = ()) -> Chart:
    """Cost over runs, a point per run coloured by batch size.

    :param rows: newest first, as ``costs.rows_of`` gives them.
    :param lines: in the unit of the newest row.
    """
    title, shown = "Cost of each run", charted(rows)
    if not shown:
        return Chart(title=title, note=f"No run of known cost yet. {left_out(rows)}".strip())
    keys = [row_key(row) for row in shown]
    lines = [line for line in lines if any(key in line.values for key in keys)]
    highest = max([row.cost.value or 0.0 for row in shown] + [v for line in lines for v in line.values.values()])
    size, unit = scale(highest, shown[0].unit)
    few, colours = len(shown) <= SMALL, _colours(shown)
    points = [
        _point(i, row, size, colours[_size(row)], labelled=few and (i == 0 or _size(row) != _size(shown[i - 1])))
        for i, row in enumerate(shown)
    ]
    sources = list(dict.fromkeys(row.source.text for row in shown))
    series = [_path(source, shown, points) for source in sources]
    series += _dots(shown, points, several=len(sources) > 1)
    series += [_rival(line, keys, size) for line in lines]
    if drawn := drawn_marks(marks, keys):
        series.append(drawn)
    option = over_runs(shown, f"cost [{unit}]", series, zero=True, right=110 if lines else 24)
    dots = [s["name"] for s in series if s["type"] == "scatter" and s["name"]]
    option["legend"]["data"] = [*dots, *(line.name for line in lines)]
    note = " ".join([LEGEND, *(mark.text for mark in marks), left_out(rows)]).strip()
    return Chart(title=title, option=option, text=_said(shown), note=note, table=_table(title, shown, keys, lines))


def over_runs(shown: Sequence[Row], axis: str, series: Sequence[Option], *, zero: bool, right: int = 24) -> Option:
    """An option whose horizontal axis is the runs, oldest first."""
    large = len(shown) > LARGE
    option = base(
        grid={"left": 64, "right": right, "top": 46, "bottom": 92 if large else 64},
        legend={"type": "scroll", "bottom": 0, "data": [s["name"] for s in series if s["name"]]},
        xAxis={"type": "category", "data": [label(row) for row in shown], "axisLabel": {"hideOverlap": True}},
        yAxis={"type": "value", "name": axis, **({"min": 0} if zero else {})},
        series=list(series),
    )
    if large:
        option["dataZoom"] = [{"type": "slider", "bottom": 28, "height": 18, "brushSelect": False}]
    return option


def drawn_marks(marks: Sequence[Mark], keys: Sequence[RunKey]) -> Option | None:
    """Vertical lines where something older was forgotten; None without."""
    found = [(keys.index(mark.run), mark.label) for mark in marks if mark.run in keys]
    if not found:
        return None
    return _upright([{"xAxis": i, "label": {"formatter": plain(text)}} for i, text in found])


def _upright(data: Sequence[Option]) -> Option:
    return {
        "type": "line",
        "name": "",
        "data": [],
        "markLine": {"silent": True, "symbol": "none", "lineStyle": {"color": LINE, "type": "solid"}, "data": data},
    }


def at_run(i: int, text: str) -> Option:
    """A vertical line at one run."""
    return _upright([{"xAxis": i, "label": {"formatter": text}}])


def _said(shown: Sequence[Row]) -> str:
    cheap = min(shown, key=lambda r: r.cost.value or 0.0)
    explored = sum(r.explored for r in shown)
    return (
        f"Cost of {_runs(len(shown))}, oldest first, {explored} of them explored. Newest: {shown[-1].cost.text} with "
        f"batch size {_size(shown[-1])}. Cheapest: {cheap.cost.text} with batch size {_size(cheap)}. The table holds "
        "the same figures."
    )


def _table(title: str, shown: Sequence[Row], keys: Sequence[RunKey], lines: Sequence[Line]) -> Table:
    found = [
        [
            label(row),
            str(_size(row)),
            "explored" if row.explored else "exploited",
            row.cost.text,
            *(cost_text(v, row.unit) if (v := line.values.get(key)) is not None else "–" for line in lines),
            row.source.text,
        ]
        for row, key in zip(reversed(shown), reversed(keys), strict=True)
    ]
    columns = ["Run", "Batch size", "Explored", "Cost", *(line.name for line in lines), "Source"]
    numeric = [False, True, False, True, *(True for _ in lines), False]
    return Table(caption=title, columns=columns, numeric=numeric, rows=found)


def _point(i: int, row: Row, size: float, colour: str, *, labelled: bool) -> Option:
    given_up = State.GIVEN_UP.value in [tried.state for tried in row.attempts[:-1]]
    symbol = "triangle" if row.state not in KEPT else "diamond" if given_up else "circle"
    point: Option = {
        "value": [i, number((row.cost.value or 0.0) / size)],
        "tip": _tip(row),
        "symbol": symbol,
    }
    if row.explored:
        point["itemStyle"] = hollow(colour)
    return {**point, "label": {"show": True, "formatter": str(_size(row))}} if labelled else point


def _tip(row: Row) -> str:
    sizes = ", ".join(f"{t.batch_size} ({t.state_text})" for t in row.attempts)
    lines = [
        label(row),
        f"cost {row.cost.text} ({row.cost.exact})",
        f"energy {row.energy.text}, time {row.time.text}",
        f"batch size {sizes}",
        f"{row.phase}, power limit {row.limit.text}, {row.source.text}",
    ]
    return plain("\n".join(lines))


def _path(source: str, shown: Sequence[Row], points: Sequence[Option]) -> Option:
    """A thin line through the points of one source: those of another one do not compare."""
    return {
        "type": "line",
        "name": "",
        "silent": True,
        "symbol": "none",
        "lineStyle": {"color": LINE, "width": 1, "opacity": 0.6},
        "data": [p["value"] for p, row in zip(points, shown, strict=True) if row.source.text == source],
    }


def _rival(line: Line, keys: Sequence[RunKey], size: float) -> Option:
    known = [(i, line.values[key]) for i, key in enumerate(keys) if key in line.values]
    return {
        "type": "line",
        "name": line.name,
        "silent": True,
        "symbol": "none",
        "step": "middle",
        "itemStyle": {"color": LINE},
        "lineStyle": {"color": LINE, "width": 2, "type": line.dash},
        "endLabel": {"show": True, "formatter": line.name.partition(",")[0]},
        "data": [[i, number(value / size)] for i, value in known],
    }


def _dots(shown: Sequence[Row], points: Sequence[Option], *, several: bool) -> list[Option]:
    colours = _colours(shown)
    groups: dict[tuple[int, str], list[Option]] = {}
    for row, point in zip(shown, points, strict=True):
        groups.setdefault((_size(row), row.source.text if several else ""), []).append(point)
    return [
        {
            "type": "scatter",
            "name": f"{size} ({source})" if source else str(size),
            "symbolSize": 11 if len(shown) <= LARGE else 7,
            "itemStyle": {"color": colours[size], "opacity": 1},
            "label": {"position": "top"},
            "data": data,
        }
        for (size, source), data in sorted(groups.items())
    ]


def _colours(shown: Sequence[Row]) -> dict[int, str]:
    sizes = sorted({_size(row) for row in shown})
    return {size: COLOURS[i % len(COLOURS)] for i, size in enumerate(sizes)}


def _size(row: Row) -> int:
    return row.attempts[-1].batch_size


def label(row: Row) -> str:
    """A run for an axis: its slice of the data, else its id."""
    mapped = "" if row.map_index is None else f" [{row.map_index}]"
    return plain(f"{row.slice_text or row.run_id}{mapped}"[:80])


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"
