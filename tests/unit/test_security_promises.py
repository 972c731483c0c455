"""Each promise of SECURITY.md names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


PROMISES = (ROOT / "SECURITY.md").read_text().partition("## Promises")[2].partition("\n## ")[0]
NAMED = re.compile(r"`(tests/[^`]+\.py)`")


def test_every_promise_names_its_tests() -> None:
    rows = [line for line in PROMISES.splitlines() if line.startswith("| **")]
    assert len(rows) >= 20
    for row in rows:
        named = NAMED.findall(row)
        assert named, row
        assert all(list(ROOT.glob(name)) for name in named), named


def test_every_attack_has_its_promise() -> None:
    attacks = {
        f"tests/security/{path.name}" for path in (ROOT / "tests/security").glob("test_*.py")
    }
    assert attacks - set(NAMED.findall(PROMISES)) == set()
