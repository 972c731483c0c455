"""What is asked of the default policy, on all cases together, in one table: ``python -m benchmarks.targets``.

    python -m benchmarks.targets --traces DIR --series DIR --max-epochs bike=60 flights=40 --mlperf DIR --held DIR

Prints, for each figure that is asked for, what was found, what is asked and whether it is met; then every figure of the
groups of ``benchmarks.quality.case_figures``. ``--held`` names traces of further GPUs, on which nothing may be tuned;
``--mlperf`` MLPerf's convergence points. Rows of a folder that is not named are left out. ``--only`` takes some groups
alone, ``--every N`` every N-th drift and the regimes of every N-th pair. ``benchmarks.constants`` takes rules and
constants away from the same cases. Everything is simulated; the last line says which seeds were drawn, ``--first-seed``
where they begin.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.command import chosen_traces, command, option, positive, took
from benchmarks.constants import DECIDING
from benchmarks.quality.case_figures import GROUPS, Figure, Figures
from benchmarks.quality.case_set import Cases
from benchmarks.report import table, write_json

NOBODY = "slices that nobody reaches"


class Asked(NamedTuple):
    """One figure that is asked for: at most ``most``; ``aim`` is hoped for."""

    what: str
    figure: str
    most: float
    aim: str = ""
    form: str = "+.1f"


ASKED = (
    Asked("near-optimal default, total cost [%]: mean of the series", "near_optimal: mean", 5.0, "+3"),
    Asked("the same: the dearest series", "near_optimal: worst", 5.0, "+3"),
    Asked("largest default: most points behind hill climbing", "large: behind hill climbing", 3.0, "0"),
    Asked("MLPerf: cells dearer than hill climbing by more than 1 %", "mlperf: cells behind", 0.0, form="g"),
    Asked("MLPerf: near-optimal default, total cost [%]", "mlperf: near_optimal", 1.0),
    Asked("V100 + A40: regret at the end, x the public code's", "pairs: mean", 0.32, ".28", ".3f"),
    Asked("the same: worst pair", "pairs: worst", 0.80, form=".2f"),
    Asked("GPUs on which nothing was tuned: the same", "held: mean", 0.35, ".28", ".3f"),
    Asked("the same: worst pair", "held: worst", 0.95, form=".2f"),
    Asked("drifts: regret after the shift, x the repaired paper's policy's", "drifts: mean", 0.32, ".25", ".3f"),
    Asked("the same: worst", "drifts: worst", 2.0, form=".2f"),
    Asked("runs below target after a shift, worst pair", "below: worst", 8.0, "6"),
    Asked("jobs locked below their target", "locked", 0.0, form="g"),
    Asked("two sizes alone reach the target: runs below it of 40", "two sizes alone: below", 28.0),
    *(
        Asked(f"{n} % of {NOBODY}: worst pair [%]", f"regime: {n} % of {NOBODY}, worst", most)
        for n, most in ((10, 3.0), (30, 8.0))
    ),
    *(
        Asked(f"expected_runs, {kind} default: points lost by it, mean", f"expected_runs, {kind}: mean", 3.0)
        for kind in ("small", "near_optimal", "large")
    ),
    Asked("default audit: regret, x that without", "audit", 1.05, "1.03", ".3f"),
    Asked("false alarms per 100 recurrences where nothing changes", "false alarms", 0.5, form=".2f"),
    Asked("constants that decide", "constants", 18.0, "12", "g"),
)


def figures_of(cases: Cases, jobs: int | None = None, groups: Sequence[str] = tuple(GROUPS)) -> Figures:
    """The figures of these groups."""
    found = {name: figure for group in groups for name, figure in GROUPS[group](cases, jobs).items()}
    return {**found, "constants": Figure(float(len(DECIDING)))}


def markdown(found: Mapping[str, Figure]) -> list[str]:
    """The table, and every figure below it."""
    rows = []
    for a in ASKED:
        if a.figure in found:
            value, of = found[a.figure]
            met = "met" if value <= a.most + 1e-9 else "**not met**"
            rows.append([a.what, f"{value:{a.form}}{f' ({of})' if of else ''}", f"{a.most:{a.form}}", a.aim, met])
    every = [[name, f"{figure.value:.3f}", figure.of] for name, figure in found.items()]
    return [*table(["", "found", "at most", "aim", ""], rows), "", *table(["every figure", "", "of"], every)]


@command(
    "--traces --every --series --max-epochs --seeds --report --jobs",
    option("--mlperf", type=Path, metavar="DIR"),
    option("--held", type=Path, metavar="DIR"),
    option("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS), metavar="GROUP"),
    option("--series-seeds", type=positive, default=40, metavar="N"),
    option("--first-seed", type=int, default=0, metavar="N"),
    seeds=4,
)
def main(args: argparse.Namespace) -> None:
    """Run what the command line says; 2 where it cannot be run."""
    chosen_traces(args)
    cases = Cases(args.traces, args.series, tuple(args.max_epochs), args.mlperf, args.held)
    cases = cases._replace(
        seeds=args.seeds, series_seeds=args.series_seeds, every=args.every, first_seed=args.first_seed
    )
    found = figures_of(cases, args.jobs, args.only)
    print("\n".join(markdown(found)))
    print(
        f"seeds from {args.first_seed} on: {args.seeds} of pairs, drifts and regimes, {5 * args.seeds} of two sizes, "
        f"{args.series_seeds} of series, {max(args.series_seeds // 4, 1)} of MLPerf; drifts and pairs of regimes by "
        f"steps of {args.every}; {took(args)}"
    )
    write_json(args.report, {name: list(figure) for name, figure in found.items()})


if __name__ == "__main__":
    raise SystemExit(main())
