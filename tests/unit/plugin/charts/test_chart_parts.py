"""What all charts share."""

from __future__ import annotations

from itertools import combinations

import pytest

from airflow_provider_zeus.plugin.charts import chart_parts


@pytest.mark.parametrize(
    ("most", "unit", "shown"),
    [
        (3.5e5, "J", (3600.0, "Wh")),
        (3.6e5, "J", (3.6e6, "kWh")),
        (3.6e6, "J", (3.6e6, "kWh")),
        (0.0, "J", (3600.0, "Wh")),
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


@pytest.mark.parametrize(
    "batch_size", [1, 2, 6, 8, 24, 32, 48, 90, 96, 100, 192, 384, 1000, 4096, None]
)
@pytest.mark.parametrize("back", ["#ffffff", "#121212", "#171e2d"])
def test_a_size_has_a_colour_that_is_readable_in_both_themes(
    batch_size: int | None, back: str
) -> None:
    assert _contrast(chart_parts.size_colour(batch_size), back) >= 3.0


def test_neighbours_have_other_colours_and_two_series_of_one_size_too() -> None:
    sizes = [8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024]
    assert len({chart_parts.size_colour(size) for size in sizes}) == len(sizes)
    assert chart_parts.colours_of([64, 32]) == [
        chart_parts.size_colour(64),
        chart_parts.size_colour(32),
    ]
    assert len(set(chart_parts.colours_of([64, 64, 32]))) == 3


def test_colours_differ() -> None:
    assert all(a != b for a, b in combinations(chart_parts.COLOURS, 2))
