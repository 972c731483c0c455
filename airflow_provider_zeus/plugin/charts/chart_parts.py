"""Shared parts of the charts: colours, units of axes, common parts of an ECharts option.

The colours are readable on white and on black, so one option serves both themes. The page adds text and axis colours of
the theme and shows a point's ``tip`` as its tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import SURE
from airflow_provider_zeus.units import three_digits

COLOURS = ("#3b82f6", "#b45309", "#0d9488", "#db2777", "#8b5cf6", "#15803d", "#dc2626", "#64748b")
GREY = COLOURS[7]
LINE = "#8a8f98"
SHADE = "#8a8f9840"  # behind a line that must stay readable
ROW_PX = 14  # height of a label

Option = dict[str, Any]


def scale(most: float, unit: str) -> tuple[float, str]:
    """The unit of an axis up to ``most`` [J or s]: its size, by which values are divided, and its name.

    :param unit: "J" of an energy or a cost, "s" of a time.
    """
    scales = {
        "J": ((3.6e5, 3.6e6, "kWh"), (0.0, 3600.0, "Wh")),  # from so much on, size, name
        "s": ((3600.0, 3600.0, "h"), (60.0, 60.0, "min"), (0.0, 1.0, "s")),
    }[unit]
    return next(((size, name) for least, size, name in scales if most >= least), scales[-1][1:])


class CostAxis(NamedTuple):
    """How a chart and its table write costs: as energy or time, or as a share where a cost is of both."""

    size: float  # by which costs are divided
    name: str
    text: Callable[[float], str]
    whole: str = ""  # of what a cost is a share; empty where it is none

    @classmethod
    def of(cls, most: float, weights: Weights, whole: tuple[float, str]) -> CostAxis:
        """``whole``: the cost that is 100 % where energy and time are weighed, and its name."""
        if weights.one_alone:
            size, unit = scale(most, weights.unit)
            return cls(size, f"{weights.one_alone} [{unit}]", weights.text)
        size, name = whole[0] / 100, f"energy and time together [% of {whole[1]}]"
        return cls(size, name, lambda cost: f"{three_digits(cost / size)} %", whole[1])


def size_colour(batch_size: int | None) -> str:
    """The colour of a batch size, the same in all charts of all jobs; that of a task without one.

    Eight powers of two in a row have eight colours; a size between two of them has a mixture of theirs.
    """
    octaves = math.log2(batch_size or 32) - 5  # 32 has the first one
    mixed = octaves % 1
    low, high = (COLOURS[math.floor(octaves + step) % len(COLOURS)] for step in (0, 1))
    pairs = [(int(low[i : i + 2], 16), int(high[i : i + 2], 16)) for i in (1, 3, 5)]
    parts = (round(math.sqrt((1 - mixed) * a**2 + mixed * b**2)) for a, b in pairs)  # as light mixes: no darker
    return "#" + "".join(f"{part:02x}" for part in parts)


def colours_of(sizes: Sequence[int | None]) -> list[str]:
    """Colours of series by their batch sizes; by their order where two have one size."""
    if len(set(sizes)) == len(sizes):
        return [size_colour(size) for size in sizes]
    return [COLOURS[i % len(COLOURS)] for i in range(len(sizes))]


def number(value: float) -> float:
    """A value rounded to six digits: exact enough for a chart, and short to send."""
    return float(f"{value:.6g}")


def watts(power_w: float | None) -> str:
    """Whole watts as text; a dash for None."""
    return "–" if power_w is None else f"{power_w:,.0f} W"


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
    below: float | None = None  # the y of a label that may stand below its point instead

    def rows(self) -> Iterator[int]:
        """The rows that a label may take, the nearest first: 0, 1, ... upwards; -1, -2, ... below its point."""
        for row in count():
            yield row
            if self.below is not None and self.below - ROW_PX * (row + 0.5) >= 0:
                yield -1 - row

    def in_row(self, row: int) -> Box:
        """The place of a label in one of its rows."""
        if row >= 0 or self.below is None:
            return self._replace(y=self.y + ROW_PX * row)
        return self._replace(y=self.below + ROW_PX * (row + 1))

    def covers(self, other: Box) -> bool:
        """Whether two labels, or a label and a point, cover each other."""
        return abs(self.x - other.x) < (self.wide + other.wide) / 2 and abs(self.y - other.y) < ROW_PX


def label_rows(labels: Sequence[Box], points: Sequence[Box] = ()) -> list[int]:
    """The row of each label (see :meth:`Box.rows`): it covers no point, and no label that stands before it in the list.

    The build of ECharts that the page uses lacks ECharts' own layout of labels.
    """
    rows: list[int] = []
    placed = [*points]
    for label in labels:
        row = next(row for row in label.rows() if not any(label.in_row(row).covers(other) for other in placed))
        rows.append(row)
        placed.append(label.in_row(row))
    return rows


def plain(text: str) -> str:
    """Text without braces, in which ECharts would see styles and templates."""
    return text.replace("{", "(").replace("}", ")")


def line(name: str, colour: str, data: Sequence[object], dash: str = "solid", width: float = 2) -> Option:
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
    style = {"color": colour}
    return {"type": "bar", "name": name, "stack": "all", "barMaxWidth": 64, "itemStyle": style, "data": list(data)}


def mark_lines(data: Sequence[Option], **style: Any) -> Option:
    """Straight lines across a chart, with labels."""
    return {"silent": True, "symbol": "none", "lineStyle": {"color": LINE, **style}, "data": list(data)}


def value_axis(name: str, gap_px: int, **more: Any) -> Option:
    """An axis of numbers with its name at its middle, ``gap_px`` away."""
    return {"type": "value", "name": name, "nameLocation": "middle", "nameGap": gap_px, **more}


def interval_band(
    ends: Sequence[tuple[int, float | None, float | None]], size: float, *, step: str | None = None
) -> list[Option]:
    """Intervals (index, low, high) as two stacked lines: an invisible lower end, and the filled width above it.

    Empty where no interval has a width. ``step``: how the lines step from one index to the next.
    """
    known = [(i, low, high) for i, low, high in ends if low is not None and high is not None]
    if all(low == high for _, low, high in known):
        return []
    hidden: Option = {"type": "line", "symbol": "none", "silent": True, "stack": SURE, "stackStrategy": "all"}
    hidden |= {"lineStyle": {"opacity": 0}, **({} if step is None else {"step": step})}
    below = {**hidden, "name": "", "data": [[i, number(low / size)] for i, low, _ in known]}
    width = [[i, number((high - low) / size)] for i, low, high in known]
    return [
        below,
        {**hidden, "name": SURE, "itemStyle": {"color": SHADE}, "areaStyle": {"color": SHADE}, "data": width},
    ]


def scatter(name: str, size: int, style: Option, data: Sequence[object], symbol: str = "circle") -> Option:
    """A series drawn as symbols of ``size`` pixels."""
    return {
        "type": "scatter",
        "name": name,
        "symbol": symbol,
        "symbolSize": size,
        "itemStyle": style,
        "data": list(data),
    }


def base(**parts: Any) -> Option:
    """An option without animation, whose tooltips a strict Content-Security-Policy allows."""
    return {"animation": False, "tooltip": {"trigger": "item", "renderMode": "richText", "confine": True}, **parts}
