"""Inputs of one decision of the policy ``"knowledge_gradient"``. Pure; needs numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import DeviceInfo, Lineage
from airflow_provider_zeus.optimizer.arms import epoch_costs, profiled_epoch_costs
from airflow_provider_zeus.optimizer.belief import Belief, model_of
from airflow_provider_zeus.optimizer.knowledge_gradient.acquisition import (
    HORIZON,
    Predictions,
    barred_after,
    in_reach,
)
from airflow_provider_zeus.optimizer.knowledge_gradient.epoch_cost import of_next_run
from airflow_provider_zeus.optimizer.knowledge_gradient.gp import P_FAIL, Vector, by_size
from airflow_provider_zeus.optimizer.knowledge_gradient.misses import (
    MissRates,
    counted,
    miss_rates,
)
from airflow_provider_zeus.optimizer.knowledge_gradient.run_times import RunTimes
from airflow_provider_zeus.optimizer.reasons import Why
from airflow_provider_zeus.optimizer.situation import Situation, start_at

OUT_OF_REACH = 3  # one miss may be that of a slice
# However good tries look, a job never loses more than this against always the default: so many runs
# of it, and a share of all.
MOST_LOST = 3.0
LOST_SHARE = 0.02


class DecisionContext(NamedTuple):
    """The job, its posterior and its EpochCosts on one device."""

    job: ZeusJob
    belief: Belief
    device: DeviceInfo | None
    weights: Weights
    # With those that only earlier runs had: what they taught tells of their neighbours.
    all_sizes: tuple[int, ...]
    feasible: frozenset[int]
    converged: frozenset[int]
    # A second look at the default and audits ignore it: they ask what the default costs, however
    # far it is from what has converged.
    in_reach: Sequence[bool]
    epoch_costs: Mapping[int, float]
    trusted: frozenset[int]  # not those that miss lately: the data may have moved away from them
    miss_rates: MissRates | None
    horizon: float  # an answer is worth what later runs save by it
    times: RunTimes | None
    obstacle: str | None
    lineage: Lineage | None

    @classmethod
    def of(cls, situation: Situation) -> DecisionContext:
        """The context of the next decision of this job on this device.

        With a deadline EpochCost is that of the limits that are fast enough.
        """
        job = situation.job
        belief = situation.belief
        device = situation.device
        profiles = situation.profiles
        times = situation.times
        weights = Weights.of(job, device)
        barred = belief.barred(model_of(device), job.batch_sizes)
        if times is not None and not times.fitting(belief.reached - barred):
            weights = weights.hurried()
        feasible = frozenset(job.batch_sizes) - barred
        converged = belief.reached & feasible
        sizes = belief.gp.sizes
        trusted = frozenset(b for b in converged if belief.missed_lately(b) < OUT_OF_REACH)
        # All that reached the target before miss it now. Without a converged size the policy begins
        # again, from the default.
        if not trusted:
            converged = trusted
        costs = epoch_costs(belief, device, profiles, weights)
        if times is not None and not weights.fastest:
            slowdowns = {b: max(times.slowdown(b), 1.0) for b in times.most_s}
            costs |= profiled_epoch_costs(belief, device, profiles, weights, slowdowns)
        runs_left = situation.runs_left
        if job.expected_runs is not None:
            runs_left = max(job.expected_runs - belief.recurrences - 1, 0)
        horizon = HORIZON
        if runs_left is not None:
            horizon = min(HORIZON, float(runs_left))
        return cls(
            job=job,
            belief=belief,
            device=device,
            weights=weights,
            all_sizes=sizes,
            feasible=feasible,
            converged=converged,
            in_reach=in_reach(
                sizes,
                feasible,
                converged,
                never_reached=frozenset(belief.newest_runs.keys() - belief.reached),
            ),
            epoch_costs=costs,
            trusted=trusted,
            miss_rates=_miss_rates(belief),
            horizon=horizon,
            times=times,
            obstacle=situation.obstacle,
            lineage=situation.lineage,
        )

    def with_room_after(
        self, incumbent: int, predictions: Predictions, reach: Sequence[bool]
    ) -> tuple[Sequence[bool], Predictions]:
        """Reach and predictions in which a try leaves time enough for the incumbent after it.

        :param reach: whether each candidate of the predictions may be tried.
        """
        times = self.times
        if times is None:
            return reach, predictions
        sizes = predictions.gp.sizes
        near = [ok and times.may_try(b, incumbent) for ok, b in zip(reach, sizes, strict=True)]
        epochs = np.array([times.epochs_before(b, incumbent) for b in sizes])
        return near, predictions._replace(most_cost=np.exp(predictions.log_epoch_cost) * epochs)

    def standing(self, predictions: Predictions, incumbent: int) -> str:
        """Why the incumbent is the incumbent. A cheaper size may miss the target more often.

        :param incumbent: its index.
        """
        others = self.converged
        adjective = "cheap"
        condition = "to reach the target"
        if self.times is not None:
            fast_enough = self.times.fitting(self.converged)
            if fast_enough:
                others = fast_enough
                condition = "that is fast enough"
            else:
                adjective = "fast"
        costs = by_size(self.all_sizes, predictions.log_cost)
        sentence = Why.MISSES_LESS
        if min(costs[b] for b in others) >= predictions.log_cost[incumbent]:
            sentence = Why.CHEAPEST
        return sentence.of(adjective=adjective, condition=condition)

    def predictions(self) -> Predictions | None:
        """Predictions for all sizes; None if no EpochCost is known on any device."""
        costs = of_next_run(self.belief, self.device, self.weights, own=self.epoch_costs)
        if costs is None:
            return None
        may_be_incumbent = self.fast_enough(self.trusted)
        allowance, most_spent = self._may_spend(np.exp(costs[0]))
        return Predictions(
            gp=self.belief.gp,
            log_epoch_cost=costs[0],
            epoch_cost_variance=costs[1],
            unmeasured=np.array([b not in self.epoch_costs for b in self.all_sizes]),
            barred=barred_after(self.all_sizes, self.feasible, self.converged),
            trusted=[b in may_be_incumbent for b in self.all_sizes],
            success=self.success(),
            log_miss_cost=self._log_miss_cost(),
            max_epochs=self.belief.max_epochs,
            horizon=self.horizon,
            allowance=allowance,
            most_spent=most_spent,
        )

    def _may_spend(self, epoch_costs: Vector) -> tuple[float, float]:
        """(Cost of a recurrence above which a try is a loss, the most that it may cost) [J].

        Eq. KG-27 of docs/knowledge-gradient.md.

        :param epoch_costs: EpochCost [J] of all sizes.
        """
        total, _, spent = self.totals(epoch_costs)
        next_run = self.default_run(epoch_costs)
        allowance = next_run + total - spent
        return allowance, allowance + MOST_LOST * next_run + LOST_SHARE * total

    def default_run(self, epoch_costs: Vector) -> float:
        """Median cost [J] of a run of the default."""
        default = self.all_sizes.index(self.job.default_batch_size)
        return float(epoch_costs[default]) * math.exp(float(self.belief.gp.mean[default]))

    def totals(self, epoch_costs: Vector) -> tuple[float, float, float]:
        """Cost [J] of always the default so far, the estimated part of it, and the cost spent.

        The part on slices on which the default did not run is estimated.
        """
        account = self.belief.epochs.account
        cost = by_size(self.all_sizes, epoch_costs)
        total = self.belief.epochs.default_total()
        one = cost[self.job.default_batch_size]
        spent = math.fsum(epochs * cost[b] for b, epochs in account.trained.items())
        return total * one, (total - account.default_epochs) * one, spent

    def success(self) -> Vector:
        """Probability that a complete run of each size reaches its target."""
        reached = self.belief.reached
        success = {b: 1.0 if b in reached else 1.0 - P_FAIL for b in self.all_sizes}
        if self.miss_rates is not None:
            in_reach = 1.0 - self.miss_rates.slices
            success = {b: in_reach * rate for b, rate in success.items()}
            for b, own in self.miss_rates.own.items():
                success[b] = in_reach * (1.0 - own)
        return np.array(list(success.values()))

    def _log_miss_cost(self) -> Vector:
        """ln of how many times its cost each size takes with the runs in which it misses by itself.

        Eq. KG-26 of docs/knowledge-gradient.md.
        """
        log_factor = np.zeros(len(self.all_sizes))
        if self.miss_rates is None:
            return log_factor
        missed = {b for _, b, _ in self.belief.misses}
        for i, b in enumerate(self.all_sizes):
            if b in missed and b in self.miss_rates.own:
                own = min(self.miss_rates.own[b], 1.0 - 1e-6)
                epochs_of_miss = self.belief.max_epochs / math.exp(self.belief.gp.mean[i])
                log_factor[i] = math.log1p(own / (1.0 - own) * max(epochs_of_miss, 1.0))
        return log_factor

    def fast_enough(self, sizes: frozenset[int]) -> frozenset[int]:
        """The sizes that end before the deadline; all of them if none does or there is none."""
        if self.times is None:
            return sizes
        return self.times.fitting(sizes) or sizes

    def start_size(self) -> int:
        """The default batch size; if it does not fit, the nearest that does."""
        return start_at(self.job.default_batch_size, sorted(self.feasible))


def _miss_rates(belief: Belief) -> MissRates | None:
    """How often runs miss their target since the last change of the data; None if none ever did."""
    if not belief.misses:
        return None
    return miss_rates(counted(belief.by_slice, belief.max_epochs, belief.era))
