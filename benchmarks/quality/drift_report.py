"""What ``benchmarks.scenarios`` says of jobs whose data change: regret from the shift on, and false alarms."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.quality.drifts import END, END_SILENT, LEVELS, LOST, SHIFT, Drift
from benchmarks.quality.scenario_report import (
    FLOOR,
    OURS,
    Found,
    Variant,
    Verdict,
    below_after,
    below_rows,
    common_verdicts,
    entry_of,
    kind_of,
    kinds_table,
    ratio_between,
    spent,
    summary_of,
    worst_table,
)
from benchmarks.replays import Replays
from benchmarks.report import cell, geomean_of, mean_ci, plus_minus, table

GEOMEAN, WORST, FALSE_ALARM, BELOW = 0.30, 2.2, 5.0, 6
SWEEP = 60  # a window of so many converged runs: what has no run within it is tried again
SWEPT = f"{OURS}_window_{SWEEP}"
STEADY, SMALL = "steady", f"level x{LEVELS[0]:g}"


def drift_report(found: Found, cases: Mapping[str, Drift], variants: Mapping[str, Variant]) -> dict[str, Any]:
    """``report.json["drift"]``. ``variants``: what was replayed; the first is ours, the second the paper's."""
    shifted = {n: of for n, of in found.items() if cases[n].shifts and cases[n].silent is None}
    entries = {n: {"announced": cases[n].announced, **entry_of(of, SHIFT)} for n, of in shifted.items()}
    lost = {n: e for n, e in entries.items() if kind_of(n).removesuffix(" and back") in LOST}
    other = {n: e for n, e in entries.items() if n not in lost}
    groups = {
        "all": entries,
        "sizes lose or regain the target": lost,
        "other": other,
        "other, announced": {n: e for n, e in other.items() if e["announced"]},
        "other, unannounced": {n: e for n, e in other.items() if not e["announced"]},
    }
    pairs = [name.removesuffix(f" {STEADY}") for name in found if name.endswith(f" {STEADY}")]
    return {
        "shift_at": SHIFT,
        "variants": {name: variant._asdict() for name, variant in variants.items()},
        "groups": {name: summary_of(found, of, SHIFT) for name, of in groups.items() if of},
        "against": {
            policy: geomean_of(ratio_between(of, policy, SHIFT) for of in shifted.values()).to_json()
            for policy in variants
            if policy != OURS
        },
        "below_target": {n: {p: below_after(found[n][p], SHIFT) for p in variants} for n in lost},
        "steady": {
            policy: {p: mean_ci(spent(found[f"{p} {STEADY}"][policy], SHIFT)) for p in pairs} for policy in variants
        },
        "false_alarm": {
            policy: {p: _false_alarm(found[f"{p} {SMALL}"], found[f"{p} {STEADY}"], policy) for p in pairs}
            for policy in variants
        },
        "silent": {n: _silent(of, cases[n]) for n, of in found.items() if cases[n].silent is not None},
        "scenarios": entries,
    }


def _false_alarm(shifted: Mapping[str, Replays], steady: Mapping[str, Replays], policy: str) -> list[float]:
    """[mean, half of ci95] of what the smallest shift costs over no shift [C*]."""
    pairs = zip(spent(shifted[policy], SHIFT, END), spent(steady[policy], SHIFT, END), strict=True)
    return mean_ci([a - b for a, b in pairs])


def _silent(found: Mapping[str, Replays], drift: Drift) -> dict[str, Any]:
    """Per policy: share of seeds in which the batch size is found, the median recurrence after the shift, regret."""
    report: dict[str, Any] = {"batch_size": drift.silent}
    for policy, replays in found.items():
        kept = [sizes[SHIFT:] for sizes in replays.batch_sizes]
        first = [sizes.index(drift.silent) if drift.silent in sizes else None for sizes in kept]
        hits = [f + 1 for f in first if f is not None]
        report[policy] = {
            "found": len(hits) / len(first),
            "median_recurrence": statistics.median(hits) if hits else None,
            "expected_regret": mean_ci(spent(replays, SHIFT)),
        }
    return report


def drift_verdicts(report: Mapping[str, Any]) -> list[Verdict]:
    """What is asked under drift."""
    of = report["groups"]["all"]
    mean = of["geomean"]
    over = {n: e["ratio"] for n, e in report["scenarios"].items() if e["ratio"][1] > WORST}
    alarms: Mapping[str, Sequence[float]] = report["false_alarm"][OURS]
    pair = max(alarms, key=lambda p: alarms[p][0])
    alarm, half = alarms[pair]
    shares = [s[SWEPT]["found"] for s in report["silent"].values()]
    prices = {p: report["steady"][SWEPT][p][0] - report["steady"][OURS][p][0] for p in report["steady"][SWEPT]}
    worst = f"worst {cell(report['scenarios'][of['worst']]['ratio'])}, {of['worst']}; {len(over)} surely above"
    return [
        Verdict(f"drift: geometric mean at most {GEOMEAN:g}", cell(mean), mean[1] <= GEOMEAN),
        Verdict(f"drift: worst at most {WORST:g}", worst, not over),
        Verdict(
            f"{SMALL}: false alarm costs at most {FALSE_ALARM:g} C*",
            f"at most {alarm:.2f} ± {half:.2f}, {pair}",
            alarm - half <= FALSE_ALARM,
        ),
        Verdict(
            f"a batch size that gets better silently is found, re-swept every {SWEEP} recurrences",
            f"in {statistics.fmean(shares):.0%} of jobs, at least {min(shares):.0%}; price where nothing changes "
            f"{statistics.fmean(prices.values()):.1f} C* in {END_SILENT - SHIFT} recurrences, at most "
            f"{max(prices.values()):.1f}",
            min(shares) > 0.5,
        ),
        *_below_verdicts(report["below_target"]),
        *common_verdicts("drift", of),
    ]


def _below_verdicts(entries: Mapping[str, Mapping[str, Any]]) -> list[Verdict]:
    if not entries:
        return []
    ours = {name: of[OURS]["below"] for name, of in entries.items()}
    worst = max(ours, key=lambda name: ours[name][0])
    mean, half = ours[worst]
    asked = f"drift: at most {BELOW} recurrences below target after sizes stop reaching it"
    return [Verdict(asked, f"at most {mean:.1f} ± {half:.1f}, {worst}", mean - half <= BELOW)]


def drift_markdown(report: Mapping[str, Any]) -> list[str]:
    """Its chapter of ``report.md``."""
    pairs = list(report["steady"][OURS])
    lines = [
        "## Jobs whose data change",
        "",
        f"Expected regret from the shift on (recurrence {SHIFT}) over that of the paper's policy, traps settled.",
        f"Either counts as at least {FLOOR:g} C*; floored: the paper's was less. A shift is announced where Epochs of",
        "the batch size that was best before it change; else nothing that runs need tell of it.",
        "",
        *table(
            ["shifts", "scenarios", "geometric mean", "floored"],
            [
                [name, str(of["scenarios"]), cell(of["geomean"]), str(of["floored"])]
                for name, of in report["groups"].items()
            ],
        ),
        "",
        *table(["all shifts against", "geometric mean"], [[p, cell(ratio)] for p, ratio in report["against"].items()]),
        "",
        *kinds_table(report["scenarios"], WORST),
        "",
        *worst_table(report["scenarios"]),
        "",
        "### Sizes that lose or regain the target: recurrences below it from the shift on (again, once it was reached)",
        "",
        *table(["scenario", *report["variants"]], below_rows(report["below_target"], list(report["variants"]))),
        "",
        f"### What {SMALL} costs over no shift [C*]",
        "",
        *table(
            ["pair", *report["false_alarm"]],
            [[pair, *(plus_minus(of[pair]) for of in report["false_alarm"].values())] for pair in pairs],
        ),
        "",
        f"### One batch size gets better silently at recurrence {SHIFT}: found after so many recurrences",
        "",
    ]
    policies = list(report["variants"])
    rows = [[n, str(of["batch_size"]), *(_found_cell(of[p]) for p in policies)] for n, of in report["silent"].items()]
    lines += table(["scenario", "batch size", *policies], rows)
    lines += ["", f"### Regret from recurrence {SHIFT} to {END_SILENT} where nothing ever changes [C*]", ""]
    steady = [[pair, *(plus_minus(report["steady"][p][pair]) for p in policies)] for pair in pairs]
    return [*lines, *table(["pair", *policies], steady)]


def _found_cell(of: Mapping[str, Any]) -> str:
    when = "never" if of["median_recurrence"] is None else f"median {of['median_recurrence']:g}"
    return f"{when}, in {of['found']:.0%} of jobs; regret {plus_minus(of['expected_regret'])}"
