"""Inputs of one decision of the policy ``"knowledge_gradient"``. Pure; needs numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import DeviceInfo, ProfileSample
from airflow_provider_zeus.optimizer.arms import (
    epoch_cost_variance,
    epoch_costs,
    epoch_costs_elsewhere,
    loads,
    profiled_epoch_costs,
)
from airflow_provider_zeus.optimizer.belief import UNKNOWN, Belief
from airflow_provider_zeus.optimizer.knowledge_gradient.acquisition import (
    CAUTION,
    HORIZON,
    Predictions,
    in_reach,
    log_factors_after,
)
from airflow_provider_zeus.optimizer.knowledge_gradient.epoch_cost import predicted
from airflow_provider_zeus.optimizer.knowledge_gradient.gp import P_FAIL, Vector
from airflow_provider_zeus.optimizer.knowledge_gradient.run_times import RunTimes
from airflow_provider_zeus.optimizer.reasons import Why
from airflow_provider_zeus.optimizer.thompson import start_at

EXTRA_SHARE = 0.02  # what tries may cost besides what was saved: share of the runs of the default


class DecisionContext(NamedTuple):
    """The job, its posterior and its EpochCosts on one device."""

    job: ZeusJob
    belief: Belief
    weights: Weights
    all_sizes: tuple[int, ...]  # of the Gaussian process, ascending: the job's, and those that only earlier runs had
    feasible: frozenset[int]
    converged: frozenset[int]  # feasible sizes that reached the target at least once
    in_reach: Sequence[bool]  # per size of all_sizes: whether it may be tried
    epoch_costs: Mapping[int, float]  # [J], measured on this device
    epoch_costs_elsewhere: Mapping[int, float]  # [J], measured on another one
    epoch_cost_variance: Mapping[int, float]  # of ln EpochCost, by how much the runs on this device vary
    loads: Mapping[int, float]  # share of MAXPOWER that training drew on this device
    newest_runs: Mapping[int, int]  # trial number of the newest run of each batch size
    missed: frozenset[int]  # sizes that have converged, and whose newest run was complete and missed the target
    horizon: float  # recurrences that will use the answer of a try
    times: RunTimes | None  # of a job with a deadline

    @classmethod
    def of(
        cls,
        job: ZeusJob,
        belief: Belief,
        device: DeviceInfo | None,
        profiles: Sequence[ProfileSample],
        runs_left: int | None = None,
        times: RunTimes | None = None,
    ) -> DecisionContext:
        """The context of the next decision of this job on this device.

        :param runs_left: recurrences after the next one; None: many.
        :param times: of a job with a deadline: EpochCost is then that of the limits that are fast enough.
        """
        weights, model = Weights.of(job, device), UNKNOWN if device is None else device.model
        if times is not None and not times.fitting(belief.reached - belief.barred(model, job.batch_sizes)):
            weights = weights.hurried()
        feasible = frozenset(job.batch_sizes) - belief.barred(model, job.batch_sizes)
        converged, sizes, newest = belief.reached & feasible, belief.gp.sizes, belief.newest_runs
        missed = converged & {b for n, b, _ in belief.misses if newest[b] == n and n not in belief.hopeless}
        if converged <= missed:  # all that reached the target before miss it now: begin again
            converged = missed = frozenset[int]()
        costs = epoch_costs(belief, device, profiles, weights)
        if times is not None and not weights.fastest:
            slowdowns = {b: max(times.slowdown(b), 1.0) for b in times.most_s}
            costs |= profiled_epoch_costs(belief, device, profiles, weights, slowdowns)
        return cls(
            job=job,
            belief=belief,
            weights=weights,
            all_sizes=sizes,
            feasible=feasible,
            converged=converged,
            in_reach=in_reach(sizes, feasible, converged),
            epoch_costs=costs,
            epoch_costs_elsewhere=epoch_costs_elsewhere(belief, device, weights),
            epoch_cost_variance=epoch_cost_variance(belief, device, weights),
            loads=loads(belief, device),
            newest_runs=newest,
            missed=missed,
            horizon=HORIZON if runs_left is None else min(HORIZON, float(runs_left)),
            times=times,
        )

    def with_room_after(self, incumbent: int, predictions: Predictions) -> tuple[DecisionContext, Predictions]:
        """Context and predictions in which a try leaves time enough for the incumbent after it."""
        times = self.times
        if times is None:
            return self, predictions
        near = zip(self.all_sizes, self.in_reach, strict=True)
        context = self._replace(in_reach=[ok and times.may_try(b, incumbent) for b, ok in near])
        epochs = np.array([times.epochs_before(b, incumbent) for b in self.all_sizes])
        return context, predictions._replace(most_cost=np.exp(predictions.log_epoch_cost) * epochs)

    def standing(self, predictions: Predictions, incumbent: int) -> str:
        """Why the incumbent is the incumbent; another size may be believed cheaper, but not surely.

        :param incumbent: its index.
        """
        fit = frozenset[int]() if self.times is None else self.times.fitting(self.converged)
        costs = dict(zip(self.all_sizes, predictions.log_cost.tolist(), strict=True))
        cheapest = min(costs[b] for b in fit or self.converged) >= costs[self.all_sizes[incumbent]]
        return (Why.CHEAPEST if cheapest else Why.NONE_SURELY_CHEAPER).of(
            adjective="cheap" if fit or self.times is None else "fast",
            known="that is fast enough" if fit else "to reach the target",
        )

    def predictions(self) -> Predictions | None:
        """Predictions for all sizes; None where no EpochCost is known on any device."""
        default = self.job.default_batch_size
        costs = predicted(self.all_sizes, self.epoch_costs, self.epoch_costs_elsewhere, default, self.loads)
        if costs is None:
            return None
        noise = np.array([self.epoch_cost_variance.get(b, 0.0) for b in self.all_sizes])
        may_be_incumbent = self.converged - self.missed
        if self.times is not None:
            may_be_incumbent = self.times.fitting(may_be_incumbent) or may_be_incumbent
        caution: Vector = np.zeros(len(noise))
        if default in may_be_incumbent:  # what counts against each size beside it where the incumbent is chosen
            at, variance = self.all_sizes.index(default), costs[1] + noise
            variance = self.belief.gp.difference_sd**2 + variance + variance[at]
            variance[at] = 0.0
            caution = CAUTION * np.sqrt(variance)
        return Predictions(
            gp=self.belief.gp,
            log_epoch_cost=costs[0],
            epoch_cost_variance=costs[1] + noise,
            unmeasured=costs[1] > 0,
            log_factors=log_factors_after(self.all_sizes, self.feasible, self.converged),
            trusted=[b in may_be_incumbent for b in self.all_sizes],
            success=self.success(),
            caution=caution,
            max_epochs=self.belief.max_epochs,
            horizon=self.horizon,
            allowance=self._allowance(np.exp(costs[0])),
        )

    def _allowance(self, epoch_costs: Vector) -> float:
        """Expected cost [J] of a recurrence above which a try is a loss. Eq. KG-23 of docs/knowledge-gradient.md.

        :param epoch_costs: EpochCost [J] of all sizes.
        """
        total, _, spent = self.totals(epoch_costs)
        default, n = self.all_sizes.index(self.job.default_batch_size), self.belief.epochs.newest.account.slices
        next_run = float(epoch_costs[default]) * math.exp(float(self.belief.gp.mean[default]))
        return next_run + total - spent + EXTRA_SHARE * (n + 1) * total / max(n, 1)

    def totals(self, epoch_costs: Vector) -> tuple[float, float, float]:
        """Cost [J] of always the default so far, its part on slices on which it did not run, and what was spent."""
        account, cost = self.belief.epochs.newest.account, dict(zip(self.all_sizes, epoch_costs.tolist(), strict=True))
        total, one = self.belief.epochs.default_total(), cost[self.job.default_batch_size]
        spent = math.fsum(epochs * cost[b] for b, epochs in account.trained.items())
        return total * one, (total - account.default_epochs) * one, spent

    def success(self, skipped: frozenset[int] | None = None) -> Vector:
        """Probability that a complete run of each size reaches its target. Eq. KG-21 of docs/knowledge-gradient.md.

        Of a size that has reached it, only the runs since the last change before its newest run count.

        :param skipped: numbers of the runs that do not count; default: those on hopeless slices.
        """
        belief = self.belief
        skipped = belief.hopeless if skipped is None and belief.misses else skipped or frozenset()
        missed = [(n, b, False) for n, b, _ in belief.misses if n not in skipped]
        success = {b: 1.0 if b in belief.reached else 1.0 - P_FAIL for b in self.all_sizes}
        eras, reached = [0, *(change.since for change in belief.changes)], belief.reached
        for size in {b for _, b, _ in missed} & success.keys():
            runs = sorted(
                (n, ok) for n, b, ok in [*((n, b, True) for n, b, _ in belief.converged), *missed] if b == size
            )
            start = max(n for n in eras if n <= runs[-1][0]) if size in reached else 0
            counted = [ok for n, ok in runs if n >= start]
            success[size] *= (1 + sum(counted)) / (1 + len(counted))
        return np.array(list(success.values()))

    def start_size(self) -> int:
        """The default batch size; where it does not fit, the nearest that does."""
        sizes = sorted(self.job.batch_sizes)
        return start_at(self.job.default_batch_size, sizes, [b for b in sizes if b not in self.feasible])
