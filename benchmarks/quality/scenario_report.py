"""What ``benchmarks.scenarios`` says of scenarios whose data do not change, and what of one scenario is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.quality.scenario_sets import PARTS, part_of
from benchmarks.replays import Replays
from benchmarks.report import Ratio, cell, geomean, geomean_of, mean_ci, plus_minus, ratio_of, table

OURS, PAPERS = "knowledge_gradient", "zeus"
FLOOR = 0.3  # C*: the least that either regret counts as in a ratio
GEOMEAN, MOST, FAR = 0.36, 1.5, 1.2
WORST_SHOWN = 12
Found = Mapping[str, Mapping[str, Replays]]  # by scenario and policy


class Variant(NamedTuple):
    """A policy, and the window of its job where that is not the default."""

    policy: str
    window: int | None = None


class Verdict(NamedTuple):
    """One thing asked of the default policy. What is uncertain by chance counts as held (lower end of an interval)."""

    asked: str
    found: str
    held: bool


def spent(found: Replays, since: int = 0, until: int | None = None) -> list[float]:
    """Expected regret of the recurrences ``since`` to ``until``, from 0, one figure per seed [C*]."""
    last = -1 if until is None else until - 1
    return [curve[last] - (curve[since - 1] if since else 0.0) for curve in found.expected_regret]


def ratio_between(found: Mapping[str, Replays], theirs: str = PAPERS, since: int = 0, *, ours: str = OURS) -> Ratio:
    """Our regret since a recurrence over theirs."""
    return ratio_of(spent(found[ours], since), spent(found[theirs], since), FLOOR)


def entry_of(found: Mapping[str, Replays], since: int = 0) -> dict[str, Any]:
    """One scenario: each policy's regret as [mean, half of ci95] and counts, the ratio to the paper's with its ends."""
    entry: dict[str, Any] = {"ratio": ratio_between(found, since=since).to_json()}
    for policy, replays in found.items():
        entry[policy] = {
            "expected_regret": mean_ci(spent(replays, since)),
            **{name: getattr(replays, name) for name in ("runs_without_model", "runs_below_target", "attempts")},
        }
    return entry


def summary_of(found: Found, entries: Mapping[str, Mapping[str, Any]], since: int = 0) -> dict[str, Any]:
    """Several scenarios at once."""
    ratios = {name: entry["ratio"] for name, entry in entries.items()}
    counted = {
        name: {policy: sum(e[policy][name] for e in entries.values()) for policy in (OURS, PAPERS)}
        for name in ("runs_without_model", "runs_below_target")
    }
    return {
        "scenarios": len(entries),
        "geomean": geomean_of(ratio_between(found[name], since=since) for name in entries).to_json(),
        "worst": max(ratios, key=lambda name: ratios[name][0]),
        f"above_{FAR:g}": sum(r[0] > FAR for r in ratios.values()),
        f"above_{MOST:g}": sum(r[0] > MOST for r in ratios.values()),
        f"surely_above_{MOST:g}": sum(r[1] > MOST for r in ratios.values()),
        "floored": sum(e[PAPERS]["expected_regret"][0] < FLOOR for e in entries.values()),
        "attempts": max(e[OURS]["attempts"] for e in entries.values()),
        "more_below_target": [n for n, e in entries.items() if _below(e, OURS) > _below(e, PAPERS)],
        **counted,
    }


def _below(entry: Mapping[str, Any], policy: str) -> int:
    below: int = entry[policy]["runs_below_target"]
    return below


def static_report(found: Found, recurrences: int) -> dict[str, Any]:
    """``report.json["static"]``."""
    entries = {name: {"part": part_of(name), **entry_of(of)} for name, of in found.items()}
    parts = {part: {n: e for n, e in entries.items() if e["part"] == part} for part in PARTS}
    return {
        "recurrences": recurrences,
        "parts": {part: summary_of(found, of) for part, of in parts.items() if of},
        "scenarios": entries,
    }


def static_verdicts(report: Mapping[str, Any]) -> list[Verdict]:
    """What is asked of each part."""
    verdicts = []
    for part, of in report["parts"].items():
        mean, surely, worst = of["geomean"], of[f"surely_above_{MOST:g}"], report["scenarios"][of["worst"]]["ratio"]
        verdicts += [
            Verdict(f"{part}: geometric mean at most {GEOMEAN:g}", cell(mean), mean[1] <= GEOMEAN),
            Verdict(f"{part}: none above {MOST:g}", f"worst {cell(worst)}, {of['worst']}", not surely),
            *common_verdicts(part, of),
        ]
    return verdicts


def common_verdicts(part: str, of: Mapping[str, Any]) -> list[Verdict]:
    """What every recurrence owes."""
    without = of["runs_without_model"][OURS]
    below, more = of["runs_below_target"], of["more_below_target"]
    where = f"; more on {', '.join(more)}" if more else ""
    return [
        Verdict(f"{part}: no run without a model", str(without), not without),
        Verdict(f"{part}: at most 2 attempts per recurrence", str(of["attempts"]), of["attempts"] <= 2),
        Verdict(
            f"{part}: no more runs below target than the paper's policy",
            f"{below[OURS]}, the paper's {below[PAPERS]}{where}",
            below[OURS] <= below[PAPERS],
        ),
    ]


def static_markdown(report: Mapping[str, Any]) -> list[str]:
    """Its chapter of ``report.md``."""
    lines = [
        "## Scenarios without drift",
        "",
        f"Expected regret after {report['recurrences']} recurrences over that of the paper's policy. Either counts as",
        f"at least {FLOOR:g} C*; floored: the paper's was less.",
        "",
        *table(
            ["part", "scenarios", "geometric mean", f"above {FAR:g}", f"above {MOST:g}", "surely", "floored"],
            [
                [
                    part,
                    str(of["scenarios"]),
                    cell(of["geomean"]),
                    *(str(of[k]) for k in (f"above_{FAR:g}", f"above_{MOST:g}", f"surely_above_{MOST:g}", "floored")),
                ]
                for part, of in report["parts"].items()
            ],
        ),
    ]
    for part in report["parts"]:
        entries = {n: e for n, e in report["scenarios"].items() if e["part"] == part}
        lines += ["", f"### {part.capitalize()}: by kind, and the worst", "", *kinds_table(entries)]
        lines += ["", *worst_table(entries)]
    return lines


def kinds_table(entries: Mapping[str, Mapping[str, Any]], most: float = MOST) -> list[str]:
    """One line per kind: what the name says after the pair; numbers of a default left out."""
    kinds: dict[str, list[float]] = {}
    for name, entry in entries.items():
        kinds.setdefault(kind_of(name), []).append(entry["ratio"][0])
    rows = [
        [kind, str(len(v)), f"{geomean(v):.3f}", f"{max(v):.2f}", str(sum(r > most for r in v))]
        for kind, v in kinds.items()
    ]
    return table(["kind", "scenarios", "geometric mean", "worst", f"above {most:g}"], rows)


def kind_of(name: str) -> str:
    """``bert_qa/a40 default 56`` is of the kind ``default``."""
    kind = name.partition(" ")[2]
    return "default" if kind.startswith("default ") else kind or "as measured"


def worst_table(entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The scenarios that speak most against us."""
    worst = sorted(entries, key=lambda name: -entries[name]["ratio"][0])[:WORST_SHOWN]
    rows = [
        [
            name,
            cell(entries[name]["ratio"]),
            *(plus_minus(entries[name][p]["expected_regret"]) for p in (OURS, PAPERS)),
        ]
        for name in worst
    ]
    return table(["scenario", "ratio", f"regret of {OURS} [C*]", f"of {PAPERS} [C*]"], rows)


def below_after(found: Replays, shift: int) -> dict[str, Any]:
    """Recurrences below target from ``shift`` on: [mean, half of ci95] per seed, and of these ``again``.

    Again: after the first recurrence since the shift that reached the target.
    """
    below, again = [], []
    for missed, sizes in zip(found.below_target, found.batch_sizes, strict=True):
        since = {t for t in missed if t >= shift}
        found_at = next((t for t in range(shift, len(sizes)) if t not in since), len(sizes))
        below.append(float(len(since)))
        again.append(float(sum(t > found_at for t in since)))
    return {"below": mean_ci(below), "again": mean_ci(again)}


def below_rows(entries: Mapping[str, Mapping[str, Any]], policies: Sequence[str]) -> list[list[str]]:
    """Rows of a table: per scenario and policy the recurrences below target, and those again."""
    return [
        [name, *(f"{of[p]['below'][0]:.1f} ({of[p]['again'][0]:.1f})" for p in policies)]
        for name, of in entries.items()
    ]
