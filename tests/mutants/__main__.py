"""The command ``python -m tests.mutants``."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.mutants import collect, draw, faults, scratch

KEPT = scratch.ROOT / "build/mutants"  # which tests execute which lines


def draw_anew() -> None:
    """Draw the drawn half of the list anew, from the package as it is now."""
    edits = draw.draw(scratch.ROOT)
    drawn = [draw.fault_of(e, (scratch.ROOT / e.file).read_text(encoding="utf-8"), i) for i, e in enumerate(edits, 1)]
    faults.write(drawn + [fault for fault in faults.read() if fault.origin != "drawn"])


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("what", nargs="?", default="run", choices=("run", "contexts", "draw", "compare"))
    parser.add_argument("paths", nargs="*", help="contexts: tests (default: all)")
    parser.add_argument("--part", default="quick", choices=collect.PARTS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--contexts", type=Path)
    options = parser.parse_args()
    kept = options.contexts or KEPT / f"contexts-{options.part}.json"
    if options.what == "draw":
        draw_anew()
    elif options.what == "contexts":
        files = sorted({fault.file for fault in faults.read()})
        collect.collect(files, options.part, options.jobs, options.paths).write(kept)


if __name__ == "__main__":
    main()
