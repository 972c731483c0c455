"""Savings of runs against always training the default batch size at full power, from the log alone.
Pure.

``baseline.py`` states the comparison. A loss is a saving below 0.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import ProfileSample, Where
from airflow_provider_zeus.reports.baseline import (
    OURS,
    ROUNDING,
    THEIRS,
    Baseline,
    BestFixed,
    Saved,
    fixed,
    less,
)
from airflow_provider_zeus.reports.dataset import (
    ENERGY,
    TIME,
    Dataset,
    RunTrials,
    recurrences,
    total,
)
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from airflow_provider_zeus.reports.next_run import NextDecision
from airflow_provider_zeus.reports.set_aside import SetAside
from airflow_provider_zeus.reports.slice_epochs import estimate, estimates

if TYPE_CHECKING:
    from airflow_provider_zeus.reports.slice_paths import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSum:
    """One run of the sum, in the unit of the cost."""

    run: RunTrials
    spent: float | None
    exploration: float | None
    baseline: Estimate
    measured: bool  # the default itself ran, so the saving is not called an estimate
    saved: Estimate  # of all runs up to this one, as the chart draws the sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """Against the default at full power, on one device.

    An unknown figure is None with its reason.
    """

    default_batch_size: int
    full_power_w: float | None  # None: nothing was profiled, so texts name no limit
    runs: int
    measured: int  # told beside the sum: the more of them, the surer it is
    cost: Saved
    energy: Saved
    time: Saved
    # On the newest slice, since the next run trains on one like it.
    per_run: Estimate
    # Exploration is paid first: from this run (from 1) on the sum is no loss any more. None: not
    # yet.
    break_even_run: int | None
    # While it is a loss people ask when it pays: after so many runs that each save
    # ``per_run``. None: it has, never, or not known.
    break_even_in: int | None
    steps: tuple[RunningSum, ...]
    where: Where | None
    left_out: dict[str, int]
    base: Baseline = field(compare=False)  # its arrays have no single truth value
    # What runs today is what future runs save by. None: not known.
    best: BestFixed | None

    @property
    def aside(self) -> SetAside:
        """Failed and cleared tries, which are in none of the sums."""
        return SetAside.of(step.run for step in self.steps)

    @property
    def default_now(self) -> tuple[float, str] | None:
        """Cost of the newest run with the default, and its name: 100 % of a chart.

        None: not known.
        """
        # The newest slice is what the next run is like.
        for step in reversed(self.steps):
            if step.run.kept and step.baseline.value:
                return step.baseline.value, f"always {self.default_batch_size} now"
        return None


def saving(
    whole: Dataset,
    *,
    rng: random.Random | None = None,
    profiles: Sequence[ProfileSample] = (),
    decided: NextDecision | None = None,
) -> Savings:
    """Savings of the runs on the log's device so far, and the expected ones.

    :param whole: the log, runs to other targets too.
    :param profiles: samples of its device: they show the EpochCost of the default at full power.
    :param rng: as of :meth:`.Baseline.of`.
    :param decided: of this log; default: without live settings.
    """
    decided = decided or NextDecision.of(whole, profiles=profiles)
    ends = decided.settled
    log = whole.of_target()
    job = log.job
    weights = Weights.of(job, log.device)
    runs, left_out = recurrences(log)
    base = Baseline.of(log, LimitProfiles.of(profiles), rng)
    draws = base.draws(runs, weights)
    cost = base.compare(runs, weights, weights.unit, draws)
    best = fixed(ends, log, base, weights, profiled=LimitProfiles.of(profiles, job))
    per_run = _per_run(ends.batch_size, best, base, weights)
    steps = _steps(runs, base, weights, draws)
    even_run = _break_even(steps)
    even_in = None
    surely_saves = (per_run.low or 0.0) > 0
    is_projected = even_run is None and surely_saves
    # a projection from a saving that may be a loss would promise nothing
    if is_projected and cost.saved.value is not None:
        even_in = max(math.ceil(-cost.saved.value / (per_run.value or 0.0)), 1)
    return Savings(
        default_batch_size=job.default_batch_size,
        full_power_w=base.full_power_w,
        runs=len(runs),
        measured=sum(step.measured for step in steps),
        cost=cost,
        energy=base.compare(runs, ENERGY, "J"),
        time=base.compare(runs, TIME, "s"),
        per_run=per_run,
        break_even_run=even_run,
        break_even_in=even_in,
        steps=steps,
        where=log.where,
        left_out=left_out,
        base=base,
        best=best,
    )


def _break_even(steps: Sequence[RunningSum]) -> int | None:
    """The run (from 1) from which on the sum is no loss; None if it is one now, or is not known."""
    even_run = None
    # a later loss puts the end of the loss off
    for number, step in enumerate(steps, start=1):
        # A sum that is not known has no sign.
        if step.saved.value is None:
            return None
        if step.saved.value < 0:
            even_run = None
        elif even_run is None:
            even_run = number
    return even_run


def _steps(
    runs: Sequence[RunTrials], base: Baseline, weights: Weights, draws: Vector | None
) -> tuple[RunningSum, ...]:
    """Each run, and the sums up to it. Their intervals come from the same draws."""
    if draws is None:
        why_not = base.why_not or THEIRS
        baselines = so_far = [Estimate.missing(why_not)] * len(runs)
    else:
        baselines = estimates(draws)
        so_far = estimates(draws.cumsum(1))
    steps = list[RunningSum]()
    all_spent: float | None = 0.0
    for run, baseline, up_to_here in zip(runs, baselines, so_far, strict=True):
        spent = run.spent(weights)
        saved = Estimate.missing(OURS)
        # Unknown from the first unknown run on: a sum without it would look like the whole.
        all_spent = total([all_spent, spent])
        if all_spent is not None:
            saved = less(up_to_here, all_spent)
        step = RunningSum(
            run=run,
            spent=spent,
            exploration=run.exploration(weights),
            baseline=baseline,
            measured=run.id in base.ended,
            saved=saved,
        )
        steps.append(step)
    return tuple(steps)


def _per_run(b: int, best: BestFixed | None, base: Baseline, weights: Weights) -> Estimate:
    """Baseline minus a run of ``b``, both of the newest slice's difficulty."""
    # No baseline, no saving: the reason is the same.
    if base.why_not:
        return Estimate.missing(base.why_not)
    size = base.usual_size
    default_cost = base.epoch_cost(size, weights)
    if base.epochs is None or default_cost is None:
        return Estimate.missing("what the default draws at full power is not known")
    own_cost = None
    if best is not None:
        own_cost = best.epoch_cost(size, weights)
    if own_cost is None:
        return Estimate.missing(f"what a run of {b}, which runs now, costs here is not known")
    default_costs = default_cost.measured + base.off * default_cost.profiled
    own_costs: Vector | float = own_cost
    if math.isclose(own_cost, sum(default_cost), rel_tol=ROUNDING):
        own_costs = default_costs  # or the error of one profile would not cancel
    of_default = default_costs * base.epochs.on_newest_slice(base.batch_size)
    return estimate(of_default - own_costs * base.epochs.on_newest_slice(b))
