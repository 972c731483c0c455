"""The public code's own simulator, zeus 0.16.0, over the traces that are replayed here."""

from __future__ import annotations

import contextlib
import warnings
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Traces


def regret_of(scenario: Scenario, folder: Path, recurrences: int, seed: int) -> list[float]:
    """Cumulative regret [C*] of one replay by the public code's simulator."""
    from zeus._legacy.job import Job
    from zeus._legacy.policy import JITPowerLimitOptimizer, PruningGTSBatchSizeOptimizer
    from zeus._legacy.simulate import Simulator

    train, power, (training, target) = _frames(folder, scenario.pair.workload, scenario.pair.gpu)
    batch_sizes = PruningGTSBatchSizeOptimizer(seed=seed, verbose=False)
    simulator = Simulator(
        train, power, batch_sizes, JITPowerLimitOptimizer(verbose=False), seed=seed, verbose=False
    )
    job = Job(*training, target, scenario.pair.max_epochs, scenario.pair.default_batch_size)
    with contextlib.redirect_stdout(None), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # equal costs: a division by their variance, 0
        history = simulator.simulate_one_job(job, recurrences, 2.0, scenario.eta)
    costs = []
    spent = 0.0
    for run in history:
        spent += scenario.weights.cost(run.energy, run.time)
        if run.reached:
            costs.append(spent)
            spent = 0.0
    return list(accumulate(cost / scenario.best_cost - 1 for cost in costs))


@cache
def _frames(
    folder: Path, workload: str, gpu: str
) -> tuple[Any, Any, tuple[tuple[str, ...], float]]:
    """Upstream's two tables with the rows of one workload alone:
    it filters them anew in every run.
    """
    import pandas

    w = Traces(folder).workloads[workload]
    train = pandas.read_csv(folder / "summary_train.csv")
    power = pandas.read_csv(folder / f"summary_power_{gpu}.csv")
    keys = dict(zip(("dataset", "network", "optimizer"), w.training, strict=True))
    for column, value in keys.items():
        train = train[train[column] == value]
        power = power[power[column] == value]
    return train[train["target_metric"] == w.target], power, (tuple(w.training), w.target)
