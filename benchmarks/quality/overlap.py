"""Replay of submissions that overlap:
what a run taught is known from its end on (sections 4.4 and 6.3).

The clock is the trace's: a run ends when its submission did, and a further attempt takes as long
again. Energy and time are charged times the submission's ``ratio``, as if its slice held so many
times the data: EpochCost per sample, which is what is learnt, does not change by it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple, Protocol

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Decision, Phase, Trial
from airflow_provider_zeus.optimizer.policy import choose, decision_seed, learn, prior
from airflow_provider_zeus.optimizer.situation import Situation
from benchmarks.quality.group_shape import Submission
from benchmarks.simulation.driver import Config, Writer, grid
from benchmarks.simulation.environment import Environment, Run
from benchmarks.simulation.scenario import Scenario


class Going(NamedTuple):
    """One attempt under way, with what it will have been when it ends."""

    run: Run
    trial: Trial | None = None  # of the product's policies
    config: Config | None = None  # that grid search explores
    kept: bool = True  # its model is kept if it ends the recurrence

    @property
    def incumbent(self) -> bool:
        """Whether it takes the incumbent because nothing new is to be tried."""
        return self.trial is not None and self.trial.planned.phase is Phase.INCUMBENT


class Player(Protocol):
    """A policy as the cluster meets it."""

    def begin(self) -> Going:
        """A submission starts."""
        ...

    def end(self, going: Going) -> Going | None:
        """An attempt ended: the next attempt of its submission, if it has one."""
        ...


@dataclass(slots=True)
class Ledger:
    """What submissions cost.

    ``default_*``: what they cost in expectation at the default batch size and full power.
    """

    submissions: int = 0
    energy_j: float = 0.0
    time_s: float = 0.0
    default_energy_j: float = 0.0
    default_time_s: float = 0.0
    cost_j: float = 0.0  # Eq. 2
    default_cost_j: float = 0.0
    attempts: int = 0
    concurrent: int = 0  # began while another of their group ran
    concurrent_incumbent: int = 0  # of those: took the incumbent
    runs_without_model: int = 0
    runs_below_target: int = 0
    # of the attempts, in the order of their ends
    batch_sizes: list[tuple[int, ...]] = field(default_factory=list)

    def join(self, other: Ledger) -> None:
        """Add another group."""
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))

    def charge(self, run: Run, ratio: float) -> None:
        """Pay for one run."""
        self.energy_j += run.energy_j * ratio
        self.time_s += run.time_s * ratio
        self.cost_j += run.cost * ratio


def play(player: Player, scenario: Scenario, submissions: Sequence[Submission]) -> Ledger:
    """Let one group of submissions, by start, run to its end."""
    ledger = Ledger()
    default = scenario.default_run
    going: list[tuple[float, int, Submission, list[Going]]] = []
    for order, s in enumerate(submissions):
        _settle(player, going, ledger, until_s=s.start_s)
        first = player.begin()
        ledger.submissions += 1
        ledger.default_energy_j += default.energy_j * s.ratio
        ledger.default_time_s += default.time_s * s.ratio
        ledger.default_cost_j += default.cost * s.ratio
        ledger.concurrent += bool(going)
        ledger.concurrent_incumbent += bool(going) and first.incumbent
        heapq.heappush(going, (s.end_s, order, s, [first]))
    _settle(player, going, ledger, until_s=math.inf)
    return ledger


def _settle(
    player: Player,
    going: list[tuple[float, int, Submission, list[Going]]],
    ledger: Ledger,
    until_s: float,
) -> None:
    """End what ends by then, in the order of the ends."""
    while going and going[0][0] <= until_s:
        end_s, order, s, attempts = heapq.heappop(going)
        last = attempts[-1]
        following = player.end(last)
        ledger.charge(last.run, s.ratio)
        ledger.attempts += 1
        if following is None:
            ledger.runs_without_model += not last.kept
            ledger.runs_below_target += last.kept and not last.run.reached
            ledger.batch_sizes.append(tuple(a.run.batch_size for a in attempts))
        else:
            heapq.heappush(going, (end_s + (s.end_s - s.start_s), order, s, [*attempts, following]))


class Zeus:
    """The product's own policies: ``choose`` sees the trials still running,
    ``learn`` takes each one at its end.
    """

    def __init__(self, scenario: Scenario, job: ZeusJob, seed: int = 0) -> None:
        self._job = job
        self._seed = seed
        self._env, self._device = Environment(scenario, seed), scenario.device
        self._writer, self._belief = Writer(job, scenario), prior(job)
        self._running: dict[int, Trial] = {}

    def begin(self) -> Going:
        """A submission starts."""
        seed = decision_seed(self._writer.job_id, self._writer.number + 1, self._seed)
        running = list(self._running.values())
        decision = choose(
            Situation(self._job, self._belief, device=self._device, running=running, seed=seed)
        )
        return self._attempt(decision, number=1)

    def end(self, going: Going) -> Going | None:
        """An attempt ended."""
        trial = going.trial
        run = going.run
        assert trial is not None  # what begin() and _attempt() make has one
        del self._running[trial.number]
        self._env.profiled.add(run.batch_size)
        self._belief = learn(self._belief, self._writer.close(trial, run))
        decision = trial.decision
        number = trial.key.attempt
        if not run.reached and number < len(decision.attempts):
            return self._attempt(decision, number + 1, trial.key.ti_id)
        return None

    def _attempt(self, decision: Decision, number: int, ti_id: str | None = None) -> Going:
        planned = decision.attempts[number - 1]
        trial = self._writer.open(decision, planned, number, ti_id)
        self._running[trial.number] = trial
        known = planned.batch_size in self._env.profiled
        run = self._env.attempt(planned)
        if not known:  # until it ends: one that runs beside it profiles too
            self._env.profiled.discard(planned.batch_size)
        return Going(run, trial, kept=run.reached or not planned.bounded)


class Default:
    """The default batch size at full power, always."""

    def __init__(self, scenario: Scenario, seed: int = 0) -> None:
        self._env, self._b = Environment(scenario, seed), scenario.pair.default_batch_size
        self._point = scenario.full_power(self._b)

    def begin(self) -> Going:
        """A submission starts."""
        return Going(self._env.train_at(self._b, self._point))

    def end(self, going: Going) -> Going | None:
        """Nothing is learnt."""
        return None


class GridSearch:
    """One configuration per submission; when all were begun,
    the cheapest that has ended (``baselines``).
    """

    def __init__(self, scenario: Scenario, seed: int = 0) -> None:
        self._env = Environment(scenario, seed)
        self._dropped: set[int] = set()
        self._todo: Iterator[Config] = grid(scenario, self._dropped)
        b = scenario.pair.default_batch_size
        self._best, self._best_cost = (b, scenario.full_power(b)), math.inf

    def begin(self) -> Going:
        """A submission starts, or goes on after a miss."""
        config = next(self._todo, None)
        b, point = config or self._best
        return Going(self._env.train_at(b, point), config=config)

    def end(self, going: Going) -> Going | None:
        """A configuration was tried; a batch size that missed the target is dropped."""
        run = going.run
        config = going.config
        if run.reached:
            if config is not None and run.cost < self._best_cost:
                self._best, self._best_cost = config, run.cost
            return None
        self._dropped.add(run.batch_size)
        return None if config is None else self.begin()
