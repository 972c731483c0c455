"""The attempts of a decision under the policy ``"knowledge_gradient"``, with their reasons.

Pure; needs numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from airflow_provider_zeus.model.estimate import Z
from airflow_provider_zeus.model.trial import Phase, PlannedAttempt
from airflow_provider_zeus.optimizer.arms import BETA
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.knowledge_gradient.acquisition import (
    HORIZON,
    Choice,
    Predictions,
    best,
    dearest_epoch,
)
from airflow_provider_zeus.optimizer.knowledge_gradient.decision_context import DecisionContext
from airflow_provider_zeus.optimizer.knowledge_gradient.gp import by_size
from airflow_provider_zeus.optimizer.knowledge_gradient.slice_filter import KEPT
from airflow_provider_zeus.optimizer.reasons import Why
from airflow_provider_zeus.optimizer.situation import start_name
from airflow_provider_zeus.units import counted

AUDIT_GAP = 5  # two audits in a row would tell the same
PREDICTED = "predicted from its neighbours"

Attempts = tuple[PlannedAttempt, ...]


def recommend(context: DecisionContext) -> Attempts:
    """The attempts of the next recurrence, each from a cold start."""
    if not context.converged:
        return (_before_convergence(context),)
    predictions = context.predictions()
    if predictions is None:
        # Without any EpochCost only epochs rank sizes, so a default that reaches its target stays.
        log_epochs = by_size(context.all_sizes, context.belief.gp.mean)
        start = context.start_size()
        b = min(context.converged, key=lambda b: (b != start, log_epochs[b], b))
        return (PlannedAttempt(batch_size=b, phase=Phase.INCUMBENT, why=Why.NO_EPOCH_COST.of(b=b)),)
    sizes = context.all_sizes
    index = predictions.incumbent()
    b = sizes[index]
    reach, predictions = context.with_room_after(b, predictions, context.in_reach)
    standing = context.standing(predictions, index)
    obstacle = why_no_try(context)
    if obstacle is None:
        choice = best(predictions, index, reach)
        tried = None
        if choice.index != index:
            source = _source(context, sizes[choice.index])
            tried = try_of(
                context, predictions, choice, incumbent=index, names=sizes, source=source
            )
        if tried is None or context.belief.recurrences >= AUDIT_GAP - 1:
            tried = _second_look(context, predictions, index) or tried
        if tried is not None:
            why = context.belief.why_another.of(tried=tried.batch_size, b=b, standing=standing)
            return tried, PlannedAttempt(batch_size=b, phase=Phase.INCUMBENT, why=why)
        audit = _audit(context, predictions, index)
        if audit is not None:
            return (audit,)
        obstacle = Why.NOT_WORTH_IT.of()
    why = Why.RUNS.of(obstacle=obstacle, b=b, standing=standing)
    return (PlannedAttempt(batch_size=b, phase=Phase.INCUMBENT, why=why),)


def of_drift(belief: Belief) -> str:
    """A sentence about a change of the data that is still new; empty if there is none."""
    if not belief.changes or belief.age() > KEPT:
        return ""
    change = belief.changes[-1]
    first_shown = belief.run_of(change.shown_by[0])
    last_shown = belief.run_of(change.shown_by[-1])
    shown_by = f"runs {first_shown} to {last_shown}"
    if first_shown == last_shown:
        shown_by = f"run {last_shown}"
    since = belief.run_of(change.since)
    return Why.DRIFT.of(since=since, shown_by=shown_by, factor=math.exp(change.jump))


def why_no_try(context: DecisionContext) -> str | None:
    """Why no other size may be tried now; None if one may."""
    if context.obstacle is not None:
        return context.obstacle
    if context.belief.newest[1]:
        return Why.DIED.of()  # a retry has to end with a model
    if not context.epoch_costs:
        return Why.UNMEASURED.of()  # another device's joules rank batch sizes, but bound no run
    if context.horizon < 1:
        return Why.LAST_RUN.of()
    return None


def _before_convergence(context: DecisionContext) -> PlannedAttempt:
    """The default, then the batch sizes nearest to it, each without a bound."""
    start = context.start_size()
    obstacle = context.obstacle
    if obstacle:
        return PlannedAttempt(
            batch_size=start, phase=Phase.INCUMBENT, why=Why.TAKES.of(obstacle=obstacle, b=start)
        )
    success = by_size(context.all_sizes, context.success())
    b = min(
        context.feasible or {start},
        key=lambda b: (-success[b], b != start, abs(math.log2(b / start)), b),
    )
    if b == start and not context.belief.newest_runs:
        why = Why.COMES_FIRST.of(b=b, which=start_name(context.job, b))
    else:
        reached = context.belief.reached
        here = reached & context.feasible
        none = Why.ALL_MISS_OR_BARRED if here < reached else Why.ALL_MISS
        if not here:
            none = Why.NONE_HERE if reached else Why.NONE_REACHED
        why = Why.MISSED_LEAST.of(obstacle=none.of(), b=b, start=start)
    return PlannedAttempt(batch_size=b, phase=Phase.EXPLORE, why=why)


def _source(context: DecisionContext, b: int) -> str:
    """Where the cost of a batch size is known from."""
    belief = context.belief
    runs = sum(n >= belief.era and size == b for n, size, _ in belief.converged)
    return f"from {counted(runs, 'run')}" if runs else PREDICTED


def try_of(
    context: DecisionContext,
    predictions: Predictions,
    choice: Choice,
    incumbent: int,
    *,
    names: Sequence[object],
    source: str,
) -> PlannedAttempt:
    """The attempt whose net value exceeds the incumbent's, with its bounds and why it is worth its
    cost.

    :param incumbent: its index.
    :param names: of the candidates.
    :param source: of the candidate's cost.
    """
    b = predictions.gp.sizes[choice.index]
    phase = Phase.SAMPLE
    if source == PREDICTED:
        phase = Phase.EXPLORE
    text = context.weights.text
    cost = np.exp(predictions.log_cost).tolist()
    runs = counted(int(context.horizon), "run")
    later = f"{runs} left"
    if context.horizon >= HORIZON:
        later = f"next {runs}"
    why = Why.WORTH_IT.of(
        b=names[choice.index],
        cost=text(cost[choice.index]),
        source=source,
        incumbent=names[incumbent],
        incumbent_cost=text(cost[incumbent]),
        of_both=context.weights.of_both,
        later=later,
    )
    dearest = None
    if b not in context.epoch_costs:
        dearest = dearest_epoch(predictions, incumbent, choice.index)
    attempt = PlannedAttempt(batch_size=b, phase=phase, why=why)
    return bounded(context, attempt, choice.give_up_at, dearest)


def _audit(
    context: DecisionContext, predictions: Predictions, incumbent: int
) -> PlannedAttempt | None:
    """The default, unbounded, so that what the job saves is measured; None if no audit is due.

    Eq. KG-36 of docs/knowledge-gradient.md.
    """
    belief = context.belief
    default = context.job.default_batch_size
    since = sum(number > belief.audits[1] for number, _ in belief.started)
    if since < AUDIT_GAP:
        return None
    has_converged = default in context.converged
    # one miss may be that of a slice
    may_converge = default in context.feasible and belief.missed_lately(default) <= 1
    if not (has_converged or may_converge):
        return None
    if context.times is not None and context.times.slowdown(default) < 1:
        return None
    cost = np.exp(predictions.log_cost)
    own = context.all_sizes.index(default)
    expected = cost[own]
    if not has_converged:
        # Whether it reaches its target is not known, so it may take all its epochs.
        expected = belief.max_epochs * math.exp(predictions.log_epoch_cost[own])
    excess = float(expected - cost[incumbent])
    total, estimated, spent = context.totals(np.exp(predictions.log_epoch_cost))
    covered = (belief.audits[0] + 1) * excess <= context.job.audit * spent
    cov = belief.gp.cov
    variance = cov[incumbent, incumbent] + cov[own, own] - 2.0 * cov[own, incumbent]
    sd = math.sqrt(max(variance, 0.0))  # of the difference: what both share cancels out (KG-36)
    undecided = Z * sd * estimated > abs(total - spent)
    # Since the change of the data its cost is believed alone, and perhaps wrongly.
    stale = belief.newest_runs.get(default, 0) < belief.era
    if not (undecided or stale):
        return None
    if excess <= 0 or not covered:
        return None
    why = Why.AUDIT.of(
        b=default,
        excess=context.weights.text(excess),
        of_both=context.weights.of_both,
        incumbent=context.all_sizes[incumbent],
        percent=100 * context.job.audit,
    )
    return PlannedAttempt(batch_size=default, phase=Phase.AUDIT, why=why)


def _second_look(
    context: DecisionContext, predictions: Predictions, incumbent: int
) -> PlannedAttempt | None:
    """A second run of the default, so that one unlucky run is not believed; None if not due.

    It is given up at ``BETA`` times the cost of the incumbent: then it is surely dearer.
    """
    belief = context.belief
    default = context.job.default_batch_size
    if context.job.audit <= 0 or default not in context.feasible:
        return None
    if context.all_sizes[incumbent] == default:
        return None
    needed = 2
    if belief.era:  # what was believed before the change still counts a little
        needed = 1
    if belief.runs_since_change(default) >= needed:
        return None
    # What the job may still lose is no bound here: only this run ends what a wrong belief loses.
    bound = BETA * math.exp(predictions.log_cost[incumbent])
    attempt = PlannedAttempt(
        batch_size=default, phase=Phase.AUDIT, why=Why.SECOND_LOOK.of(b=default)
    )
    return bounded(context, attempt, bound)


def bounded(
    context: DecisionContext, attempt: PlannedAttempt, limit: float, dearest: float | None = None
) -> PlannedAttempt:
    """The attempt with its bounds, if something can stop it.

    Eq. KG-35 of docs/knowledge-gradient.md.

    :param limit: cost [J] above which it is given up.
    :param dearest: EpochCost [J] above which it is given up after its first epoch;
        default: ``limit``.
    """
    why = attempt.why[:-1]
    if context.belief.plain[1]:
        return replace(attempt, why=Why.TO_ITS_END.of(why=why))
    bound = context.weights.text(limit)
    if context.weights.of_both not in why:  # said once: an earlier cost may have it
        bound += context.weights.of_both
    epoch_cost = context.epoch_costs.get(attempt.batch_size)
    epochs = None
    bound_cost = limit
    if epoch_cost is not None:
        epochs = float(max(1, math.floor(limit / epoch_cost)))
        # KG-35: half an epoch more, so that the bound in epochs decides unless EpochCost changed.
        bound_cost = (epochs + 0.5) * epoch_cost
    return replace(
        attempt,
        why=Why.GIVEN_UP_ABOVE.of(why=why, bound=bound),
        bound_cost=bound_cost,
        bound_epochs=epochs,
        max_epoch_cost=limit if dearest is None else dearest,
    )
