"""Pictures of ``benchmarks.scenarios``: ratios as dots with their intervals, and regret around a shift."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.plots import CYCLE, POLICY, panels, save
from benchmarks.quality.drift_report import STEADY
from benchmarks.quality.drifts import BACK, SHIFT, Drift
from benchmarks.quality.scenario_report import MOST, OURS, PAPERS, Found, kind_of

BEFORE = 10  # recurrences shown


def ratios(report: Mapping[str, Any], path: Path) -> Path:
    """Every scenario: regret over that of the paper's policy; one panel per part, one colour per kind."""
    parts = report["parts"]
    kinds = sorted({kind_of(name) for name in report["scenarios"]})
    colour = {kind: CYCLE[i % len(CYCLE)] for i, kind in enumerate(kinds)}
    mark = {kind: "os^D"[i // len(CYCLE) % 4] for i, kind in enumerate(kinds)}
    figure, axes = panels(len(parts), across=len(parts), width=5.6, height=9.0)
    for ax, (part, of) in zip(axes, parts.items(), strict=True):
        entries = {n: e["ratio"] for n, e in report["scenarios"].items() if e["part"] == part}
        names = sorted(entries, key=lambda name: -entries[name][0])
        for y, name in enumerate(names):
            value, low, high = entries[name]
            kind = kind_of(name)
            ax.plot([low, high], [y, y], color=colour[kind], lw=1.0, alpha=0.6)
            ax.plot([value], [y], mark[kind], color=colour[kind], ms=4)
        mean = of["geomean"][0]
        for at, style in ((1.0, "-"), (MOST, ":")):
            ax.axvline(at, color="#333333", lw=0.9, ls=style)
        ax.axvline(mean, color=POLICY[OURS][1], lw=1.4, ls="--")
        ax.text(mean, -1.6, f"{mean:.2f}", color=POLICY[OURS][1], ha="center", fontsize=8)
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_yticks(range(len(names)), names, fontsize=max(3.5, min(7.0, 420 / len(names))))
        ax.set_ylim(len(names), -2.5)
        ax.set_title(f"{part} ({len(names)})")
        ax.set_xlabel(f"regret, {POLICY[PAPERS][0]} = 1")
    handles = [_dot(axes[0], kind, mark[kind], colour[kind]) for kind in kinds]
    title = "Regret of the default policy off the measured pairs (95 % intervals; dashed: geometric mean)"
    return save(figure, path, title, handles)


def _dot(ax: Any, label: str, mark: str, colour: str) -> Any:
    (handle,) = ax.plot([], [], mark, color=colour, ms=5, label=label)
    return handle


def shifts(found: Found, cases: Mapping[str, Drift], path: Path) -> Path:
    """Cumulative regret from the shift on, mean over all pairs and seeds of a kind of shift."""
    kinds: dict[str, list[str]] = {}
    for name in found:
        if kind_of(name) != STEADY:
            kinds.setdefault(kind_of(name), []).append(name)
    figure, axes = panels(len(kinds), across=4, width=3.2, height=2.5)
    for ax, (kind, names) in zip(axes, kinds.items(), strict=True):
        for policy in (OURS, PAPERS):
            label, colour = POLICY[policy]
            curve = _mean([c for name in names for c in found[name][policy].expected_regret])
            ax.plot(range(-BEFORE, len(curve) - BEFORE), curve, color=colour, label=label)
        shifted_back = any(BACK in cases[name].shifts for name in names)
        for at in (0, *([BACK - SHIFT] if shifted_back else [])):
            ax.axvline(at, color="#333333", lw=0.8, ls=":")
        ax.set(title=kind, xlabel="recurrences after the shift", ylabel="regret [C*]")
    return save(figure, path, "Regret around a shift of the data, mean over all pairs")


def _mean(curves: Sequence[Sequence[float]]) -> list[float]:
    """From a little before the shift, 0 at the shift."""
    from_shift = [[v - curve[SHIFT - 1] for v in curve[SHIFT - 1 - BEFORE :]] for curve in curves]
    return [statistics.fmean(column) for column in zip(*from_shift, strict=True)]
