"""What all charts share."""

from __future__ import annotations

from itertools import combinations

import pytest

from airflow_provider_zeus.plugin.charts import chart_parts


@pytest.mark.parametrize(
    ("most", "unit", "shown"),
    [
        (999.0, "J", (1.0, "J")),
        (1000.0, "J", (1e3, "kJ")),
        (1e6, "J", (1e6, "MJ")),
        (3.6e6, "Wh", (3.6e6, "kWh")),
        (3.5e5, "Wh", (3600.0, "Wh")),
        (0.0, "J", (1.0, "J")),
        (59.0, "s", (1.0, "s")),
        (60.0, "s", (60.0, "min")),
        (7200.0, "s", (3600.0, "h")),
    ],
)
def test_an_axis_has_the_unit_that_fits(most: float, unit: str, shown: tuple[float, str]) -> None:
    assert chart_parts.scale(most, unit) == shown


def test_tooltips_are_drawn_and_not_written_as_html() -> None:
    assert chart_parts.base()["tooltip"]["renderMode"] == "richText"


def test_braces_are_no_templates() -> None:
    assert chart_parts.plain("{a|b} {c}") == "(a|b) (c)"


def _luminance(colour: str) -> float:
    """Relative luminance (WCAG 2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    bright, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colour", [*chart_parts.COLOURS, chart_parts.LINE])
@pytest.mark.parametrize("back", ["#ffffff", "#121212", "#171e2d"])
def test_colours_are_readable_in_both_themes(colour: str, back: str) -> None:
    assert _contrast(colour, back) >= 3.0, "WCAG 2, graphical objects"


def test_colours_differ() -> None:
    assert all(a != b for a, b in combinations(chart_parts.COLOURS, 2))
