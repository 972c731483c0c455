"""What people do without a policy: always train the default batch size, or climb by doubling and halving."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from airflow_provider_zeus.simulation.environment import Environment, Run
from airflow_provider_zeus.simulation.log import Log
from airflow_provider_zeus.simulation.scenario import Scenario

HILL_CLIMBING, DEFAULT = "hill_climbing", "default"
PAUSE = 10  # recurrences without a try, after tries in both directions failed

Shifts = Mapping[int, Scenario]  # recurrence, from 0 -> what holds from then on
Train = Callable[[int], tuple[bool, float]]  # batch size -> (whether it reached the target, its cost)


def run_cost(scenario: Scenario, batch_size: int) -> float:
    """Expected cost of one run at the best power limit, which ends at the target or at ``max_epochs``."""
    arm = scenario.arms[batch_size]
    return arm.run(scenario.pair.max_epochs)[0] * arm.epoch.cost


class HillClimbing:
    """Hill climbing by doubling and halving: what many people do by hand.

    A recurrence at the present size, then one at its neighbour in the present direction; the neighbour becomes the
    present size where it was cheaper, else the direction turns. Where a neighbour misses the target, the present size
    trains in the same recurrence; where both directions have failed, ten recurrences pass before the next try.
    """

    def __init__(self, sizes: Sequence[int], start: int) -> None:
        self._sizes, self._at = sizes, sizes.index(start)
        self._direction, self._wait, self._failures = 1, 1, 0
        self._last_cost = math.inf

    def recurrence(self, train: Train) -> None:
        """Train once, or twice where a neighbour is tried and misses the target."""
        if not self._wait and self._try_neighbour(train):
            return
        _, self._last_cost = train(self._sizes[self._at])
        self._wait = max(self._wait - 1, 0)

    def _try_neighbour(self, train: Train) -> bool:
        """Whether the neighbour was trained and reached the target."""
        neighbour = self._at + self._direction
        if not 0 <= neighbour < len(self._sizes):
            self._turn()
            self._wait = 1
            return False
        reached, cost = train(self._sizes[neighbour])
        if reached and cost < self._last_cost:
            self._at, self._last_cost, self._failures = neighbour, cost, 0
        else:
            self._turn()
        self._wait = PAUSE if self._failures >= 2 else 1
        return reached

    def _turn(self) -> None:
        self._direction, self._failures = -self._direction, self._failures + 1


def climb(scenario: Scenario, recurrences: int, seed: int, shifts: Shifts) -> Log:
    """Replay hill climbing over recurrences."""
    env, log = Environment(scenario, seed), Log()
    hill = HillClimbing(scenario.pair.batch_sizes, scenario.pair.default_batch_size)
    for t in range(recurrences):
        env.scenario = shifts.get(t, env.scenario)
        runs: list[Run] = []
        hill.recurrence(partial(_train, env, runs))
        log.add(env.scenario, runs)
    return log


def _train(env: Environment, runs: list[Run], batch_size: int) -> tuple[bool, float]:
    runs.append(env.train(batch_size))
    return runs[-1].reached, runs[-1].cost


def always_default(scenario: Scenario, recurrences: int, seed: int, shifts: Shifts) -> Log:
    """Replay the default batch size at the power limit that is best for it, which is known: nothing is profiled.

    Its expected costs hang on no seed.
    """
    env, log, default = Environment(scenario, seed), Log(), scenario.pair.default_batch_size
    env.profiled.add(default)
    for t in range(recurrences):
        env.scenario = shifts.get(t, env.scenario)
        log.add(env.scenario, [env.train(default)])
    return log


BASELINES: Mapping[str, Callable[[Scenario, int, int, Shifts], Log]] = {HILL_CLIMBING: climb, DEFAULT: always_default}
