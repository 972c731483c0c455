"""Figures of the default policy on all cases (``case_set``), group by group; of each, a lower one is better.

Regrets are expected ones. The public code's, the repaired paper's policy's and hill climbing's are replayed beside ours
with common random numbers.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from airflow_provider_zeus.simulation.driver import replay
from airflow_provider_zeus.simulation.scenario import Scenario
from airflow_provider_zeus.simulation.traces import Traces
from benchmarks import regimes, scenarios
from benchmarks.command import on_all_cores
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
from benchmarks.report import Ratio, geomean_of, ratio_of
from benchmarks.series import measure

LOCKED = 20  # newest recurrences, all below target, by which a job counts as locked


class Figure(NamedTuple):
    """One figure, and the case that it is of where it is the worst of several."""

    value: float
    of: str = ""


Figures = dict[str, Figure]


def worst(found: Mapping[str, float]) -> Figure:
    """The highest."""
    name = max(found, key=lambda case: found[case])
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
    for name, table in cases.mlperf_tables().items():
        found = measure(table, [OURS, HILL_CLIMBING], cases.drawn(max(cases.series_seeds // 4, 1)), jobs)
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
    found = scenarios.run_all(shifting(cases), (OURS, PAPERS), cases.drawn(cases.seeds), jobs)
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
        (of,) = scenarios.run_all({"": alone}, [OURS], cases.drawn(5 * cases.seeds), jobs).values()
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
