"""What the charts of all views share: colours, units of axes, and the few parts of an ECharts option that are alike.

Colours are readable on white and on black, so one option serves both themes; the page adds the theme's own text and
axis colours, and shows ``tip`` of a point as its tooltip.
"""

from __future__ import annotations

from typing import Any

COLOURS = ("#3b82f6", "#b45309", "#0d9488", "#db2777", "#8b5cf6", "#15803d", "#dc2626", "#64748b")
LINE = "#8a8f98"
SHADE = "#8a8f9840"  # behind a line that must stay readable

Option = dict[str, Any]

_SCALES = {
    "J": ((3.6e6, "kWh"), (1e6, "Wh"), (1e3, "kJ"), (1.0, "J")),
    "s": ((3600.0, "h"), (60.0, "min"), (1.0, "s")),
}
_SIZES = {"kWh": 3.6e6, "Wh": 3600.0, "kJ": 1e3, "J": 1.0, "h": 3600.0, "min": 60.0, "s": 1.0}


def scale(most: float, unit: str) -> tuple[float, str]:
    """(size, name) of the unit for an axis that reaches ``most`` [J or s]: values are to be divided by the size."""
    scales = _SCALES[unit]
    name = next((name for least, name in scales if most >= least), scales[-1][1])
    return _SIZES[name], name


def number(value: float) -> float:
    """Six digits: as exact as a chart is, and short to send."""
    return float(f"{value:.6g}")


def watts(power_w: float | None) -> str:
    """Whole watts, for a tip or a table."""
    return "–" if power_w is None else f"{power_w:,.0f} W"


def hollow(colour: str) -> Option:
    """The style of a symbol that is only an outline, on any background."""
    return {"color": "transparent", "borderColor": colour, "borderWidth": 2}


def plain(text: str) -> str:
    """Text that ECharts takes for nothing but text: braces begin styles and templates there."""
    return text.replace("{", "(").replace("}", ")")


def base(**parts: Any) -> Option:
    """An option without animation, with tooltips that a strict Content-Security-Policy allows."""
    return {
        "animation": False,
        "tooltip": {"trigger": "item", "renderMode": "richText", "confine": True},
        **parts,
    }
