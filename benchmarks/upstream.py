"""The paper's algorithm here against upstream's own simulator: ``python -m benchmarks.upstream --traces DIR``.

Both replay the same traces: ``zeus._legacy.simulate`` of the development dependency ``zeus``, and
``benchmarks/parts/literal.py`` with every switch off, which must agree in regret at the end within 15 % on every pair
and 3 % in geometric mean.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import warnings
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from benchmarks.command import SELECTION, chosen_traces, command, needs, on_all_cores
from benchmarks.parts.literal import literal
from benchmarks.replays import chunks
from benchmarks.report import mean_ci, plus_minus, table, write_report
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Traces

PAIR_WITHIN, GEOMEAN_WITHIN = 0.15, 0.03


def upstream_regret(scenario: Scenario, folder: Path, recurrences: int, seed: int) -> list[float]:
    """Cumulative regret [C*] of one replay by upstream's simulator."""
    from zeus._legacy.job import Job
    from zeus._legacy.policy import JITPowerLimitOptimizer, PruningGTSBatchSizeOptimizer
    from zeus._legacy.simulate import Simulator

    train, power, (training, target) = _frames(folder, scenario.pair.workload, scenario.pair.gpu)
    batch_sizes = PruningGTSBatchSizeOptimizer(seed=seed, verbose=False)
    simulator = Simulator(train, power, batch_sizes, JITPowerLimitOptimizer(verbose=False), seed=seed, verbose=False)
    job = Job(*training, target, scenario.pair.max_epochs, scenario.pair.default_batch_size)
    with contextlib.redirect_stdout(None), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # equal costs: a division by their variance, 0
        try:
            history = simulator.simulate_one_job(job, recurrences, 2.0, scenario.eta)
        except (ValueError, KeyError, IndexError, AssertionError) as error:  # where it has pruned every batch size, too
            said = f"cannot be replayed by upstream's own simulator ({type(error).__name__}: {error})"
            raise JobSpecError.of(
                "workload", scenario.pair.name, said, "Leave it out by --workloads or --gpus"
            ) from error
    costs, spent = [], 0.0
    for run in history:
        spent += scenario.weights.cost(run.energy, run.time)
        if run.reached:
            costs.append(spent)
            spent = 0.0
    return list(accumulate(cost / scenario.best_cost - 1 for cost in costs))


@cache
def _frames(folder: Path, workload: str, gpu: str) -> tuple[Any, Any, tuple[tuple[str, ...], float]]:
    """Upstream's two tables with the rows of one workload alone: it filters them anew in every run."""
    import pandas

    w = Traces(folder).workloads[workload]
    train = pandas.read_csv(folder / "summary_train.csv")
    power = pandas.read_csv(folder / f"summary_power_{gpu}.csv")
    keys = dict(zip(("dataset", "network", "optimizer"), w.training, strict=True))
    for column, value in keys.items():
        train, power = train[train[column] == value], power[power[column] == value]
    return train[train["target_metric"] == w.target], power, (tuple(w.training), w.target)


def ends_of(work: tuple[Path, str, str, Sequence[int]]) -> dict[str, list[float]]:
    """Regret at the end per seed, of upstream's code and of ours. Raises JobSpecError: upstream's stops."""
    folder, workload, gpu, seeds = work
    scenario = Scenario(Traces(folder).pair(workload, gpu))
    times = scenario.pair.recurrences
    return {
        "upstream": [upstream_regret(scenario, folder, times, seed)[-1] for seed in seeds],
        "literal": [literal(scenario, times, seed).regret()[-1] for seed in seeds],
    }


@command(SELECTION, seeds=200, out=Path("upstream-report"))
def main(args: argparse.Namespace) -> int:
    """Write ``upstream.json`` and ``upstream.md``; 1 where both disagree, 2 where nothing can be run."""
    needs("zeus")
    pairs = chosen_traces(args).pairs(args.gpus, args.workloads)
    every = chunks(tuple(range(args.seeds)))
    work = [(args.traces, p.workload, p.gpu, some) for some in every for p in pairs]
    ends: dict[str, dict[str, list[float]]] = {p.name: {} for p in pairs}
    for (_, workload, gpu, _), some_ends in zip(work, on_all_cores(ends_of, work, args.jobs), strict=True):
        for name, values in some_ends.items():
            ends[f"{workload}/{gpu}"].setdefault(name, []).extend(values)
    agreement = {pair: statistics.fmean(of["literal"]) / statistics.fmean(of["upstream"]) for pair, of in ends.items()}
    overall, worst = geometric_mean(agreement.values()), max(agreement.values(), key=lambda r: abs(math.log(r)))
    found = {pair: {name: mean_ci(values) for name, values in of.items()} for pair, of in ends.items()}
    report = {"source": "simulated", "regret_end": found, "agreement": agreement, "agreement_geomean": overall}
    rows = [[pair, *map(plus_minus, of.values()), f"{agreement[pair]:.3f}"] for pair, of in found.items()]
    rows.append(["geometric mean", "", "", f"{overall:.3f}"])
    title = f"# Regret at the end [C*] of upstream's simulator and ours, {args.seeds} seeds; simulated"
    lines = [title, "", *table(["pair", "upstream's own code", "literal, all switches off", "ratio"], rows)]
    write_report(args.out, report, "\n".join(lines) + "\n", "upstream")
    print(f"literal / upstream: geometric mean {overall:.3f}, farthest {worst:.3f}")
    return int(abs(overall - 1) > GEOMEAN_WITHIN or abs(worst - 1) > PAIR_WITHIN)
