"""What is believed of each batch size, in one form for both policies: Epochs(b), EpochCost(b) [J], their product.

Under ``"zeus"`` Epochs(b) is the Gaussian posterior of its mean (Algorithm 2), under ``"knowledge_gradient"`` the
surrogate's, whose middle is the figure that the policy compares. numpy is imported for that one alone, lazily.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_zeus.optimizer.arms import arms_of, translated
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.estimate import Estimate

NEVER = "it has not reached the target within the window"
NOWHERE = "its EpochCost was not measured on any device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Believed:
    """One batch size on one device. Costs are joules of Eq. 2, seconds where nothing measures energy."""

    batch_size: int
    epochs: Estimate
    epoch_cost: Estimate
    cost: Estimate  # of a run to the target
    measured: bool  # whether EpochCost was measured on this device; else it is another GPU's, shifted


def believed(
    belief: Belief,
    here: Mapping[int, float],
    there: Mapping[int, float],
    loads: Mapping[int, float] | None = None,
) -> dict[int, Believed]:
    """By batch size, ascending: the job's, and those of earlier lists that have run.

    :param here: EpochCost [J] measured on this device, by batch size (``arms.epoch_costs``).
    :param there: the same on another device, at the same weights (``arms.epoch_costs_elsewhere``).
    :param loads: share of MAXPOWER that training drew on this device, by batch size (``arms.loads``).
    """
    own = {b for _, b, _ in (*belief.converged, *belief.stopped)}
    sizes = sorted({*belief.job.batch_sizes, *own})
    if belief.job.policy == "zeus":
        found = _gaussian(belief, sizes, here, there)
    else:
        found = _surrogate(belief, here, there, loads)
    gone = Estimate.missing("its runs are older than the last change of the data")
    unknown = {"epochs": gone, "epoch_cost": gone, "cost": gone, "measured": False}
    return {b: found.get(b) or Believed(batch_size=b, **unknown) for b in sizes}  # type: ignore[arg-type]


def ranking(belief: Belief, here: Mapping[int, float], there: Mapping[int, float]) -> list[Believed]:
    """Batch sizes that reached the target on any GPU, by what they are believed to cost on this one (section 7).

    Epochs(b) from every GPU x EpochCost(b) of this one, as far as it is known; where it is not, the other GPU's is
    shifted to this one's level. Those of unknown cost are left out.
    """
    reached = belief.reached & set(belief.job.batch_sizes)
    known = [(one.cost.value, b, one) for b, one in believed(belief, here, there).items() if b in reached]
    return [one for _, _, one in sorted((cost, b, one) for cost, b, one in known if cost is not None)]


def _gaussian(
    belief: Belief, sizes: list[int], here: Mapping[int, float], there: Mapping[int, float]
) -> dict[int, Believed]:
    arms = arms_of(belief, dict.fromkeys(sizes, 1.0))  # an EpochCost of 1: costs are epochs
    costs = translated(here, there)
    found = {}
    for b in sizes:
        epochs = Estimate.normal(arms[b].mean, arms[b].sd) if b in arms else Estimate.missing(NEVER)
        cost = Estimate.missing(NOWHERE) if b not in costs else Estimate(costs[b], costs[b], costs[b])
        if b in costs and b not in here:
            cost = cost.without_interval("taken from another device")
        product = epochs.times(costs.get(b), NOWHERE)
        found[b] = Believed(batch_size=b, epochs=epochs, epoch_cost=cost, cost=product, measured=b in here)
    return found


def _surrogate(
    belief: Belief, here: Mapping[int, float], there: Mapping[int, float], loads: Mapping[int, float] | None
) -> dict[int, Believed]:
    from airflow_provider_zeus.optimizer.epoch_cost import predicted

    surrogate = belief.surrogate
    costs = predicted(surrogate.sizes, here, there, belief.job.default_batch_size, loads)
    anything = bool(belief.converged or belief.stopped)
    found = {}
    for i, b in enumerate(surrogate.sizes):
        mean, variance = float(surrogate.mean[i]), float(surrogate.cov[i, i])
        epochs = Estimate.log_normal(mean, math.sqrt(variance)) if anything else Estimate.missing("nothing has run yet")
        epoch_cost = cost = Estimate.missing(NOWHERE)
        if costs is not None:
            log_cost, spread = float(costs[0][i]), float(costs[1][i])
            epoch_cost = Estimate.log_normal(log_cost, math.sqrt(spread))
            cost = Estimate.log_normal(mean + log_cost, math.sqrt(variance + spread)) if anything else epochs
        found[b] = Believed(batch_size=b, epochs=epochs, epoch_cost=epoch_cost, cost=cost, measured=b in here)
    return found
