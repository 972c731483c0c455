"""The policy ``"zeus"``: pruning exploration, Gaussian Thompson sampling (Algorithms 1 to 3).

Pruned arms return. ``docs/policy.md`` lists the differences from the paper.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    Phase,
    PlannedAttempt,
    Where,
)
from airflow_provider_zeus.optimizer.arms import (
    BETA,
    Arm,
    arms_here,
    doubted,
    epoch_costs,
)
from airflow_provider_zeus.optimizer.belief import Belief, model_of, where_of
from airflow_provider_zeus.optimizer.reasons import Why
from airflow_provider_zeus.optimizer.situation import Situation, start_at, start_name
from airflow_provider_zeus.units import counted

ROUNDS = 2  # so that a cost variance is observed (Algorithm 3, line 2)


def recommend(situation: Situation) -> tuple[PlannedAttempt, ...]:
    """The attempts of the next recurrence: one, or a bounded one and the incumbent after it."""
    belief = situation.belief
    context = _Context.of(situation)
    obstacle = situation.obstacle
    if obstacle is not None:
        first = context.alone(obstacle)
    else:
        first = _explored(context) or _sampled(context, situation.seed)
    if first.batch_size != context.incumbent and belief.newest[1]:
        first = context.alone(Why.DIED.of())  # so that a retry ends with a model
    if first.batch_size == context.incumbent:
        return (first,)
    why = belief.why_another.of(
        tried=first.batch_size, b=context.incumbent, standing=context.standing()
    )
    after = PlannedAttempt(batch_size=context.incumbent, phase=Phase.INCUMBENT, why=why)
    return context.bounded(first), after


@dataclass(frozen=True, slots=True)
class _Context:
    """Inputs of one decision."""

    job: ZeusJob
    belief: Belief
    where: Where | None
    sizes: Sequence[int]  # ascending: Algorithm 3 walks over neighbours
    too_large: frozenset[int]
    infeasible: frozenset[int]
    arms: Mapping[int, Arm]
    # Of this GPU alone: another one's EpochCost ranks sizes, but stops no run (section 7).
    epoch_costs: Mapping[int, float]
    doubted: frozenset[int]  # one odd run must not bar a size for ever
    weights: Weights
    start: int  # the default may be infeasible (situation.start_at())
    incumbent: int

    @classmethod
    def of(cls, situation: Situation) -> _Context:
        """Arms and incumbent of the job on this device."""
        job = situation.job
        belief = situation.belief
        device = situation.device
        profiles = situation.profiles
        sizes = sorted(job.batch_sizes)
        weights = Weights.of(job, device)
        model = model_of(device)
        barred = belief.barred(model, sizes)
        costs = epoch_costs(belief, device, profiles, weights)
        all_arms = arms_here(belief, device, profiles, weights)
        feasible = [b for b in sizes if b not in barred]
        arms = {b: all_arms[b] for b in feasible if b in all_arms}
        incumbent = start = start_at(job.default_batch_size, feasible)
        if arms:
            incumbent = min(arms, key=lambda b: arms[b].mean)
        return cls(
            job=job,
            belief=belief,
            where=where_of(device),
            sizes=sizes,
            too_large=belief.infeasible(model),
            infeasible=barred,
            arms=arms,
            epoch_costs=costs,
            doubted=doubted(belief, device, profiles, weights),
            weights=weights,
            start=start,
            incumbent=incumbent,
        )

    def bounded(self, attempt: PlannedAttempt) -> PlannedAttempt:
        """The attempt with its bound: beta x the incumbent's expected cost (section 4.4).

        The cost of an incumbent that never converged is that of ``max_epochs``. If its EpochCost
        was not measured on this device only the epochs are bounded: another GPU's EpochCost ranks
        batch sizes, but stops no run. A training that nothing stops has no bound.
        """
        if self.belief.plain[1]:
            return replace(attempt, why=Why.TO_ITS_END.of(why=attempt.why[:-1]))
        most = float(self.job.max_epochs or 1)
        incumbent_epoch_cost = self.epoch_costs.get(self.incumbent)
        if incumbent_epoch_cost is None:
            return replace(attempt, bound_epochs=most)
        incumbent_arm = self.arms.get(self.incumbent)
        arm = self.arms.get(attempt.batch_size)
        bound = BETA * incumbent_epoch_cost * most
        if incumbent_arm:
            bound = BETA * incumbent_arm.mean
        epoch_cost = self.epoch_costs.get(attempt.batch_size)
        text = self.weights.text(bound)
        if self.weights.of_both not in attempt.why:  # said once: an earlier cost may have it
            text += self.weights.of_both
        return replace(
            attempt,
            bound_cost=bound,
            bound_epochs=bound / epoch_cost if epoch_cost else None,
            max_epoch_cost=bound / max(1.0, arm.mean_epochs) if arm else bound,
            why=Why.BOUNDED.of(
                why=attempt.why[:-1], bound=text, beta=BETA, incumbent=self.incumbent
            ),
        )

    def alone(self, obstacle: str) -> PlannedAttempt:
        """The incumbent alone. ``obstacle``: why nothing else is tried."""
        why = Why.TAKES.of(obstacle=obstacle, b=f"{self.incumbent}, {self.standing()}")
        return PlannedAttempt(batch_size=self.incumbent, phase=Phase.INCUMBENT, why=why)

    def standing(self) -> str:
        """Why the incumbent is the incumbent."""
        if self.arms:
            return Why.CHEAPEST.of(adjective="cheap", condition="to reach the target")
        return start_name(self.job, self.incumbent)


def _explored(context: _Context) -> PlannedAttempt | None:
    """An attempt before sampling: exploration, or the return of a size; None if none is due."""
    ends = context.belief.explored
    explored = {(r, b): end for (r, b), end in ends.items() if b not in context.doubted}
    step = _next_exploration(context, explored)
    if step is not None:
        number, b = step
        why = Why.NEXT_OF_ROUND.of(round=number, b=b)
        if number == 1 and b == context.start:
            why = Why.FIRST_OF_ALL.of(round=number, b=b, which=start_name(context.job, b))
        elif not any(r == number for r, _ in explored):
            why = Why.FIRST_OF_ROUND.of(round=number, b=b, before=number - 1)
        return PlannedAttempt(batch_size=b, phase=Phase.EXPLORE, round=number, why=why)
    due = _next_return(context)
    if due is None:
        return None
    why = Why.ONCE_MORE.of(b=due, window=context.job.window)
    return PlannedAttempt(batch_size=due, phase=Phase.RETURN, why=why)


def _sampled(context: _Context, seed: int) -> PlannedAttempt:
    """Thompson sampling (Algorithm 1): the lowest of one draw per arm from its posterior runs."""
    if not context.arms:
        obstacle = Why.NONE_REACHED
        if context.belief.converged:
            obstacle = Why.NONE_COSTED
        return context.alone(obstacle.of())
    rng = random.Random(seed)
    text = context.weights.text
    draws = {b: arm.mean + arm.sd * rng.gauss(0.0, 1.0) for b, arm in context.arms.items()}
    b = min(draws, key=lambda b: (draws[b], b))
    mean = text(context.arms[b].mean)
    runs = counted(context.arms[b].runs, "run")
    why = Why.DREW.of(
        b=b,
        drawn=text(draws[b]),
        of_both=context.weights.of_both,
        arms=len(draws),
        mean=mean,
        runs=runs,
    )
    return PlannedAttempt(batch_size=b, phase=Phase.SAMPLE, why=why)


def _next_exploration(
    context: _Context, explored: Mapping[tuple[int, int], tuple[int, bool]]
) -> tuple[int, int] | None:
    """(round, batch size) to explore next; None when both rounds are over.

    :param explored: (round, batch size) -> (trial number, whether it converged).

    Round 2 walks over the sizes that converged in round 1, from the cheapest of them. A failure
    there ends the walk, but the sizes behind it stay arms: one unlucky run does not remove its
    neighbours (docs/policy.md, trap 3).
    """
    # Larger sizes than one that ran out of memory do so, too; one barred by strikes hides none.
    skipped = context.infeasible - context.too_large
    sizes = [b for b in context.sizes if b not in skipped]
    pool = sizes
    start = context.start
    arms = context.arms
    for number in range(1, ROUNDS + 1):
        ends = {b: ok for (r, b), (_, ok) in explored.items() if r == number}
        if number > 1:
            pool = [b for b in sizes if explored.get((number - 1, b), (0, False))[1]]
            if not pool:
                return None
            # The round's first trial keeps its place: its start must not move with the arms' means.
            first = min(ends, key=lambda b: explored[number, b], default=None)
            # A size without an arm has no cost here, so it is not known to be the cheapest.
            start = min(pool, key=lambda b: (arms[b].mean if b in arms else math.inf, b))
            if first is not None and first in pool:
                start = first
        size = _walk(pool, start, ends | dict.fromkeys(context.too_large, False))
        if size is not None:
            return number, size
    return None


def _walk(pool: Sequence[int], start: int, ends: Mapping[int, bool]) -> int | None:
    """The start, then smaller and then larger until failure (Algorithm 3, lines 3 to 5)."""
    if start not in ends:
        return start
    smaller = [b for b in reversed(pool) if b < start]
    larger = [b for b in pool if b > start]
    for direction in (smaller, larger):
        for b in direction:
            if b not in ends:
                return b
            if not ends[b]:
                break
    return None


def _next_return(context: _Context) -> int | None:
    """The batch size nearest to the incumbent that is due for one bounded try; None: none is.

    A batch size is due if it is neither an arm with its own EpochCost nor infeasible, and joined
    the list after exploration was over, was tried or pruned a whole window ago, or converged but
    did not run on this device within the window, or only by a run that is doubted. One that ran
    here and has no cost is not due: its figures are missing, not its runs.
    """
    belief = context.belief
    where = context.where
    pruned_at = max((n for n, _ in belief.explored.values()), default=0)
    tries = [(n, b) for (_, b), (n, _) in belief.explored.items()] + [
        (n, b) for n, b, _ in belief.stopped
    ]
    last_try = {b: n for n, b in sorted(tries)}
    window_start = belief.window_start()
    converged = belief.reached

    def due(b: int) -> bool:
        if b in context.doubted:
            return True
        if b in converged:
            return where is not None and belief.newest_there.get((b, where), -1) < window_start
        if b in last_try:
            return last_try[b] < window_start
        joined_late = belief.listed.get(b, pruned_at + 1) > pruned_at
        return joined_late or pruned_at < window_start

    settled = context.infeasible | (context.arms.keys() & context.epoch_costs.keys())
    waiting = [b for b in context.sizes if b not in settled and due(b)]
    at = context.sizes.index
    return min(waiting, key=lambda b: (abs(at(b) - at(context.incumbent)), b), default=None)
