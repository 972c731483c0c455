"""Shared parts of the charts: colours, units of axes, common parts of an ECharts option.

The colours are readable on white and on black, so one option serves both themes. The page adds text and axis colours of
the theme and shows a point's ``tip`` as its tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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


def label_rows(at: Sequence[tuple[float, float, str]]) -> list[int]:
    """By how many rows the label of each point is raised, so that none covers one that stands before it in the list.

    The build of ECharts that the page uses lacks ECharts' own layout of labels.

    :param at: the points, in pixels to the right and upwards, and their labels.
    """
    rows, placed = list[int](), list[tuple[float, float, int]]()
    for x, y, label in at:
        wide_px = 7 * len(label) + 4
        near = [b for a, b, px in placed if abs(x - a) < (wide_px + px) / 2]
        rows.append(next(n for n in count() if all(abs(y + ROW_PX * n - b) >= ROW_PX for b in near)))
        placed.append((x, y + ROW_PX * rows[-1], wide_px))
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
