"""Shared parts of the charts: colours, units of axes, common parts of an ECharts option.

The colours are readable on white and on black, so one option serves both themes. The page adds
text and axis colours of the theme and shows a point's ``tip`` as its tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import SURE
from airflow_provider_zeus.units import UNKNOWN, three_digits

COLOURS = ("#3b82f6", "#b45309", "#0d9488", "#db2777", "#8b5cf6", "#15803d", "#dc2626", "#64748b")
GREY = COLOURS[7]
LINE = "#8a8f98"
SHADE = "#8a8f9840"  # light: the line before it must stay readable
ROW_PX = 14  # nearer, two labels would overlap, and neither could be read
# In the middle over its axis, a long name would push the chart to the right.
NAME_ABOVE = {"align": "left", "padding": [0, 0, 0, -60]}
LEGEND = {"type": "scroll", "bottom": 0}  # it scrolls, since series may be many

Option = dict[str, Any]


class Unit(NamedTuple):
    """A unit of an axis."""

    size: float  # an axis in joules would have too many digits
    name: str


def scale(most: float, unit: str) -> Unit:
    """The unit of an axis up to ``most`` [J or s].

    :param unit: "J" of an energy or a cost, "s" of a time.
    """
    if unit == "J":
        if most >= 3.6e5:
            return Unit(3.6e6, "kWh")
        return Unit(3600.0, "Wh")
    if most >= 3600.0:
        return Unit(3600.0, "h")
    if most >= 60.0:
        return Unit(60.0, "min")
    return Unit(1.0, "s")


class CostAxis(NamedTuple):
    """How a chart writes costs: as energy or time, or as a share if a cost is of both."""

    size: float  # an axis in joules would have too many digits
    name: str
    text: Callable[[float], str]
    whole: str = ""  # energy and time together have no unit, so they are shares of a run

    @classmethod
    def of(cls, most: float, weights: Weights, whole: tuple[float, str]) -> CostAxis:
        """``whole``: the cost that is 100 % if energy and time are weighed, and its name."""
        if weights.one_alone:
            unit = scale(most, weights.unit)
            return cls(unit.size, f"{weights.one_alone} [{unit.name}]", weights.text)
        cost, name = whole
        per_cent = cost / 100

        def text(cost: float) -> str:
            return f"{three_digits(cost / per_cent)} %"

        return cls(per_cent, f"energy and time together [% of {name}]", text=text, whole=name)


def size_colour(batch_size: int | None) -> str:
    """The colour of a batch size, the same in all charts of all jobs; that of a task without one.

    Eight powers of two in a row have eight colours; a size between two of them has a mixture of
    theirs.
    """
    # Batch sizes are mostly powers of two, so equal steps of colour are equal factors.
    octaves = math.log2(batch_size or 32) - 5  # any start would do, since the colours go round
    below = math.floor(octaves)
    share = octaves - below
    low = COLOURS[below % len(COLOURS)]
    high = COLOURS[(below + 1) % len(COLOURS)]
    colour = "#"
    for i in (1, 3, 5):
        low_part = int(low[i : i + 2], 16)
        high_part = int(high[i : i + 2], 16)
        # Squares mix as light does: the mixture is no darker than its parts.
        mixed = math.sqrt((1 - share) * low_part**2 + share * high_part**2)
        colour += f"{round(mixed):02x}"
    return colour


def colours_of(sizes: Sequence[int | None]) -> list[str]:
    """Colours of series by their batch sizes; by their order if two have one size."""
    if len(set(sizes)) == len(sizes):
        return [size_colour(size) for size in sizes]
    # Two attempts of one size could not be told apart by its colour.
    return [COLOURS[i % len(COLOURS)] for i in range(len(sizes))]


def number(value: float) -> float:
    """A value rounded to six digits: exact enough for a chart, and short to send."""
    return float(f"{value:.6g}")


def watts(power_w: float | None) -> str:
    """Whole watts as text; a dash for None."""
    if power_w is None:
        return UNKNOWN
    return f"{power_w:,.0f} W"


def hollow(colour: str) -> Option:
    """The style of a symbol that is drawn as an outline."""
    return {"color": "transparent", "borderColor": colour, "borderWidth": 2}


def label_width_px(label: str) -> float:
    """How wide a label is at most [px]."""
    return 7.0 * len(label) + 4.0


class Box(NamedTuple):
    """The place of a label or a point: its middle, to the right and upwards, and its width [px]."""

    x: float
    y: float
    wide: float

    def in_row(self, row: int) -> Box:
        """The place of a label that is raised by so many rows."""
        return self._replace(y=self.y + ROW_PX * row)

    def covers(self, other: Box) -> bool:
        """Whether two labels, or a label and a point, cover each other."""
        aside_px = abs(self.x - other.x)
        apart_px = (self.wide + other.wide) / 2
        return aside_px < apart_px and abs(self.y - other.y) < ROW_PX

    def free_row(self, placed: Sequence[Box]) -> int:
        """The nearest row in which a label covers nothing that is placed."""
        # The nearest free row: a label far from its point would name another one.
        for row in count():
            place = self.in_row(row)
            if not any(place.covers(other) for other in placed):
                return row
        raise AssertionError("there is always room further up")


def label_rows(labels: Sequence[Box], points: Sequence[Box] = ()) -> list[int]:
    """By how many rows each label is raised: it covers no point, and no label before it.

    The build of ECharts that the page uses lacks ECharts' own layout of labels.
    """
    rows: list[int] = []
    placed = [*points]
    for label in labels:
        row = label.free_row(placed)
        rows.append(row)
        placed.append(label.in_row(row))
    return rows


def plain(text: str) -> str:
    """Text without braces, in which ECharts would see styles and templates."""
    return text.replace("{", "(").replace("}", ")")


def line(
    name: str, colour: str, data: Sequence[object], *, dash: str = "solid", width: float = 2
) -> Option:
    """A series drawn as a line without symbols; ``dash``: solid, dashed or dotted."""
    return {
        "type": "line",
        "name": name,
        "symbol": "none",
        "itemStyle": {"color": colour},
        "lineStyle": {"color": colour, "width": width, "type": dash},
        "data": list(data),
    }


def bars(name: str, colour: str, data: Sequence[object]) -> Option:
    """A series of stacked bars."""
    return {
        "type": "bar",
        "name": name,
        "stack": "all",
        "barMaxWidth": 64,
        "itemStyle": {"color": colour},
        "data": list(data),
    }


def mark_lines(data: Sequence[Option], **style: Any) -> Option:
    """Straight lines across a chart, with labels."""
    return {
        "silent": True,
        "symbol": "none",
        "lineStyle": {"color": LINE, **style},
        "data": list(data),
    }


def value_axis(name: str, gap_px: int, **more: Any) -> Option:
    """An axis of numbers with its name at its middle, ``gap_px`` away."""
    return {"type": "value", "name": name, "nameLocation": "middle", "nameGap": gap_px, **more}


def interval_band(
    ends: Sequence[tuple[int, float | None, float | None]], size: float, *, step: str | None = None
) -> list[Option]:
    """Intervals (index, low, high) as two stacked lines.

    The lower one is invisible, and the width above it is filled. Empty if no interval has a width.
    ``step``: how the lines step from one index to the next.
    """
    below = []
    widths = []
    for i, low, high in ends:
        if low is not None and high is not None:
            below.append([i, number(low / size)])
            widths.append([i, number((high - low) / size)])
    # A band without width would still stand in the legend.
    if not any(width for _, width in widths):
        return []
    hidden: Option = {
        "type": "line",
        "symbol": "none",
        "silent": True,
        "stack": SURE,
        "stackStrategy": "all",
        "lineStyle": {"opacity": 0},
    }
    if step is not None:
        hidden["step"] = step
    filled = {"itemStyle": {"color": SHADE}, "areaStyle": {"color": SHADE}}
    return [
        {**hidden, "name": "", "data": below},
        {**hidden, "name": SURE, **filled, "data": widths},
    ]


def scatter(
    name: str, data: Sequence[object], *, px: int, style: Option, symbol: str = "circle"
) -> Option:
    """A series drawn as symbols of ``px`` pixels."""
    return {
        "type": "scatter",
        "name": name,
        "symbol": symbol,
        "symbolSize": px,
        "itemStyle": style,
        "data": list(data),
    }


def grid(*, left: float = 64, right: float = 24, top: float = 30, bottom: float = 66) -> Option:
    """The room of a chart for its axes and legend [px]."""
    return {"left": left, "right": right, "top": top, "bottom": bottom}


def base(**parts: Any) -> Option:
    """An option without animation, whose tooltips a strict Content-Security-Policy allows.

    No text of a tick covers another one.
    """
    axes: Option = {name: _spaced(parts[name]) for name in ("xAxis", "yAxis") if name in parts}
    return {
        "animation": False,
        "tooltip": {"trigger": "item", "renderMode": "richText", "confine": True},
        **parts,
        **axes,
    }


def _spaced(axis: Any) -> Any:
    """An axis, or several, that leaves out texts of ticks which would cover others."""
    # ECharts takes a list of axes of a chart that has two quantities.
    if isinstance(axis, list):
        return [_spaced(part) for part in axis]
    labels = axis.get("axisLabel", {})
    return {**axis, "axisLabel": {"hideOverlap": True, **labels}}
