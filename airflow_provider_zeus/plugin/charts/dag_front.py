"""Chart of energy against time by batch size and power limit: Pareto front, line of equal cost. Pure: plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.plugin.charts.chart_parts import (
    GREY,
    LINE,
    ROW_PX,
    Option,
    base,
    hollow,
    label_rows,
    line,
    number,
    scale,
    scatter,
    size_colour,
    value_axis,
)
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.views.models import Chart, Table
from airflow_provider_zeus.reports.limit_profiles import same_limit
from airflow_provider_zeus.reports.pareto import OperatingPoint
from airflow_provider_zeus.units import counted, three_digits

FRONT, RAN, PROFILED, CHOSEN = "Pareto front", "chosen by runs", "profiled only", "what runs"


def front_chart(
    points: Sequence[OperatingPoint],
    weights: Weights,
    batch_size: int | None = None,
    limit_w: float | None = None,
    start: str | None = None,
) -> Chart:
    """Chart of the mean energy and time to the target per batch size and power limit, without profiling.

    :param points: by time.
    :param batch_size: that runs at these weights, by the policy, which knows more than these means; default: that of
        the cheapest of them.
    :param limit_w: the power limit [W] that it has; None: those that its runs had.
    :param start: from which it runs, of a job that chooses it.
    """
    title = "Energy against time"
    if not points:
        return Chart(title=title, note="No run on this device reached the target with a known time and energy.")
    time, energy = _Axis.of([p.tta_s for p in points], "s"), _Axis.of([p.eta_j for p in points], "J")

    def at(p: OperatingPoint) -> list[float]:
        return [number(p.tta_s / time.size), number(p.eta_j / energy.size)]

    settled = [p for p in points if (p.batch_size, p.start) == (batch_size, start or p.start)]
    at_limit = [p for p in settled if (p.observed if limit_w is None else same_limit(p.limit_w, limit_w))]
    runs = points if batch_size is None else at_limit
    best = min(runs, key=lambda p: (weights.cost(p.eta_j, p.tta_s), p.batch_size), default=None)
    pareto = [at(p) for p in points if p.on_front]
    text = f"{len(points)} pairs of batch size and power limit, {len(pareto)} of them on the Pareto front. At eta "
    text += f"{weights.eta:g} runs batch size {best.batch_size if best else batch_size}, "
    if best:
        text += f"{_limit(best)}, {words.duration(best.tta_s).text} and {words.energy(best.eta_j).text}."
    else:
        text += "but no run of it that reached the target is known here at its limit."
    lowest = {
        (p.batch_size, p.start): p for p in sorted(points, key=lambda p: -p.eta_j) if p.observed
    }  # of each size and start: it is named
    named = sorted(lowest.values(), key=lambda p: p.eta_j)
    wide_px, high_px = 360.0, 220.0  # the smallest such chart without its margins
    places = [(wide_px * time.share(p.tta_s), high_px * energy.share(p.eta_j), _name(p)) for p in named]
    rows = dict(zip(named, label_rows(places), strict=True))
    series: list[Option] = [
        line(FRONT, LINE, pareto) | {"silent": True},
        line(
            f"equal cost at eta {weights.eta:g}",
            LINE,
            _equal_cost(weights, best, time, energy) if best else [],
            "dashed",
        )
        | {"silent": True},
        scatter(PROFILED, 7, hollow(GREY), [_dot(p, at(p)) for p in points if not p.observed]),
        scatter(RAN, 12, {"color": GREY, "opacity": 1}, [_dot(p, at(p), rows.get(p)) for p in points if p.observed]),
        scatter(CHOSEN, 24, hollow(LINE), [at(best)] if best else []) | {"silent": True},
    ]
    option = base(
        grid={"left": 70, "right": 34, "top": 24, "bottom": 96},
        legend={"bottom": 0, "itemGap": 8, "data": [s["name"] for s in series if s["data"]]},
        xAxis=time.option("time to the target", 26),
        yAxis=energy.option("energy", 48),
        series=series,
    )
    named_by = "batch size and start" if points[0].start else "batch size"
    note = (
        f"On a typical slice of the data. Numbers: {named_by}. Filled: runs had this power limit; hollow: it was only "
        "profiled."
    )
    if best:
        note += (
            f" Dashed: what costs as much at eta {weights.eta:g} as what runs then; points below it look cheaper, "
            "but not surely (the chart of beliefs has the intervals), or have a limit that the job does not set."
        )
    return Chart(title=title, option=option, text=text, note=note, table=_table(title, points, weights))


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis from ``low`` to ``high`` [J or s], labelled in ``unit``, which is ``size`` [J or s] large."""

    low: float
    high: float
    size: float
    unit: str

    @classmethod
    def of(cls, values: Sequence[float], unit: str) -> _Axis:
        size, name = scale(max(values), unit)
        low, high = min(values), max(values)
        room = 0.12 * ((high - low) or high)
        return cls(max(low - room, 0.0), high + room, size, name)

    def share(self, value: float) -> float:
        """Position of a value on the axis, from 0 to 1."""
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5

    def option(self, name: str, gap: int) -> Option:
        low, high = (float(f"{end / self.size:.3g}") for end in (self.low, self.high))
        ends = {"showMinLabel": False, "showMaxLabel": False}  # they are not round numbers
        return value_axis(f"{name} [{self.unit}]", gap, min=low, max=high, axisLabel=ends)


def _dot(p: OperatingPoint, value: list[float], row: int | None = None) -> Option:
    """A point of the chart. ``row``: by how many rows its label is raised; None: it has none."""
    colour = size_colour(p.batch_size)
    spent = f"{words.duration(p.tta_s).text}, {words.energy(p.eta_j).text}"
    tip = f"batch size {_name(p)}, {_limit(p)}\n{spent}\n"
    tip += f"mean of {counted(p.runs, 'run')}" if p.observed else "re-costed by the profile"
    away_px = 10  # from a point to its label, to the right and down: clear of the ring and the line
    label: Option = {"show": row is not None, "formatter": _name(p), "position": "right", "distance": away_px}
    label["offset"] = [0, away_px - ROW_PX * (row or 0)]
    style = {"color": colour} if p.observed else hollow(colour)
    return {"value": value, "tip": tip + "\non the front" * p.on_front, "itemStyle": style, "label": label}


def _equal_cost(weights: Weights, best: OperatingPoint, time: _Axis, energy: _Axis) -> list[list[float]]:
    """Both ends inside the chart of the line on which runs cost as much as the cheapest one (Eq. 2)."""
    cost, per_s = weights.cost(best.eta_j, best.tta_s), (1 - weights.eta) * weights.max_power_w
    ends: list[tuple[float, float]] = []
    if weights.eta > 0:
        ends += [(t, (cost - per_s * t) / weights.eta) for t in (time.low, time.high)]
    if per_s > 0:
        ends += [((cost - weights.eta * e) / per_s, e) for e in (energy.low, energy.high)]
    inside = sorted(
        (t, e) for t, e in ends if all(-1e-9 <= share <= 1 + 1e-9 for share in (time.share(t), energy.share(e)))
    )
    return [[number(t / time.size), number(e / energy.size)] for t, e in (inside[0], inside[-1])] if inside else []


def _name(p: OperatingPoint) -> str:
    return f"{p.batch_size}{f', {p.start}' if p.start else ''}"


def _limit(p: OperatingPoint) -> str:
    return "no limit" if p.limit_w is None else words.watts(p.limit_w).text


def _table(title: str, points: Sequence[OperatingPoint], weights: Weights) -> Table:
    whole = max(weights.cost(p.eta_j, p.tta_s) for p in points) or 1.0
    rows = [
        [
            _name(p),
            _limit(p),
            words.duration(p.tta_s).text,
            words.energy(p.eta_j).text,
            f"{three_digits(100 * weights.cost(p.eta_j, p.tta_s) / whole)} %",
            str(p.runs) if p.observed else "profiled only",
            "yes" if p.on_front else "no",
        ]
        for p in points
    ]
    columns = [
        "Batch size",
        "Limit",
        "Time",
        "Energy",
        f"Energy and time at eta {weights.eta:g} [% of the dearest]",
        "Runs",
        "On the front",
    ]
    return Table(caption=title, columns=columns, numeric=[True, True, True, True, True, True, False], rows=rows)
