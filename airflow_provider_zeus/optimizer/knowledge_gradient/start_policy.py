"""The attempts of a job that chooses its start: a candidate is a batch size with a start. Pure; needs numpy.

The same acquisition decides as for batch sizes alone, over pairs: first all sizes from a cold start, as they are
without starts, then all sizes from each other start. EpochCost does not depend on the start. Log Epochs of a start have
a filter of their own (``slice_filter.py``) whose level begins near the cold one's: so warm and shrunk runs move nothing
of c(b), a start has its own slope over the batch sizes, and after a change of the data it is as unknown as c.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import DeviceInfo, Lineage, Phase, PlannedAttempt, ProfileSample
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.knowledge_gradient.acquisition import (
    HORIZON,
    Choice,
    Predictions,
    best,
    dearest_epoch,
    in_reach,
    log_factors_after,
)
from airflow_provider_zeus.optimizer.knowledge_gradient.decision_context import EXTRA_SHARE, DecisionContext
from airflow_provider_zeus.optimizer.knowledge_gradient.epochs import EpochsModel
from airflow_provider_zeus.optimizer.knowledge_gradient.gp import P_FAIL, GaussianProcess
from airflow_provider_zeus.optimizer.knowledge_gradient.policy import (
    Attempts,
    attempts_of_sizes,
    bounded,
    until,
    with_drift,
)
from airflow_provider_zeus.optimizer.knowledge_gradient.run_times import RunTimes
from airflow_provider_zeus.optimizer.knowledge_gradient.slice_filter import JUMP
from airflow_provider_zeus.optimizer.reasons import Why
from airflow_provider_zeus.optimizer.slices import grouped
from airflow_provider_zeus.optimizer.starts import RUNS_KEPT, StartRun, cold_is_due, possible

LEVEL, LEVEL_SD = -0.5, 1.2  # of ln Epochs of a start that has not run, against a cold one's: seven real series
WALK_SD = 0.1  # by how much that difference may change from run to run while the start does not run
NEWEST = 6  # runs of a start that tell what it costs

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
    """Predictions over pairs, with what may be tried."""

    pairs: tuple[Pair, ...]
    predictions: Predictions
    in_reach: Sequence[bool]


def recommend(
    job: ZeusJob,
    belief: Belief,
    device: DeviceInfo | None,
    profiles: Sequence[ProfileSample],
    held: str | None,
    runs_left: int | None = None,
    times: RunTimes | None = None,
    *,
    lineage: Lineage | None = None,
    only: int | None = None,
) -> Attempts:
    """The attempts of the next recurrence, each with its start.

    :param lineage: the earlier model.
    :param only: the batch size that is pinned.
    """
    context = DecisionContext.of(job, belief, device, profiles, runs_left, times)
    starts, why_cold = possible(job, belief.starts, belief.served, lineage)
    if not starts or lineage is None:
        return with_drift(belief, _cold(attempts_of_sizes(context, held), why_cold))
    models = [_model(belief, start, lineage) for start in starts]
    base = context.predictions()
    none_known = not context.converged and not any(model.reached & context.feasible for model in models)
    if base is None or none_known:
        return with_drift(belief, _before_any(context, held, models, why_cold))
    found = _pairs(context, base, models)
    if only is not None:
        trusted = [ok and b == only for ok, (b, _) in zip(found.predictions.trusted, found.pairs, strict=True)]
        found = found._replace(predictions=found.predictions._replace(trusted=trusted))
        start = found.pairs[found.predictions.incumbent()][1] if any(trusted) else Start.COLD
        return (PlannedAttempt(batch_size=only, phase=Phase.PINNED, why="", start=start),)
    first, *after = _attempts(context, found, held, lineage)
    first = replace(first, why=f"{first.why} {why_cold}".strip())
    return with_drift(belief, (first, *after))


def _cold(attempts: Attempts, why: str) -> Attempts:
    first, *after = (replace(attempt, start=Start.COLD) for attempt in attempts)
    return replace(first, why=f"{first.why} {why}".strip()), *after


def _before_any(context: DecisionContext, held: str | None, models: Sequence[StartModel], why_cold: str) -> Attempts:
    """The attempt while nothing has reached its target: a start that has not run comes before another batch size."""
    untried = [model.start for model in models if not model.runs]
    b = context.start_size()
    if held is None and untried and b in context.newest_runs and not context.belief.newest[1]:
        why = Why.START_BEFORE_SIZE.of(b=b, start=untried[0])
        return (PlannedAttempt(batch_size=b, phase=Phase.EXPLORE, why=why, start=untried[0]),)
    return _cold(attempts_of_sizes(context, held), why_cold)


def _attempts(context: DecisionContext, found: Pairs, held: str | None, lineage: Lineage) -> Attempts:
    """A try and the incumbent pair after it, the incumbent pair alone, or the cold run that is due."""
    belief, (pairs, predictions, near) = context.belief, found
    index, cost = predictions.incumbent(), np.exp(predictions.log_cost)
    b, start = pairs[index]
    n = len(context.all_sizes)
    known = [i for i in range(n) if predictions.trusted[i]]
    cold = min(known, key=lambda i: cost[i]) if known else context.all_sizes.index(context.start_size())
    epoch_costs = dict(zip(context.all_sizes, np.exp(predictions.log_epoch_cost[:n]).tolist(), strict=True))
    if start is not Start.COLD and (
        due := cold_is_due(context.job, belief.starts, lineage, float(cost[cold]), epoch_costs)
    ):
        return (PlannedAttempt(batch_size=pairs[cold][0], phase=Phase.INCUMBENT, why=due, start=Start.COLD),)
    held = held or (Why.DIED.of() if belief.newest[1] else None)
    held = held or (None if context.epoch_costs else Why.UNMEASURED.of())
    held = held or (Why.LAST_RUN.of() if context.horizon < 1 else None)
    standing = Why.NO_PAIR_SURELY_CHEAPER.of()
    choice = None if held else best(predictions, index, near)
    if choice is not None and choice.index != index:
        tried = _tried(context, found, choice, index)
        sentence = Why.AFTER_MISS if belief.plain[1] else Why.AFTER_TRY
        why = sentence.of(tried=_name(pairs[choice.index]), b=_name(pairs[index]), standing=standing)
        return tried, PlannedAttempt(batch_size=b, phase=Phase.INCUMBENT, why=why, start=start)
    why = Why.RUNS.of(held=held or Why.NOT_WORTH_IT.of(), b=_name(pairs[index]), standing=standing)
    return _unless_it_misses(context, found, PlannedAttempt(batch_size=b, phase=Phase.INCUMBENT, why=why, start=start))


def _unless_it_misses(context: DecisionContext, found: Pairs, attempt: PlannedAttempt) -> Attempts:
    """The incumbent pair; from the earlier model it is given up at what the best other start takes to its target.

    That one trains then: so a run that would miss its target costs at most twice what was better.
    """
    predictions, starts = found.predictions, context.belief.starts
    others = [i for i, (_, start) in enumerate(found.pairs) if predictions.trusted[i] and start is not attempt.start]
    known_here = attempt.batch_size in context.epoch_costs  # another device's joules bound no run
    if attempt.start is Start.COLD or not others or context.times is not None or not known_here:
        return (attempt,)
    index = min(others, key=lambda i: predictions.log_cost[i])
    b, start = found.pairs[index]
    took = [run.epochs for run in starts if (run.batch_size, run.taken) == (b, start) and run.reached][-NEWEST:]
    epochs = math.fsum(took) / len(took) if took else math.exp(predictions.gp.mean[index])
    limit = epochs * math.exp(predictions.log_epoch_cost[index]) * (1.0 + 1e-9)  # no epoch is lost by rounding
    first = bounded(context, replace(attempt, why=until(context, attempt.why, limit)), limit)
    sentence = Why.AFTER_TRY if first.bounded else Why.AFTER_MISS
    name = _name((attempt.batch_size, attempt.start or Start.COLD))
    why = sentence.of(tried=name, b=_name((b, start)), standing=Why.NEXT_BEST.of())
    return first, PlannedAttempt(batch_size=b, phase=Phase.INCUMBENT, why=why, start=start)


def _tried(context: DecisionContext, found: Pairs, choice: Choice, incumbent: int) -> PlannedAttempt:
    """An attempt whose net value exceeds the incumbent's."""
    pairs, predictions = found.pairs, found.predictions
    (b, start), text, cost = pairs[choice.index], context.weights.text, np.exp(predictions.log_cost)
    is_known = bool(predictions.log_factors[choice.index].max() == 0.0)
    later = f"{context.horizon:g} run{'s' if context.horizon > 1 else ''}"
    why = Why.WORTH_IT.of(
        b=_name(pairs[choice.index]),
        cost=text(float(cost[choice.index])),
        source="from its runs" if is_known else "predicted from its neighbours",
        incumbent=_name(pairs[incumbent]),
        incumbent_cost=text(float(cost[incumbent])),
        later=f"next {later}" if context.horizon >= HORIZON else f"{later} left",
    )
    phase = Phase.SAMPLE if is_known else Phase.EXPLORE
    attempt = PlannedAttempt(batch_size=b, phase=phase, why=until(context, why, choice.give_up_at), start=start)
    dearest = None if b in context.epoch_costs else dearest_epoch(predictions, incumbent, choice.index)
    return bounded(context, attempt, choice.give_up_at, dearest)


def _name(pair: Pair) -> str:
    return f"{pair[0]} from a {pair[1]} start"


def _model(belief: Belief, start: Start, lineage: Lineage) -> StartModel:
    """The filter over the newest runs of a start, from a level below the cold one's.

    A run of one epoch is an upper bound: a warm start may end there whatever the batch size.
    """
    gp, default = belief.gp, belief.job.default_batch_size
    runs, age = [run for run in belief.starts if run.taken == start][-RUNS_KEPT:], lineage.from_age or 1
    alike = [run for run in runs if run.age <= 2 * age and age <= 2 * run.age]  # from a model about as old
    runs = alike if len(alike) > 1 else runs
    level = float(gp.mean[gp.sizes.index(default)]) if belief.converged or belief.stopped else 0.0
    model = EpochsModel(
        gp.sizes,
        default,
        belief.max_epochs,
        grouped([run.run for run in runs], {run.number: run.slice for run in runs}, belief.max_epochs),
        level=(level + LEVEL, LEVEL_SD),
    )
    own = model.gp
    since = sum(run.number > runs[-1].number for run in belief.starts) if runs else 0
    drifted = WALK_SD**2 * since
    mean = np.maximum(own.mean, 0.0)  # no run takes less than an epoch
    if runs and (change := max((c for c in belief.changes if c.since > runs[-1].number), default=None)):
        # the data have changed since it ran: it may have changed likewise, or the cold start alone
        mean, drifted = mean + change.jump / 2, drifted + JUMP**2 + change.jump**2 / 4
    return StartModel(
        start, runs, own._replace(mean=mean, cov=own.cov + drifted, run_variance=own.run_variance + drifted)
    )


def start_epochs(belief: Belief, start: Start, lineage: Lineage, b: int) -> Estimate:
    """Epochs of the next run of a batch size from a start other than cold."""
    gp = _model(belief, start, lineage).gp
    i = gp.sizes.index(b)
    return Estimate.log_normal(float(gp.mean[i]), math.sqrt(max(float(gp.run_variance[i]) - gp.noise, 0.0)))


def _pairs(context: DecisionContext, base: Predictions, models: Sequence[StartModel]) -> Pairs:
    """Predictions over all pairs, those of the cold starts first and as they are without starts."""
    sizes, belief, n, k = context.all_sizes, context.belief, len(context.all_sizes), 1 + len(models)
    blocks = [base.gp, *(model.gp for model in models)]
    cov = np.zeros((k * n, k * n))
    for i, block in enumerate(blocks):
        cov[i * n : (i + 1) * n, i * n : (i + 1) * n] = block.cov
    reached = [context.converged, *(model.reached & context.feasible for model in models)]
    factors, near, trusted = np.full((k * n, k * n), np.inf), list(context.in_reach), list(base.trusted)
    if not context.converged:  # a cold start that has missed may be tried again, beside one that has reached
        near = [b == context.start_size() for b in sizes]
    for i, known in enumerate(reached):
        own = slice(i * n, (i + 1) * n)
        factors[own] = np.where([[b in known] for b in sizes], 0.0, np.inf)
        factors[own, own] = log_factors_after(sizes, context.feasible, known)
        if i:
            may_run = known if context.times is None else context.times.fitting(known) or known
            trusted += [b in may_run for b in sizes]
    told = [run for run in belief.starts if run.taken == Start.COLD]
    of_start = zip(blocks, (told, *(model.runs for model in models)), strict=True)
    means = np.concatenate([block.mean + _excess(block, runs, belief.max_epochs) for block, runs in of_start])
    rates = [np.full(n, 1.0 if model.reached else 1.0 - P_FAIL) for model in models]
    gp = GaussianProcess(
        sizes * k,
        means,
        cov,
        np.concatenate([block.run_variance for block in blocks]),
        np.tile(base.gp.difference_sd, k),
        base.gp.noise,
    )
    found = base._replace(
        gp=gp,
        log_epoch_cost=np.tile(base.log_epoch_cost, k),
        epoch_cost_variance=np.tile(base.epoch_cost_variance, k),
        unmeasured=np.tile(base.unmeasured, k),
        log_factors=factors,
        trusted=trusted,
        success=np.concatenate([base.success / base.success.max(), *rates]),  # the mean has what all sizes miss alike
        caution=np.tile(base.caution, k),
        allowance=_allowance(context, base, models),
    )
    incumbent = sizes[found.incumbent() % n]
    for known in reached[1:]:
        own_reach = in_reach(sizes, context.feasible, known) if known else [b == incumbent for b in sizes]
        # what has reached its target from a start is chosen by what it took, and not tried once more
        near += [ok and b not in known for b, ok in zip(sizes, own_reach, strict=True)]
    if context.times is not None:
        near = [ok and context.times.may_try(b, incumbent) for ok, b in zip(near, sizes * k, strict=True)]
        epochs = np.array([context.times.epochs_before(b, incumbent) for b in sizes * k])
        found = found._replace(most_cost=np.exp(found.log_epoch_cost) * epochs)
    return Pairs(tuple((b, start) for start in (Start.COLD, *(m.start for m in models)) for b in sizes), found, near)


def _excess(gp: GaussianProcess, runs: Sequence[StartRun], max_epochs: float) -> float:
    """ln of what the newest runs of a start took over what the filter believes of them: their mean is what it costs.

    A miss counts with all its epochs. Of a start that was only tried, what the tries took: it may run again.
    """
    at = dict(zip(gp.sizes, gp.mean.tolist(), strict=True))
    ended = [run for run in runs if run.run.ended(max_epochs)] or runs
    ratios = [run.epochs / math.exp(at[run.batch_size]) for run in ended[-NEWEST:] if run.batch_size in at]
    return math.log(math.fsum(ratios) / len(ratios)) if ratios else 0.0


def _allowance(context: DecisionContext, base: Predictions, models: Sequence[StartModel]) -> float:
    """Expected cost [J] above which a try is a loss: that of sizes alone, with what the other starts saved and cost."""
    belief, default = context.belief, context.all_sizes.index(context.job.default_batch_size)
    costs = dict(zip(context.all_sizes, np.exp(base.log_epoch_cost).tolist(), strict=True))
    next_run = costs[context.job.default_batch_size] * math.exp(float(belief.gp.mean[default]))
    runs = [run for run in belief.starts if run.taken != Start.COLD]
    spent = math.fsum(run.epochs * costs.get(run.batch_size, 0.0) for run in runs)
    kept = sum(run.run.ended(belief.max_epochs) for run in runs)
    allowance: float = base.allowance + kept * next_run * (1.0 + EXTRA_SHARE / (kept + 1)) - spent
    return allowance
