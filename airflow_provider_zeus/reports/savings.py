"""What the runs saved against always training the default batch size at full power, from the log alone. Pure.

``baseline.py`` states what is compared. A loss is a saving below 0.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import ProfileSample, Where
from airflow_provider_zeus.reports.baseline import OURS, ROUNDING, THEIRS, Baseline, BestFixed, Saved, fixed, less
from airflow_provider_zeus.reports.dataset import ENERGY, TIME, Dataset, RunTrials, recurrences
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from airflow_provider_zeus.reports.next_run import NextDecision
from airflow_provider_zeus.reports.slice_epochs import estimate, estimates

if TYPE_CHECKING:
    from airflow_provider_zeus.optimizer.knowledge_gradient.gp import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSum:
    """One run of the sum, in the unit of the cost."""

    run: RunTrials
    spent: float | None
    exploration: float | None
    baseline: Estimate  # of this run
    measured: bool  # whether the default itself trained to an end in it
    saved: Estimate  # by all runs up to this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """Against the default at full power, on one device. What is not known is None with its reason."""

    default_batch_size: int
    full_power_w: float | None  # None: the device has no limit
    runs: int  # runs that are counted
    measured: int  # of them those in which the default itself trained to an end
    cost: Saved  # Eq. 2
    energy: Saved
    time: Saved
    per_run: Estimate  # what a run of the size that runs now is expected to save on the newest slice, in ``cost.unit``
    break_even_run: int | None  # run (from 1) from which on the sum stays at or below the baseline's; None: not yet
    break_even_in: int | None  # further runs until then if each saves ``per_run``; None: reached, never, or not known
    steps: tuple[RunningSum, ...]  # oldest first
    where: Where | None
    left_out: dict[str, int]
    base: Baseline = field(compare=False)  # holds arrays
    best: BestFixed | None  # the size that runs where nothing is tried, at its best limit; None: not known

    @property
    def default_now(self) -> tuple[float, str] | None:
        """What the newest run would have cost with the default, and its name: 100 % of a chart. None: not known."""
        found = [step.baseline.value for step in self.steps if step.baseline.value and step.run.kept]
        return (found[-1], f"always {self.default_batch_size} now") if found else None


def saving(
    whole: Dataset,
    *,
    rng: random.Random | None = None,
    profiles: Sequence[ProfileSample] = (),
    decided: NextDecision | None = None,
) -> Savings:
    """Compute what the runs on the log's device saved so far and are expected to save.

    :param whole: the log, runs to other targets too.
    :param profiles: samples of its device: they show what the default draws at full power.
    :param rng: as of :meth:`.Baseline.of`.
    :param decided: of this log; default: without live settings.
    """
    ends, log = (decided or NextDecision.of(whole, profiles=profiles)).settled, whole.of_target()
    job = log.job
    weights = Weights.of(job, log.device)
    runs, left_out = recurrences(log)
    base = Baseline.of(log, LimitProfiles.of(profiles), rng)
    draws = base.draws(runs, weights)
    cost = base.compare(runs, weights, weights.unit, draws)
    best = fixed(ends, log, base, weights, LimitProfiles.of(profiles, job))
    per_run = _per_run(ends.batch_size, best, base, weights)
    steps = _steps(runs, base, weights, draws)
    totals, even_run, even_in = [s.saved.value for s in steps if s.saved.value is not None], None, None
    if totals and len(totals) == len(steps) and totals[-1] >= 0:
        below = next((i for i, saved in enumerate(reversed(totals)) if saved < 0), len(totals))
        even_run = len(totals) - below + 1
    if even_run is None and cost.saved.value is not None and (per_run.low or 0.0) > 0:
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


def _steps(runs: Sequence[RunTrials], base: Baseline, weights: Weights, draws: Vector | None) -> tuple[RunningSum, ...]:
    """Each run, and the sums up to it. Their intervals come from the same draws."""
    spent = [run.spent(weights) for run in runs]
    if draws is None:
        why_not = base.why_not or THEIRS
        each = so_far = [Estimate.missing(why_not)] * len(runs)
    else:
        each, so_far = estimates(draws), estimates(draws.cumsum(1))
    sums = accumulate(spent, lambda a, b: None if a is None or b is None else a + b)
    saved = [
        Estimate.missing(OURS) if ours is None else less(theirs, ours)
        for theirs, ours in zip(so_far, sums, strict=True)
    ]
    return tuple(
        RunningSum(
            run=run,
            spent=own,
            exploration=run.exploration(weights),
            baseline=theirs,
            measured=run.id in base.ended,
            saved=total,
        )
        for run, own, theirs, total in zip(runs, spent, each, saved, strict=True)
    )


def _per_run(b: int, best: BestFixed | None, base: Baseline, weights: Weights) -> Estimate:
    """Baseline minus a run of ``b``, both of the newest slice's difficulty."""
    size = base.belief.slice_size[1] if base.belief.slice_size else None
    default_cost = base.epoch_cost(size, weights)
    if base.why_not or base.epochs is None or default_cost is None:
        return Estimate.missing(base.why_not or "what the default draws at full power is not known")
    own_cost = None if best is None else best.epoch_cost(size, weights)
    if own_cost is None:
        return Estimate.missing(f"what a run of {b}, which runs now, costs here is not known")
    default_costs = default_cost.measured + base.off * default_cost.profiled
    is_default = math.isclose(own_cost, sum(default_cost), rel_tol=ROUNDING)  # it draws the same: by the same draws
    own_costs = default_costs if is_default else own_cost
    of_default, own = (base.epochs.on_newest_slice(size) for size in (base.batch_size, b))
    return estimate(default_costs * of_default - own_costs * own)
