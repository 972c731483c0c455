"""The attempts of a decision under the policy ``"knowledge_gradient"``, with their reasons. Pure; needs numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from airflow_provider_zeus.model.estimate import Z
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import DeviceInfo, Phase, PlannedAttempt, ProfileSample
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.knowledge_gradient.acquisition import (
    HORIZON,
    Choice,
    Predictions,
    best,
    dearest_epoch,
)
from airflow_provider_zeus.optimizer.knowledge_gradient.decision_context import DecisionContext
from airflow_provider_zeus.optimizer.knowledge_gradient.run_times import RunTimes
from airflow_provider_zeus.optimizer.knowledge_gradient.slice_filter import KEPT
from airflow_provider_zeus.optimizer.reasons import Why
from airflow_provider_zeus.optimizer.thompson import start_name
from airflow_provider_zeus.units import counted

AUDIT_GAP = 5  # recurrences between two audits, at least
HARD = 1.25  # x the usual epochs: a slice of the data that a decision calls hard

Attempts = tuple[PlannedAttempt, ...]


def recommend(
    job: ZeusJob,
    belief: Belief,
    device: DeviceInfo | None,
    profiles: Sequence[ProfileSample],
    held: str | None,
    runs_left: int | None = None,
    times: RunTimes | None = None,
) -> Attempts:
    """The attempts of the next recurrence.

    :param held: why no new batch size may be tried now; None where one may.
    :param runs_left: recurrences after this one; None: many.
    :param times: of a job with a deadline.
    """
    return with_drift(
        belief, attempts_of_sizes(DecisionContext.of(job, belief, device, profiles, runs_left, times), held)
    )


def with_drift(belief: Belief, attempts: Attempts) -> Attempts:
    """The attempts, the first with a sentence about a change of the data that is still new."""
    first, *after = attempts
    if belief.changes and belief.age() <= KEPT:
        change = belief.changes[-1]
        trials, factor = change.shown_by, math.exp(change.jump)
        shown_by = f"trial {trials[0]}" if len(trials) == 1 else f"trials {trials[0]} to {trials[-1]}"
        drift = Why.DRIFT.of(since=change.since, shown_by=shown_by, factor=factor)
        first = replace(first, why=f"{first.why} {drift}")
    return first, *after


def attempts_of_sizes(context: DecisionContext, held: str | None) -> Attempts:
    """The attempts, without the sentence about the last change of the data."""
    if not context.converged:
        return (_before_convergence(context, held),)
    predictions = context.predictions()
    if predictions is None:  # the default where it converged, else the size that needed the fewest epochs
        log_epochs, start = dict(zip(context.all_sizes, context.belief.gp.mean, strict=True)), context.start_size()
        b = min(context.converged, key=lambda b: (b != start, log_epochs[b], b))
        return (PlannedAttempt(batch_size=b, phase=Phase.INCUMBENT, why=Why.NO_EPOCH_COST.of(b=b)),)
    index = predictions.incumbent()
    b = context.all_sizes[index]
    context, predictions = context.with_room_after(b, predictions)
    standing = context.standing(predictions, index)
    if held is None and context.belief.newest[1]:
        held = Why.DIED.of()  # a retry has to end with a model
    if held is None and not context.epoch_costs:  # another device's joules rank batch sizes, but bound no run
        held = Why.UNMEASURED.of()
    if held is None and context.horizon < 1:
        held = Why.LAST_RUN.of()
    if held is None:
        choice = best(predictions, index, context.in_reach)
        tried = _exploratory(context, predictions, choice, b) if choice.index != index else None
        tried = tried or _returning(context, predictions, index)
        if tried is not None:
            sentence = Why.AFTER_MISS if context.belief.plain[1] else Why.AFTER_TRY
            why = sentence.of(tried=tried.batch_size, b=b, standing=standing)
            return tried, PlannedAttempt(batch_size=b, phase=Phase.INCUMBENT, why=why)
        if (audit := _audit(context, predictions, index)) is not None:
            return (audit,)
        held = Why.NOT_WORTH_IT.of()
    why = Why.RUNS.of(held=held, b=b, standing=standing)
    return (PlannedAttempt(batch_size=b, phase=Phase.INCUMBENT, why=why),)


def _before_convergence(context: DecisionContext, held: str | None) -> PlannedAttempt:
    """The default, then the batch sizes nearest to it, each without a bound."""
    start = context.start_size()
    if held:
        return PlannedAttempt(batch_size=start, phase=Phase.INCUMBENT, why=Why.TAKES.of(held=held, b=start))
    success = dict(zip(context.all_sizes, context.success(frozenset()).tolist(), strict=True))  # hopeless slices too
    b = min(context.feasible or {start}, key=lambda b: (-success[b], b != start, abs(math.log2(b / start)), b))
    if b == start and not context.belief.newest_runs:
        why = Why.COMES_FIRST.of(b=b, which=start_name(context.job, b))
    else:
        reached, here = context.belief.reached, context.belief.reached & context.feasible
        none = Why.ALL_MISS_OR_BARRED if here < reached else Why.ALL_MISS
        if not here:
            none = Why.NONE_HERE if reached else Why.NONE_REACHED
        why = Why.MISSED_LEAST.of(held=none.of(), b=b, start=start)
    return PlannedAttempt(batch_size=b, phase=Phase.EXPLORE, why=why)


def _exploratory(context: DecisionContext, predictions: Predictions, choice: Choice, incumbent: int) -> PlannedAttempt:
    """An attempt whose net value exceeds the incumbent's."""
    text, cost = context.weights.text, np.exp(predictions.log_cost)
    b, index = context.all_sizes[choice.index], context.all_sizes.index(incumbent)
    runs = sum(n >= context.belief.era and size == b for n, size, _ in context.belief.converged)
    later = f"{context.horizon:g} run{'s' if context.horizon > 1 else ''}"
    later = f"next {later}" if context.horizon >= HORIZON else f"{later} left"
    why = Why.WORTH_IT.of(
        b=b,
        cost=text(float(cost[choice.index])),
        source=f"from {counted(runs, 'run')}" if runs else "predicted from its neighbours",
        incumbent=incumbent,
        incumbent_cost=text(float(cost[index])),
        later=later,
    )
    why = f"{until(context, why, choice.give_up_at)} {_hard_slice(context, b)}".strip()
    attempt = PlannedAttempt(batch_size=b, phase=Phase.EXPLORE if not runs else Phase.SAMPLE, why=why)
    dearest = None if b in context.epoch_costs else dearest_epoch(predictions, index, choice.index)
    return bounded(context, attempt, choice.give_up_at, dearest)


def _audit(context: DecisionContext, predictions: Predictions, incumbent: int) -> PlannedAttempt | None:
    """The default, unbounded, so that what the job saves is measured; None where no audit is due.

    Eq. KG-32 of docs/knowledge-gradient.md.
    """
    job, belief, default = context.job, context.belief, context.job.default_batch_size
    since = sum(number > belief.audits[1] for number, _ in belief.started)
    if default not in context.converged or since < AUDIT_GAP:
        return None
    if context.times is not None and context.times.slowdown(default) < 1:
        return None
    cost = np.exp(predictions.log_cost)
    excess = float(cost[context.all_sizes.index(default)] - cost[incumbent])
    total, estimated, spent = context.totals(np.exp(predictions.log_epoch_cost))
    covered = (belief.audits[0] + 1) * excess <= job.audit * spent
    undecided = Z * float(belief.gp.difference_sd[incumbent]) * estimated > abs(total - spent)
    stale = context.newest_runs[default] < belief.era  # believed alone, and perhaps wrong
    if excess <= 0 or not covered or not (undecided or stale):
        return None
    told, b = context.weights.text(excess), context.all_sizes[incumbent]
    why = Why.AUDIT.of(b=default, excess=told, incumbent=b, percent=100 * job.audit)
    return PlannedAttempt(batch_size=default, phase=Phase.AUDIT, why=why)


def _returning(context: DecisionContext, predictions: Predictions, incumbent: int) -> PlannedAttempt | None:
    """A size that has not run for a whole window: it may have improved, and no current run would show it. Or None.

    Of several, the one believed cheapest. It is given up where it costs as much as the incumbent.
    """
    oldest, log_cost = context.belief.window_start(), predictions.log_cost
    bound = math.exp(log_cost[incumbent])
    if not oldest or 2 * bound > predictions.allowance:
        return None
    sizes = [(i, b) for i, b in enumerate(context.all_sizes) if context.in_reach[i] and i != incumbent]
    waiting = [(float(log_cost[i]), i, b) for i, b in sizes if context.newest_runs.get(b, 0) < oldest]
    if not waiting:
        return None
    b = min(waiting)[-1]
    why = Why.RETURNS.of(b=b, window=context.job.window, incumbent=context.all_sizes[incumbent])
    attempt = PlannedAttempt(batch_size=b, phase=Phase.RETURN, why=until(context, why, bound))
    return bounded(context, attempt, bound)


def until(context: DecisionContext, why: str, limit: float) -> str:
    """The reason of a try, with where it ends."""
    if context.belief.plain[1]:
        return Why.TO_ITS_END.of(why=why[:-1])
    return Why.GIVEN_UP_ABOVE.of(why=why[:-1], bound=context.weights.text(limit))


def bounded(
    context: DecisionContext, attempt: PlannedAttempt, limit: float, dearest: float | None = None
) -> PlannedAttempt:
    """The attempt with its bounds, where something can stop it. Eq. KG-31 of docs/knowledge-gradient.md.

    :param limit: cost [J] above which it is given up.
    :param dearest: EpochCost [J] above which it is given up after its first epoch; default: ``limit``.
    """
    if context.belief.plain[1]:
        return attempt
    epoch_cost, epochs = context.epoch_costs.get(attempt.batch_size), None
    if epoch_cost is not None:
        epochs = float(max(1, math.floor(limit / epoch_cost)))
    return replace(
        attempt,
        # the bound in epochs decides, unless EpochCost has changed
        bound_cost=limit if epoch_cost is None or epochs is None else (epochs + 0.5) * epoch_cost,
        bound_epochs=epochs,
        max_epoch_cost=limit if dearest is None else dearest,
        bound_samples_per_epoch=context.belief.slice_size[1] if context.belief.slice_size else None,
    )


def _hard_slice(context: DecisionContext, b: int) -> str:
    """Why a size that was given up may be tried again: on that slice another size needed more epochs, too."""
    belief = context.belief
    missed = (s for s in reversed(belief.by_slice) if any(r.batch_size == b and not r.reached for r in s.runs))
    item = next(missed, None)
    kept = item and next((r for r in item.runs if r.reached and r.number >= belief.era), None)
    if not kept:
        return ""
    usual = [math.log(e) for n, size, e in belief.converged if size == kept.batch_size and n >= belief.era]
    factor = kept.epochs / math.exp(math.fsum(usual) / len(usual))
    if factor < HARD:
        return ""
    return Why.HARD_SLICE.of(b=kept.batch_size, factor=factor)
