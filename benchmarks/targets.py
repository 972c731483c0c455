"""What is asked of the default policy, on all cases together, in one table: ``python -m benchmarks.targets``.

    python -m benchmarks.targets --traces DIR --series DIR --max-epochs bike=60 flights=40 --mlperf DIR --held DIR

Prints, for each figure that is asked for, what was found, what is asked and whether it is met; then every figure of
all cases (``case_set``), group by group; of each, a lower one is better. Regrets are expected ones; the public code's,
the repaired paper's policy's and hill climbing's are replayed beside ours with common random numbers. ``--held`` names
traces of further GPUs, on which nothing may be tuned; ``--mlperf`` MLPerf's convergence points. Rows of a folder that
is not named are left out. ``--only`` takes some groups alone, ``--every N`` every N-th drift and the regimes of every
N-th pair. ``--without`` takes rules and constants away from the same cases (``rules_off``). Everything is simulated;
the last line says which seeds were drawn, ``--first-seed`` where they begin.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.command import chosen_traces, command, on_all_cores, option, positive, took
from benchmarks.quality import drifts, regimes, rules_off
from benchmarks.quality.case_set import AFTER, AUDIT, Cases, shifting, told, two_sizes_alone
from benchmarks.quality.choosers import HILL_CLIMBING
from benchmarks.quality.drifts import LOST, SHIFT
from benchmarks.quality.slice_tables import KINDS
from benchmarks.replays import (
    FLOOR,
    OURS,
    PAPERS,
    UPSTREAM,
    Replays,
    Task,
    below_after,
    ratio_between,
    ratios_to_upstream,
    run_tasks,
)
from benchmarks.report import Ratio, geomean_of, ratio_of, table, write_json
from benchmarks.series import measure
from benchmarks.simulation.driver import replay
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Traces

LOCKED = 20  # newest recurrences, all below target, by which a job counts as locked


class Figure(NamedTuple):
    """One figure, and the case that it is of where it is the worst of several."""

    value: float
    of: str = ""


Figures = dict[str, Figure]


def worst(found: Mapping[str, float]) -> Figure:
    """The highest."""
    name = max(found, key=found.__getitem__)
    return Figure(found[name], name)


def mean(found: Iterable[float]) -> Figure:
    """Their arithmetic mean."""
    return Figure(statistics.fmean(found))


def of_series(cases: Cases, jobs: int | None = None) -> Figures:
    """Total cost [%] against always the default; points behind hill climbing, and lost by ``expected_runs``."""
    tables, seeds = cases.tables(), cases.drawn(cases.series_seeds)
    found = {name: measure(each, [OURS, HILL_CLIMBING], seeds, jobs) for name, each in tables.items()}
    knowing = {name: measure(told(each), [OURS], seeds, jobs) for name, each in tables.items()}

    def cost(by: Mapping[str, Any], kind: str, policy: str = OURS) -> float:
        return 100 * (float(by[policy][kind]["total_vs_default"]) - 1)

    figures: Figures = {}
    for kind in KINDS:
        each = {name: cost(by, kind) for name, by in found.items()}
        figures |= {f"{kind}: mean": mean(each.values()), f"{kind}: worst": worst(each)}
        figures |= {f"{kind}: {name}": Figure(value) for name, value in each.items()}
        lost = {name: cost(knowing[name], kind) - value for name, value in each.items()}
        figures |= {f"expected_runs, {kind}: mean": mean(lost.values()), f"expected_runs, {kind}: worst": worst(lost)}
    behind = {name: cost(by, "large") - cost(by, "large", HILL_CLIMBING) for name, by in found.items()}
    return figures | {"large: behind hill climbing": worst(behind)}


def of_mlperf(cases: Cases, jobs: int | None = None) -> Figures:
    """Cells dearer than hill climbing by more than 1 %, and total cost [%] against the best fixed size."""
    behind: dict[str, float] = {}
    near = []
    for name, each in cases.mlperf_tables().items():
        found = measure(each, [OURS, HILL_CLIMBING], cases.drawn(max(cases.series_seeds // 4, 1)), jobs)
        for kind, ours in found[OURS].items():
            theirs = found[HILL_CLIMBING][kind]
            behind[f"{name} {kind}"] = 100 * (ours["vs_best_fixed"] / theirs["vs_best_fixed"] - 1)
        near.append(100 * (found[OURS]["near_optimal"]["vs_best_fixed"] - 1))
    if not behind:
        return {}
    cells = Figure(sum(b > 1 for b in behind.values()), f"of {len(behind)}")
    return {"mlperf: cells behind": cells, "mlperf: most behind": worst(behind), "mlperf: near_optimal": mean(near)}


def of_pairs(cases: Cases, jobs: int | None = None) -> Figures:
    """Regret at the end as a multiple of the public code's; with the default audit, of that without one."""
    figures: Figures = {}
    for name, folder in (("pairs", cases.traces), ("held", cases.held)):
        if folder is not None:
            seeds, gpus = tuple(cases.drawn(cases.seeds)), Traces(folder).gpus
            new = [gpu for gpu in gpus if name == "pairs" or gpu not in Traces(cases.traces).gpus]
            each = [(pair, policy) for pair in Traces(folder).pairs(new) for policy in (OURS, UPSTREAM)]
            tasks = [Task(pair.workload, pair.gpu, policy, seeds) for pair, policy in each]
            figures |= _ratios(name, ratios_to_upstream(run_tasks(folder, tasks, jobs)))
    parts = [(Scenario(p), seed) for p in cases.pairs() for seed in cases.drawn(cases.seeds)]
    ends = list(on_all_cores(_regret, [(*part, audit) for audit in (0.0, AUDIT) for part in parts], jobs))
    plain, audited, n = ends[: len(parts)], ends[len(parts) :], cases.seeds
    ratios = [ratio_of(audited[i : i + n], plain[i : i + n], FLOOR) for i in range(0, len(parts), n)]
    return {**figures, "audit": Figure(geomean_of(ratios).value)}


def _regret(part: tuple[Scenario, int, float]) -> float:
    scenario, seed, audit = part
    log = replay(scenario, scenario.job(policy=OURS, audit=audit), scenario.pair.recurrences, seed)
    return log.expected_regret()[-1]


def _ratios(name: str, found: Mapping[str, Ratio]) -> Figures:
    whole = Figure(geomean_of(found.values()).value)
    return {f"{name}: mean": whole, f"{name}: worst": worst({case: ratio.value for case, ratio in found.items()})}


def of_drifts(cases: Cases, jobs: int | None = None) -> Figures:
    """Regret from the shift on as a multiple of the repaired paper's policy's."""
    found = drifts.run_all(shifting(cases), (OURS, PAPERS), cases.drawn(cases.seeds), jobs)
    return _ratios("drifts", {name: ratio_between(of, since=SHIFT) for name, of in found.items()})


def of_regimes(cases: Cases, jobs: int | None = None) -> Figures:
    """Total cost [%] against always the default; runs below target after a shift; jobs that are locked below it."""
    some = [Scenario(pair) for pair in cases.pairs()[:: cases.every]]
    played = regimes.run_all(some, cases.drawn(cases.seeds), jobs)
    report: dict[str, Any] = regimes.report_of(played)["regimes"]
    figures: Figures = {}
    for name, of in report.items():
        whole, most = of["vs_default"]["mean"][0], of["vs_default"]["worst"][0]
        figures[f"regime: {name}"] = Figure(100 * (whole - 1))
        figures[f"regime: {name}, worst"] = Figure(100 * (most - 1), of["vs_default"]["worst_case"])
    lost = {name: report[name]["below_target"] for name in LOST if name in report}
    figures["below: mean"] = mean(of["mean"] for of in lost.values())
    figures["below: worst"] = worst({f"{name}, {of['worst_case']}": of["worst"] for name, of in lost.items()})
    figures["false alarms"] = Figure(report["nothing changes"]["false_alarms"]["mean"])
    locked = sum(_locked(of[OURS].replays) for name in lost for of in played[name].values())
    if (alone := two_sizes_alone(cases)) is not None:
        (of,) = drifts.run_all({"": alone}, [OURS], cases.drawn(5 * cases.seeds), jobs).values()
        figures["two sizes alone: below"] = Figure(below_after(of[OURS], SHIFT)["below"][0], f"of {AFTER}")
        locked += _locked(of[OURS])
    return {**figures, "locked": Figure(float(locked))}


def _locked(found: Replays) -> int:
    """Jobs whose newest recurrences all ended below target, though some size reaches it."""
    ends = [len(sizes) for sizes in found.batch_sizes]
    return sum({*range(end - LOCKED, end)} <= {*below} for end, below in zip(ends, found.below_target, strict=True))


GROUPS: Mapping[str, Callable[[Cases, int | None], Figures]] = {
    "series": of_series,
    "mlperf": of_mlperf,
    "pairs": of_pairs,
    "drifts": of_drifts,
    "regimes": of_regimes,
}


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
)


def figures_of(cases: Cases, jobs: int | None = None, groups: Sequence[str] = tuple(GROUPS)) -> Figures:
    """The figures of these groups."""
    return {name: figure for group in groups for name, figure in GROUPS[group](cases, jobs).items()}


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
    option("--without", action="store_true", help="instead: what each rule and constant is worth on these cases"),
    seeds=4,
)
def main(args: argparse.Namespace) -> None:
    """Run what the command line says; 2 where it cannot be run."""
    cases = Cases(chosen_traces(args).folder, args.series, tuple(args.max_epochs), args.mlperf, args.held)
    cases = cases._replace(
        seeds=args.seeds, series_seeds=args.series_seeds, every=args.every, first_seed=args.first_seed
    )
    if args.without:
        print("\n".join(rules_off.worth(cases, args.jobs)))
        print(f"change of the total cost [%]; {args.seeds} seeds; {took(args)}")
        return
    found = figures_of(cases, args.jobs, args.only)
    print("\n".join(markdown(found)))
    print(
        f"seeds from {args.first_seed} on: {args.seeds} of pairs, drifts and regimes, {5 * args.seeds} of two sizes, "
        f"{args.series_seeds} of series, {max(args.series_seeds // 4, 1)} of MLPerf; drifts and pairs of regimes by "
        f"steps of {args.every}; {took(args)}"
    )
    write_json(args.report, {name: list(figure) for name, figure in found.items()})
