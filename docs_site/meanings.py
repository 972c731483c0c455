"""What a generated page takes from a written one: each meaning stands in one place."""

from __future__ import annotations

import re

from docs_site import ROOT


def metric_meanings() -> dict[str, str]:
    """Meaning of each metric by its name, from the table of docs/metrics.md;
    *the same* is resolved.
    """
    found: dict[str, str] = {}
    before = ""
    for line in (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `zeus.") and len(cells) == 4:
            before = before if cells[3] == "the same" else cells[3]
            found |= dict.fromkeys(re.findall(r"`(zeus\.[\w.]+)`", cells[0]), before)
    return found
