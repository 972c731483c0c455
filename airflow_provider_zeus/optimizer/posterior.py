"""Posteriors of Epochs(b), EpochCost(b) [J] and their product, for both policies.

Under ``"zeus"`` Epochs(b) has the Gaussian posterior of its mean (Algorithm 2), under
``"knowledge_gradient"`` that of the Gaussian process, whose median the policy compares.
Only the latter imports numpy, lazily.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.optimizer.arms import arms_of, translated
from airflow_provider_zeus.optimizer.belief import Belief

NOWHERE = "its EpochCost was not measured on any device"


@contextmanager
def own_arithmetic() -> Iterator[None]:
    """Compute by numpy's defaults: a DAG file may have made underflow an error (``np.seterr``).

    Also a decorator.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None:  # not imported, so nobody can have changed it
        yield
        return
    with numpy.errstate(divide="warn", over="warn", under="ignore", invalid="warn"):
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """One batch size on one device.

    Costs are joules of Eq. 2, seconds if nothing measures energy.
    """

    epochs: Estimate
    epoch_cost: Estimate
    cost: Estimate
    # Another GPU's EpochCost ranks sizes, and is no measurement here.
    measured: bool

    def bounded(self, most_epochs: float) -> Posterior:
        """The same of a run that ends after ``most_epochs``, even below its target."""
        # Each end of the cost by the same end of EpochCost: with fewer epochs none is exceeded.
        most = self.epoch_cost.times(most_epochs)
        return replace(
            self,
            epochs=self.epochs.mapped(partial(min, most_epochs)),
            cost=replace(
                self.cost,
                value=_least(self.cost.value, most.value),
                low=_least(self.cost.low, most.low),
                high=_least(self.cost.high, most.high),
            ),
        )


def posteriors(
    belief: Belief,
    here: Mapping[int, float],
    there: Mapping[int, float],
    loads: Mapping[int, float] | None = None,
) -> dict[int, Posterior]:
    """Posteriors by batch size, ascending: of the job's batch sizes, and of all that have run.

    No run is believed to take more than the job's ``max_epochs``.

    :param here: EpochCost [J] measured on this device, by batch size (``arms.epoch_costs``).
    :param there: the same on another device, at the same weights (``arms.epoch_costs_elsewhere``).
    :param loads: share of MAXPOWER that training drew on this device,
        by batch size (``arms.loads``).
    """
    sizes = sorted({*belief.job.batch_sizes, *belief.newest_runs})
    if belief.job.policy == "zeus":
        by_size = _of_arms(belief, sizes, here, there)
    else:
        by_size = _of_gp(belief, here, there, loads)
    return {b: by_size[b].bounded(belief.max_epochs) for b in sizes}


def _least(figure: float | None, most: float | None) -> float | None:
    """The figure, but no more than ``most``, if both are known."""
    if figure is None or most is None:
        return figure
    return min(figure, most)


def _of_arms(
    belief: Belief, sizes: list[int], here: Mapping[int, float], there: Mapping[int, float]
) -> dict[int, Posterior]:
    arms = arms_of(belief, dict.fromkeys(sizes, 1.0))  # at an EpochCost of 1 costs are epochs
    costs = translated(here, there)
    by_size = {}
    never = Estimate.missing("no run of it that teaches has reached the target within the window")
    for b in sizes:
        epochs = never
        if b in arms:
            epochs = Estimate.normal(arms[b].mean, arms[b].sd)
        cost = Estimate.missing(NOWHERE)
        if b in costs:
            cost_j = costs[b]
            cost = Estimate(cost_j, reason="taken from another device")
            if b in here:
                cost = Estimate(cost_j, cost_j, cost_j)
        product = epochs.times(costs.get(b), NOWHERE)
        by_size[b] = Posterior(epochs=epochs, epoch_cost=cost, cost=product, measured=b in here)
    return by_size


def _of_gp(
    belief: Belief,
    here: Mapping[int, float],
    there: Mapping[int, float],
    loads: Mapping[int, float] | None,
) -> dict[int, Posterior]:
    from airflow_provider_zeus.optimizer.knowledge_gradient.epoch_cost import predicted

    gp = belief.gp
    costs = predicted(gp.sizes, here, there, default=belief.job.default_batch_size, drawn=loads)
    by_size = {}
    for i, b in enumerate(gp.sizes):
        mean = float(gp.mean[i])
        variance = float(gp.run_variance[i]) - gp.noise
        epochs = Estimate.missing("no run that teaches has shown its epochs yet")
        if belief.newest_runs:
            epochs = Estimate.log_normal(mean, math.sqrt(variance))
        epoch_cost = cost = Estimate.missing(NOWHERE)
        if costs is not None:
            log_cost = float(costs[0][i])
            spread = float(costs[1][i])
            epoch_cost = Estimate.log_normal(log_cost, math.sqrt(spread))
            cost = epochs
            if belief.newest_runs:
                cost = Estimate.log_normal(mean + log_cost, math.sqrt(variance + spread))
        by_size[b] = Posterior(epochs=epochs, epoch_cost=epoch_cost, cost=cost, measured=b in here)
    return by_size
