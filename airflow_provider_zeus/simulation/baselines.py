"""The paper's baselines (section 6.1): the default configuration, and grid search with pruning."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from airflow_provider_zeus.simulation.environment import Environment, Run
from airflow_provider_zeus.simulation.log import Log
from airflow_provider_zeus.simulation.scenario import Scenario
from airflow_provider_zeus.simulation.traces import PowerMeasurement

Config = tuple[int, PowerMeasurement]


def default(scenario: Scenario, recurrences: int, seed: int = 0) -> Log:
    """Replay the default batch size at full power."""
    env, log = Environment(scenario, seed), Log()
    b = scenario.pair.default_batch_size
    point = scenario.full_power(b)
    for _ in range(recurrences):
        log.add(scenario, [env.train_at(b, point)])
    return log


def grid_search(scenario: Scenario, recurrences: int, seed: int = 0, sizes: Sequence[int] | None = None) -> Log:
    """Replay one configuration per recurrence, then the cheapest one found. Drops batch sizes that miss the target.

    A recurrence whose configuration misses continues with the next one, so that it ends with a model.

    :param sizes: batch sizes in the order in which they are searched; default: all, ascending.
    """
    env, log = Environment(scenario, seed), Log()
    dropped: set[int] = set()
    todo = grid(scenario, dropped, sizes)
    best: Config = (scenario.pair.default_batch_size, scenario.full_power(scenario.pair.default_batch_size))
    best_cost = math.inf
    for _ in range(recurrences):
        runs: list[Run] = []
        exploring = True
        while exploring:
            config = next(todo, None)
            exploring = config is not None
            b, point = config or best
            run = env.train_at(b, point)
            runs.append(run)
            if run.reached:
                if exploring and run.cost < best_cost:
                    best, best_cost = (b, point), run.cost
                break
            dropped.add(b)
        log.add(scenario, runs, final=not exploring)
    return log


def grid(scenario: Scenario, dropped: set[int], sizes: Sequence[int] | None = None) -> Iterator[Config]:
    """Yield ``sizes`` in their order (default: ascending), each with its limits in descending order.

    Skips the ``dropped`` ones.
    """
    for b in scenario.pair.batch_sizes if sizes is None else sizes:
        for point in reversed(scenario.pair.points[b]):
            if b not in dropped:
                yield b, point
