"""The attempts of a job that chooses its start: a candidate is a batch size with a start.

Pure; needs numpy.

The same acquisition decides as for batch sizes alone, over pairs: first all sizes from a cold
start, as they are without starts, then all sizes from each other start. EpochCost does not depend
on the start. Log Epochs of a start have a filter of their own (``slice_filter.py``) whose level
begins near the cold one's: so warm and shrunk runs move nothing of c(b), a start has its own slope
over the batch sizes, and after a change of the data it is as unknown as c.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import (
    Lineage,
    Phase,
    PlannedAttempt,
)
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.knowledge_gradient import policy
from airflow_provider_zeus.optimizer.knowledge_gradient.acquisition import (
    Choice,
    Predictions,
    barred_after,
    best,
    in_reach,
)
from airflow_provider_zeus.optimizer.knowledge_gradient.decision_context import DecisionContext
from airflow_provider_zeus.optimizer.knowledge_gradient.epochs import EpochsModel
from airflow_provider_zeus.optimizer.knowledge_gradient.gp import P_FAIL, GaussianProcess, by_size
from airflow_provider_zeus.optimizer.knowledge_gradient.policy import (
    PREDICTED,
    Attempts,
    bounded,
    try_of,
    why_no_try,
)
from airflow_provider_zeus.optimizer.knowledge_gradient.slice_filter import JUMP
from airflow_provider_zeus.optimizer.reasons import Why
from airflow_provider_zeus.optimizer.slices import in_slices
from airflow_provider_zeus.optimizer.starts import RUNS_KEPT, StartRun, cold_is_due, possible

# A warm start mostly takes fewer epochs: in ln, by seven real series.
LEVEL = -0.5
LEVEL_SD = 1.2
WALK_SD = 0.1  # what a start is worth is forgotten while it does not run
NEWEST = 6  # a start's worth changes with the data, so few runs tell it

Pair = tuple[int, Start]


class StartModel(NamedTuple):
    """What is believed of one start other than cold."""

    start: Start
    runs: Sequence[StartRun]
    gp: GaussianProcess

    @property
    def reached(self) -> frozenset[int]:
        """Batch sizes that reached the target from it."""
        return frozenset(run.batch_size for run in self.runs if run.reached)


class Pairs(NamedTuple):
    """Predictions over pairs, and which of them may be tried."""

    pairs: tuple[Pair, ...]
    predictions: Predictions
    in_reach: Sequence[bool]


def recommend(context: DecisionContext, only: int | None = None) -> Attempts:
    """The attempts of the next recurrence, each with its start.

    :param only: the batch size that is pinned.
    """
    belief = context.belief
    lineage = context.lineage
    starts, why_cold = possible(context.job, belief.starts, belief.served, lineage)
    if not starts or lineage is None:
        return _cold(policy.recommend(context), why_cold)
    models = [_model(belief, start, lineage) for start in starts]
    base = context.predictions()
    none_known = not context.converged and not any(
        model.reached & context.feasible for model in models
    )
    if base is None or none_known:
        return _before_any(context, models, why_cold)
    candidates = _pairs(context, base, models)
    if only is not None:
        trusted = [
            ok and b == only
            for ok, (b, _) in zip(candidates.predictions.trusted, candidates.pairs, strict=True)
        ]
        start = Start.COLD
        if any(trusted):
            predictions = candidates.predictions._replace(trusted=trusted)
            start = candidates.pairs[predictions.incumbent()][1]
        return (PlannedAttempt(batch_size=only, phase=Phase.PINNED, why="", start=start),)
    first, *after = _attempts(context, candidates, lineage)
    return first.saying(why_cold), *after


def _cold(attempts: Attempts, why: str) -> Attempts:
    first, *after = (replace(attempt, start=Start.COLD) for attempt in attempts)
    return first.saying(why), *after


def _before_any(context: DecisionContext, models: Sequence[StartModel], why_cold: str) -> Attempts:
    """The attempt before any run reached its target: a new start comes before another size."""
    untried = [model.start for model in models if not model.runs]
    b = context.start_size()
    if (
        context.obstacle is None
        and untried
        and b in context.belief.newest_runs
        and not context.belief.newest[1]
    ):
        why = Why.START_BEFORE_SIZE.of(b=b, start=untried[0])
        return (PlannedAttempt(batch_size=b, phase=Phase.EXPLORE, why=why, start=untried[0]),)
    return _cold(policy.recommend(context), why_cold)


def _attempts(context: DecisionContext, candidates: Pairs, lineage: Lineage) -> Attempts:
    """A try and the incumbent pair after it; that pair alone; or the cold run that is due."""
    pairs = candidates.pairs
    predictions = candidates.predictions
    index = predictions.incumbent()
    b, start = pairs[index]
    if start is not Start.COLD:
        due = _cold_that_is_due(context, candidates, lineage)
        if due is not None:
            return (due,)
    standing = Why.NO_PAIR_SURELY_CHEAPER.of()
    obstacle = why_no_try(context)
    if obstacle is None:
        choice = best(predictions, index, candidates.in_reach)
        if choice.index != index:
            tried = _tried(context, candidates, choice, incumbent=index)
            name = _name(pairs[choice.index])
            why = context.belief.why_another.of(
                tried=name, b=_name(pairs[index]), standing=standing
            )
            return tried, PlannedAttempt(batch_size=b, phase=Phase.INCUMBENT, why=why, start=start)
        obstacle = Why.NOT_WORTH_IT.of()
    why = Why.RUNS.of(obstacle=obstacle, b=_name(pairs[index]), standing=standing)
    return _unless_it_misses(
        context,
        candidates,
        PlannedAttempt(batch_size=b, phase=Phase.INCUMBENT, why=why, start=start),
    )


def _cold_that_is_due(
    context: DecisionContext, candidates: Pairs, lineage: Lineage
) -> PlannedAttempt | None:
    """The cold run that is due, so that no chain of models grows too long; None if none is."""
    predictions = candidates.predictions
    sizes = context.all_sizes
    costs = by_size(sizes, np.exp(predictions.log_cost)[: len(sizes)])
    trusted = [b for i, b in enumerate(sizes) if predictions.trusted[i]]
    cold = min(trusted, key=costs.__getitem__, default=context.start_size())
    # EpochCost does not depend on the start: that of the cold pairs, the first ones, is enough.
    epoch_costs = by_size(sizes, np.exp(predictions.log_epoch_cost)[: len(sizes)])
    why = cold_is_due(
        context.job, context.belief.starts, lineage, cold_cost=costs[cold], epoch_costs=epoch_costs
    )
    if why is None:
        return None
    return PlannedAttempt(batch_size=cold, phase=Phase.INCUMBENT, why=why, start=Start.COLD)


def _unless_it_misses(
    context: DecisionContext, candidates: Pairs, attempt: PlannedAttempt
) -> Attempts:
    """The incumbent pair, and from the earlier model the best other start after it.

    The pair is given up at that start's cost to its target: so a run that would miss its target
    costs at most twice as much as the better start.
    """
    predictions = candidates.predictions
    starts = context.belief.starts
    known_here = attempt.batch_size in context.epoch_costs  # another device's joules bound no run
    if attempt.start is Start.COLD or context.times is not None or not known_here:
        return (attempt,)
    trusted = [i for i, may_be_incumbent in enumerate(predictions.trusted) if may_be_incumbent]
    others = [i for i in trusted if candidates.pairs[i][1] is not attempt.start]
    if not others:
        return (attempt,)
    index = min(others, key=lambda i: predictions.log_cost[i])
    b, start = candidates.pairs[index]
    reached = [run for run in starts if run.reached]
    took = [run.epochs for run in reached if (run.batch_size, run.start) == (b, start)][-NEWEST:]
    epochs = math.exp(predictions.gp.mean[index])
    if took:
        epochs = math.fsum(took) / len(took)
    # no epoch is lost by rounding
    limit = epochs * math.exp(predictions.log_epoch_cost[index]) * (1.0 + 1e-9)
    first = bounded(context, attempt, limit)
    sentence = Why.AFTER_TRY if first.bounded else Why.AFTER_MISS
    name = _name((attempt.batch_size, attempt.start or Start.COLD))
    why = sentence.of(tried=name, b=_name((b, start)), standing=Why.NEXT_BEST.of())
    return first, PlannedAttempt(batch_size=b, phase=Phase.INCUMBENT, why=why, start=start)


def _tried(
    context: DecisionContext, candidates: Pairs, choice: Choice, incumbent: int
) -> PlannedAttempt:
    """An attempt whose net value exceeds the incumbent's."""
    predictions = candidates.predictions
    source = PREDICTED
    if predictions.trusted[choice.index]:
        source = "from its runs"
    names = list(map(_name, candidates.pairs))
    attempt = try_of(context, predictions, choice, incumbent, names=names, source=source)
    return replace(attempt, start=candidates.pairs[choice.index][1])


def _name(pair: Pair) -> str:
    return f"{pair[0]} from a {pair[1]} start"


def _model(belief: Belief, start: Start, lineage: Lineage) -> StartModel:
    """The filter over the newest runs of a start, from a level below the cold one's.

    A run of one epoch is an upper bound: a warm start may end there whatever the batch size.
    """
    gp = belief.gp
    default = belief.job.default_batch_size
    runs = [run for run in belief.starts if run.start == start][-RUNS_KEPT:]
    age = lineage.from_age or 1
    # an older model helps less, so only runs from one about as old compare
    alike = [run for run in runs if max(run.age, age) <= 2 * min(run.age, age)]
    if len(alike) > 1:
        runs = alike
    level = LEVEL
    if belief.newest_runs:
        level += float(gp.mean[gp.sizes.index(default)])
    model = EpochsModel(
        gp.sizes,
        default,
        belief.max_epochs,
        slices=in_slices(
            [run.run for run in runs], {run.number: run.slice for run in runs}, belief.max_epochs
        ),
        level=(level, LEVEL_SD),
    )
    own = model.gp
    since = sum(run.number > runs[-1].number for run in belief.starts) if runs else 0
    drifted = WALK_SD**2 * since
    mean = np.maximum(own.mean, 0.0)  # no run takes less than an epoch
    changes = [change for change in belief.changes if runs and change.since > runs[-1].number]
    if changes:
        change = max(changes)
        # the data have changed since it ran: it may have changed likewise, or the cold start alone
        mean = mean + change.jump / 2
        drifted = drifted + JUMP**2 + change.jump**2 / 4
    return StartModel(
        start,
        runs,
        own._replace(mean=mean, cov=own.cov + drifted, run_variance=own.run_variance + drifted),
    )


def start_epochs(belief: Belief, start: Start, lineage: Lineage, b: int) -> Estimate:
    """Epochs of the next run of a batch size from a start other than cold."""
    gp = _model(belief, start, lineage).gp
    i = gp.sizes.index(b)
    return Estimate.log_normal(
        float(gp.mean[i]), math.sqrt(max(float(gp.run_variance[i]) - gp.noise, 0.0))
    )


def _pairs(context: DecisionContext, base: Predictions, models: Sequence[StartModel]) -> Pairs:
    """Predictions over all pairs, those of the cold starts first and as they are without starts."""
    sizes = context.all_sizes
    belief = context.belief
    n = len(context.all_sizes)
    k = 1 + len(models)
    blocks = [base.gp, *(model.gp for model in models)]
    cov = np.zeros((k * n, k * n))
    reached = [context.converged, *(model.reached & context.feasible for model in models)]
    factors = np.full((k * n, k * n), np.inf)
    near = list(context.in_reach)
    trusted = list(base.trusted)
    if not context.converged:
        # a cold start that has missed may be tried again, beside one that has reached
        near = [b == context.start_size() for b in sizes]
    for i, proven in enumerate(reached):
        own = slice(i * n, (i + 1) * n)
        cov[own, own] = blocks[i].cov
        factors[own] = np.where([[b in proven] for b in sizes], 0.0, np.inf)
        factors[own, own] = barred_after(sizes, context.feasible, proven)
        if i:
            may_run = context.fast_enough(proven)
            trusted += [b in may_run for b in sizes]
    cold_runs = [run for run in belief.starts if run.start == Start.COLD]
    of_start = zip(blocks, (cold_runs, *(model.runs for model in models)), strict=True)
    means = np.concatenate(
        [block.mean + _excess(block, runs, belief.max_epochs) for block, runs in of_start]
    )
    rates = [np.full(n, 1.0 if model.reached else 1.0 - P_FAIL) for model in models]
    gp = GaussianProcess(
        sizes * k,
        means,
        cov,
        run_variance=np.concatenate([block.run_variance for block in blocks]),
        noise=base.gp.noise,
    )
    allowance = _allowance(context, base, models)
    predictions = base._replace(
        gp=gp,
        log_epoch_cost=np.tile(base.log_epoch_cost, k),
        epoch_cost_variance=np.tile(base.epoch_cost_variance, k),
        unmeasured=np.tile(base.unmeasured, k),
        barred=factors,
        trusted=trusted,
        # Scaled: what all sizes miss alike is in the mean already, and would count twice.
        success=np.concatenate([base.success / base.success.max(), *rates]),
        log_miss_cost=np.tile(base.log_miss_cost, k),
        allowance=allowance,
        most_spent=base.most_spent + allowance - base.allowance,
    )
    incumbent = sizes[predictions.incumbent() % n]
    for proven in reached[1:]:
        own_reach = (
            in_reach(sizes, context.feasible, proven) if proven else [b == incumbent for b in sizes]
        )
        # what has reached its target from a start is chosen by what it took, and not tried once
        # more
        near += [ok and b not in proven for b, ok in zip(sizes, own_reach, strict=True)]
    reach, predictions = context.with_room_after(incumbent, predictions, near)
    starts = (Start.COLD, *(model.start for model in models))
    return Pairs(tuple((b, start) for start in starts for b in sizes), predictions, reach)


def _excess(gp: GaussianProcess, runs: Sequence[StartRun], max_epochs: float) -> float:
    """ln of the mean ratio of the epochs of a start's newest runs to the filter's.

    A miss counts with all its epochs. A start that was only tried has the epochs of its tries,
    and may run again.
    """
    at = by_size(gp.sizes, gp.mean)
    ended = [run for run in runs if run.run.ended(max_epochs)]
    newest = (ended or runs)[-NEWEST:]
    ratios = [run.epochs / math.exp(at[run.batch_size]) for run in newest if run.batch_size in at]
    if not ratios:
        return 0.0
    return math.log(math.fsum(ratios) / len(ratios))


def _allowance(context: DecisionContext, base: Predictions, models: Sequence[StartModel]) -> float:
    """Expected cost [J] above which a try is a loss.

    That of sizes alone, with the savings and the costs of the other starts.
    """
    belief = context.belief
    epoch_costs = np.exp(base.log_epoch_cost)
    costs = by_size(context.all_sizes, epoch_costs)
    runs = [run for run in belief.starts if run.start != Start.COLD]
    spent = math.fsum(run.epochs * costs.get(run.batch_size, 0.0) for run in runs)
    kept = sum(run.run.ended(belief.max_epochs) for run in runs)
    allowance: float = base.allowance + kept * context.default_run(epoch_costs) - spent
    return allowance
