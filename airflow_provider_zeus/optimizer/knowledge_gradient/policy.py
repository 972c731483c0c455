"""The attempts of a decision under the policy ``"knowledge_gradient"``, with their reasons. Pure; needs numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import DeviceInfo, Phase, PlannedAttempt, ProfileSample
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.changepoint import SURPRISES
from airflow_provider_zeus.optimizer.knowledge_gradient.acquisition import (
    HORIZON,
    Choice,
    Predictions,
    best,
    dearest_epoch,
)
from airflow_provider_zeus.optimizer.knowledge_gradient.decision_context import DecisionContext
from airflow_provider_zeus.optimizer.knowledge_gradient.run_times import RunTimes

HARD = 1.25  # x the usual epochs: a slice of the data that a decision calls hard

Attempts = tuple[PlannedAttempt, ...]
Recommended = tuple[Attempts, PlannedAttempt | None]


def recommend(
    job: ZeusJob,
    belief: Belief,
    device: DeviceInfo | None,
    profiles: Sequence[ProfileSample],
    held: str | None,
    runs_left: int | None = None,
    times: RunTimes | None = None,
) -> Recommended:
    """(attempts of the next recurrence, the attempt that runs if the last of them misses the target).

    :param held: why no new batch size may be tried now; None where one may.
    :param runs_left: recurrences after this one; None: many.
    :param times: of a job with a deadline or a limit to its slowdown.
    """
    (first, *after), second = _attempts(DecisionContext.of(job, belief, device, profiles, runs_left, times), held)
    if belief.changes and belief.age() <= SURPRISES:
        first = replace(first, why=f"{first.why} {_last_change(belief)}")
    return (first, *after), second


def _attempts(context: DecisionContext, held: str | None) -> Recommended:
    """The attempts, without the sentence about the last change of the data."""
    if not context.converged:
        return (_before_convergence(context, held),), None
    predictions = context.predictions()
    if predictions is None:
        return (_without_epoch_costs(context),), None
    index, second_index = predictions.incumbent([b in context.converged for b in context.all_sizes])
    b, second = context.all_sizes[index], None
    context, predictions = context.with_room_after(b, predictions)
    if second_index is not None and context.rescues > 0.5:
        why = f"Where {b} misses the target or does not fit: the next best known to reach it."
        second = PlannedAttempt(batch_size=context.all_sizes[second_index], phase=Phase.INCUMBENT, why=why)
    standing = context.standing(predictions, index)
    if held is None and context.belief.newest[1]:
        held = "The run before died or taught nothing"  # a retry has to end with a model
    if held is None and not context.epoch_costs:  # another device's joules rank batch sizes, but bound no run
        held = "No cost was measured on this device yet"
    if held is None and context.horizon < 1:
        held = "No later run could use what a try would show"
    if held is None:
        choice = best(predictions, index, context.in_reach)
        if choice.index != index:
            return _then_incumbent(_exploratory(context, predictions, choice, b), b, standing), None
        choice_again = context.returning(predictions, index)
        if choice_again is not None:
            return _then_incumbent(_returning(context, choice_again, b), b, standing), None
        excess = context.audit_excess(predictions, index)
        if excess is not None:
            return (_audit(context, excess, b),), _second_after_audit(b)
        held = "Knowledge gradient: no other batch size is worth a try now"
    why = f"{held}; {b}, {standing}, runs."
    return (PlannedAttempt(batch_size=b, phase=Phase.INCUMBENT, why=why),), second


def _then_incumbent(attempt: PlannedAttempt, incumbent: int, standing: str) -> Attempts:
    """A bounded attempt, and the incumbent that runs where it is given up."""
    why = f"{attempt.batch_size} was given up; {incumbent}, {standing}, runs to the end."
    return attempt, PlannedAttempt(batch_size=incumbent, phase=Phase.INCUMBENT, why=why)


def _before_convergence(context: DecisionContext, held: str | None) -> PlannedAttempt:
    """The default, then the batch sizes nearest to it, each without a bound."""
    start = context.start_size()
    if held:
        return PlannedAttempt(batch_size=start, phase=Phase.INCUMBENT, why=f"{held}; this run takes {start}.")
    success = context.success_of_sizes()
    b = min(context.feasible or {start}, key=lambda b: (-success[b], b != start, abs(math.log2(b / start)), b))
    if b == start and not context.belief.newest_runs:
        default = b == context.job.default_batch_size
        why = f"{b}, {'the default' if default else 'the nearest to the default that fits'}, comes first."
    else:
        why = f"{_why_none(context)}; {b} is the nearest to {start} of those that missed it least."
    return PlannedAttempt(batch_size=b, phase=Phase.EXPLORE, why=why)


def _why_none(context: DecisionContext) -> str:
    """Why no batch size counts as one that reaches the target."""
    reached, here = context.belief.reached, context.belief.reached & context.feasible
    if not reached:
        return "No batch size has reached the target yet"
    if not here:
        return "No batch size that has reached the target may run here"
    barred = " or may not run here" if here < reached else ""
    return f"Every batch size that has reached the target misses it now{barred}"


def _without_epoch_costs(context: DecisionContext) -> PlannedAttempt:
    """The default where it converged, else the size that needed the fewest epochs."""
    log_epochs, start = dict(zip(context.all_sizes, context.belief.gp.mean, strict=True)), context.start_size()
    b = min(context.converged, key=lambda b: (b != start, log_epochs[b], b))
    why = f"No EpochCost is known on any device; {b}, which reached the target, runs."
    return PlannedAttempt(batch_size=b, phase=Phase.INCUMBENT, why=why)


def _exploratory(context: DecisionContext, predictions: Predictions, choice: Choice, incumbent: int) -> PlannedAttempt:
    """An attempt whose net value exceeds the incumbent's."""
    text, cost = context.weights.text, np.exp(predictions.log_cost)
    b, index = context.all_sizes[choice.index], context.all_sizes.index(incumbent)
    runs = sum(n >= context.belief.era and size == b for n, size, _ in context.belief.converged)
    source = f"from {runs} run{'s' if runs > 1 else ''}" if runs else "predicted from its neighbours"
    why = (
        f"Knowledge gradient: {b} is believed to cost {text(float(cost[choice.index]))} ({source}), {incumbent} "
        f"{text(float(cost[index]))}; what it may save in the {_later_runs(context)} is worth the try; it "
        f"is given up above {text(choice.give_up_at)}.{_hard_slice(context, b)}"
    )
    attempt = PlannedAttempt(batch_size=b, phase=Phase.EXPLORE if not runs else Phase.SAMPLE, why=why)
    dearest = None if b in context.epoch_costs else dearest_epoch(predictions, index, choice.index)
    return _bounded(context, attempt, choice.give_up_at, dearest)


def _later_runs(context: DecisionContext) -> str:
    """The runs that will use the answer of a try, as a text."""
    runs = f"{context.horizon:g} run{'s' if context.horizon > 1 else ''}"
    return f"next {runs}" if context.horizon >= HORIZON else f"{runs} left"


def _audit(context: DecisionContext, excess: float, incumbent: int) -> PlannedAttempt:
    """The default, unbounded, so that what the job saves is measured."""
    default = context.job.default_batch_size
    why = (
        f"Audit: {default}, the default, runs, so that what the job saves is measured and not only estimated. It is "
        f"expected to cost {context.weights.text(excess)} more than {incumbent}; audits may take "
        f"{100 * context.job.audit:g} % of what the job spends."
    )
    return PlannedAttempt(batch_size=default, phase=Phase.AUDIT, why=why)


def _second_after_audit(incumbent: int) -> PlannedAttempt:
    why = f"Where the default misses the target: {incumbent}, the best known to reach it."
    return PlannedAttempt(batch_size=incumbent, phase=Phase.INCUMBENT, why=why)


def _returning(context: DecisionContext, choice: Choice, incumbent: int) -> PlannedAttempt:
    """An attempt of a batch size that has not run for a window: it may have become cheaper."""
    b = context.all_sizes[choice.index]
    why = (
        f"{b} has had no run among the last {context.job.window} converged ones and is tried, in case it is cheaper "
        f"than {incumbent}; it is given up above {context.weights.text(choice.give_up_at)}."
    )
    return _bounded(context, PlannedAttempt(batch_size=b, phase=Phase.RETURN, why=why), choice.give_up_at)


def _bounded(
    context: DecisionContext, attempt: PlannedAttempt, limit: float, dearest: float | None = None
) -> PlannedAttempt:
    """The attempt with its bounds. Eq. KG-31 of docs/knowledge-gradient.md.

    :param limit: cost [J] above which it is given up.
    :param dearest: EpochCost [J] above which it is given up after its first epoch; default: ``limit``.
    """
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
    return (
        f" It was given up before on a hard slice of the data, where {kept.batch_size} took {factor:.2g} x its usual "
        "epochs."
    )


def _last_change(belief: Belief) -> str:
    """When the data changed last, and what was forgotten."""
    change = belief.changes[-1]
    trials = change.shown_by
    runs = f"trial {trials[0]}" if len(trials) == 1 else f"trials {trials[0]} to {trials[-1]}"
    return (
        f"The data changed at trial {change.since}: {runs} needed {math.exp(change.jump):.2g} x the epochs predicted. "
        "Earlier runs still show which batch sizes are better, but not how many epochs they need now."
    )
