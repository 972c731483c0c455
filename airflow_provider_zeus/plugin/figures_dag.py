"""Charts of a DAG's tab: from rows to ECharts options, as plain data. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_zeus.optimizer.trial import State
from airflow_provider_zeus.plugin.figures import COLOURS, LINE, Option, base, number, plain, scale
from airflow_provider_zeus.plugin.models import Row

KEPT = (State.CONVERGED.value, State.EXHAUSTED.value)
SMALL, LARGE = 40, 120  # runs up to which points are labelled; above which a slider helps
LEGEND = (
    "Colour and number: batch size of the run's last attempt. Diamond: an attempt before it was given up. "
    "Triangle: no model was kept."
)


def charted(rows: Sequence[Row]) -> list[Row]:
    """The rows that one chart can show, oldest first: over, of known cost, in the unit of the newest such run."""
    known = [r for r in rows if r.cost.value is not None and r.state != State.RUNNING.value]
    return [r for r in reversed(known) if r.unit == known[0].unit]


def left_out(rows: Sequence[Row]) -> str:
    """What :func:`charted` leaves out, in a sentence; empty when nothing."""
    running = sum(r.state == State.RUNNING.value for r in rows)
    others = len(rows) - running - len(charted(rows))
    parts = [f"{_runs(running)} still running"] if running else []
    parts += [f"{_runs(others)} whose cost is not known in this unit"] if others else []
    return f"Not in the chart: {' and '.join(parts)}." if parts else ""


def cost_chart(rows: Sequence[Row], marked: str | None = None) -> Option | None:
    """Cost over runs, a point per run coloured by batch size; None when there is nothing to draw.

    :param rows: newest first, as ``costs.rows_of`` gives them.
    :param marked: run id to point out.
    """
    shown = charted(rows)
    if not shown:
        return None
    size, unit = scale(max(row.cost.value or 0.0 for row in shown), shown[0].unit)
    points = [_point(i, row, size, labelled=len(shown) <= SMALL) for i, row in enumerate(shown)]
    sources = list(dict.fromkeys(row.source.text for row in shown))
    series = [_line(source, shown, points) for source in sources]
    series += _dots(shown, points, several=len(sources) > 1)
    series += [_mark(i) for i, row in enumerate(shown) if row.run_id == marked]
    option = base(
        grid={"left": 64, "right": 24, "top": 40, "bottom": 92 if len(shown) > LARGE else 64},
        legend={
            "type": "scroll",
            "bottom": 0,
            "data": [s["name"] for s in series if s["type"] == "scatter" and s["name"]],
        },
        xAxis={"type": "category", "data": [_label(row) for row in shown], "axisLabel": {"hideOverlap": True}},
        yAxis={"type": "value", "name": f"cost [{unit}]", "min": 0},
        series=series,
    )
    if len(shown) > LARGE:
        option["dataZoom"] = [{"type": "slider", "bottom": 28, "height": 18, "brushSelect": False}]
    return option


def chart_text(rows: Sequence[Row]) -> str:
    """The chart in words."""
    shown = charted(rows)
    if not shown:
        return ""
    cheap = min(shown, key=lambda r: r.cost.value or 0.0)
    return (
        f"Cost of {_runs(len(shown))}, oldest first. Newest: {shown[-1].cost.text} with batch size {_size(shown[-1])}. "
        f"Cheapest: {cheap.cost.text} with batch size {_size(cheap)}. The table holds the same figures."
    )


def _point(i: int, row: Row, size: float, *, labelled: bool) -> Option:
    given_up = State.GIVEN_UP.value in [tried.state for tried in row.attempts[:-1]]
    point: Option = {
        "value": [i, number((row.cost.value or 0.0) / size)],
        "tip": _tip(row),
        "symbol": "triangle" if row.state not in KEPT else "diamond" if given_up else "circle",
    }
    return {**point, "label": {"show": True, "formatter": str(_size(row))}} if labelled else point


def _tip(row: Row) -> str:
    sizes = ", ".join(f"{t.batch_size} ({t.state_text})" for t in row.attempts)
    lines = [
        _label(row),
        f"cost {row.cost.text}, energy {row.energy.text}, time {row.time.text}",
        f"batch size {sizes}",
        f"{row.phase}, power limit {row.limit.text}, {row.source.text}",
    ]
    return plain("\n".join(lines))


def _line(source: str, shown: Sequence[Row], points: Sequence[Option]) -> Option:
    """A thin line through the points of one source: those of another one do not compare."""
    return {
        "type": "line",
        "name": "",
        "silent": True,
        "symbol": "none",
        "lineStyle": {"color": LINE, "width": 1, "opacity": 0.6},
        "data": [p["value"] for p, row in zip(points, shown, strict=True) if row.source.text == source],
    }


def _dots(shown: Sequence[Row], points: Sequence[Option], *, several: bool) -> list[Option]:
    sizes = sorted({_size(row) for row in shown})
    groups: dict[tuple[int, str], list[Option]] = {}
    for row, point in zip(shown, points, strict=True):
        groups.setdefault((_size(row), row.source.text if several else ""), []).append(point)
    return [
        {
            "type": "scatter",
            "name": f"{size} ({source})" if source else str(size),
            "symbolSize": 11 if len(shown) <= LARGE else 7,
            "itemStyle": {"color": COLOURS[sizes.index(size) % len(COLOURS)], "opacity": 1},
            "label": {"position": "top"},
            "labelLayout": {"hideOverlap": True},
            "data": data,
        }
        for (size, source), data in sorted(groups.items())
    ]


def _mark(i: int) -> Option:
    return {
        "type": "line",
        "name": "",
        "data": [],
        "markLine": {
            "silent": True,
            "symbol": "none",
            "lineStyle": {"color": LINE, "type": "dashed"},
            "label": {"formatter": "this run"},
            "data": [{"xAxis": i}],
        },
    }


def _size(row: Row) -> int:
    return row.attempts[-1].batch_size


def _label(row: Row) -> str:
    mapped = "" if row.map_index is None else f" [{row.map_index}]"
    return plain(f"{row.slice_text or row.run_id}{mapped}"[:80])


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"
