"""Shared parts of the charts: colours, units of axes, common parts of an ECharts option.

The colours are readable on white and on black, so one option serves both themes. The page adds text and axis colours of
the theme and shows a point's ``tip`` as its tooltip.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

COLOURS = ("#3b82f6", "#b45309", "#0d9488", "#db2777", "#8b5cf6", "#15803d", "#dc2626", "#64748b")
LINE = "#8a8f98"
SHADE = "#8a8f9840"  # behind a line that must stay readable

Option = dict[str, Any]


def scale(most: float, unit: str) -> tuple[float, str]:
    """The unit of an axis up to ``most`` [J or s]: its size, by which values are divided, and its name.

    :param unit: "J" of a cost, "Wh" of an energy, "s" of a time.
    """
    scales = {
        "J": ((1e9, 1e9, "GJ"), (1e6, 1e6, "MJ"), (1e3, 1e3, "kJ"), (0.0, 1.0, "J")),  # from so much on, size, name
        "Wh": ((3.6e5, 3.6e6, "kWh"), (0.0, 3600.0, "Wh")),
        "s": ((3600.0, 3600.0, "h"), (60.0, 60.0, "min"), (0.0, 1.0, "s")),
    }[unit]
    return next(((size, name) for least, size, name in scales if most >= least), scales[-1][1:])


def number(value: float) -> float:
    """A value rounded to six digits: exact enough for a chart, and short to send."""
    return float(f"{value:.6g}")


def watts(power_w: float | None) -> str:
    """Whole watts as text; a dash for None."""
    return "–" if power_w is None else f"{power_w:,.0f} W"


def hollow(colour: str) -> Option:
    """The style of a symbol that is drawn as an outline."""
    return {"color": "transparent", "borderColor": colour, "borderWidth": 2}


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


def bars(name: str, n: int, data: Sequence[object]) -> Option:
    """Series ``n`` of stacked bars."""
    style = {"color": COLOURS[n % len(COLOURS)]}
    return {"type": "bar", "name": name, "stack": "all", "barMaxWidth": 64, "itemStyle": style, "data": list(data)}


def mark_lines(data: Sequence[Option], **style: Any) -> Option:
    """Straight lines across a chart, with labels."""
    return {"silent": True, "symbol": "none", "lineStyle": {"color": LINE, **style}, "data": list(data)}


def value_axis(name: str, gap_px: int, **more: Any) -> Option:
    """An axis of numbers with its name at its middle, ``gap_px`` away."""
    return {"type": "value", "name": name, "nameLocation": "middle", "nameGap": gap_px, **more}


def interval_band(
    name: str, ends: Sequence[tuple[int, float | None, float | None]], size: float, *, step: str | None = None
) -> list[Option]:
    """Intervals (index, low, high) as two stacked lines: an invisible lower end, and the filled width above it.

    Empty where no interval has a width. ``step``: how the lines step from one index to the next.
    """
    known = [(i, low, high) for i, low, high in ends if low is not None and high is not None]
    if all(low == high for _, low, high in known):
        return []
    hidden: Option = {"type": "line", "symbol": "none", "silent": True, "stack": name, "stackStrategy": "all"}
    hidden |= {"lineStyle": {"opacity": 0}, **({} if step is None else {"step": step})}
    below = {**hidden, "name": "", "data": [[i, number(low / size)] for i, low, _ in known]}
    width = [[i, number((high - low) / size)] for i, low, high in known]
    return [
        below,
        {**hidden, "name": name, "itemStyle": {"color": SHADE}, "areaStyle": {"color": SHADE}, "data": width},
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
