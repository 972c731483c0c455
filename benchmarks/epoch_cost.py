"""How well EpochCost is predicted where it was not measured: ``python -m benchmarks.epoch_cost --traces DIR``.

Every workload of the folder on every GPU at eta 0, .5 and 1. From the sizes that are known, each size within one octave
of them, or next to one in the list, is predicted. Errors are of log EpochCost; coverage is the share of truths within
one and within two standard deviations. Every case counts alike, however many sizes it predicts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from airflow_provider_zeus.optimizer.knowledge_gradient.acquisition import in_reach
from airflow_provider_zeus.optimizer.knowledge_gradient.epoch_cost import predicted
from benchmarks.command import chosen_traces, command
from benchmarks.report import table
from benchmarks.simulation.scenario import Scenario

ETAS = (0.0, 0.5, 1.0)


class Miss(NamedTuple):
    """One prediction: error of log EpochCost, the standard deviation told for it, and its weight."""

    error: float
    sd: float
    weight: float


def known_sets(sizes: tuple[int, ...], default: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, batch sizes that are known) of every case."""
    i = sizes.index(default)
    yield "the default", (default,)
    if i:
        yield "the default and the next smaller", sizes[i - 1 : i + 1]
    if i + 1 < len(sizes):
        yield "the default and the next larger", sizes[i : i + 2]
    yield from (("two neighbours", sizes[j : j + 2]) for j in range(len(sizes) - 1))
    yield from (("three neighbours", sizes[j : j + 3]) for j in range(len(sizes) - 2))


def misses(scenario: Scenario, known: Sequence[int]) -> list[Miss]:
    """What is predicted of the sizes in reach of the ``known`` ones."""
    sizes, arms = scenario.pair.batch_sizes, scenario.arms
    loads = {b: arms[b].epoch.energy_j / arms[b].epoch.time_s / scenario.pair.max_power_w for b in known}
    costs = {b: arms[b].epoch.cost for b in known}
    found = predicted(sizes, costs, {}, scenario.pair.default_batch_size, loads)
    assert found is not None
    near = in_reach(sizes, frozenset(sizes), frozenset(known))
    asked = [i for i, b in enumerate(sizes) if near[i] and b not in costs]
    return [
        Miss(math.log(arms[sizes[i]].epoch.cost) - float(found[0][i]), math.sqrt(found[1][i]), 1 / len(asked))
        for i in asked
    ]


def row_of(name: str, found: Iterable[Miss]) -> list[str]:
    """One line of the report."""
    each = list(found)
    total = math.fsum(m.weight for m in each)

    def mean(values: Iterable[float]) -> float:
        return math.fsum(m.weight * v for m, v in zip(each, values, strict=True)) / total

    within = [mean(abs(m.error) <= n * m.sd for m in each) for n in (1, 2)]
    rms = math.sqrt(mean(m.error**2 for m in each))
    return [name, str(len(each)), f"{rms:.3f}", f"{mean(m.sd for m in each):.3f}", *(f"{w:.2f}" for w in within)]


@command("--traces --gpus --workloads")
def main(args: argparse.Namespace) -> None:
    """Print the table; 2 where the traces cannot be read."""
    found: dict[str, list[Miss]] = {}
    for pair in chosen_traces(args).pairs(args.gpus, args.workloads):
        for scenario in (Scenario(pair, eta) for eta in ETAS):
            for name, known in known_sets(pair.batch_sizes, pair.default_batch_size):
                found.setdefault(name, []).extend(misses(scenario, known))
    head = ["known", "predictions", "rms error", "mean sd", "within 1 sd", "within 2 sd"]
    print("\n".join(table(head, [row_of(*case) for case in found.items()])))
