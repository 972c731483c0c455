"""The power limit's profiler on measured curves: ``python -m benchmarks.profiler --traces DIR --seeds N --out DIR``.

Every training and batch size of every ``summary_power_<gpu>.csv``, on the limits measured (25 W apart) and on 21 limits
interpolated between them; eta 0.5 and 1; 1 % and 3 % noise a window. The first window of a limit shows the same noise
to every search. Then how often the first window tells that no limit binds, and trainings of the run handle with epochs
of 10 s, 1 min and 1 h. Writes ``profiler.json`` and ``profiler.md``. The exit status is 1 where a target is missed.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.command import chosen_traces, command, on_all_cores
from benchmarks.parts.profiler_overhead import Overhead, overhead
from benchmarks.parts.profiler_replay import LONG, SEARCHES, Case, Curve, Row, cap_figures, curves_of, searched
from benchmarks.report import table, write_report

ETAS, NOISES = (0.5, 1.0), (0.01, 0.03)
GRIDS = {"25 W apart": 0.8, f"{LONG} limits": 0.5}  # share of the grid that may be measured at most
MEAN, P95 = 0.001, 0.005  # of regret beyond a full sweep's, at most, at eta 0.5
EPOCHS_S = (10.0, 60.0, 3600.0)
EPOCHS = 30  # of a training


def report_of(curves: Sequence[Curve], seeds: int, jobs: int | None = None) -> dict[str, Any]:
    """The whole ``profiler.json``."""
    grids = dict(zip(GRIDS, (list(curves), [curve.resampled(LONG) for curve in curves]), strict=True))
    cells = [(grid, eta, noise) for grid in grids for eta in ETAS for noise in NOISES]
    cases = [Case(curve, eta, noise, seeds) for grid, eta, noise in cells for curve in grids[grid]]
    found = list(on_all_cores(searched, cases, jobs))
    rows = []
    for n, (grid, eta, noise) in enumerate(cells):
        part = found[n * len(curves) : (n + 1) * len(curves)]
        rows += [{"grid": grid, "eta": eta, "noise": noise, "search": name, **summary(part, name)} for name in SEARCHES]
    report: dict[str, Any] = {"source": "simulated", "curves": len(curves), "seeds": seeds, "searches": rows}
    pairs = [(eta, noise) for eta in ETAS for noise in NOISES]
    report["cap"] = list(on_all_cores(partial(cap_figures, list(curves), seeds), pairs, jobs))
    report["overhead"] = []
    for epoch_s in EPOCHS_S:
        figures = spread(list(on_all_cores(partial(overhead, epoch_s=epoch_s, epochs=EPOCHS), curves, jobs)))
        report["overhead"].append({"epoch_s": epoch_s, "epochs": EPOCHS, **figures})
    return report | {"verdicts": verdicts(rows)}


def summary(found: Sequence[Mapping[str, Row]], name: str) -> dict[str, float]:
    """One search in one cell; quantiles are of all curves and seeds."""
    regret = np.array([rows[name].regret for rows in found])
    beyond = regret - np.array([rows["full sweep"].regret for rows in found])
    return {
        "limits": fmean(share for rows in found for share in rows[name].limits),
        "windows": fmean(share for rows in found for share in rows[name].windows),
        **{f"regret_{key}": value for key, value in _quantiles(regret).items()},
        **{f"beyond_{key}": value for key, value in _quantiles(beyond).items()},
    }


def _quantiles(figures: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    return {"mean": float(figures.mean()), "p95": float(np.quantile(figures, 0.95)), "max": float(figures.max())}


def spread(found: Sequence[Overhead]) -> dict[str, list[float]]:
    """[mean, median, 95th percentile, maximum] of each figure over the curves."""
    return {
        name: [float(f) for f in (np.mean(y), np.median(y), np.quantile(y, 0.95), np.max(y))]
        for name in Overhead._fields
        for y in [np.array([getattr(one, name) for one in found])]
    }


def verdicts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each target, and whether the package's own search meets it."""
    checked = []
    for row in rows:
        if row["search"] != "ours":
            continue
        targets = {"limits": GRIDS[row["grid"]]}
        if row["eta"] == 0.5:
            targets |= {"beyond_mean": MEAN, "beyond_p95": P95}
        for figure, most in targets.items():
            where = f"{row['grid']}, eta {row['eta']:g}, noise {row['noise']:.0%}"
            met = row[figure] <= most
            checked.append({"where": where, "figure": figure, "most": most, "is": row[figure], "met": met})
    return checked


# ---------------------------------------------------------------------- report
_FIGURES = {
    "limits": "limits measured, of the grid",
    "beyond_mean": "regret beyond a full sweep's, mean",
    "beyond_p95": "regret beyond a full sweep's, 95th percentile",
}


_EXTRA = {"energy": "+.2%", "time": "+.2%", "cost": "+.2%", "extra_j": "+.0f", "extra_s": "+.1f"}


def markdown_of(report: Mapping[str, Any]) -> str:
    """``profiler.md``."""
    lines = [
        "# Searches for the best power limit",
        "",
        f"{report['curves']} measured curves, {report['seeds']} seeds; noise of each window on J and on s per sample.",
        "Regret is relative to the best limit of the curve, *beyond* is less a full sweep's under the same noise.",
        "",
    ]
    head = ["grid", "eta", "noise", "search", "limits", "windows", "regret: mean", "p95", "max", "beyond: mean", "p95"]
    texts = ["{grid}", "{eta:g}", "{noise:.0%}", "{search}", "{limits:.0%}", "{windows:.0%}"]
    texts += [f"{{{name}:.2%}}" for name in ("regret_mean", "regret_p95", "regret_max", "beyond_mean", "beyond_p95")]
    lines += table(head, [[text.format(**row) for text in texts] for row in report["searches"]])
    lines += ["", "## Where no limit binds: before the first window tells, and with it", ""]
    names = [name for name in report["cap"][0] if name not in ("eta", "noise")]
    head = ["eta", "noise", *(name.replace("_", " ") for name in names)]
    forms = ["{eta:g}", "{noise:.0%}", *(f"{{{n}:.1f}}" if n.startswith("windows") else f"{{{n}:.2%}}" for n in names)]
    lines += table(head, [[form.format(**row) for form in forms] for row in report["cap"]])
    lines += [
        "",
        "## A whole training against the same one at the optimum from step 1",
        "",
        f"{EPOCHS} epochs, each with a validation of a tenth of its length, eta 0.5, 1 % noise a window; mean over the "
        "curves (median, 95th percentile).",
        "",
    ]
    head = ["epoch", "extra energy", "extra time", "extra cost", "extra J", "extra s", "profile complete after"]
    forms = ["{epoch_s:g} s"]
    forms += [f"{{{n}[0]:{f}}} ({{{n}[1]:{f}}}, {{{n}[2]:{f}}})" for n, f in _EXTRA.items()]
    forms.append("{complete_s[0]:.0f} s ({complete_s[1]:.0f}, {complete_s[2]:.0f})")
    lines += table(head, [[form.format(**row) for form in forms] for row in report["overhead"]])
    lines += ["", "## Targets", ""]
    lines += table(
        ["where", "figure", "at most", "is", "met"],
        [
            [v["where"], _FIGURES[v["figure"]], f"{v['most']:.1%}", f"{v['is']:.2%}", "yes" if v["met"] else "NO"]
            for v in report["verdicts"]
        ],
    )
    return "\n".join(lines) + "\n"


@command("--traces --seeds --jobs --out", seeds=20, out=Path("profiler"))
def main(args: argparse.Namespace) -> int:
    """Run what the command line says; 1 where a target is missed, 2 where it cannot be run."""
    report = report_of(curves_of(chosen_traces(args)), args.seeds, args.jobs)
    text = markdown_of(report)
    write_report(args.out, report, text, "profiler")
    print(text)
    return int(not all(verdict["met"] for verdict in report["verdicts"]))
