"""The paper's algorithm here against upstream's own simulator: ``python -m benchmarks.upstream --traces DIR``.

Both replay the same traces: ``zeus._legacy.simulate`` of the development dependency ``zeus``, and
``benchmarks/parts/literal.py`` with every switch off, which must agree in regret at the end within 15 % on every pair
and 3 % in geometric mean. Then each trap that we settle is shown alone: regret with that switch on, as a multiple of
all off.

Speeds are simulated recurrences per processor second, all of one run on the same pairs: upstream's simulator, the
literal algorithm, and replays of the product's two policies (of every fifth seed), each warmed by one recurrence.
"""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job_checks import POLICIES
from airflow_provider_zeus.simulation.driver import replay
from airflow_provider_zeus.simulation.scenario import Scenario
from airflow_provider_zeus.simulation.traces import Pair, Traces
from benchmarks.command import SELECTION, chosen_traces, command, needs, on_all_cores, parser_of
from benchmarks.parts.literal import Settled, literal
from benchmarks.replays import CHUNK
from benchmarks.report import geomean, mean_ci, plus_minus, table, write_report

PAIR_WITHIN, GEOMEAN_WITHIN = 0.15, 0.03
SWITCHES = {
    "all off": Settled(),
    **{f.name: Settled(**{f.name: True}) for f in fields(Settled)},
    "all on": Settled.all(),
}
SPEEDS = {
    "upstream": "upstream's simulator",
    "all off": "literal, all switches off",
    "all on": "literal, all switches on",
    **{policy: f"replay of {policy}" for policy in sorted(POLICIES, reverse=True)},
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


@cache
def _scenario(folder: Path, workload: str, gpu: str) -> Scenario:
    return Scenario(Traces(folder).pair(workload, gpu))


Work = tuple[Path, str, str, tuple[int, ...]]


def _work(work: Work) -> tuple[str, dict[str, list[float]], dict[str, tuple[float, int]]]:
    """Regret at the end per seed of upstream's code and of every switch; (seconds, recurrences) of these and ours."""
    folder, workload, gpu, seeds = work
    scenario = _scenario(folder, workload, gpu)
    replays: dict[str, Callable[[int, int], float]] = {
        "upstream": lambda times, seed: upstream_regret(scenario, folder, times, seed)[-1],
        **{name: partial(_literal_regret, scenario, settled) for name, settled in SWITCHES.items()},
        **{policy: partial(_replay_regret, scenario, policy) for policy in POLICIES},
    }
    ends: dict[str, list[float]] = {}
    spent: dict[str, tuple[float, int]] = {}
    for name, regret_of in replays.items():
        regret_of(1, 0)  # what is imported and read once is no part of a speed,
        gc.freeze()  # nor of what the collector goes through again and again
        start = time.process_time()
        ends[name] = [regret_of(scenario.pair.recurrences, seed) for seed in seeds[: 1 if name in POLICIES else None]]
        spent[name] = time.process_time() - start, scenario.pair.recurrences * len(ends[name])
    return scenario.pair.name, {name: found for name, found in ends.items() if name not in POLICIES}, spent


def _literal_regret(scenario: Scenario, settled: Settled, times: int, seed: int) -> float:
    return literal(scenario, times, seed, settled=settled).regret()[-1]


def _replay_regret(scenario: Scenario, policy: str, times: int, seed: int) -> float:
    return replay(scenario, scenario.job(policy=policy), times, seed).regret()[-1]


def speeds_of(spent: Mapping[str, tuple[float, int]]) -> dict[str, dict[str, float]]:
    """Simulated recurrences per second and core, and the same as a multiple of upstream's simulator."""
    per_s = {name: times / max(seconds, 1e-9) for name, (seconds, times) in spent.items()}
    return {name: {"per_s": per_s[name], "x_upstream": per_s[name] / per_s["upstream"]} for name in SPEEDS}


def report_of(
    ends: Mapping[str, Mapping[str, Sequence[float]]], spent: Mapping[str, tuple[float, int]]
) -> dict[str, Any]:
    """Means per pair, the agreement with upstream, each switch alone, and speeds."""
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
        "recurrences_per_cpu_s": speeds_of(spent),
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
            "## Simulated recurrences per second and core",
            "",
            *table(
                ["", "per second", "x upstream's"],
                [[SPEEDS[n], *_speed_cells(v)] for n, v in report["recurrences_per_cpu_s"].items()],
            ),
            "",
        ]
    )


def _speed_cells(speed: Mapping[str, float]) -> tuple[str, str]:
    return f"{speed['per_s']:,.0f}", f"{speed['x_upstream']:.2f}"


def compared(
    folder: Path, pairs: Sequence[Pair], seeds: int, jobs: int | None
) -> tuple[dict[str, dict[str, list[float]]], dict[str, tuple[float, int]]]:
    """(regrets at the end by pair and name, (seconds, recurrences) by name). Raises JobSpecError: upstream's stops."""
    work: list[Work] = [
        (folder, p.workload, p.gpu, tuple(range(seeds)[i : i + CHUNK])) for i in range(0, seeds, CHUNK) for p in pairs
    ]
    ends: dict[str, dict[str, list[float]]] = {p.name: {} for p in pairs}
    spent: dict[str, tuple[float, int]] = {}
    for pair, found, seconds in on_all_cores(_work, work, jobs):
        for name, values in found.items():
            ends[pair].setdefault(name, []).extend(values)
        for name, more in seconds.items():
            before = spent.get(name, (0.0, 0))
            spent[name] = before[0] + more[0], before[1] + more[1]
    return ends, spent


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Write ``upstream.json`` and ``upstream.md``; 1 where both disagree, 2 where nothing can be run."""
    args = parser_of(__doc__, SELECTION, seeds=200, out=Path("upstream-report")).parse_args(arguments)
    needs("zeus")
    pairs = chosen_traces(args).pairs(args.gpus, args.workloads)
    ends, spent = compared(args.traces, pairs, args.seeds, args.jobs)
    report = report_of(ends, spent)
    write_report(args.out, report, markdown_of(report, args.seeds), "upstream")
    overall, worst = report["agreement_geomean"], max(report["agreement"].values(), key=lambda r: abs(math.log(r)))
    print(f"literal / upstream: geometric mean {overall:.3f}, farthest {worst:.3f}")
    print("simulated recurrences per second and core, and as a multiple of upstream's:")
    for name, speed in report["recurrences_per_cpu_s"].items():
        print("{:28}{:>10} {:>8} x".format(SPEEDS[name], *_speed_cells(speed)))
    apart = abs(overall - 1) > GEOMEAN_WITHIN or abs(worst - 1) > PAIR_WITHIN
    return int(apart)


if __name__ == "__main__":
    raise SystemExit(main())
