"""The command ``python -m tests.mutants``."""

from __future__ import annotations

from pathlib import Path

from tests.mutants import draw, faults

ROOT = Path(__file__).parents[2]


def draw_anew() -> None:
    """Draw the drawn half of the list anew, from the package as it is now."""
    edits = draw.draw(ROOT)
    drawn = [draw.fault_of(e, (ROOT / e.file).read_text(encoding="utf-8"), i) for i, e in enumerate(edits, 1)]
    faults.write(drawn + [fault for fault in faults.read() if fault.origin != "drawn"])


if __name__ == "__main__":
    draw_anew()
