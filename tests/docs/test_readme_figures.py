"""Figures in the README are those of the page that its command has written."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_what_the_package_costs_on_real_series() -> None:
    """Near-optimal defaults, and the range over the small and large ones, of the column of the default policy."""
    page = (ROOT / "docs" / "choosing.md").read_text().partition("## Real retraining series")[2].partition("\n## ")[0]
    head, *rows = [
        [c.strip() for c in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")
    ]
    column = head.index("this package, default policy")
    costs: dict[str, list[float]] = {"small": [], "near-optimal": [], "large": []}
    for row in rows[1:]:
        found = re.match(r"\**([+-][\d.]+) %", row[column])
        assert found, row
        costs[row[1]].append(float(found[1]))
    more = [round(cost) for cost in costs["near-optimal"]]
    less = sorted(round(-cost) for cost in costs["small"] + costs["large"])
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"this package cost {more[0]}, {more[1]} and {more[2]} % more than such a default" in text
    assert f"too small or too large it cost {less[0]} to {less[-1]} % less" in text
