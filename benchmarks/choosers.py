"""Ways to choose a batch size and a power limit that ``benchmarks.choosing`` holds against the product's own policies.

``zeus 0.16``: the batch size optimizer of the development dependency ``zeus``, unchanged, in this project's replay: it
trains, is stopped and pays as every other policy here does. ``fixed cap``: the default batch size at the measured power
limit nearest to 60 % of the highest. ``hindsight``: the configuration that turned out to be the cheapest, from the
first run on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial

from airflow_provider_zeus.simulation.environment import Environment, Run
from airflow_provider_zeus.simulation.log import Log
from airflow_provider_zeus.simulation.scenario import Scenario
from airflow_provider_zeus.simulation.traces import PowerMeasurement

PACKAGE, FIXED_CAP, HINDSIGHT = "zeus_0_16", "fixed_cap", "hindsight"
CAP = 0.6  # of the highest limit
TRIES = 20  # of one recurrence, then upstream's own simulator gives up

Bounded = Callable[[int, float], tuple[bool, float]]  # (batch size, cost at which it is stopped) -> (reached, its cost)


class Package:
    """``PruningGTSBatchSizeOptimizer`` of ``zeus`` as its own simulator uses it (Algorithms 1 to 3 of the paper).

    A run is stopped at ``beta`` times the cheapest recurrence so far. One that misses its target is followed by the
    next choice. Where the optimizer raises an error, because it has dropped every batch size, the default trains
    unbounded from then on, as a user would let it.
    """

    def __init__(self, sizes: Sequence[int], default: int, max_epochs: int, seed: int, beta: float = 2.0) -> None:
        from zeus._legacy.job import Job
        from zeus._legacy.policy import PruningGTSBatchSizeOptimizer

        self._job = Job("data", "network", "optimizer", 1.0, max_epochs, default)
        self._optimizer = PruningGTSBatchSizeOptimizer(seed=seed, verbose=False)
        self._optimizer.register_job(self._job, list(sizes))
        self._default, self._beta, self._cheapest = default, beta, float("inf")
        self.broken = False

    def recurrence(self, train: Bounded) -> None:
        """Train until a run reaches its target, at most 20 times."""
        spent = 0.0
        for _ in range(TRIES):
            b = self._predict()
            reached, cost = train(b, float("inf") if self.broken else self._beta * self._cheapest)
            spent += cost
            self._observe(b, cost, reached)
            if reached:
                self._cheapest = min(self._cheapest, spent)
            if reached or self.broken:
                return

    def _predict(self) -> int:
        if not self.broken:
            try:
                return int(self._optimizer.predict(self._job))
            except (ValueError, KeyError, IndexError, AssertionError, RuntimeError):
                self.broken = True
        return self._default

    def _observe(self, batch_size: int, cost: float, reached: bool) -> None:
        if self.broken:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # equal costs: a division by their variance, 0
                self._optimizer.observe(self._job, batch_size, cost, reached)
        except (ValueError, KeyError, IndexError, AssertionError, RuntimeError):
            self.broken = True


def package(scenario: Scenario, recurrences: int, seed: int) -> Log:
    """Replay zeus 0.16."""
    env, log, pair = Environment(scenario, seed), Log(), scenario.pair
    chooser = Package(pair.batch_sizes, pair.default_batch_size, pair.max_epochs, seed)
    for _ in range(recurrences):
        runs: list[Run] = []
        chooser.recurrence(partial(_train, env, runs))
        log.add(scenario, runs, final=not runs[-1].reached, kept=runs[-1].reached)
    return log


def _train(env: Environment, runs: list[Run], batch_size: int, bound_cost: float) -> tuple[bool, float]:
    runs.append(env.train(batch_size, bound_cost=bound_cost))
    return runs[-1].reached, runs[-1].cost


def cap_of(scenario: Scenario) -> PowerMeasurement:
    """The default batch size at the measured limit nearest to 60 % of the highest; of two, the higher."""
    wanted_w = CAP * scenario.pair.max_power_w
    points = scenario.pair.points[scenario.pair.default_batch_size]
    return min(points, key=lambda p: (abs(p.limit_w - wanted_w), -p.limit_w))


def fixed_cap(scenario: Scenario, recurrences: int, seed: int) -> Log:
    """Replay the default batch size at that limit."""
    return _always(scenario, recurrences, seed, scenario.pair.default_batch_size, cap_of(scenario))


def hindsight(scenario: Scenario, recurrences: int, seed: int) -> Log:
    """Replay the cheapest configuration, which nobody knows beforehand."""
    arm = scenario.arms[scenario.best]
    point = next(p for p in scenario.pair.points[arm.batch_size] if p.limit_w == arm.limit_w)
    return _always(scenario, recurrences, seed, arm.batch_size, point)


def _always(scenario: Scenario, recurrences: int, seed: int, batch_size: int, point: PowerMeasurement) -> Log:
    env, log = Environment(scenario, seed), Log()
    for _ in range(recurrences):
        log.add(scenario, [env.train_at(batch_size, point)])
    return log


CHOOSERS = {PACKAGE: package, FIXED_CAP: fixed_cap, HINDSIGHT: hindsight}
