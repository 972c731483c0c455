"""All that ``docs/evidence/reproduction.md`` is made of: the replays, and figures of them."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from airflow_provider_zeus.model.job_checks import POLICIES
from benchmarks.command import chosen_traces
from benchmarks.groups import ALL, drawn, run_groups, scenarios_of
from benchmarks.groups import report_of as groups_report
from benchmarks.quality import sweeps
from benchmarks.quality.drifts import reaching
from benchmarks.replays import UPSTREAM, Replays, Task, run_tasks
from benchmarks.report import mean_ci, ratio_of
from benchmarks.simulation.driver import grid_search
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Traces

SHOWN = (*POLICIES, UPSTREAM, "grid_search")
EXAMPLE = "deepspeech2/v100"  # of the paper's figures that show one workload
MAIN_GPU = "v100"  # of the paper's evaluation, where nothing else is said
PAPERS_GPUS = {
    "v100": "V100 PCIe 32 GB",
    "a40": "A40 PCIe 48 GB",
    "rtx6000": "RTX6000 24 GB",
    "p100": "P100 16 GB",
}
GROUP_POLICIES = ("zeus", "knowledge_gradient", "grid_search", "default")
DRAWS = 20
PLATEAU = 0.95  # of the regret at the end, from which on a curve counts as flat
SEARCHED = (
    "every measured size, ascending",
    "sizes that always reach the target",
)


class Results(NamedTuple):
    """All that the page and its pictures are made of."""

    report: Mapping[str, Any]  # by pair and policy; and the sweeps
    replays: Mapping[Task, Replays]
    scenarios: Sequence[Scenario]
    clusters: Mapping[str, Any]
    gpu: str  # of the figures that show one
    seeds: int
    submissions: int  # of each draw of overlapping groups

    def on(self, gpu: str) -> list[Scenario]:
        """Of one GPU."""
        return [s for s in self.scenarios if s.pair.gpu == gpu]

    def replays_of(self, pair: str, policy: str) -> Replays:
        """Of one policy on one pair."""
        return next(r for t, r in self.replays.items() if (t.pair, t.policy) == (pair, policy))

    def scenario(self, pair: str) -> Scenario | None:
        """By name, None where it was not measured."""
        return next((s for s in self.scenarios if s.pair.name == pair), None)

    @property
    def example(self) -> Scenario:
        """The workload of the figures that show one."""
        return self.scenario(EXAMPLE) or self.scenarios[0]


def results_of(args: argparse.Namespace) -> Results:
    """Replay everything. Raises JobSpecError where the traces cannot be read."""
    traces = chosen_traces(args)
    pairs = traces.pairs(args.gpus, args.workloads)
    seeds = tuple(range(args.seeds))
    policies = [*SHOWN, "default"]
    tasks = [Task(p.workload, p.gpu, policy, seeds) for p in pairs for policy in policies]
    gpu = MAIN_GPU if any(p.gpu == MAIN_GPU for p in pairs) else pairs[0].gpu
    swept = sweeps.tasks_of(pairs, seeds, gpu)
    found = run_tasks(args.traces, list(dict.fromkeys([*tasks, *swept])), args.jobs)
    replays = {task: found[task] for task in tasks}
    report = report_of(replays)
    report["sweeps"] = sweeps.report_of({task: found[task] for task in swept})
    groups = clusters(traces, gpu, args.submissions)
    scenarios = [Scenario(p) for p in pairs]
    return Results(report, replays, scenarios, groups, gpu, args.seeds, args.submissions)


def report_of(replays: Mapping[Task, Replays]) -> dict[str, Any]:
    """{"pairs": {pair: {policy: {figure: [mean, half of ci95] over seeds}}}}."""
    pairs: dict[str, dict[str, Any]] = {}
    for task, found in replays.items():
        figures = {name: mean_ci(getattr(found, name)) for name in ("eta_last5", "tta_last5")}
        figures["expected_regret_end"] = mean_ci([curve[-1] for curve in found.expected_regret])
        pairs.setdefault(task.pair, {})[task.policy] = figures
    return {"pairs": pairs}


def grid_orders(
    scenario: Scenario, upstream: Sequence[float], seeds: int
) -> dict[str, list[float]]:
    """Regret of grid search at the end, x the public algorithm's: [ratio, low,
    high] by what it searches.
    """
    pair = scenario.pair
    sizes = list(pair.batch_sizes)
    sure = [b for b in sizes if reaching(pair, b) == 1]
    found = {}
    for name, some in zip(SEARCHED, (sizes, sure), strict=True):
        logs = [grid_search(scenario, pair.recurrences, seed, some) for seed in range(seeds)]
        found[name] = ratio_of([log.expected_regret()[-1] for log in logs], upstream).to_json()
    return found


def first_size(scenario: Scenario) -> tuple[int, float, float]:
    """(smallest size, share of its runs that reach the target,
    cost [C*] of one run at full power).
    """
    b = scenario.pair.batch_sizes[0]
    mean, chance = scenario.arms[b].run(scenario.pair.max_epochs)
    return b, chance, mean * scenario.epoch(scenario.full_power(b)).cost / scenario.best_cost


def clusters(
    traces: Traces, gpu: str, submissions: int, draws: int = DRAWS
) -> dict[str, dict[str, Any]]:
    """Section 6.3 on groups that are drawn: {workload: {policy: {"energy" | "time" | "cost": [mean, half of ci95]}}}.

    Each draw is another trace; the intervals are those over the draws. Cost is Eq. 2 with eta 0.5.
    """
    scenarios = scenarios_of(traces, gpu)
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for seed in range(draws):
        report = groups_report(
            run_groups(drawn(scenarios, submissions, seed), scenarios, GROUP_POLICIES, seed, 1)
        )
        for workload, row in report["workloads"].items():
            for policy, figures in row.items():
                kept = found.setdefault(workload, {}).setdefault(
                    policy, {"energy": [], "time": [], "cost": []}
                )
                for name, values in kept.items():
                    values.append(figures[name])
    last = sorted(found, key=lambda workload: (workload == ALL, workload))
    return {
        w: {p: {n: mean_ci(v) for n, v in of.items()} for p, of in found[w].items()} for w in last
    }


def plateau(curves: Sequence[Sequence[float]]) -> int:
    """The recurrence from which on the mean cumulative regret stays above ``PLATEAU`` of its
    end.
    """
    mean = [statistics.fmean(column) for column in zip(*curves, strict=True)]
    return next(
        t for t, _ in enumerate(mean, 1) if all(r >= PLATEAU * mean[-1] for r in mean[t - 1 :])
    )


def energies(scenario: Scenario) -> dict[int, float]:
    """Expected energy to the target [J] by batch size, of the sizes that reach it (Figure 17)."""
    return {
        b: scenario.success_epochs(b) * scenario.arms[b].epoch.energy_j
        for b in scenario.pair.batch_sizes
        if math.isfinite(scenario.success_epochs(b))
    }


def unimodal(scenario: Scenario) -> bool:
    """Whether energy over the batch size falls, then rises."""
    turns = [after > before for before, after in pairwise(energies(scenario).values())]
    return turns == sorted(turns)


def convex(scenario: Scenario) -> bool:
    """Whether energy is convex over log2 of the batch size: no slope is below the one before it."""
    of = energies(scenario).items()
    slopes = [(after - before) / math.log2(b / a) for (a, before), (b, after) in pairwise(of)]
    return slopes == sorted(slopes)


def default_at(scenario: Scenario, limit_w: float) -> tuple[float, float]:
    """(change of the time to target at the default size and this limit,
    its cost beyond the best limit's), in %.
    """
    b = scenario.pair.default_batch_size
    point = next(p for p in scenario.pair.points[b] if p.limit_w == limit_w)
    best = scenario.arms[b].epoch.cost
    time = scenario.success_epochs(b) * point.time_s / scenario.default_run.time_s
    return 100 * (time - 1), 100 * (scenario.epoch(point).cost / best - 1)


def runs_per_size(scenario: Scenario) -> tuple[int, int]:
    """(fewest, most) trainings that were measured of a batch size."""
    counts = [len(e) for e in scenario.pair.epochs.values()]
    return min(counts), max(counts)


def spread_of_epochs(scenario: Scenario) -> float:
    """Median over the sizes of the relative standard deviation of their epochs."""
    found = []
    for b in scenario.pair.batch_sizes:
        reached = [e for e in scenario.arms[b].epochs if e <= scenario.pair.max_epochs]
        if len(reached) > 1:
            found.append(statistics.stdev(reached) / statistics.fmean(reached))
    return statistics.median(found) if found else 0.0
