"""What the runs saved against always training the default batch size at full power, from the log alone. Pure.

``baseline.py`` states what is compared. A loss is a saving below 0.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import ProfileSample, Trial, Where
from airflow_provider_zeus.optimizer.policy import choose
from airflow_provider_zeus.reports.baseline import ONE_RUN, Baseline, Saved, bootstrap_means, epochs_of
from airflow_provider_zeus.reports.dataset import Dataset, as_dataset
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from airflow_provider_zeus.reports.runs import ENERGY, TIME, RunTrials, recurrences


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSum:
    """One run of the sum, in the unit of the cost."""

    run: RunTrials
    spent: float | None
    exploration: float | None
    baseline: Estimate  # the epochs of all runs are drawn together: their intervals add up


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """Against the default at full power, on one device. What is not known is None with its reason."""

    default_batch_size: int
    full_power_w: float | None  # None: the device has no limit
    runs: int  # runs that are counted
    cost: Saved  # Eq. 2
    energy: Saved
    time: Saved
    per_run: Estimate  # what a run of today's incumbent is expected to save on the newest slice, in ``cost.unit``
    break_even_run: int | None  # run (from 1) from which on the sum stays at or below the baseline's; None: not yet
    break_even_in: int | None  # further runs until then if each saves ``per_run``; None: reached, never, or not known
    steps: tuple[RunningSum, ...]  # oldest first
    where: Where | None
    left_out: dict[str, int]


def saving(
    trials: Iterable[Trial] | Dataset,
    job: ZeusJob,
    *,
    rng: random.Random,
    profiles: Sequence[ProfileSample] = (),
    where: Where | None = None,
) -> Savings:
    """Compute what the runs on one device (default: the newest) saved so far and are expected to save.

    :param profiles: samples of that device: they show what the default draws at full power.
    :param rng: draws the bootstrap.
    """
    log = as_dataset(trials, job, where).of_target()
    weights = Weights.of(job, log.device)
    runs, left_out = recurrences(log)
    base = Baseline.of(log, LimitProfiles.of(profiles), rng)
    cost = base.compare(runs, weights, "s" if weights.time_alone else "J")
    per_run = _per_run(log, base, weights, rng)
    why_not = "the size of its slice or its energy is not known"
    steps = tuple(
        RunningSum(
            run=run,
            spent=run.spent(weights),
            exploration=run.exploration(weights),
            baseline=base.epochs.times(epoch_cost, why_not),
        )
        for run, epoch_cost in zip(runs, base.epoch_costs(runs, weights), strict=True)
    )
    even_run, even_in = _break_even(steps), None
    if even_run is None and cost.saved.value is not None and (per_run.value or 0.0) > 0:
        even_in = max(math.ceil(-cost.saved.value / (per_run.value or 0.0)), 1)
    return Savings(
        default_batch_size=job.default_batch_size,
        full_power_w=base.full_power_w,
        runs=len(runs),
        cost=cost,
        energy=base.compare(runs, ENERGY, "J"),
        time=base.compare(runs, TIME, "s"),
        per_run=per_run,
        break_even_run=even_run,
        break_even_in=even_in,
        steps=steps,
        where=log.where,
        left_out=left_out,
    )


def _per_run(log: Dataset, base: Baseline, weights: Weights, rng: random.Random) -> Estimate:
    """Baseline minus a run of the incumbent, both of the newest slice; the interval draws the epochs of both."""
    belief = log.belief()
    settings = {"pause_exploration": True}
    b = choose(log.job, belief, device=log.device, settings=settings).attempts[-1].batch_size
    size = belief.slice_size[1] if belief.slice_size else None
    default_cost = base.epoch_cost(size, weights)
    if base.epochs.value is None or default_cost is None:
        known = base.epochs.value is not None  # a known figure may still say why it has no interval
        why = None if known else base.epochs.reason
        return Estimate.missing(why or "what the default draws at full power is not known")
    epochs = epochs_of(log, b)
    rates = belief.rates.get((b, log.where), ()) if log.where else ()
    costs = [c for _, r in rates if (c := r.epoch_cost(size, weights)) is not None]
    if not epochs or not costs:
        return Estimate.missing(f"what a run of the incumbent {b} costs here is not known")
    own_cost = math.fsum(costs) / len(costs)
    draws = base.draws if b == log.job.default_batch_size else bootstrap_means(epochs, rng)
    value = default_cost * base.epochs.value - own_cost * math.fsum(epochs) / len(epochs)
    pairs = zip(base.draws, draws, strict=True)
    estimate = Estimate.bootstrap(value, [default_cost * theirs - own_cost * own for theirs, own in pairs])
    return estimate.without_interval(ONE_RUN) if len(epochs) == 1 or base.epochs.low is None else estimate


def _break_even(steps: Sequence[RunningSum]) -> int | None:
    """Run (from 1) from which on the sum of costs stays at or below the baseline's."""
    pairs = [(s.spent, s.baseline.value) for s in steps]
    saved = [theirs - own for own, theirs in pairs if own is not None and theirs is not None]
    if not saved or len(saved) < len(pairs):
        return None
    behind = [total < 0 for total in accumulate(saved)]
    if behind[-1]:
        return None
    return len(behind) - next((i for i, late in enumerate(reversed(behind)) if late), len(behind)) + 1
