"""The default policy without one of its parts, for Figure 13. Pruning is none of them: it drops no batch size."""

from __future__ import annotations

import math

from airflow_provider_zeus.model.job_checks import POLICIES
from airflow_provider_zeus.model.trial import PlannedAttempt
from airflow_provider_zeus.simulation.driver import replay
from airflow_provider_zeus.simulation.environment import Environment, Log, Run
from airflow_provider_zeus.simulation.scenario import Epoch, Scenario

OURS = POLICIES[0]


class NeverStopped(Environment):
    """Every attempt runs to its target or to ``max_epochs``."""

    def attempt(self, planned: PlannedAttempt) -> Run:
        """Run one attempt; its bounds do not count."""
        return self.train(planned.batch_size)


class OneLimitPerRun(Environment):
    """No profiling inside a run: the first runs of a batch size take one power limit each, the highest first.

    As in ``benchmarks.parts.literal`` the policy learns EpochCost at the best limit; what a run cost beyond it is paid.
    """

    def __init__(self, scenario: Scenario, seed: int, *, free_looks: bool = False) -> None:
        super().__init__(scenario, seed, free_looks=free_looks)
        self.tried: dict[int, int] = {}  # limits, by batch size

    def attempt(self, planned: PlannedAttempt) -> Run:
        """Run one attempt at the next limit that its batch size has not seen."""
        b, points = planned.batch_size, self.scenario.pair.points[planned.batch_size]
        tried = self.tried.setdefault(b, 0)
        if tried == len(points):
            return super().attempt(planned)
        self.tried[b] = tried + 1
        point, best = points[-1 - tried], self.scenario.arms[b].epoch
        cost = self.scenario.epoch(point).cost
        bounds = [math.inf if x is None else x for x in (planned.bound_cost, planned.bound_epochs)]
        run = self.train_at(b, point, bound_cost=min(bounds[0], bounds[1] * cost))
        self.profiled.add(b)
        spent = (run.energy_j, run.time_s, run.cost)
        at_best = (best.energy_j, best.time_s, best.cost)
        excess = Epoch(*(x - run.epochs * y for x, y in zip(spent, at_best, strict=True)))
        return run._replace(epoch_cost=best.cost, excess=excess)


OURS_WITHOUT = {"ours_no_early_stopping": NeverStopped, "ours_no_jit_profiling": OneLimitPerRun}


def without(part: str, scenario: Scenario, recurrences: int, seed: int) -> Log:
    """Replay the default policy without a part of :data:`OURS_WITHOUT`."""
    env = OURS_WITHOUT[part](scenario, seed)
    return replay(scenario, scenario.job(policy=OURS), recurrences, seed, env=env)
