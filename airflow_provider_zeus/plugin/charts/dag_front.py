"""Chart of energy against time by batch size and power limit: Pareto front, line of equal cost. Pure: plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.plugin.charts.chart_parts import (
    COLOURS,
    LINE,
    Option,
    base,
    hollow,
    line,
    number,
    scale,
    scatter,
    value_axis,
)
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.views.models import Chart, Table
from airflow_provider_zeus.reports.limit_profiles import SAME_W
from airflow_provider_zeus.reports.pareto import OperatingPoint, ParetoFront

FRONT, RAN, PROFILED, CHOSEN = "Pareto front", "chosen by runs", "profiled only", "what runs at this eta"
ROW_PX = 14  # height of a label


@dataclass(frozen=True, slots=True)
class _Plot:
    """The operating points with their colours and axes."""

    points: Sequence[OperatingPoint]  # by time
    colours: Mapping[int, str]  # by batch size
    time: _Axis
    energy: _Axis

    @classmethod
    def of(cls, front: ParetoFront) -> _Plot:
        points = sorted(front.points, key=lambda p: p.tta_s)
        sizes = sorted({p.batch_size for p in points})
        colours = {b: COLOURS[i % len(COLOURS)] for i, b in enumerate(sizes)}
        return cls(points, colours, _Axis.of([p.tta_s for p in points], "s"), _Axis.of([p.eta_j for p in points], "Wh"))

    def at(self, p: OperatingPoint) -> list[float]:
        return [number(p.tta_s / self.time.size), number(p.eta_j / self.energy.size)]

    def scatter(self, some: Sequence[OperatingPoint], name: str, size: int, style: Option) -> Option:
        rows, data = self._label_rows(some), []
        away_px = 10  # from a point to its label, to the right and down: clear of the ring and the line
        for p in some:
            colour, runs = self.colours[p.batch_size], "1 run" if p.runs == 1 else f"{p.runs} runs"
            tip = f"batch size {p.batch_size}, {_limit(p)}\n{_spent(p, ', ')}\n"
            tip += f"mean of {runs}" if p.observed else "re-costed by the profile"
            label = {"show": p in rows, "formatter": str(p.batch_size), "position": "right", "distance": away_px}
            data.append(
                {
                    "value": self.at(p),
                    "tip": tip + "\non the front" * p.on_front,
                    "itemStyle": {"color": colour} if p.observed else hollow(colour),
                    "label": label | {"offset": [0, away_px - ROW_PX * rows.get(p, 0)]},
                }
            )
        return scatter(name, size, style, data)

    def _label_rows(self, some: Sequence[OperatingPoint]) -> dict[OperatingPoint, int]:
        """One observed point of each batch size, and by how many rows its label is raised so that no labels overlap.

        The build of ECharts that the page uses lacks ECharts' own layout of labels.
        """
        lowest = {p.batch_size: p for p in sorted(some, key=lambda p: -p.eta_j) if p.observed}
        rows: dict[OperatingPoint, int] = {}
        placed: list[tuple[float, float]] = []
        wide_px, high_px, text_px = 360.0, 220.0, 30  # the smallest such chart without its margins, and a label
        for p in sorted(lowest.values(), key=lambda p: p.eta_j):
            x, y = wide_px * self.time.share(p.tta_s), high_px * self.energy.share(p.eta_j)
            row = next(
                n
                for n in range(len(placed) + 1)
                if all(abs(x - a) >= text_px or abs(y + ROW_PX * n - b) >= ROW_PX for a, b in placed)
            )
            rows[p] = row
            placed.append((x, y + ROW_PX * row))
        return rows


def front_chart(
    front: ParetoFront, weights: Weights, batch_size: int | None = None, limit_w: float | None = None
) -> Chart:
    """Chart of the mean energy and time to the target per batch size and power limit, without profiling.

    :param batch_size: that runs at these weights, by the policy, which knows more than these means; default: that of
        the cheapest of them.
    :param limit_w: the power limit [W] that it has; None: those that its runs had.
    """
    title = "Energy against time"
    if not front.points:
        return Chart(title=title, note=front.reason or "")
    plot = _Plot.of(front)
    points = plot.points

    def runs_now(p: OperatingPoint) -> bool:
        if limit_w is None:
            return p.observed
        return p.limit_w is not None and abs(p.limit_w - limit_w) <= SAME_W

    runs = points if batch_size is None else [p for p in points if p.batch_size == batch_size and runs_now(p)]
    best = min(runs, key=lambda p: (weights.cost(p.eta_j, p.tta_s), p.batch_size), default=None)
    pareto = [plot.at(p) for p in points if p.on_front]
    text = f"{len(points)} pairs of batch size and power limit, {len(pareto)} of them on the Pareto front. At eta "
    text += f"{weights.eta:g} runs batch size {best.batch_size if best else batch_size}, "
    if best:
        text += f"{_limit(best)}, {_spent(best, ' and ')}."
    else:
        text += "of which no run that reached the target is known here at its limit."
    series: list[Option] = [
        line(FRONT, LINE, pareto) | {"silent": True},
        line(f"eta {weights.eta:g}", COLOURS[1], _equal_cost(weights, best, plot) if best else [], "dashed")
        | {"silent": True},
        plot.scatter([p for p in points if not p.observed], PROFILED, 7, hollow(COLOURS[7])),
        plot.scatter([p for p in points if p.observed], RAN, 12, {"color": COLOURS[7], "opacity": 1}),
        scatter(CHOSEN, 24, hollow(COLOURS[1]), [plot.at(best)] if best else []) | {"silent": True},
    ]
    option = base(
        grid={"left": 70, "right": 34, "top": 24, "bottom": 96},
        legend={"bottom": 0, "itemGap": 8, "data": [s["name"] for s in series if s["data"]]},
        xAxis=plot.time.option("time to the target", 26),
        yAxis=plot.energy.option("energy", 48),
        series=series,
    )
    note = (
        "On a typical slice of the data. Numbers: batch size. Filled: runs had this power limit; hollow: it was only "
        "profiled."
    )
    if best:
        note += (
            f" Dashed: what costs as much at eta {weights.eta:g} as what runs then; points below it look cheaper, "
            "which the policy, whose intervals the belief shows, does not take for sure, or have a limit that the job "
            "does not set."
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

    def contains(self, value: float) -> bool:
        slack = 1e-9 * self.high
        return self.low - slack <= value <= self.high + slack

    def option(self, name: str, gap: int) -> Option:
        low, high = (float(f"{end / self.size:.3g}") for end in (self.low, self.high))
        ends = {"showMinLabel": False, "showMaxLabel": False}  # they are not round numbers
        return value_axis(f"{name} [{self.unit}]", gap, min=low, max=high, axisLabel=ends)


def _equal_cost(weights: Weights, best: OperatingPoint, plot: _Plot) -> list[list[float]]:
    """Both ends inside the chart of the line on which runs cost as much as the cheapest one (Eq. 2)."""
    time, energy = plot.time, plot.energy
    cost, per_s = weights.cost(best.eta_j, best.tta_s), (1 - weights.eta) * weights.max_power_w
    ends: list[tuple[float, float]] = []
    if weights.eta > 0:
        ends += [(t, (cost - per_s * t) / weights.eta) for t in (time.low, time.high)]
    if per_s > 0:
        ends += [((cost - weights.eta * e) / per_s, e) for e in (energy.low, energy.high)]
    inside = sorted((t, e) for t, e in ends if time.contains(t) and energy.contains(e))
    return [[number(t / time.size), number(e / energy.size)] for t, e in (inside[0], inside[-1])] if inside else []


def _spent(p: OperatingPoint, between: str) -> str:
    return f"{words.duration(p.tta_s).text}{between}{words.energy(p.eta_j).text}"


def _limit(p: OperatingPoint) -> str:
    return "no limit" if p.limit_w is None else words.watts(p.limit_w).text


def _table(title: str, points: Sequence[OperatingPoint], weights: Weights) -> Table:
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
    return Table(caption=title, columns=columns, numeric=[True, True, True, True, True, True, False], rows=rows)
