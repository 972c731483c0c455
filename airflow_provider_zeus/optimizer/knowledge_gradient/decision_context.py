"""Inputs of one decision of the policy ``"knowledge_gradient"``. Pure; needs numpy."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import DeviceInfo, ProfileSample
from airflow_provider_zeus.optimizer.belief import UNKNOWN, Belief
from airflow_provider_zeus.optimizer.knowledge_gradient.acquisition import Choice, Predictions
from airflow_provider_zeus.optimizer.knowledge_gradient.candidates import in_reach, log_factors_after
from airflow_provider_zeus.optimizer.knowledge_gradient.epoch_cost import predicted
from airflow_provider_zeus.optimizer.knowledge_gradient.gp import P_FAIL, Vector
from airflow_provider_zeus.optimizer.thompson.arms import epoch_costs, epoch_costs_elsewhere, loads
from airflow_provider_zeus.optimizer.thompson.pruning import start_at

RELIABILITY_RUNS = 5  # newest complete runs whose share of successes counts
NEAR_FACTOR, NEAR_AFTER = 1.1, 60  # a size believed to cost up to 1.1 x the incumbent returns after so many recurrences
UNTRIED_SD = 0.35  # one never run is tried where it is believed dearer by so many standard deviations at most
RETURN_BOUND = 0.75  # what has not run for a window is given up at .75 x the incumbent's cost
RETURN_DEAR = 1.5  # if it is believed to cost more than 1.5 x as much; else at beta x


@lru_cache(maxsize=256)
def _trusted_and_success(
    sizes: tuple[int, ...], trusted: frozenset[int], reached: frozenset[int]
) -> tuple[tuple[bool, ...], Vector]:
    """(whether each size may be the incumbent, its probability of success where no complete run missed the target).

    Shared: do not modify.
    """
    success = np.array([1.0 if b in reached else 1.0 - P_FAIL for b in sizes])
    return tuple(b in trusted for b in sizes), success


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
    loads: Mapping[int, float]  # share of MAXPOWER that training drew on this device
    newest_runs: Mapping[int, int]  # trial number of the newest run of each batch size
    missed: frozenset[int]  # sizes that have converged, and whose newest run was complete and missed the target

    @classmethod
    def of(
        cls, job: ZeusJob, belief: Belief, device: DeviceInfo | None, profiles: Sequence[ProfileSample]
    ) -> DecisionContext:
        """The context of the next decision of this job on this device."""
        weights, model = Weights.of(job, device), UNKNOWN if device is None else device.model
        feasible = frozenset(job.batch_sizes) - belief.barred(model, job.batch_sizes)
        converged, sizes, newest = belief.reached & feasible, belief.gp.sizes, belief.newest_runs
        max_epochs = float(job.max_epochs or 1)
        return cls(
            job=job,
            belief=belief,
            weights=weights,
            all_sizes=sizes,
            feasible=feasible,
            converged=converged,
            in_reach=in_reach(sizes, feasible, converged),
            epoch_costs=epoch_costs(belief, device, profiles, weights),
            epoch_costs_elsewhere=epoch_costs_elsewhere(belief, device, weights),
            loads=loads(belief, device),
            newest_runs=newest,
            missed=converged & {b for n, b, epochs in belief.stopped if epochs >= max_epochs and newest[b] == n},
        )

    def predictions(self) -> Predictions | None:
        """Predictions for all sizes; None where no EpochCost is known on any device."""
        default = self.job.default_batch_size
        costs = predicted(self.all_sizes, self.epoch_costs, self.epoch_costs_elsewhere, default, self.loads)
        if costs is None:
            return None
        may_be_incumbent = self.converged - self.missed or self.converged
        trusted, success = _trusted_and_success(self.all_sizes, may_be_incumbent, self.belief.reached)
        return Predictions(
            gp=self.belief.gp,
            log_epoch_cost=costs[0],
            epoch_cost_variance=costs[1],
            log_factors=log_factors_after(self.all_sizes, self.feasible, self.converged),
            trusted=trusted,
            success=self._success(success),
            max_epochs=float(self.job.max_epochs or 1),
            age=self.belief.age(),
            beta=self.job.beta,
        )

    def _success(self, unmissed: Vector) -> Vector:
        """Probability that a complete run reaches its target. Eq. KG-18 of docs/knowledge-gradient.md.

        Of a size that has reached it, only the runs since the last change before its newest run count.

        :param unmissed: the probability of each size where no complete run missed the target.
        """
        max_epochs, belief = float(self.job.max_epochs or 1), self.belief
        missed = [(n, b, False) for n, b, epochs in belief.stopped if epochs >= max_epochs]
        if not missed:
            return unmissed
        eras, reached = [0, *(change.since for change in belief.changes)], belief.reached
        success = dict(zip(self.all_sizes, unmissed.tolist(), strict=True))
        for size in {b for _, b, _ in missed} & success.keys():
            runs = sorted(
                (n, ok) for n, b, ok in [*((n, b, True) for n, b, _ in belief.converged), *missed] if b == size
            )
            start = max(n for n in eras if n <= runs[-1][0]) if size in reached else 0
            newest = [ok for n, ok in runs if n >= start][-RELIABILITY_RUNS:]
            success[size] *= (1 + sum(newest)) / (1 + len(newest))
        return np.array(list(success.values()))

    def returning(self, predictions: Predictions, incumbent: int) -> Choice | None:
        """The size that is due to run again, to find improvements that no current run shows; None where none is due.

        Of the sizes in reach that are due, the one believed cheapest. Due is a size

        - that has reached the target before and missed it in its newest run, which may have been chance;
        - that is nearly as cheap as the incumbent and has not run for :data:`NEAR_AFTER` converged runs;
        - that has never run and may well be cheaper, where no other new size ran lately;
        - that has not run for a whole window;
        - whose only run within the window was cheaper than the incumbent.

        Its bound is Eq. KG-31 of docs/knowledge-gradient.md.
        """
        belief, newest = self.belief, self.newest_runs
        lately = belief.converged[-NEAR_AFTER][0] if len(belief.converged) >= NEAR_AFTER else 0
        oldest = belief.window_start()
        if not lately and not oldest and not self.missed:
            return None
        log_cost = predictions.log_cost
        dearer, epoch_cost = log_cost - log_cost[incumbent], np.exp(predictions.log_epoch_cost)
        incumbent_cost = math.exp(log_cost[incumbent])
        single = self._single_runs(oldest) if oldest else {}
        untried = self._untried(predictions, dearer, lately) if lately else ()

        def due(i: int, b: int) -> bool:
            near = b in newest and newest[b] < lately and dearer[i] < math.log(NEAR_FACTOR)
            if b in self.missed or b in untried or near:
                return True
            cheaper_once = single.get(b, math.inf) * epoch_cost[i] < incumbent_cost
            return bool(oldest) and (newest.get(b, 0) < oldest or cheaper_once)

        waiting = [i for i, b in enumerate(self.all_sizes) if self.in_reach[i] and i != incumbent and due(i, b)]
        if not waiting:
            return None
        index = min(waiting, key=lambda i: float(dearer[i]))
        dear = dearer[index] > math.log(RETURN_DEAR)
        return Choice(index, 0.0, incumbent_cost * (RETURN_BOUND if dear else self.job.beta))

    def never_ran(self, b: int) -> bool:
        """Whether it has had no run at all, as far as is known while the window is not full."""
        return b not in self.newest_runs and not self.belief.window_start()

    def _untried(self, predictions: Predictions, dearer: Vector, lately: int) -> Collection[int]:
        """Sizes never run that may well be cheaper. Eq. KG-32 of docs/knowledge-gradient.md.

        None where another size ran for the first time since trial number ``lately``.
        """
        ran, belief = self.newest_runs, self.belief
        new = [i for i, b in enumerate(self.all_sizes) if b not in ran and self.in_reach[i]]
        if not new or {b for n, b, _ in (*belief.converged, *belief.stopped) if n < lately} != ran.keys():
            return ()
        sd = np.sqrt(predictions.gp.cov.diagonal() + predictions.epoch_cost_variance)
        return [self.all_sizes[i] for i in new if dearer[i] < UNTRIED_SD * sd[i]]

    def _single_runs(self, oldest: int) -> dict[int, float]:
        """Epochs of the batch sizes that ran once since trial number ``oldest`` and reached the target."""
        stopped = {b for n, b, _ in self.belief.stopped if n >= oldest}
        epochs: dict[int, list[float]] = {}
        for n, b, e in self.belief.converged:
            if n >= oldest and b not in stopped:
                epochs.setdefault(b, []).append(e)
        return {b: runs[0] for b, runs in epochs.items() if len(runs) == 1}

    def start_size(self) -> int:
        """The default batch size; where it does not fit, the nearest that does."""
        sizes = sorted(self.job.batch_sizes)
        return start_at(self.job.default_batch_size, sizes, [b for b in sizes if b not in self.feasible])
