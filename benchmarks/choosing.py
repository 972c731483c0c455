"""Writes ``docs/evidence/choosing.md``.

``python -m benchmarks.choosing --traces DIR --series DIR --max-epochs bike=60 flights=40``.

For anyone who chooses between this package and what else there is: the same workloads under zeus
0.16 as it is, a fixed cap of 60 %, always the default at full power, the best configuration in
hindsight, and this package's two policies, all in one replay with one accounting (``choosers``).
Then real retraining series (``benchmarks.series``) and the regimes of ``quality.regimes``, in which
the default policy gains least. Seeds 0 to N - 1; prints the first table.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from airflow_provider_zeus import __version__
from airflow_provider_zeus.model.job_checks import POLICIES
from benchmarks.command import SELECTION, chosen_traces, command, needs, option, positive
from benchmarks.plots import name_of
from benchmarks.quality import regimes
from benchmarks.quality.choosers import FIXED_CAP, HILL_CLIMBING, HINDSIGHT, PACKAGE, cap_of
from benchmarks.quality.slice_tables import series_of
from benchmarks.replays import Replays, Task, run_tasks
from benchmarks.report import (
    Ratio,
    bold,
    change,
    change_interval,
    fill_in,
    mean_of,
    ratio_of,
    table,
)
from benchmarks.series import measure
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Pair

OURS = POLICIES[0]
DEFAULT = "default"
NAMES = {
    DEFAULT: "default size",
    FIXED_CAP: "cap of 60 %",
    PACKAGE: "zeus 0.16",
    "zeus": "`zeus`",
    OURS: "**default policy**",
    HINDSIGHT: "best in hindsight",
}
TUNED_ON = ("a40", "v100")  # GPUs on whose pairs parts of the default policy were chosen
HORIZONS = {"10 runs": 10, "50 runs": 50, "all runs": None}

Held = Mapping[str, Mapping[str, Replays]]  # by pair and chooser


class Measured(NamedTuple):
    """All that the page is made of."""

    held: Held
    scenarios: Sequence[Scenario]
    series: Mapping[str, Any]  # by name, of benchmarks.series
    regimes: Mapping[str, Any]  # of quality.regimes
    seeds: int
    regime_seeds: int
    command: str


def costs(found: Replays, runs: int | None) -> list[float]:
    """Expected cost of the first so many runs [C*], one figure per seed;
    a run that misses its target is run again.
    """
    return [
        curve[at - 1] + at
        for curve in found.expected_regret
        for at in [min(runs or len(curve), len(curve))]
    ]


def against_default(held: Held, chooser: str, runs: int | None) -> dict[str, Ratio]:
    """Cost as a multiple of always the default's, by pair."""
    return {
        pair: ratio_of(costs(of[chooser], runs), costs(of[DEFAULT], runs))
        for pair, of in held.items()
    }


def overview(held: Held) -> list[str]:
    """One line per chooser: mean over the pairs, and the worst pair."""
    head = [
        "",
        *(f"cost, {name}" for name in HORIZONS),
        "energy",
        "time",
        "dearer on",
        "worst pair",
    ]
    rows = []
    for chooser, title in NAMES.items():
        if chooser == DEFAULT:
            continue
        by = {name: against_default(held, chooser, runs) for name, runs in HORIZONS.items()}
        sums = [
            mean_of(
                ratio_of(
                    [c[-1] for c in getattr(of[chooser], what)],
                    [c[-1] for c in getattr(of[DEFAULT], what)],
                )
                for of in held.values()
            )
            for what in ("energy", "time")
        ]
        means = [
            change_interval(r.to_json())
            for r in (*(mean_of(ratios.values()) for ratios in by.values()), *sums)
        ]
        dearer = {name: sum(r.low > 1 for r in ratios.values()) for name, ratios in by.items()}
        last = by["all runs"]
        worst = max(last, key=lambda pair: last[pair].value)
        counts = ", ".join(str(n) for n in dearer.values())
        rows.append(
            [
                title,
                *means,
                f"{counts} of {len(held)}",
                f"{change_interval(last[worst].to_json())}, {worst}",
            ]
        )
    return table(head, rows)


def by_pair(held: Held) -> list[str]:
    """Cost against always the default by pair, after ten runs, after all; bold:
    surely dearer than the default.
    """
    shown = [chooser for chooser in NAMES if chooser != DEFAULT]
    at_ten = {chooser: against_default(held, chooser, 10) for chooser in shown}
    at_end = {chooser: against_default(held, chooser, None) for chooser in shown}
    rows = []
    for pair in held:
        workload, _, gpu = pair.partition("/")
        cells = [_at_both(at_ten[chooser][pair], at_end[chooser][pair]) for chooser in shown]
        rows.append([f"{name_of(workload)}, {gpu.upper()}", *cells])
    return table(["", *(NAMES[chooser].replace("*", "") for chooser in shown)], rows)


def _at_both(at_ten: Ratio, at_end: Ratio) -> str:
    """Both figures, or one if they are alike, as those of a way that tries nothing."""
    texts = [bold(change(ratio.to_json()), ratio.to_json()) for ratio in (at_ten, at_end)]
    return ", ".join(dict.fromkeys(texts))


def losses(held: Held) -> list[str]:
    """Where the default policy surely costs more than another way that needs no knowledge of the
    future.
    """
    horizons: dict[str, list[str]] = {}
    for name, runs in HORIZONS.items():
        for chooser in (DEFAULT, FIXED_CAP, PACKAGE, "zeus"):
            ratios = {
                pair: ratio_of(costs(of[OURS], runs), costs(of[chooser], runs))
                for pair, of in held.items()
            }
            dearer = [
                f"{pair} {change_interval(ratio.to_json())}"
                for pair, ratio in ratios.items()
                if ratio.low > 1
            ]
            if dearer:
                than = f"than {NAMES[chooser]}: {', '.join(dearer)}"
                horizons.setdefault(than, []).append(name)
    # Late horizons often show the same: it is said once.
    lines = [f"- {' and '.join(names)}, {than}" for than, names in horizons.items()]
    return lines or ["None."]


def caps(scenarios: Sequence[Scenario]) -> str:
    """The limits of the fixed cap."""
    limits: dict[str, dict[float, list[str]]] = {}
    for s in scenarios:
        limits.setdefault(s.pair.gpu, {}).setdefault(cap_of(s).limit_w, []).append(
            name_of(s.pair.workload)
        )
    said = []
    for gpu, of in limits.items():
        usual = max(of, key=lambda w: len(of[w]))
        others = "".join(
            f", {w:g} W for {', '.join(names)}" for w, names in of.items() if w != usual
        )
        said.append(f"{gpu.upper()} {usual:g} W{others}")
    return "; ".join(said)


def series_lines(series: Mapping[str, Any]) -> list[str]:
    """Total cost of each way against always the default, by series and default."""
    others = {
        NAMES[PACKAGE]: PACKAGE,
        NAMES["zeus"]: "zeus",
        "hill climbing by hand": HILL_CLIMBING,
    }
    ways = [*others.values(), OURS]
    rows = []
    for name, by in series.items():
        for kind, ours in by[OURS].items():
            figures = [by[way][kind] for way in ways]
            ratios = [[f["total_vs_default"], f["low"], f["high"]] for f in figures]
            rows.append(
                [
                    f"{name}, {ours['batch_size']}",
                    kind.replace("_", "-"),
                    *(bold(change(ratio), ratio) for ratio in ratios[:-1]),
                    bold(change_interval(ratios[-1]), ratios[-1]),
                    f"{100 * (ours['total_vs_default'] / ours['vs_best_fixed'] - 1):+.1f}",
                    "/".join(f"{f['runs_below_target']:.1f}" for f in figures),
                    "/".join(str(f["runs_without_model"]) for f in figures),
                ]
            )
    head = [
        "series, default",
        "which is",
        *others,
        NAMES[OURS].replace("*", ""),
        "best size in hindsight",
        "below target",
        "without a model",
    ]
    return table(head, rows)


def series_said(series: Mapping[str, Any]) -> str:
    """Where another way was cheaper than the default policy on the same series."""
    ways = {PACKAGE: NAMES[PACKAGE], "zeus": NAMES["zeus"], HILL_CLIMBING: "hill climbing"}
    cheaper = []
    for name, by in series.items():
        for kind, ours in by[OURS].items():
            better = [
                way
                for key, way in ways.items()
                if by[key][kind]["total_vs_default"] < ours["total_vs_default"]
            ]
            cheaper += [f"{way} on {name}, {ours['batch_size']}" for way in better]
    return (
        "Cheaper in the mean than the default policy:"
        f" {'; '.join(cheaper) or 'none of the other ways'}."
    )


def regimes_said(found: Mapping[str, Any]) -> list[str]:
    """Where the default policy surely costs more, on its worst pair or in the mean."""
    said = []
    for key, title in (("vs_default", "always the default"), ("vs_paper", "the paper's policy")):
        dearer = {name: of[key] for name, of in found.items() if of[key]["worst"][1] > 1}
        in_mean = [name for name, of in found.items() if of[key]["mean"][1] > 1]
        text = (
            f"- Against {title} surely dearer on its worst pair in {len(dearer)} of {len(found)}"
            " regimes"
        )
        if dearer:
            worst = max(dearer, key=lambda name: dearer[name]["worst"][0])
            of = dearer[worst]
            text += f", most in *{worst}* ({change_interval(of['worst'])}, {of['worst_case']})"
        said.append(f"{text}; in the mean in {', '.join(in_mean) or 'none'}.")
    return said


def expecting_said(found: Mapping[str, Any]) -> str:
    """What ``expected_runs`` changes for a job of ten recurrences: the mean over the pairs,
    and the worst pair.
    """
    if not found:
        return ""  # none of these pairs is one on which regimes are played
    alone = found["ten recurrences alone"]["vs_default"]
    expecting = found["ten recurrences, and the job expects ten"]["vs_default"]
    return (
        "A job that tells how often it recurs (`expected_runs=10`) tries less: over its ten runs"
        f" the change of cost (*ten recurrences* below) goes from {change(alone['worst'])} to"
        f" {change(expecting['worst'])} % on the worst pair, and from"
        f" {change_interval(alone['mean'])} to {change_interval(expecting['mean'])} in the mean."
    )


def page_of(found: Measured) -> str:
    """The whole page."""
    untuned = {pair: of for pair, of in found.held.items() if not _tuned_on(pair)}
    words = {
        "version": __version__,
        "untuned_pairs": str(len(untuned)),
        "command": found.command,
        "last_seed": str(found.seeds - 1),
        "last_regime_seed": str(found.regime_seeds - 1),
        "pairs": str(len(found.held)),
        "caps": caps(found.scenarios),
        "expecting_said": expecting_said(found.regimes["regimes"]),
    }
    lines = {
        "overview": overview(found.held),
        "untuned": overview(untuned) if untuned else ["The folder holds none."],
        "by_pair": by_pair(found.held),
        "losses": losses(found.held),
        "series": series_lines(found.series),
        "regimes": regimes.markdown(found.regimes),
        "regimes_said": regimes_said(found.regimes["regimes"]),
        "series_said": [series_said(found.series)],
    }
    return fill_in("choosing", words, lines)


def _tuned_on(pair: str) -> bool:
    return pair.rpartition("/")[2] in TUNED_ON


def hold(
    folder: Path,
    pairs: Sequence[Pair],
    seeds: int,
    jobs: int | None = None,
    choosers: Iterable[str] = NAMES,
) -> dict[str, dict[str, Replays]]:
    """Every chooser on every pair."""
    tasks = [
        Task(p.workload, p.gpu, chooser, tuple(range(seeds))) for p in pairs for chooser in choosers
    ]
    held: dict[str, dict[str, Replays]] = {p.name: {} for p in pairs}
    for task, found in run_tasks(folder, tasks, jobs).items():
        held[task.pair][task.policy] = found
    return held


@command(
    f"{SELECTION} --series --max-epochs",
    option("--regime-seeds", type=positive, default=4),
    seeds=40,
    out=Path("docs/evidence/choosing.md"),
)
def main(args: argparse.Namespace) -> None:
    """Write the page; 2 where it cannot be made."""
    needs("zeus")
    pairs = chosen_traces(args).pairs(args.gpus, args.workloads)
    tables = series_of(args.series, dict(args.max_epochs))
    scenarios = [Scenario(p) for p in pairs]
    tuned = [s for s in scenarios if _tuned_on(s.pair.name)]
    held = hold(args.traces, pairs, args.seeds, args.jobs)
    ways = [OURS, "zeus", PACKAGE, HILL_CLIMBING]
    series = {
        name: measure(each, ways, range(args.seeds), args.jobs) for name, each in tables.items()
    }
    played = regimes.run_all(tuned, range(args.regime_seeds), args.jobs)
    of_regimes = regimes.report_of(played, [f for by in series.values() for f in by[OURS].values()])
    epochs = " ".join(f"{name}={n}" for name, n in args.max_epochs)
    said = "python -m benchmarks.choosing --traces DIR" + (" --series DIR" if args.series else "")
    said += (f" --max-epochs {epochs}" if epochs else "") + " --out docs/evidence/choosing.md"
    found = Measured(held, scenarios, series, of_regimes, args.seeds, args.regime_seeds, said)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(page_of(found), encoding="utf-8")
    print("\n".join(overview(held)))
    print(args.out)
