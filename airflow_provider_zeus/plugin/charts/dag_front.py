"""Chart of energy against time by batch size and power limit: Pareto front, choices. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.plugin.answer_parts import Chart, Table
from airflow_provider_zeus.plugin.charts.chart_parts import (
    GREY,
    LINE,
    ROW_PX,
    Box,
    Option,
    base,
    grid,
    hollow,
    label_rows,
    label_width_px,
    line,
    number,
    scale,
    scatter,
    size_colour,
    value_axis,
    watts,
)
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.reports.eta_choices import EtaChoice
from airflow_provider_zeus.reports.limit_profiles import same_limit
from airflow_provider_zeus.reports.pareto import OperatingPoint
from airflow_provider_zeus.units import UNKNOWN, counted, three_digits

FRONT = "Pareto front"
RAN = "chosen by runs"
PROFILED = "profiled only"
# Of what runs at an eta, named by the legend: names beside them would cover points.
FRAMES = (
    *("circle", "rect", "diamond", "triangle"),
    *("path://M0,0L20,0L10,18Z", "path://M5,0L15,0L20,9L15,18L5,18L0,9Z"),
)
# Of the smallest such chart without its margins: labels that fit there fit in any.
WIDE_PX = 360.0
HIGH_PX = 200.0
DOT_PX = 12
FRAME_PX = 24
SIZE_AWAY_PX = 10  # nearer, a label would cover its mark


def front_chart(
    points: Sequence[OperatingPoint], weights: Weights, choices: Sequence[EtaChoice]
) -> Chart:
    """Chart of mean energy and time to the target by batch size and limit, without profiling.

    :param points: by time, at least one.
    :param weights: of the job today.
    :param choices: one for each eta, by eta; today's among them. They are of the policy,
        which knows more than these means.
    """
    title = "Energy against time"
    etas_of: dict[OperatingPoint, list[float]] = {}
    absent: dict[int, list[float]] = {}  # no frame can show them, so a sentence names them
    for choice in choices:
        # The policy may choose a size without a point: it has not reached the target here.
        chosen = _point_of(choice, points, weights)
        if chosen is None:
            absent.setdefault(choice.batch_size, []).append(choice.eta)
        else:
            etas_of.setdefault(chosen, []).append(choice.eta)
    names = {point: _names(etas, weights) for point, etas in etas_of.items()}
    # Two settings may be chosen at one eta: the last one is what runs today.
    *_, best = (None, *(point for point, etas in etas_of.items() if weights.eta in etas))
    unmarked = "".join(
        f" At eta {_names(etas, weights)} runs batch size {size}, but no run of it that reached "
        "the target is known here at its limit."
        for size, etas in absent.items()
    )
    return Chart(
        title=title,
        option=_option(points, weights, best, names),
        text=_text(points, names) + unmarked,
        note=_note(points, weights, best, pinned=any(choice.pinned for choice in choices))
        + unmarked,
        table=_table(title, points, weights, names),
    )


def _option(
    points: Sequence[OperatingPoint],
    weights: Weights,
    best: OperatingPoint | None,
    names: Mapping[OperatingPoint, str],
) -> Option:
    time = _Axis.of([p.tta_s for p in points], "s")
    energy = _Axis.of([p.eta_j for p in points], "J")

    def at(p: OperatingPoint) -> list[float]:
        return [number(p.tta_s / time.size), number(p.eta_j / energy.size)]

    size_labels = _size_labels(points)
    dots = {
        p: Box(x=WIDE_PX * time.share(p.tta_s), y=HIGH_PX * energy.share(p.eta_j), wide=DOT_PX)
        for p in points
    }
    boxes = [label.box(dots[label.point]) for label in size_labels]
    rows = label_rows(boxes, list(dots.values()))
    size_options = {
        label.point: label.option(row) for label, row in zip(size_labels, rows, strict=True)
    }
    ran = [_dot(p, at(p), size_options.get(p)) for p in points if p.observed]
    profiled = [_dot(p, at(p)) for p in points if not p.observed]
    equal_cost = list[list[float]]()
    if best is not None:
        equal_cost = _equal_cost(weights, best, time, energy)
    silent = {"silent": True}
    lines: list[Option] = [
        line(FRONT, LINE, [at(p) for p in points if p.on_front]) | silent,
        line(f"equal cost at eta {weights.eta:g}", LINE, equal_cost, dash="dashed") | silent,
    ]
    marks = [
        scatter(PROFILED, profiled, px=7, style=hollow(GREY)),
        scatter(RAN, ran, px=DOT_PX, style={"color": GREY, "opacity": 1}),
    ]
    style = {**hollow(LINE), "opacity": 1}
    frames = [
        scatter(f"eta {name}", [at(p)], px=FRAME_PX, style=style, symbol=symbol) | silent
        for (p, name), symbol in zip(names.items(), FRAMES, strict=False)
    ]
    return base(
        grid=grid(left=70, right=70, top=20, bottom=112),
        legend={
            "bottom": 0,
            "itemGap": 8,
            "itemWidth": 18,
            "data": [part["name"] for part in (*lines, *frames) if part["data"]],
        },
        xAxis=time.option("time to the target", 26),
        yAxis=energy.option("energy", 48),
        series=[*lines, *marks, *frames],
    )


def _size_labels(points: Sequence[OperatingPoint]) -> list[_SizeLabel]:
    """Each batch size and start is named at its point of the least energy."""
    lowest: dict[tuple[int, str | None], OperatingPoint] = {}
    for point in sorted(points, key=lambda p: p.eta_j):
        if point.observed:
            lowest.setdefault((point.batch_size, point.start), point)
    return [_SizeLabel(point, _name(point)) for point in lowest.values()]


def _text(points: Sequence[OperatingPoint], names: Mapping[OperatingPoint, str]) -> str:
    on_front = sum(p.on_front for p in points)
    text = (
        f"{counted(len(points), 'pair')} of batch size and power limit, {on_front} of them on the "
        "Pareto front."
    )
    for p, name in names.items():
        spent = f"{words.duration(p.tta_s).text} and {words.energy(p.eta_j).text}"
        text += f" At eta {name} runs batch size {_name(p)}, {_limit(p)}, {spent}."
    return text


def _note(
    points: Sequence[OperatingPoint],
    weights: Weights,
    best: OperatingPoint | None,
    *,
    pinned: bool,
) -> str:
    named_by = "batch size"
    if points[0].start:
        named_by += " and start"
    note = (
        f"On a typical slice of the data. Numbers: {named_by}. Filled: runs had this power limit; "
        "hollow: it was only profiled. Framed: what runs at that eta (1: energy alone counts, 0: "
        "time alone) if nothing is tried."
    )
    if best is None:
        return note
    note += f" Dashed: what costs as much at eta {weights.eta:g} as what runs then."
    cheapest = min(points, key=lambda p: weights.cost(p.eta_j, p.tta_s))
    if weights.cost(cheapest.eta_j, cheapest.tta_s) >= weights.cost(best.eta_j, best.tta_s):
        return note
    why = (
        "the choice goes by all runs of a size, misses included, and by the cost per sample at "
        "each limit that the job sets"
    )
    if pinned and cheapest.batch_size != best.batch_size:
        why = f"batch size {best.batch_size} is pinned"
    return (
        f"{note} Batch size {_name(cheapest)}, {_limit(cheapest)}, looks cheaper in the mean of "
        f"{counted(cheapest.runs, 'run')}; {why}."
    )


def _point_of(
    choice: EtaChoice, points: Sequence[OperatingPoint], weights: Weights
) -> OperatingPoint | None:
    """The point of a choice; None if no run of it reached the target.

    If its limit is unknown, that is the cheapest point of its runs.
    """
    # Eq. 2 with the eta of the choice: cheap means something else at each of them.
    then = weights._replace(eta=choice.eta)
    possible = [point for point in points if _may_be(choice, point)]
    return min(possible, key=lambda p: then.cost(p.eta_j, p.tta_s), default=None)


def _may_be(choice: EtaChoice, point: OperatingPoint) -> bool:
    """Whether a point has the size, the start and the limit of a choice, as far as known."""
    if point.batch_size != choice.batch_size:
        return False
    if choice.start is not None and choice.start != point.start:
        return False
    if choice.limit_w is None:
        return point.observed
    return same_limit(point.limit_w, choice.limit_w)


def _names(etas: Sequence[float], today: Weights) -> str:
    """Such as "0, 0.25, 0.5 (today)"."""
    names = {eta: f"{eta:g}" for eta in etas}
    if today.eta in names:
        names[today.eta] += " (today)"
    return ", ".join(names.values())


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis from ``low`` to ``high`` [J or s], labelled in ``unit`` of ``size`` [J or s]."""

    low: float
    high: float
    size: float
    unit: str

    @classmethod
    def of(cls, values: Sequence[float], unit: str) -> _Axis:
        size, name = scale(max(values), unit)
        low = min(values)
        high = max(values)
        # Labels beside the outermost points need room; points in one place need an axis at all.
        room = 0.12 * (high - low or high)
        return cls(max(low - room, 0.0), high + room, size, name)

    def share(self, value: float) -> float:
        """Position of a value on the axis, from 0 to 1."""
        if self.high <= self.low:
            return 0.5
        return (value - self.low) / (self.high - self.low)

    def holds(self, value: float) -> bool:
        """Whether a value lies on the axis, as exactly as floats tell."""
        return -1e-9 <= self.share(value) <= 1 + 1e-9

    def option(self, name: str, gap: int) -> Option:
        return value_axis(
            f"{name} [{self.unit}]",
            gap,
            min=float(f"{self.low / self.size:.3g}"),
            max=float(f"{self.high / self.size:.3g}"),
            # The ends are no round numbers, which nobody wants to read.
            axisLabel={"showMinLabel": False, "showMaxLabel": False},
        )


@dataclass(frozen=True, slots=True)
class _SizeLabel:
    """To the right of its point and below its height: clear of the frame and the line."""

    point: OperatingPoint
    text: str

    def box(self, dot: Box) -> Box:
        """Its place beside its point."""
        wide_px = label_width_px(self.text)
        x = dot.x + DOT_PX / 2 + SIZE_AWAY_PX + wide_px / 2
        return Box(x=x, y=dot.y - SIZE_AWAY_PX, wide=wide_px)

    def option(self, row: int) -> Option:
        """As ECharts draws it in a row of its box."""
        offset = [0, SIZE_AWAY_PX - ROW_PX * row]
        return {
            "show": True,
            "formatter": self.text,
            "position": "right",
            "distance": SIZE_AWAY_PX,
            "offset": offset,
        }


def _dot(p: OperatingPoint, value: list[float], label: Option | None = None) -> Option:
    """A point of the chart."""
    colour = size_colour(p.batch_size)
    style = hollow(colour)
    of = "re-costed by the profile"
    if p.observed:
        style = {"color": colour}
        of = f"mean of {counted(p.runs, 'run')}"
    tip = [
        f"batch size {_name(p)}, {_limit(p)}",
        f"{words.duration(p.tta_s).text}, {words.energy(p.eta_j).text}",
        of,
    ]
    if p.on_front:
        tip.append("on the front")
    if label is None:
        label = {"show": False}
    return {"value": value, "tip": "\n".join(tip), "itemStyle": style, "label": label}


def _equal_cost(
    weights: Weights, best: OperatingPoint, time: _Axis, energy: _Axis
) -> list[list[float]]:
    """Both ends inside the chart of the line on which runs cost as much as the cheapest one."""
    # Eq. 2: cost = eta x energy + (1 - eta) x MAXPOWER x time, solved for the energy at both ends
    # of the axis of time, and for the time at both ends of the axis of energy.
    cost = weights.cost(best.eta_j, best.tta_s)
    per_s = (1 - weights.eta) * weights.max_power_w
    ends: list[tuple[float, float]] = []
    if weights.eta > 0:
        ends += [
            (time_s, (cost - per_s * time_s) / weights.eta) for time_s in (time.low, time.high)
        ]
    if per_s > 0:
        energies_j = (energy.low, energy.high)
        ends += [((cost - weights.eta * energy_j) / per_s, energy_j) for energy_j in energies_j]
    # The line leaves the chart at two of four sides: two of the four ends are inside.
    inside = [end for end in ends if _is_inside(end, time, energy)]
    if not inside:
        return []
    return [
        [number(time_s / time.size), number(energy_j / energy.size)]
        for time_s, energy_j in (min(inside), max(inside))
    ]


def _is_inside(end: tuple[float, float], time: _Axis, energy: _Axis) -> bool:
    time_s, energy_j = end
    return time.holds(time_s) and energy.holds(energy_j)


def _name(p: OperatingPoint) -> str:
    if p.start:
        return f"{p.batch_size}, {p.start}"
    return str(p.batch_size)


def _limit(p: OperatingPoint) -> str:
    if p.limit_w is None:
        return "no limit"
    return watts(p.limit_w)


def _table(
    title: str,
    points: Sequence[OperatingPoint],
    weights: Weights,
    names: Mapping[OperatingPoint, str],
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
    return Table(
        caption=title,
        columns=columns,
        numeric=[True, True, True, True, True, True, False, False],
        rows=rows,
    )
