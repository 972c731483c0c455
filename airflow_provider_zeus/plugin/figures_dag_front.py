"""Energy against time: batch sizes and power limits, their Pareto front, the line of equal cost. Plain data. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_zeus.optimizer.cost import Weights
from airflow_provider_zeus.optimizer.pareto import Front, Point
from airflow_provider_zeus.plugin import words
from airflow_provider_zeus.plugin.figures import COLOURS, LINE, Option, base, hollow, number, scale
from airflow_provider_zeus.plugin.models import Chart, Table

TITLE = "Energy against time"
FRONT, RAN, PROFILED, CHOSEN = "Pareto front", "chosen by runs", "profiled only", "cheapest at this eta"
SLACK = 0.12  # room around the points, of their spread


def front_chart(front: Front, weights: Weights) -> Chart:
    """Means per batch size and power limit of the runs that reached the target, without profiling."""
    if not front.points:
        return Chart(title=TITLE, note=front.reason or "")
    points = sorted(front.points, key=lambda p: p.tta_s)
    e_size, e_unit = scale(max(p.eta_j for p in points), "J")
    t_size, t_unit = scale(max(p.tta_s for p in points), "s")
    sizes = sorted({p.batch_size for p in points})
    colours = {b: COLOURS[i % len(COLOURS)] for i, b in enumerate(sizes)}
    best = min(points, key=lambda p: (weights.cost(p.eta_j, p.tta_s), p.batch_size))
    (left, right), (low, high) = _range([p.tta_s for p in points]), _range([p.eta_j for p in points])

    def at(p: Point) -> list[float]:
        return [number(p.tta_s / t_size), number(p.eta_j / e_size)]

    ran = [p for p in points if p.observed]
    labelled = {p.batch_size: p for p in sorted(ran, key=lambda p: -p.eta_j)}  # one label for each batch size

    def dots(some: Sequence[Point], name: str, size: int, style: Option) -> Option:
        return {
            "type": "scatter",
            "name": name,
            "symbol": "circle",
            "symbolSize": size,
            "itemStyle": style,
            "labelLayout": {"hideOverlap": True},
            "data": [
                {
                    "value": at(p),
                    "tip": _tip(p),
                    "itemStyle": {"color": colours[p.batch_size]} if p.observed else hollow(colours[p.batch_size]),
                    "label": {
                        "show": labelled.get(p.batch_size) is p,
                        "formatter": str(p.batch_size),
                        "position": "top",
                    },
                }
                for p in some
            ],
        }

    series: list[Option] = [
        {
            "type": "line",
            "name": FRONT,
            "silent": True,
            "symbol": "none",
            "itemStyle": {"color": LINE},
            "lineStyle": {"color": LINE, "width": 2},
            "data": [at(p) for p in points if p.on_front],
        },
        _equal_cost(weights, best, (left, right), (low, high), (t_size, e_size)),
        dots([p for p in points if not p.observed], PROFILED, 7, hollow(COLOURS[7])),
        dots(ran, RAN, 12, {"color": COLOURS[7], "opacity": 1}),
        {
            "type": "scatter",
            "name": CHOSEN,
            "symbol": "circle",
            "symbolSize": 24,
            "silent": True,
            "itemStyle": hollow(COLOURS[1]),
            "data": [at(best)],
        },
    ]
    axis = {"type": "value", "nameLocation": "middle"}
    option = base(
        grid={"left": 70, "right": 24, "top": 24, "bottom": 96},
        legend={"bottom": 0, "itemGap": 8, "data": [s["name"] for s in series if s["data"]]},
        xAxis={**axis, "name": f"time to the target [{t_unit}]", "nameGap": 26, **_ends(left, right, t_size)},
        yAxis={**axis, "name": f"energy [{e_unit}]", "nameGap": 48, **_ends(low, high, e_size)},
        series=series,
    )
    note = (
        "Numbers: batch size. Filled: runs had this power limit; hollow: it was only profiled. Dashed: equal cost at "
        f"eta {weights.eta:g}; it touches what is cheapest."
    )
    return Chart(
        title=TITLE, option=option, text=_said(points, best, weights), note=note, table=_table(points, weights)
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = (high - low) * SLACK or high * SLACK
    return max(low - room, 0.0), high + room


def _ends(low: float, high: float, size: float) -> Option:
    hidden = {"showMinLabel": False, "showMaxLabel": False}  # the ends are no round numbers
    return {"min": float(f"{low / size:.3g}"), "max": float(f"{high / size:.3g}"), "axisLabel": hidden}


def _equal_cost(
    weights: Weights, best: Point, time: tuple[float, float], energy: tuple[float, float], sizes: tuple[float, float]
) -> Option:
    """Where a run costs as much as the cheapest (Eq. 2), inside the chart."""
    cost, per_s = weights.cost(best.eta_j, best.tta_s), (1 - weights.eta) * weights.max_power_w
    ends: list[tuple[float, float]] = []
    if weights.eta > 0:
        ends += [(t, (cost - per_s * t) / weights.eta) for t in time]
    if per_s > 0:
        ends += [((cost - weights.eta * e) / per_s, e) for e in energy]
    inside = sorted((t, e) for t, e in ends if _within(t, time) and _within(e, energy))
    data = [[number(t / sizes[0]), number(e / sizes[1])] for t, e in (inside[0], inside[-1])] if inside else []
    return {
        "type": "line",
        "name": f"eta {weights.eta:g}",
        "silent": True,
        "symbol": "none",
        "itemStyle": {"color": COLOURS[1]},
        "lineStyle": {"color": COLOURS[1], "width": 2, "type": "dashed"},
        "data": data,
    }


def _within(value: float, ends: tuple[float, float]) -> bool:
    slack = 1e-9 * ends[1]
    return ends[0] - slack <= value <= ends[1] + slack


def _limit(p: Point) -> str:
    return "no limit" if p.limit_w is None else words.watts(p.limit_w).text


def _tip(p: Point) -> str:
    how = f"mean of {p.runs} run{'s' if p.runs > 1 else ''}" if p.observed else "re-costed by the profile"
    return (
        f"batch size {p.batch_size}, {_limit(p)}\n{words.duration(p.tta_s).text}, {words.energy(p.eta_j).text}\n{how}"
        + ("\non the front" if p.on_front else "")
    )


def _said(points: Sequence[Point], best: Point, weights: Weights) -> str:
    front = sum(p.on_front for p in points)
    return (
        f"{len(points)} pairs of batch size and power limit, {front} of them on the Pareto front. Cheapest at eta "
        f"{weights.eta:g}: batch size {best.batch_size}, {_limit(best)}, {words.duration(best.tta_s).text} and "
        f"{words.energy(best.eta_j).text}."
    )


def _table(points: Sequence[Point], weights: Weights) -> Table:
    rows = [
        [
            str(p.batch_size),
            _limit(p),
            words.duration(p.tta_s).text,
            words.energy(p.eta_j).text,
            words.cost(weights.cost(p.eta_j, p.tta_s), "J").text,
            str(p.runs) if p.observed else "profiled only",
            "yes" if p.on_front else "no",
        ]
        for p in points
    ]
    columns = ["Batch size", "Limit", "Time", "Energy", f"Cost at eta {weights.eta:g}", "Runs", "On the front"]
    return Table(caption=TITLE, columns=columns, numeric=[True, True, True, True, True, True, False], rows=rows)
