"""The paper's algorithm here against upstream's own simulator: ``python -m benchmarks.upstream --traces DIR``.

Both replay the same traces: ``zeus._legacy.simulate`` of the development dependency ``zeus``, and
``benchmarks/parts/literal.py`` with every switch off, which must agree in regret at the end within 15 % on every pair
and 3 % in geometric mean. Then each trap that we settle is shown alone: regret with that switch on, as a multiple of
all off.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.simulation.scenario import Scenario
from airflow_provider_zeus.simulation.traces import Traces
from benchmarks.command import SELECTION, chosen_traces, command, needs, on_all_cores, parser_of
from benchmarks.parts.literal import Settled, literal
from benchmarks.replays import chunks
from benchmarks.report import geomean, mean_ci, plus_minus, table, write_report

PAIR_WITHIN, GEOMEAN_WITHIN = 0.15, 0.03
SWITCHES = {
    "all off": Settled(),
    **{f.name: Settled(**{f.name: True}) for f in fields(Settled)},
    "all on": Settled.all(),
}


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
    """Regret at the end per seed, of upstream's code and of every switch. Raises JobSpecError: upstream's stops."""
    folder, workload, gpu, seeds = work
    scenario = Scenario(Traces(folder).pair(workload, gpu))
    times = scenario.pair.recurrences
    found = {"upstream": [upstream_regret(scenario, folder, times, seed)[-1] for seed in seeds]}
    for name, settled in SWITCHES.items():
        found[name] = [literal(scenario, times, seed, settled=settled).regret()[-1] for seed in seeds]
    return found


def report_of(ends: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    """Means per pair, the agreement with upstream, and each switch alone."""
    means = {pair: {name: statistics.fmean(v) for name, v in found.items()} for pair, found in ends.items()}
    agreement = {pair: m["all off"] / m["upstream"] for pair, m in means.items()}
    alone = {
        name: {pair: m[name] / m["all off"] for pair, m in means.items()} for name in SWITCHES if name != "all off"
    }
    return {
        "source": "simulated",
        "regret_end": {pair: {n: mean_ci(v) for n, v in found.items()} for pair, found in ends.items()},
        "agreement": agreement,
        "agreement_geomean": geomean(agreement.values()),
        "switch_geomean": {name: geomean(r.values()) for name, r in alone.items()},
        "switch_worst": {name: max(r.values()) for name, r in alone.items()},
        "switch": alone,
    }


def markdown_of(report: Mapping[str, Any], seeds: int) -> str:
    """``upstream.md``."""
    rows = [
        [pair, *(plus_minus(found[name]) for name in ("upstream", "all off")), f"{ratio:.3f}"]
        for (pair, found), ratio in zip(report["regret_end"].items(), report["agreement"].values(), strict=True)
    ]
    rows.append(["geometric mean", "", "", f"{report['agreement_geomean']:.3f}"])
    pairs = list(report["regret_end"])
    alone = [
        [name, f"{report['switch_geomean'][name]:.3f}", *(f"{ratios[pair]:.2f}" for pair in pairs)]
        for name, ratios in report["switch"].items()
    ]
    return "\n".join(
        [
            f"# Upstream's simulator and ours, {seeds} seeds; simulated",
            "",
            "## Regret at the end [C*]",
            "",
            *table(["pair", "upstream's own code", "literal, all switches off", "ratio"], rows),
            "",
            "## Each settled trap alone, as a multiple of all switches off",
            "",
            *table(["switch", "geometric mean", *pairs], alone),
            "",
        ]
    )


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Write ``upstream.json`` and ``upstream.md``; 1 where both disagree, 2 where nothing can be run."""
    args = parser_of(__doc__, SELECTION, seeds=200, out=Path("upstream-report")).parse_args(arguments)
    needs("zeus")
    pairs = chosen_traces(args).pairs(args.gpus, args.workloads)
    every = chunks(tuple(range(args.seeds)))
    work = [(args.traces, p.workload, p.gpu, some) for some in every for p in pairs]
    ends: dict[str, dict[str, list[float]]] = {p.name: {} for p in pairs}
    for (_, workload, gpu, _), found in zip(work, on_all_cores(ends_of, work, args.jobs), strict=True):
        for name, values in found.items():
            ends[f"{workload}/{gpu}"].setdefault(name, []).extend(values)
    report = report_of(ends)
    write_report(args.out, report, markdown_of(report, args.seeds), "upstream")
    overall, worst = report["agreement_geomean"], max(report["agreement"].values(), key=lambda r: abs(math.log(r)))
    print(f"literal / upstream: geometric mean {overall:.3f}, farthest {worst:.3f}")
    apart = abs(overall - 1) > GEOMEAN_WITHIN or abs(worst - 1) > PAIR_WITHIN
    return int(apart)


if __name__ == "__main__":
    raise SystemExit(main())
