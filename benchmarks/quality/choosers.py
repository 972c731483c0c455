"""Ways to choose a batch size and a power limit that the product's own policies are held against.

``zeus 0.16``: the batch size optimizer of the development dependency ``zeus``, unchanged, in this
project's replay: it trains, is stopped and pays as every other policy here does. ``fixed cap``: the
default batch size at the measured power limit nearest to 60 % of the highest. ``hindsight``: the
configuration that turned out to be the cheapest, from the first run on. And what people do without
a policy: always train the default batch size, or climb by doubling and halving it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.simulation.environment import Environment, Log, Run
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import PowerMeasurement

PACKAGE = "zeus_0_16"
FIXED_CAP = "fixed_cap"
HINDSIGHT = "hindsight"
HILL_CLIMBING = "hill_climbing"
DEFAULT = "default"
CAP = 0.6  # of the highest limit
TRIES = 20  # of one recurrence, then upstream's own simulator gives up
PAUSE = 10  # recurrences without a try, after tries in both directions failed

Shifts = Mapping[int, Scenario]  # recurrence, from 0 -> what holds from then on
# batch size -> (whether it reached the target, its cost)
Train = Callable[[int], tuple[bool, float]]
# (batch size, cost at which it is stopped) -> (reached, its cost)
Bounded = Callable[[int, float], tuple[bool, float]]


class Package:
    """``PruningGTSBatchSizeOptimizer`` of ``zeus`` as its own simulator uses it (Algorithms 1 to 3
    of the paper).

    A run is stopped at ``beta`` times the cheapest recurrence so far. One that misses its target is
    followed by the next choice. Where the optimizer raises an error, because it has dropped every
    batch size, the default trains unbounded from then on, as a user would let it.
    """

    def __init__(
        self, sizes: Sequence[int], default: int, max_epochs: int, seed: int, beta: float = 2.0
    ) -> None:
        from zeus._legacy.job import Job
        from zeus._legacy.policy import PruningGTSBatchSizeOptimizer

        self._job = Job("data", "network", "optimizer", 1.0, max_epochs, default)
        self._optimizer = PruningGTSBatchSizeOptimizer(seed=seed, verbose=False)
        self._optimizer.register_job(self._job, list(sizes))
        self._default, self._beta, self._cheapest = default, beta, math.inf
        # whether it has given up; whether the last run had a bound
        self.broken = False
        self.bounded = False

    def recurrence(self, train: Bounded) -> None:
        """Train until a run reaches its target, at most 20 times."""
        spent = 0.0
        for _ in range(TRIES):
            chosen = self._asked(self._optimizer.predict)
            b = self._default if self.broken else int(chosen)
            bound = math.inf if self.broken else self._beta * self._cheapest
            self.bounded = bound < math.inf
            reached, cost = train(b, bound)
            spent += cost
            self._asked(self._optimizer.observe, b, cost, reached)
            if reached:
                self._cheapest = min(self._cheapest, spent)
            if reached or self.broken:
                return

    def _asked(self, method: Callable[..., Any], *given: object) -> Any:
        """What the optimizer returns, unless it has given up."""
        if self.broken:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # equal costs: a division by their variance, 0
                return method(self._job, *given)
        except (ValueError, KeyError, IndexError, AssertionError, RuntimeError):
            self.broken = True


class HillClimbing:
    """Hill climbing by doubling and halving: what many people do by hand.

    A recurrence at the present size, then one at its neighbour in the present direction; the
    neighbour becomes the present size where it was cheaper, else the direction turns. Where a
    neighbour misses the target, the present size trains in the same recurrence; where both
    directions have failed, ten recurrences pass before the next try.
    """

    def __init__(self, sizes: Sequence[int], start: int) -> None:
        self._sizes, self._at = sizes, sizes.index(start)
        self._direction = 1
        self._wait = 1
        self._failures = 0
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
            self._at = neighbour
            self._last_cost = cost
            self._failures = 0
        else:
            self._turn()
        self._wait = PAUSE if self._failures >= 2 else 1
        return reached

    def _turn(self) -> None:
        self._direction, self._failures = -self._direction, self._failures + 1


def package(
    scenario: Scenario,
    recurrences: int,
    seed: int,
    shifts: Shifts | None = None,
    *,
    env: Environment | None = None,
) -> Log:
    """Replay zeus 0.16. ``env``: the trainings; default: those of the scenario and seed."""
    env = env or Environment(scenario, seed)
    log = Log()
    pair = scenario.pair
    chooser = Package(pair.batch_sizes, pair.default_batch_size, pair.max_epochs, seed)
    for t in range(recurrences):
        env.scenario = (shifts or {}).get(t, env.scenario)
        runs: list[Run] = []
        chooser.recurrence(partial(_train, env, runs))
        reached = runs[-1].reached
        log.add(env.scenario, runs, final=not reached, kept=reached or not chooser.bounded)
    return log


def climb(
    scenario: Scenario,
    recurrences: int,
    seed: int,
    shifts: Shifts,
    *,
    env: Environment | None = None,
) -> Log:
    """Replay hill climbing over recurrences.

    ``env``: the trainings; default: those of the scenario and seed.
    """
    env = env or Environment(scenario, seed)
    log = Log()
    hill = HillClimbing(scenario.pair.batch_sizes, scenario.pair.default_batch_size)
    for t in range(recurrences):
        env.scenario = shifts.get(t, env.scenario)
        runs: list[Run] = []
        hill.recurrence(partial(_train, env, runs))
        log.add(env.scenario, runs)
    return log


def _train(
    env: Environment, runs: list[Run], batch_size: int, bound_cost: float = math.inf
) -> tuple[bool, float]:
    runs.append(env.train(batch_size, bound_cost=bound_cost))
    return runs[-1].reached, runs[-1].cost


def always_default(
    scenario: Scenario,
    recurrences: int,
    seed: int,
    shifts: Shifts,
    *,
    env: Environment | None = None,
) -> Log:
    """Replay the default batch size at the power limit that is best for it, which is known:
    nothing is profiled.

    Its expected costs hang on no seed. ``env``: the trainings; default:
    those of the scenario and seed.
    """
    env = env or Environment(scenario, seed)
    log = Log()
    default = scenario.pair.default_batch_size
    env.profiled.add(default)
    for t in range(recurrences):
        env.scenario = shifts.get(t, env.scenario)
        log.add(env.scenario, [env.train(default)])
    return log


def cap_of(scenario: Scenario) -> PowerMeasurement:
    """The default batch size at the measured limit nearest to 60 % of the highest; of two,
    the higher.
    """
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


def _always(
    scenario: Scenario, recurrences: int, seed: int, batch_size: int, point: PowerMeasurement
) -> Log:
    env = Environment(scenario, seed)
    log = Log()
    for _ in range(recurrences):
        log.add(scenario, [env.train_at(batch_size, point)])
    return log


CHOOSERS = {PACKAGE: package, FIXED_CAP: fixed_cap, HINDSIGHT: hindsight}
BASELINES: Mapping[str, Callable[..., Log]] = {HILL_CLIMBING: climb, DEFAULT: always_default}
