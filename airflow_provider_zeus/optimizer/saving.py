"""What the runs saved against always training the default batch size at full power, from the log alone. Pure.

The baseline of a run is Epochs(default) x EpochCost(default) at the highest limit profiled, for the slice of that run
(Eq. 6). Epochs(default) is the mean over the default's complete runs, drawn anew for the interval (bootstrap). A loss
is a saving below 0 and is said as plainly.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from airflow_provider_zeus.optimizer.baseline import ONE_RUN, Baseline, Saved, bootstrap_means, epochs_of
from airflow_provider_zeus.optimizer.cost import Weights
from airflow_provider_zeus.optimizer.estimate import Estimate
from airflow_provider_zeus.optimizer.evidence import Evidence, evidence
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.limits import Profiles
from airflow_provider_zeus.optimizer.policy import choose
from airflow_provider_zeus.optimizer.recurrences import ENERGY, TIME, Recurrence, recurrences
from airflow_provider_zeus.optimizer.trial import ProfileSample, Trial, Where


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedInAll(Saved):
    """Sums over runs; ``saved + exploration = settled``."""

    exploration: float | None  # part of ``spent`` that left no model: given up, died, excess of profiling
    settled: Estimate  # the saving without that part

    @property
    def lost(self) -> bool | None:
        """Whether the default at full power would have been cheaper; None where it cannot be told."""
        return None if self.saved.value is None else self.saved.value < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One run of it, in the unit of the cost."""

    run: Recurrence
    spent: float | None
    exploration: float | None
    baseline: Estimate  # of all steps drawn together: their intervals add up


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Against the default at full power, on one device. Everything is None with its reason where nothing is known."""

    default_batch_size: int
    full_power_w: float | None  # None: the device has no limit
    runs: int  # recurrences that are counted
    cost: SavedInAll  # Eq. 2
    energy: SavedInAll
    time: SavedInAll
    per_run: Estimate  # what a run of today's incumbent is expected to save on the newest slice, in ``cost.unit``
    break_even_run: int | None  # run (from 1) from which on the sum stays at or below the baseline's; None: not yet
    break_even_in: (
        int | None
    )  # where not yet: further runs until then if each saves ``per_run``; None: never, or unknown
    steps: tuple[Step, ...]  # oldest first
    where: Where | None
    left_out: dict[str, int]


def saving(
    trials: Iterable[Trial] | Evidence,
    job: ZeusJob,
    *,
    rng: random.Random,
    profiles: Sequence[ProfileSample] = (),
    where: Where | None = None,
) -> Saving:
    """What the recurrences on one device (default: the newest) saved so far and are expected to save.

    :param profiles: samples of that device: they tell what the default draws at full power.
    :param rng: draws the bootstrap.
    """
    log = evidence(trials, job, where).of_target()
    weights = Weights.of(job, log.device)
    runs, left_out = recurrences(log)
    base = Baseline.of(log, Profiles.of(profiles), rng)
    cost = _against(base, runs, weights, "s" if weights.time_alone else "J")
    per_run = _per_run(log, base, weights, rng)
    steps = _steps(base, runs, weights)
    even = _break_even(steps)
    return Saving(
        default_batch_size=job.default_batch_size,
        full_power_w=base.full_power_w,
        runs=len(runs),
        cost=cost,
        energy=_against(base, runs, ENERGY, "J"),
        time=_against(base, runs, TIME, "s"),
        per_run=per_run,
        break_even_run=even,
        break_even_in=_break_even_in(cost, per_run) if even is None else None,
        steps=steps,
        where=log.where,
        left_out=left_out,
    )


def _against(base: Baseline, runs: Sequence[Recurrence], weights: Weights, unit: str) -> SavedInAll:
    """Totals over the runs; a run without a model has no baseline, so that it is all loss."""
    spent = [r.spent(weights) for r in runs]
    exploring = [r.exploration(weights) for r in runs]
    each = _epoch_costs(base, runs, weights)
    known = [c for c in each if c is not None]
    why_not = base.why_not or (None if runs else "no run has ended yet")
    if why_not is None and (None in spent or len(known) < len(each)):
        why_not = "a figure of one of the runs is not known"
    total = None if None in spent else math.fsum(s for s in spent if s is not None)
    tried = None if None in exploring else math.fsum(e for e in exploring if e is not None)
    if why_not is not None or total is None:
        gone = Estimate.missing(why_not or "")
        return SavedInAll(unit=unit, spent=total, baseline=gone, saved=gone, exploration=tried, settled=gone)
    baseline = base.mean_epochs().times(math.fsum(known))
    saved = baseline.plus(-total)
    settled = Estimate.missing("what exploration cost is not known") if tried is None else saved.plus(tried)
    return SavedInAll(unit=unit, spent=total, baseline=baseline, saved=saved, exploration=tried, settled=settled)


def _per_run(log: Evidence, base: Baseline, weights: Weights, rng: random.Random) -> Estimate:
    """Baseline minus a run of the incumbent, both of the newest slice; the interval draws the epochs of both."""
    belief = log.belief()
    held = {"pause_exploration": True}
    b = choose(log.job, belief, device=log.device, settings=held).attempts[-1].batch_size
    size = belief.slice_size[1] if belief.slice_size else None
    theirs = base.epoch_cost(size, weights)
    epochs = epochs_of(log, b)
    costs = [
        c
        for _, r in (belief.rates.get((b, log.where), ()) if log.where else ())
        if (c := r.epoch_cost(size, weights)) is not None
    ]
    if base.why_not or theirs is None:
        return Estimate.missing(base.why_not or "what the default draws at full power is not known")
    if not epochs or not costs:
        return Estimate.missing(f"what a run of the incumbent {b} costs here is not known")
    ours = math.fsum(costs) / len(costs)
    means = base.means if b == log.job.default_batch_size else bootstrap_means(epochs, rng)
    value = theirs * math.fsum(base.epochs) / len(base.epochs) - ours * math.fsum(epochs) / len(epochs)
    estimate = Estimate.bootstrap(value, [theirs * t - ours * o for t, o in zip(base.means, means, strict=True)])
    return estimate.without_interval(ONE_RUN) if min(len(epochs), len(base.epochs)) == 1 else estimate


def _steps(base: Baseline, runs: Sequence[Recurrence], weights: Weights) -> tuple[Step, ...]:
    """Run by run; one without a model has no baseline, so that it is all loss."""
    mean = Estimate.missing(base.why_not) if base.why_not else base.mean_epochs()
    each = _epoch_costs(base, runs, weights)
    why_not = "the size of its slice or its energy is not known"
    return tuple(
        Step(
            run=r,
            spent=r.spent(weights),
            exploration=r.exploration(weights),
            baseline=mean.times(epoch_cost, why_not),
        )
        for r, epoch_cost in zip(runs, each, strict=True)
    )


def _epoch_costs(base: Baseline, runs: Sequence[Recurrence], weights: Weights) -> list[float | None]:
    """An epoch of the default on the slice of each run; worked out once for slices of one size."""
    of_size = {size: base.epoch_cost(size, weights) for size in {r.samples_per_epoch for r in runs if r.kept}}
    return [of_size[r.samples_per_epoch] if r.kept else 0.0 for r in runs]


def _break_even(steps: Sequence[Step]) -> int | None:
    """Run (from 1) from which on the sum of costs stays at or below the baseline's."""
    pairs = [(s.spent, s.baseline.value) for s in steps]
    saved = [theirs - ours for ours, theirs in pairs if ours is not None and theirs is not None]
    if not saved or len(saved) < len(pairs):
        return None
    behind = [total < 0 for total in accumulate(saved)]
    if behind[-1]:
        return None
    return len(behind) - next((i for i, late in enumerate(reversed(behind)) if late), len(behind)) + 1


def _break_even_in(cost: SavedInAll, per_run: Estimate) -> int | None:
    if cost.saved.value is None or per_run.value is None or per_run.value <= 0:
        return None
    return max(math.ceil(-cost.saved.value / per_run.value), 1)
