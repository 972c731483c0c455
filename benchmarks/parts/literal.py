"""Algorithms 1 to 3 as the paper's public code runs them,
with one switch per trap that we settle (``docs/policy.md``).

All switches off: upstream's simulator. All on: policy ``"zeus"``, decision by decision. Written
apart from ``optimizer/`` so that each can be held against the other; nothing else uses it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

from airflow_provider_zeus.optimizer.policy import decision_seed
from benchmarks.simulation.environment import Environment, Log, Run
from benchmarks.simulation.scenario import Scenario

TRIES = 20  # of one recurrence, then upstream gives up
SPREAD = 0.14  # where none was seen (section 3.2)
NOT_STARTED = 100.0  # upstream learns so many bounds from a run that could not end an epoch


@dataclass(frozen=True, slots=True)
class Settled:
    """Which traps are settled; the numbers are those of ``docs/policy.md``."""

    variance: bool = False  # 2: one run, or equal costs, borrow the other arms' spread
    neighbours: bool = False  # 3: a failure in round 2 ends the walk and drops nothing
    stopped: bool = False  # 5: a stopped run counts as max(what it spent, the arm's mean)
    # 6, 8: on the believed mean of the incumbent, not on the cheapest recurrence ever
    bound: bool = False
    incumbent: bool = False  # 4, 7: it follows a given-up attempt and is never stopped
    generator: bool = False  # 9: one per decision
    window: bool = False  # 11: over the job's runs, not per arm; pruned sizes return after one
    profiling: bool = False  # 20: its excess is not learnt
    charging: bool = False  # EpochCost is known after a first epoch that is paid for, not before

    @classmethod
    def all(cls) -> Self:
        """Policy ``"zeus"``."""
        return cls(**{f.name: True for f in fields(cls)})


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of the algorithm that may be taken out (section 6.7)."""

    early_stopping: bool = True
    pruning: bool = True
    jit: bool = True  # else each power limit is profiled in a recurrence of its own


class _Seen(NamedTuple):
    """One run, its cost in epochs of its batch size."""

    number: int
    epochs: float
    reached: bool


class _Arm(NamedTuple):
    """Belief of one batch size, in epochs."""

    mean: float
    squares: float  # sum of squared deviations from the mean
    runs: int
    varied: bool  # not all values are equal
    reached: bool  # at least one of its runs did


def literal(
    scenario: Scenario,
    recurrences: int,
    seed: int = 0,
    *,
    settled: Settled | None = None,
    parts: Parts | None = None,
    beta: float = 2.0,
    window: int = 500,
    shifts: Mapping[int, Scenario] | None = None,
) -> Log:
    """Replay the paper's algorithm."""
    policy = _Literal(scenario, seed, settled or Settled(), parts or Parts(), beta, window)
    log = Log()
    for t in range(recurrences):
        if shifts and t in shifts:
            policy.env.scenario = shifts[t]
        runs, final = policy.recur()
        log.add(
            policy.env.scenario,
            runs,
            final=final,
            kept=runs[-1].reached or policy.settled.incumbent,
        )
    return log


class _Literal:
    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        settled: Settled,
        parts: Parts,
        beta: float,
        window: int,
    ) -> None:
        self.env = Environment(scenario, seed, free_looks=not settled.charging)
        self.settled = settled
        self._parts = parts
        self._beta = beta
        self._window = window
        self._seed = seed
        self._scenario = scenario  # as it was at first: names and sizes
        self._sizes = scenario.pair.batch_sizes
        self._rng = random.Random(seed)
        self._number = 0
        self._seen: dict[int, list[_Seen]] = {b: [] for b in self._sizes}
        # numbers of the runs that converged, and of others
        self._ended: dict[bool, list[int]] = {True: [], False: []}
        self._arms: dict[int, _Arm] = {}
        self._min_cost = math.inf
        self._explored: dict[int, int] = {}  # batch size: number of its last exploration
        self._limits_left = {b: list(points) for b, points in scenario.pair.points.items()}
        self._walk = self._exploration()
        self._result: Run | None = None  # of the exploration under way
        self._survivors: list[int] | None = None  # of both rounds; None while they last

    # ------------------------------------------------------------------ one recurrence
    def recur(self) -> tuple[list[Run], bool]:
        """(runs until one reaches the target,
        whether a miss of the last one would have ended the recurrence).
        """
        runs: list[Run] = []
        final = False
        while len(runs) < TRIES and not final and not (runs and runs[-1].reached):
            first = self._choose()
            exploring = self._survivors is None
            incumbent = self._incumbent()
            final = self.settled.incumbent and first == incumbent
            runs.append(self._run(first, bounded=not final))
            if exploring:
                self._result, self._explored[first] = runs[-1], self._number
            if self.settled.incumbent and not final and not runs[-1].reached:
                runs.append(self._run(incumbent, bounded=False))
                final = True
        if runs[-1].reached:
            self._min_cost = min(self._min_cost, math.fsum(r.cost for r in runs))
        return runs, final or not runs[-1].reached

    def _run(self, b: int, *, bounded: bool) -> Run:
        cost, epoch_cost = (
            self._bounds(b) if bounded and self._parts.early_stopping else (math.inf, math.inf)
        )
        if not self._parts.jit and self._limits_left[b]:
            run = self.env.train_at(b, self._limits_left[b].pop(), bound_cost=cost)
            self.env.profiled.add(b)
        else:
            run = self.env.train(b, bound_cost=cost, max_epoch_cost=epoch_cost)
        self._number += 1
        learnt = (
            run.epochs if self.settled.profiling else run.epochs + run.excess.cost / run.epoch_cost
        )
        if not run.epochs and not self.settled.stopped:
            learnt = NOT_STARTED * cost / run.epoch_cost
        self._seen[b].append(_Seen(self._number, learnt, run.reached))
        self._ended[run.reached].append(self._number)
        slid = self.settled.window and any(
            len(numbers) >= self._window for numbers in self._ended.values()
        )
        for size in self._sizes if slid else (b,):
            self._fit(size)
        return run

    def _bounds(self, b: int) -> tuple[float, float]:
        """(cost [J] at which the run is given up,
        EpochCost [J] at which it is as soon as that is known).
        """
        if not self.settled.bound:
            return self._beta * self._min_cost, math.inf
        incumbent = self._incumbent()
        if incumbent in self._arms:
            epochs = self._arms[incumbent].mean
        elif incumbent in self.env.profiled:
            epochs = float(self._scenario.pair.max_epochs)
        else:
            return math.inf, math.inf
        bound = self._beta * epochs * self._epoch_cost(incumbent)
        return bound, bound / max(1.0, self._arms[b].mean) if b in self._arms else bound

    # ------------------------------------------------------------------ Algorithm 2: the belief
    def _epoch_cost(self, b: int) -> float:
        return self.env.scenario.arms[b].epoch.cost

    def _fit(self, b: int) -> None:
        runs = self._seen[b]
        if self.settled.window:
            converged = self._oldest(True)
            others = max(self._oldest(True), self._oldest(False))
            runs = [s for s in runs if s.number >= (converged if s.reached else others)]
        else:
            runs = runs[-self._window :]
        reached = any(s.reached for s in runs)
        if not runs or (self.settled.stopped and not reached):
            self._arms.pop(b, None)
            return
        values = _censored(runs) if self.settled.stopped else [s.epochs for s in runs]
        mean = math.fsum(values) / len(values)
        squares = math.fsum((v - mean) ** 2 for v in values)
        self._arms[b] = _Arm(mean, squares, len(values), len(set(values)) > 1, reached)

    def _oldest(self, reached: bool) -> int:
        """Number of the oldest run that is remembered of those that converged,
        or of the others; 0 while all are.
        """
        numbers = self._ended[reached]
        return numbers[-self._window] if len(numbers) >= self._window else 0

    def _spread(self) -> float:
        """Relative spread of a run where an arm shows none of its own."""
        if not self.settled.variance:
            return 0.0  # a point mass
        varied = [a for a in self._arms.values() if a.varied]
        squares = math.fsum(a.squares / a.mean**2 for a in varied)
        return math.sqrt(squares / sum(a.runs for a in varied)) if varied else SPREAD

    # ------------------------------------------------------------------ Algorithms 1 and 3: what
    # runs next
    def _incumbent(self) -> int:
        known = [b for b in self._sizes if b in self._arms and self._arms[b].reached]
        return min(known, key=self._believed, default=self._scenario.pair.default_batch_size)

    def _believed(self, b: int) -> float:
        """Cost of a run [J]."""
        return self._arms[b].mean * self._epoch_cost(b) if b in self._arms else math.inf

    def _choose(self) -> int:
        if self._survivors is None:
            try:
                return next(self._walk) if self._result is None else self._walk.send(self._result)
            except StopIteration as over:
                self._survivors = over.value
        due = self._due() if self.settled.window else None
        return self._sample() if due is None else due

    def _exploration(self) -> Generator[int, Run, list[int]]:
        """Two rounds: the start, smaller until one fails, larger until one fails."""
        pool = list(self._sizes)
        start = self._scenario.pair.default_batch_size
        for again in (False, True):
            good: dict[int, float] = {}
            lower = [b for b in reversed(pool) if b < start]
            upper = [b for b in pool if b > start]
            for side in (
                ([start], lower, upper) if self.settled.neighbours else ([start, *lower], upper)
            ):
                for b in side:
                    cost = yield from self._try(
                        b, 1 if again or self._parts.jit else len(self._limits_left[b])
                    )
                    if cost < math.inf:
                        good[b] = cost
                    elif self._parts.pruning:
                        break
            if self._parts.pruning:
                pool = sorted(good)
            if not good:
                break
            start = (
                min(pool, key=self._believed)
                if self.settled.bound
                else min(good, key=good.__getitem__)
            )
        return pool

    def _try(self, b: int, times: int) -> Generator[int, Run, float]:
        """The lowest cost [J] of so many runs, inf where one fails."""
        lowest = math.inf
        for _ in range(times):
            run = yield b
            if not run.reached:
                return lowest
            lowest = min(lowest, run.cost)
        return lowest

    def _due(self) -> int | None:
        """A pruned size, or one without a run in the window,
        whose last try is a whole window ago.
        """
        start = self._oldest(True)
        oldest = self._oldest(False)
        if not start:
            return None
        missed = {
            b: [s.number for s in self._seen[b] if not s.reached and s.number >= oldest]
            for b in self._sizes
        }
        last = {b: max([self._explored.get(b, 0), *missed[b]]) for b in self._sizes}
        pruned_at = max(self._explored.values())
        waiting = [b for b in self._sizes if b not in self._arms and (last[b] or pruned_at) < start]
        at = self._sizes.index
        incumbent = self._incumbent()
        return min(waiting, key=lambda b: (abs(at(b) - at(incumbent)), b), default=None)

    def _sample(self) -> int:
        pool = self._survivors or []
        if self.settled.neighbours:
            pool = [b for b in self._sizes if b in self._arms and self._arms[b].reached]
        rng = self._rng
        if self.settled.generator:
            rng = random.Random(
                decision_seed(self._scenario.pair.name, self._number + 1, self._seed)
            )
        spread = self._spread()
        draws: dict[int, float] = {}
        for b in pool:
            if b in self._arms:
                arm = self._arms[b]
                sd = (
                    math.sqrt(arm.squares) / arm.runs
                    if arm.varied
                    else spread * arm.mean / math.sqrt(arm.runs)
                )
                draws[b] = (arm.mean + sd * rng.gauss(0.0, 1.0)) * self._epoch_cost(b)
        return min(draws, key=draws.__getitem__) if draws else self._incumbent()


def _censored(runs: Sequence[_Seen]) -> list[float]:
    """Epochs of the runs that reached the target,
    and of those that did not where they lie above the mean of all.
    """
    values = [s.epochs for s in runs if s.reached]
    for epochs in sorted((s.epochs for s in runs if not s.reached), reverse=True):
        if epochs <= math.fsum(values) / len(values):
            break
        values.append(epochs)
    return values
