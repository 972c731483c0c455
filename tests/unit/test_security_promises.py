"""Each promise of SECURITY.md names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_promise_names_its_tests() -> None:
    rows = [line for line in (ROOT / "SECURITY.md").read_text().splitlines() if line.startswith("| **")]
    assert len(rows) >= 9
    for row in rows:
        named = re.findall(r"`(tests/[^`]+\.py)`", row)
        assert named, row
        assert all(list(ROOT.glob(name)) for name in named), named
