"""Chart of energy against time by batch size and power limit: Pareto front, choices at several etas. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.plugin.charts.chart_parts import (
    GREY,
    LINE,
    ROW_PX,
    Box,
    Option,
    base,
    hollow,
    label_rows,
    label_width_px,
    line,
    number,
    scale,
    scatter,
    size_colour,
    value_axis,
)
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.views.models import Chart, Table
from airflow_provider_zeus.reports.eta_choices import EtaChoice
from airflow_provider_zeus.reports.limit_profiles import same_limit
from airflow_provider_zeus.reports.pareto import OperatingPoint
from airflow_provider_zeus.units import UNKNOWN, counted, three_digits

FRONT, RAN, PROFILED, CHOSEN = "Pareto front", "chosen by runs", "profiled only", "choice at an eta"
WIDE_PX, HIGH_PX = 360.0, 200.0  # of the smallest such chart without its margins
DOT_PX, RING_PX = 12, 24
SIZE_AWAY_PX, ETA_AWAY_PX = 10, 3  # from a mark to its label


def front_chart(points: Sequence[OperatingPoint], weights: Weights, choices: Sequence[EtaChoice]) -> Chart:
    """Chart of the mean energy and time to the target per batch size and power limit, without profiling.

    :param points: by time, at least one.
    :param weights: of the job today.
    :param choices: what would run at each eta, by eta; today's among them. They are of the policy, which knows more
        than these means.
    """
    time = _Axis.of([p.tta_s for p in points], "s")
    energy = _Axis.of([p.eta_j for p in points], "J")
    etas_of: dict[OperatingPoint, list[float]] = {}
    absent: dict[int, list[float]] = {}  # batch size -> etas
    for choice in choices:
        chosen = _point_of(choice, points, weights)
        if chosen is None:
            absent.setdefault(choice.batch_size, []).append(choice.eta)
        else:
            etas_of.setdefault(chosen, []).append(choice.eta)
    unmarked = "".join(
        f" At eta {_names(etas, weights)} runs batch size {b}, but no run of it that reached the target is known here "
        "at its limit."
        for b, etas in absent.items()
    )
    names = {p: _names(etas, weights) for p, etas in etas_of.items()}
    best = next((p for p, etas in etas_of.items() if weights.eta in etas), None)  # what runs today
    title = "Energy against time"
    return Chart(
        title=title,
        option=_option(points, weights, best, names, time, energy),
        text=_text(points, names) + unmarked,
        note=_note(points, weights, best) + unmarked,
        table=_table(title, points, weights, names),
    )


def _option(
    points: Sequence[OperatingPoint],
    weights: Weights,
    best: OperatingPoint | None,
    names: Mapping[OperatingPoint, str],
    time: _Axis,
    energy: _Axis,
) -> Option:
    def at(p: OperatingPoint) -> list[float]:
        return [number(p.tta_s / time.size), number(p.eta_j / energy.size)]

    # Each batch size and start is named at its point of the least energy.
    lowest = {(p.batch_size, p.start): p for p in sorted(points, key=lambda p: -p.eta_j) if p.observed}
    size_labels = [_SizeLabel(p, _name(p)) for p in sorted(lowest.values(), key=lambda p: p.eta_j)]
    eta_labels = [_EtaLabel(p, f"eta {name}") for p, name in names.items()]
    dots = {p: Box(WIDE_PX * time.share(p.tta_s), HIGH_PX * energy.share(p.eta_j), DOT_PX) for p in points}
    boxes = [label.box(dots[label.point]) for label in size_labels]
    boxes += [label.box(dots[label.point]) for label in eta_labels]
    rows = label_rows(boxes, list(dots.values()))
    size_options = {label.point: label.option(row) for label, row in zip(size_labels, rows, strict=False)}
    rings = [
        {"value": at(label.point), "label": label.option(row)}
        for label, row in zip(eta_labels, rows[len(size_labels) :], strict=True)
    ]
    ran = [_dot(p, at(p), size_options.get(p)) for p in points if p.observed]
    equal_cost = _equal_cost(weights, best, time, energy) if best else []
    series: list[Option] = [
        line(FRONT, LINE, [at(p) for p in points if p.on_front]) | {"silent": True},
        line(f"equal cost at eta {weights.eta:g}", LINE, equal_cost, "dashed") | {"silent": True},
        scatter(PROFILED, 7, hollow(GREY), [_dot(p, at(p)) for p in points if not p.observed]),
        scatter(RAN, DOT_PX, {"color": GREY, "opacity": 1}, ran),
        scatter(CHOSEN, RING_PX, hollow(LINE) | {"opacity": 1}, rings) | {"silent": True},
    ]
    return base(
        grid={"left": 70, "right": 70, "top": 44, "bottom": 96},
        legend={"bottom": 0, "itemGap": 8, "data": [s["name"] for s in series if s["data"]]},
        xAxis=time.option("time to the target", 26),
        yAxis=energy.option("energy", 48),
        series=series,
    )


def _text(points: Sequence[OperatingPoint], names: Mapping[OperatingPoint, str]) -> str:
    on_front = sum(p.on_front for p in points)
    text = f"{len(points)} pairs of batch size and power limit, {on_front} of them on the Pareto front."
    for p, name in names.items():
        spent = f"{words.duration(p.tta_s).text} and {words.energy(p.eta_j).text}"
        text += f" At eta {name} runs batch size {_name(p)}, {_limit(p)}, {spent}."
    return text


def _note(points: Sequence[OperatingPoint], weights: Weights, best: OperatingPoint | None) -> str:
    named_by = "batch size and start" if points[0].start else "batch size"
    note = (
        f"On a typical slice of the data. Numbers: {named_by}. Filled: runs had this power limit; hollow: it was only "
        "profiled. Ringed: what runs at that eta (1: energy alone counts, 0: time alone) if nothing is tried."
    )
    if best is None:
        return note
    return (
        f"{note} Dashed: what costs as much at eta {weights.eta:g} as what runs then; points below it look cheaper, "
        "but not surely (the chart of beliefs has the intervals), or have a limit that the job does not set."
    )


def _point_of(choice: EtaChoice, points: Sequence[OperatingPoint], weights: Weights) -> OperatingPoint | None:
    """The point of a choice; None if no run of it reached the target. If its limit is unknown: its runs' cheapest."""
    at_size = [p for p in points if p.batch_size == choice.batch_size and choice.start in (None, p.start)]
    if choice.limit_w is None:
        at_limit = [p for p in at_size if p.observed]
    else:
        at_limit = [p for p in at_size if same_limit(p.limit_w, choice.limit_w)]
    then = weights._replace(eta=choice.eta)
    return min(at_limit, key=lambda p: then.cost(p.eta_j, p.tta_s), default=None)


def _names(etas: Sequence[float], today: Weights) -> str:
    """Such as "0, 0.25, 0.5 (today)"."""
    return ", ".join(f"{eta:g} (today)" if eta == today.eta else f"{eta:g}" for eta in etas)


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


@dataclass(frozen=True, slots=True)
class _SizeLabel:
    """To the right of its point and below its height: clear of the ring and the line."""

    point: OperatingPoint
    text: str

    def box(self, dot: Box) -> Box:
        """Its place beside its point."""
        wide_px = label_width_px(self.text)
        return Box(dot.x + DOT_PX / 2 + SIZE_AWAY_PX + wide_px / 2, dot.y - SIZE_AWAY_PX, wide_px)

    def option(self, row: int) -> Option:
        """As ECharts draws it in a row of its box."""
        offset = [0, SIZE_AWAY_PX - ROW_PX * row]
        return {"show": True, "formatter": self.text, "position": "right", "distance": SIZE_AWAY_PX, "offset": offset}


@dataclass(frozen=True, slots=True)
class _EtaLabel:
    """Above or below its ring, as far to the left as to the right: so no width of the chart brings two together."""

    point: OperatingPoint
    text: str

    def box(self, dot: Box) -> Box:
        """Its place at its point."""
        away_px = RING_PX / 2 + ETA_AWAY_PX + ROW_PX / 2
        return Box(dot.x, dot.y + away_px, label_width_px(self.text), below=dot.y - away_px)

    def option(self, row: int) -> Option:
        """As ECharts draws it in a row of its box."""
        position = "top" if row >= 0 else "bottom"
        down_px = -ROW_PX * row if row >= 0 else -ROW_PX * (row + 1)
        return {
            "show": True,
            "formatter": self.text,
            "position": position,
            "distance": ETA_AWAY_PX,
            "offset": [0, down_px],
        }


def _dot(p: OperatingPoint, value: list[float], label: Option | None = None) -> Option:
    """A point of the chart."""
    colour = size_colour(p.batch_size)
    spent = f"{words.duration(p.tta_s).text}, {words.energy(p.eta_j).text}"
    tip = f"batch size {_name(p)}, {_limit(p)}\n{spent}\n"
    tip += f"mean of {counted(p.runs, 'run')}" if p.observed else "re-costed by the profile"
    style = {"color": colour} if p.observed else hollow(colour)
    tip += "\non the front" * p.on_front
    return {"value": value, "tip": tip, "itemStyle": style, "label": label or {"show": False}}


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


def _table(
    title: str, points: Sequence[OperatingPoint], weights: Weights, names: Mapping[OperatingPoint, str]
) -> Table:
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
            names.get(p, UNKNOWN),
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
        "Runs at eta",
    ]
    return Table(caption=title, columns=columns, numeric=[True, True, True, True, True, True, False, False], rows=rows)
