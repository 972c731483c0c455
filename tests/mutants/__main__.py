"""The command: ``python -m tests.mutants [run | contexts | compare | draw]``.

``contexts`` runs the tests once and keeps which of them execute which lines; ``run`` needs that.
``run --part slow`` goes on with what quick tests did not find.
``compare BEFORE AFTER`` fails if a fault is lost.

``--drawn 500 --seed 1`` takes so many faults of a seed, in place of the list: what share do the
tests find? ``contexts`` needs it, too. A run that was stopped goes on if it is started again.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from math import inf
from pathlib import Path

from tests.mutants import collect, draw, faults, report, run, scratch

KEPT = scratch.ROOT / "build/mutants"  # which tests execute which lines
FOUND = Path(__file__).with_name("found.json")


def draw_anew() -> None:
    """Draw the drawn half of the list anew, from the package as it is now."""
    drawn = draw.faults(scratch.ROOT)
    faults.write(drawn + [fault for fault in faults.read() if fault.origin != "drawn"])


def asked(options: argparse.Namespace) -> list[faults.Fault]:
    """The faults of the list, or those that are drawn in their place."""
    if options.drawn:
        return draw.faults(scratch.ROOT, options.drawn, options.seed)
    return faults.read()


def try_all(options: argparse.Namespace, kept: Path) -> None:
    """Try the faults that are asked for, and keep the report after each."""
    goes_on = options.part == "slow" or options.only or options.drawn
    known = report.read(options.report) if goes_on and options.report.exists() else {}
    left = [fault for fault in asked(options) if not options.only or fault.id in options.only]
    if options.part == "slow" and not options.only:
        left = [fault for fault in left if fault.id not in known or not known[fault.id].found]
    elif options.drawn:
        left = [fault for fault in left if fault.id not in known]

    def told(fault: faults.Fault, outcome: run.Outcome) -> None:
        print(
            f"{fault.id:9} {outcome.outcome:8} {outcome.seconds:6} s  {outcome.found_by}",
            flush=True,
        )
        if outcome.found or fault.id not in known or options.part == "quick":
            known[fault.id] = outcome
        report.write(options.report, known)

    attempt = partial(
        run.try_one,
        known=collect.Contexts.read(kept),
        part=options.part,
        most=options.most,
        most_s=options.seconds,
    )
    run.run(left, attempt, told, options.jobs)
    print(report.summary(known))


def main() -> int:
    """Do what the command line says; returns the exit status."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=form
    )
    parser.add_argument(
        "what", nargs="?", default="run", choices=("run", "contexts", "compare", "draw")
    )
    parser.add_argument(
        "paths",
        nargs="*",
        help="contexts: tests that are added to those known; compare: two reports",
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="ID", help="try these faults alone"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--most", type=int, default=400, help="tests of one fault (default: 400)")
    parser.add_argument(
        "--seconds", type=float, default=inf, help="all tests of one fault (default: no limit)"
    )
    parser.add_argument(
        "--drawn", type=int, metavar="COUNT", help="faults that are drawn, in place of the list"
    )
    parser.add_argument("--seed", type=int, default=60, help="of --drawn (default: 60)")
    parser.add_argument("--part", default="quick", choices=collect.PARTS)
    parser.add_argument("--contexts", type=Path, help="default: build/mutants/contexts-PART.json")
    parser.add_argument(
        "--report",
        type=Path,
        help="default: tests/mutants/found.json; of --drawn build/mutants/drawn-COUNT-SEED.json",
    )
    options = parser.parse_intermixed_args()
    if options.report is None:
        options.report = FOUND
        if options.drawn:
            options.report = KEPT / f"drawn-{options.drawn}-{options.seed}.json"
    kept = options.contexts or KEPT / f"contexts-{options.part}.json"
    if options.what == "compare":
        before, after = (report.read(Path(path)) for path in options.paths)
        return report.compare(before, after)
    if options.what == "draw":
        draw_anew()
    elif options.what == "contexts":
        files = sorted({fault.file for fault in asked(options)})
        known = (
            collect.Contexts.read(kept) if options.paths and kept.exists() else collect.Contexts()
        )
        known.add(collect.collect(files, options.part, options.jobs, options.paths))
        known.write(kept)
    else:
        try_all(options, kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
