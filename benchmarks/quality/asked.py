"""What is asked of the default policy: one row for each figure, and the table of what was found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from benchmarks.quality.made_jobs import FAILS, MISSES, MOVED_DEFAULTS, NEAR, SIZES, UNLUCKY
from benchmarks.quality.slice_tables import KINDS
from benchmarks.report import table

FIRM = 1e-9  # rounding
OVERDRAFT = 3.0  # runs of the default
DEARER = 2.0  # % that a group of jobs may get dearer
COST = "cost: "
SPEED = "ms a decision"
SLOWER = "slower"
NOISE = 5.0  # % by which two measurements of a decision's time may differ
GROUPS_OF_JOBS = (*KINDS, "expected runs", "mlperf", "pairs", "drifts", "regimes")


class Figure(NamedTuple):
    """One figure, and the case that it is of where it is the worst of several."""

    value: float
    of: str = ""


Figures = dict[str, Figure]


def worst(found: Mapping[str, float]) -> Figure:
    """The highest."""
    name = max(found, key=found.__getitem__)
    return Figure(found[name], name)


def cost_of(group: str) -> str:
    """Name of the figure that says what a group of jobs costs against always the default [%]."""
    return f"{COST}{group}"


def dearer(group: str) -> str:
    """Name of the figure that says how much dearer [%] than before a group of jobs is."""
    return f"dearer: {group}"


class Asked(NamedTuple):
    """One figure that is asked for: at most ``most``; ``aim`` is hoped for."""

    what: str
    figure: str
    most: float
    aim: str = ""
    form: str = "+.1f"


def _of_made() -> Iterator[Asked]:
    for kind in MOVED_DEFAULTS:
        said = f"moved best size, {kind} default: cost against the best fixed size [%]"
        yield Asked(said, f"moved, {kind}: against the best", 15.0)
    for b, most in ((64, -30.0), (256, -40.0)):
        name = f"{MISSES}, {b}"
        yield Asked(f"{name}: cost against it [%]", f"{name}: against the default", most)
        yield Asked(f"{name}: below target of 80", f"{name}: below target", 3.0, form=".1f")
    for b, most in ((64, 30.0), (SIZES[0], 50.0)):
        name = f"{FAILS}, {b}"
        said = f"{name}: cost against the best fixed size [%]"
        yield Asked(said, f"{name}: against the best", most)
    for name in UNLUCKY:
        said = f"{name}, near-optimal default: total cost [%]"
        yield Asked(said, f"{name}, {NEAR}: against the default", 6.0)
    said = "slices that every size misses: jobs that end stuck"
    yield Asked(said, "missed or hopeless: stuck", 0.0, form="g")
    for name in ("season", "nothing"):
        said = f"{name}, near-optimal default: total cost [%]"
        yield Asked(said, f"{name}, {NEAR}: against the default", 4.0)


ASKED = (
    *_of_made(),
    Asked("near-optimal default, total cost [%]: series", "near_optimal: mean", 4.0, "+3"),
    Asked("the same: the dearest series", "near_optimal: worst", 4.0, "+3"),
    Asked(
        "largest default: most points behind hill climbing", "large: behind hill climbing", 3.0, "0"
    ),
    *(
        Asked(
            f"expected_runs, {kind} default: points lost by it, mean",
            f"expected_runs, {kind}: mean",
            3.0,
        )
        for kind in KINDS
    ),
    Asked(
        "MLPerf: cells dearer than hill climbing by more than 1 %",
        "mlperf: cells behind",
        0.0,
        form="g",
    ),
    Asked("MLPerf: near-optimal default, total cost [%]", "mlperf: near_optimal", 1.0),
    Asked("V100 + A40: regret at the end, x the public code's", "pairs: mean", 0.32, ".28", ".3f"),
    Asked("the same: worst pair", "pairs: worst", 0.80, form=".2f"),
    Asked("P100 + RTX6000: regret, x the public code's", "held: mean", 0.35, ".30", ".3f"),
    Asked("the same: worst pair", "held: worst", 0.95, form=".2f"),
    Asked("the same: worst pair after ten runs [%]", "held, after ten: worst", 8.0, "+5"),
    Asked("default audit: regret, x that without", "pairs: audit", 1.05, "1.03", ".3f"),
    Asked(
        "drifts: regret after the shift, x the repaired paper's policy's",
        "drifts: mean",
        0.35,
        ".30",
        ".3f",
    ),
    Asked("the same: worst", "drifts: worst", 2.0, form=".2f"),
    Asked("runs below target after a shift, worst pair", "below: worst", 8.0, "6"),
    Asked("jobs locked below their target", "locked", 0.0, form="g"),
    Asked("two sizes alone reach the target: runs below it of 40", "two sizes alone: below", 28.0),
    Asked(
        "false alarms per 100 recurrences where nothing changes", "false alarms", 0.5, form=".2f"
    ),
    *(
        Asked(
            f"overdraft [runs of the default]: {group}",
            f"overdraft: {group}",
            OVERDRAFT,
            "2",
            ".2f",
        )
        for group in ("made", "series", "mlperf", "pairs", "held", "drifts", "regimes")
    ),
)


ASKED_SINCE = (
    *(
        Asked(f"{group}: total cost, dearer than before [%]", dearer(group), DEARER)
        for group in GROUPS_OF_JOBS
    ),
    Asked("a decision: longer than before [%]", SLOWER, NOISE),
)


def markdown(found: Mapping[str, Figure], before: Mapping[str, Figure]) -> list[str]:
    """The table, and every figure below it.

    ``before``: figures of an earlier state; empty where none is known.
    """
    rows = [_row(asked, found, before) for asked in (*ASKED, *ASKED_SINCE) if asked.figure in found]
    every = [
        [name, f"{figure.value:.3f}", figure.of, _text(before.get(name), ".3f")]
        for name, figure in found.items()
    ]
    return [
        *table(["", "found", "at most", "aim", "", "before"], rows),
        "",
        *table(["every figure", "", "of", "before"], every),
    ]


def _row(asked: Asked, found: Mapping[str, Figure], before: Mapping[str, Figure]) -> list[str]:
    figure = found[asked.figure]
    met = "met" if figure.value <= asked.most + FIRM else "**not met**"
    of = f" ({figure.of})" if figure.of else ""
    return [
        asked.what,
        f"{figure.value:{asked.form}}{of}",
        f"{asked.most:{asked.form}}",
        asked.aim,
        met,
        _text(before.get(asked.figure), asked.form),
    ]


def _text(figure: Figure | None, form: str) -> str:
    return "" if figure is None else f"{figure.value:{form}}"


def since(found: Mapping[str, Figure], before: Mapping[str, Figure]) -> Figures:
    """How much dearer [%] than in an earlier state each group of jobs is,
    and how much slower a decision.
    """
    changes: Figures = {}
    for group in GROUPS_OF_JOBS:
        name = cost_of(group)
        if name in found and name in before:
            ratio = (100 + found[name].value) / (100 + before[name].value)
            changes[dearer(group)] = Figure(100 * (ratio - 1))
    if SPEED in found and SPEED in before:
        changes[SLOWER] = Figure(100 * (found[SPEED].value / before[SPEED].value - 1))
    return changes
