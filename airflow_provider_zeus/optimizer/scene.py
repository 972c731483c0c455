"""What a decision of the policy ``"knowledge_gradient"`` looks at. Pure; needs numpy."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from airflow_provider_zeus.optimizer.arms import epoch_costs, epoch_costs_elsewhere, loads
from airflow_provider_zeus.optimizer.belief import UNKNOWN, Belief
from airflow_provider_zeus.optimizer.cost import Weights
from airflow_provider_zeus.optimizer.epoch_cost import predicted
from airflow_provider_zeus.optimizer.exploration import start_at
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.knowledge_gradient import RELIABILITY_RUNS, Choice, Outlook
from airflow_provider_zeus.optimizer.reach import open_after, reach
from airflow_provider_zeus.optimizer.surrogate import P_FAIL, Vector
from airflow_provider_zeus.optimizer.trial import DeviceInfo, ProfileSample

NEAR, NEAR_AFTER = 1.1, 60  # a size believed to cost up to 1.1 x the incumbent runs again after so many recurrences
UNTRIED = 0.35  # one never run is looked at where it is believed dearer by so many standard deviations at most
RETURN_WITHIN = 0.75  # what has not run for a window is given up at .75 x the incumbent's cost,
RETURN_DEAR = 1.5  # if it is believed to cost more than 1.5 x as much; else at beta x


@lru_cache(maxsize=256)
def _standing(
    sizes: tuple[int, ...], trusted: frozenset[int], reached: frozenset[int]
) -> tuple[tuple[bool, ...], Vector]:
    """(Whether it may be the incumbent, chance that a complete run reaches the target where none has missed it).

    Each per batch size. Shared: not to be written to.
    """
    chance = np.array([1.0 if b in reached else 1.0 - P_FAIL for b in sizes])
    return tuple(b in trusted for b in sizes), chance


class Scene(NamedTuple):
    """What one decision looks at."""

    job: ZeusJob
    belief: Belief
    weights: Weights
    all_sizes: tuple[int, ...]  # of the surrogate, ascending: those of the job, and those that only earlier runs had
    feasible: frozenset[int]
    converged: frozenset[int]  # feasible sizes that reached the target once
    within: Sequence[bool]  # per size of all_sizes: in reach of one that converged
    costs: Mapping[int, float]  # EpochCost [J] measured on this device
    elsewhere: Mapping[int, float]  # and on another one
    loads: Mapping[int, float]  # share of MAXPOWER that training drew on this device
    newest: Mapping[int, int]  # number of the newest run of each batch size
    missed: frozenset[int]  # sizes that have converged, and whose newest run went to its end without the target

    @classmethod
    def of(cls, job: ZeusJob, belief: Belief, device: DeviceInfo | None, profiles: Sequence[ProfileSample]) -> Scene:
        """What is known of the job on this device."""
        weights, model = Weights.of(job, device), UNKNOWN if device is None else device.model
        feasible = frozenset(job.batch_sizes) - belief.barred(model, job.batch_sizes)
        converged = belief.reached & feasible
        sizes, costs = belief.surrogate.sizes, epoch_costs(belief, device, profiles, weights)
        elsewhere = epoch_costs_elsewhere(belief, device, weights)
        drawn, within, newest = loads(belief, device), reach(sizes, feasible, converged), belief.newest_runs
        most = float(job.max_epochs or 1)
        missed = converged & {b for n, b, epochs in belief.stopped if epochs >= most and newest[b] == n}
        return cls(job, belief, weights, sizes, feasible, converged, within, costs, elsewhere, drawn, newest, missed)

    def outlook(self) -> Outlook | None:
        """None where nothing is known of EpochCost."""
        default = self.job.default_batch_size
        costs = predicted(self.all_sizes, self.costs, self.elsewhere, default, self.loads)
        if costs is None:
            return None
        trusted = self.converged - self.missed or self.converged
        may_be_best, chance = _standing(self.all_sizes, trusted, self.belief.reached)
        return Outlook(
            surrogate=self.belief.surrogate,
            log_epoch_cost=costs[0],
            epoch_cost_variance=costs[1],
            open_after=open_after(self.all_sizes, self.feasible, self.converged),
            trusted=may_be_best,
            chance=self._chance(chance),
            max_epochs=float(self.job.max_epochs or 1),
            age=self.belief.age(),
            beta=self.job.beta,
        )

    def _chance(self, usual: Vector) -> Vector:
        """That a complete run reaches its target: the share of the newest ones that did, with one free success.

        Of a size that did reach it only those count that lie on this side of every change before its newest one.
        """
        most, belief = float(self.job.max_epochs or 1), self.belief
        missed = [(n, b, False) for n, b, epochs in belief.stopped if epochs >= most]
        if not missed:
            return usual
        since, reached = [0, *(change.since for change in belief.changes)], belief.reached
        chances = dict(zip(self.all_sizes, usual.tolist(), strict=True))
        for size in {b for _, b, _ in missed} & chances.keys():
            runs = sorted(
                (n, ok) for n, b, ok in [*((n, b, True) for n, b, _ in belief.converged), *missed] if b == size
            )
            start = max(n for n in since if n <= runs[-1][0]) if size in reached else 0
            newest = [ok for n, ok in runs if n >= start][-RELIABILITY_RUNS:]
            chances[size] *= (1 + sum(newest)) / (1 + len(newest))
        return np.array(list(chances.values()))

    def returning(self, outlook: Outlook, incumbent: int) -> Choice | None:
        """A size in reach that may be better than what is known of it, and nothing that runs would tell.

        The one believed cheapest, given up soon where it would have to have become much better. A size nearly as cheap
        as the incumbent is soon looked after, since that costs little; any other one when a window has passed. So is
        one never run that may well be cheaper, one at a time: its neighbours alone spoke against it. One whose only run
        within the window was cheaper than the incumbent runs once more: a single run is not believed against all
        neighbours. So does one that has reached the target before and missed it in its newest run: that may have been
        chance.
        """
        belief = self.belief
        lately = belief.converged[-NEAR_AFTER][0] if len(belief.converged) >= NEAR_AFTER else 0
        oldest, newest, missed = belief.window_start(), self.newest, self.missed
        if not lately and not oldest and not missed:
            return None
        log_cost = outlook.log_cost
        dearer, cost = log_cost - log_cost[incumbent], np.exp(outlook.log_epoch_cost)
        usual = math.exp(log_cost[incumbent])
        alone = self._alone(oldest) if oldest else {}
        untried = self._untried(outlook, dearer, lately) if lately else ()

        def due(i: int, b: int) -> bool:
            if b in missed or b in untried or (b in newest and newest[b] < lately and dearer[i] < math.log(NEAR)):
                return True
            return bool(oldest) and (newest.get(b, 0) < oldest or alone.get(b, math.inf) * cost[i] < usual)

        waiting = [i for i, b in enumerate(self.all_sizes) if self.within[i] and i != incumbent and due(i, b)]
        if not waiting:
            return None
        index = min(waiting, key=lambda i: float(dearer[i]))
        dear = dearer[index] > math.log(RETURN_DEAR)
        return Choice(index, 0.0, usual * (RETURN_WITHIN if dear else self.job.beta))

    def never_ran(self, b: int) -> bool:
        """Whether it has had no run at all, as far as a window that is not full yet can tell."""
        return b not in self.newest and not self.belief.window_start()

    def _untried(self, outlook: Outlook, dearer: Vector, lately: int) -> Collection[int]:
        """Sizes never run that may well be cheaper; none where a new one has run ``lately``."""
        ran, belief = self.newest, self.belief
        new = [i for i, b in enumerate(self.all_sizes) if b not in ran and self.within[i]]
        if not new or {b for n, b, _ in (*belief.converged, *belief.stopped) if n < lately} != ran.keys():
            return ()
        sd = np.sqrt(outlook.surrogate.cov.diagonal() + outlook.epoch_cost_variance)
        return [self.all_sizes[i] for i in new if dearer[i] < UNTRIED * sd[i]]

    def _alone(self, oldest: int) -> dict[int, float]:
        """Epochs of batch sizes whose only run from this trial on reached the target."""
        stopped = {b for n, b, _ in self.belief.stopped if n >= oldest}
        epochs: dict[int, list[float]] = {}
        for n, b, e in self.belief.converged:
            if n >= oldest and b not in stopped:
                epochs.setdefault(b, []).append(e)
        return {b: runs[0] for b, runs in epochs.items() if len(runs) == 1}

    def usual(self) -> int:
        """The default; where it does not fit, the nearest that does."""
        sizes = sorted(self.job.batch_sizes)
        return start_at(self.job.default_batch_size, sizes, [b for b in sizes if b not in self.feasible])
