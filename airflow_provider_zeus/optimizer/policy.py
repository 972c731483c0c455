"""``choose``: the next decision of a job, under both policies; and the policy ``"zeus"`` (Algorithms 1 to 3).

``choose`` is pure: job, belief, device, running trials and a seed give one decision, with its reason as text. The
default policy is in ``knowledge_gradient/policy.py``. "zeus" is pruning exploration and Gaussian Thompson sampling;
``docs/policy.md`` lists the differences from the paper.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.deadline import InTime
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    Decision,
    DeviceInfo,
    Phase,
    PlannedAttempt,
    ProfileSample,
    Trial,
    Where,
)
from airflow_provider_zeus.optimizer.belief import UNKNOWN, Belief, belief_tag, prior
from airflow_provider_zeus.optimizer.learn import learn
from airflow_provider_zeus.optimizer.thompson.arms import Arm, arms_of, epoch_costs, epoch_costs_elsewhere, translated
from airflow_provider_zeus.optimizer.thompson.pruning import next_exploration, next_return, start_at

if TYPE_CHECKING:
    from airflow_provider_zeus.optimizer.knowledge_gradient.run_times import RunTimes

__all__ = ["Belief", "belief_tag", "choose", "decision_seed", "fallback", "learn", "prior"]


def decision_seed(job_id: str, number: int, user_seed: int) -> int:
    """Seed of one decision: the same log and user seed give the same decision (docs/policy.md, trap 9)."""
    digest = hashlib.sha256(f"{job_id}\0{number}\0{user_seed}".encode()).digest()
    return int.from_bytes(digest[:6], "big")  # 48 bits: exact in JSON everywhere


def fallback(
    job: ZeusJob, batch_size: int | None = None, *, why: str, seed: int = 0, finish_by_s: float | None = None
) -> Decision:
    """The decision where the log cannot be read: ``batch_size`` (default: the job's) without a bound."""
    b = job.default_batch_size if batch_size is None else batch_size
    bound = finish_by_s is not None or job.max_slowdown is not None
    in_time = InTime(finish_by_s=finish_by_s, slowdown=job.max_slowdown) if bound else None
    attempt = PlannedAttempt(batch_size=b, phase=Phase.FALLBACK, why=why, in_time=in_time)
    return Decision(attempts=(attempt,), seed=seed, policy=job.policy, stand_in=_smaller(job, b))


def choose(
    job: ZeusJob,
    belief: Belief,
    *,
    profiles: Sequence[ProfileSample] = (),
    device: DeviceInfo | None = None,
    running: Sequence[Trial] = (),
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    run_type: str | None = None,
    runs_left: int | None = None,
    finish_by_s: float | None = None,
    now_s: float = 0.0,
) -> Decision:
    """Decide the next recurrence: a bounded exploratory attempt and the incumbent after it, or the incumbent alone.

    An attempt that runs alone and is not pinned has a stand-in, for the case that it does not fit into memory.

    :param profiles: profile samples of this job on this device.
    :param device: device of the recurrence; default that of the newest trial.
    :param running: the job's open trials (section 4.4, concurrent submissions).
    :param seed: seed of the decision; see :func:`decision_seed`.
    :param settings: live settings; ``pin_batch_size`` and ``pause_exploration`` are read. ``pinned_by``: what pins it,
        where that is none of them. ``budget_spent``: a sentence that says which budget is used up, so that no other
        batch size is tried.
    :param run_type: run type of the recurrence; one that is not in ``job.learn_from`` explores nothing.
    :param runs_left: recurrences after this one, where the schedule says so; ``job.expected_runs`` comes first. None:
        many. The policy "zeus" does not use it.
    :param finish_by_s: when the recurrence has to end [s since the epoch]; None: no deadline. The policy "zeus" does
        not use it to choose a batch size; its power limit is chosen by it.
    :param now_s: the present time, of the same clock.
    """
    times, bound = None, finish_by_s is not None or job.max_slowdown is not None
    if bound:
        from airflow_provider_zeus.optimizer.knowledge_gradient.run_times import RunTimes, in_time

        room_s = math.inf if finish_by_s is None else finish_by_s - now_s
        times = RunTimes.of(job, belief, device or belief.last_device(), profiles, room_s)
    held = _held(job, running, settings or {}, run_type)
    decision = _decided(job, belief, profiles, device, running, seed, settings or {}, held, runs_left, times)
    if changed := belief.target_change():
        first, *after = decision.attempts
        decision = replace(decision, attempts=(replace(first, why=f"{first.why} {changed}"), *after))
    return in_time(decision, job, times, finish_by_s) if bound else decision


def _decided(
    job: ZeusJob,
    belief: Belief,
    profiles: Sequence[ProfileSample],
    device: DeviceInfo | None,
    running: Sequence[Trial],
    seed: int,
    settings: Mapping[str, Any],
    held: str | None,
    runs_left: int | None,
    times: RunTimes | None,
) -> Decision:
    """The decision of :func:`choose`, whose attempts say nothing about time yet. ``held``: why none may be a try."""
    pinned = settings.get("pin_batch_size")
    if pinned is not None and pinned in job.batch_sizes:
        why = f"Batch size {pinned} is pinned by {settings.get('pinned_by', 'a live setting')}."
        attempt = PlannedAttempt(batch_size=pinned, phase=Phase.PINNED, why=why)
        return _sized(Decision(attempts=(attempt,), seed=seed, policy=job.policy), belief)
    device = device or belief.last_device()
    if _audit_is_asked_for(settings, belief, running):
        return _sized(_audit(job, belief, device), belief)
    if job.policy != "zeus":
        from airflow_provider_zeus.optimizer.knowledge_gradient.policy import recommend

        if job.expected_runs is not None:
            runs_left = max(job.expected_runs - belief.recurrences - 1, 0)
        attempts, second = recommend(job, belief, device, profiles, held, runs_left, times)
        decision = Decision(
            attempts=attempts,
            seed=seed,
            policy=job.policy,
            stand_in=second,
            second_chance=second is not None,
        )
        return _with_stand_in(job, belief, device, decision)
    context = _Context.of(job, belief, device, profiles)
    first = context.take_incumbent(held) if held else _explore(context) or _sample(context, seed)
    if first.batch_size != context.incumbent and belief.newest[1]:
        first = context.take_incumbent("The run before died or taught nothing")  # so that a retry ends with a model
    if first.batch_size == context.incumbent:
        return _with_stand_in(job, belief, device, Decision(attempts=(first,), seed=seed, policy=job.policy))
    attempts = context.bounded(first), context.after(first.batch_size)
    return _sized(Decision(attempts=attempts, seed=seed, policy=job.policy), belief)


def _with_stand_in(job: ZeusJob, belief: Belief, device: DeviceInfo | None, decision: Decision) -> Decision:
    if len(decision.in_order) > 1:
        return _sized(decision, belief)
    first, model = decision.attempts[0].batch_size, UNKNOWN if device is None else device.model
    barred = belief.barred(model, [b for b in job.batch_sizes if b < first])
    return _sized(replace(decision, stand_in=_smaller(job, first, belief.reached, barred)), belief)


def _smaller(
    job: ZeusJob, b: int, reached: Collection[int] = (), barred: Collection[int] = ()
) -> PlannedAttempt | None:
    """The attempt where ``b`` does not fit into memory: the next smaller size, first of those that reached the target.

    None where no smaller size may run.
    """
    fit = [s for s in job.batch_sizes if s < b and s not in barred]
    known = [s for s in fit if s in reached]
    if not fit:
        return None
    why = f"Where {b} does not fit into memory: the nearest smaller size{' that reached the target' if known else ''}."
    return PlannedAttempt(batch_size=max(known or fit), phase=Phase.INCUMBENT if known else Phase.EXPLORE, why=why)


def _sized(decision: Decision, belief: Belief) -> Decision:
    """The decision with the size of the newest slice in its attempts: an attempt without a step needs it."""
    if belief.slice_size is None:
        return decision
    size = belief.slice_size[1]
    attempts = tuple(replace(attempt, bound_samples_per_epoch=size) for attempt in decision.attempts)
    stand_in = decision.stand_in and replace(decision.stand_in, bound_samples_per_epoch=size)
    return replace(decision, attempts=attempts, stand_in=stand_in)


@dataclass(frozen=True, slots=True)
class _Context:
    """Inputs of one decision."""

    job: ZeusJob
    belief: Belief
    where: Where | None
    sizes: Sequence[int]  # ascending
    too_large: Sequence[int]  # out of memory
    infeasible: Sequence[int]  # too large, dying or struck
    arms: Mapping[int, Arm]
    epoch_costs: Mapping[int, float]  # measured here; other arms have the EpochCost of another GPU (section 7)
    weights: Weights
    incumbent: int

    @classmethod
    def of(cls, job: ZeusJob, belief: Belief, device: DeviceInfo | None, profiles: Sequence[ProfileSample]) -> _Context:
        """Arms and incumbent of the job on this device."""
        sizes = sorted(job.batch_sizes)
        weights = Weights.of(job, device)
        model = UNKNOWN if device is None else device.model
        too_large = [b for b in sizes if belief.out_of_memory(b, model)]
        barred = belief.barred(model, sizes)
        infeasible = [b for b in sizes if b in barred]
        costs = epoch_costs(belief, device, profiles, weights)
        known = arms_of(belief, translated(costs, epoch_costs_elsewhere(belief, device, weights)))
        arms = {b: known[b] for b in sizes if b in known and b not in infeasible}
        incumbent = (
            min(arms.values(), key=lambda a: a.mean).batch_size
            if arms
            else start_at(job.default_batch_size, sizes, infeasible)
        )
        where = device.where if device else None
        return cls(job, belief, where, sizes, too_large, infeasible, arms, costs, weights, incumbent)

    def cheapest(self, pool: Collection[int]) -> int:
        """The batch size with the least expected cost; sizes without an arm come last."""
        return min(pool, key=lambda b: (self.arms[b].mean if b in self.arms else math.inf, b))

    def bounded(self, attempt: PlannedAttempt) -> PlannedAttempt:
        """The attempt with its bound: beta x the incumbent's expected cost (section 4.4; docs/policy.md).

        The cost of an incumbent that never converged is that of ``max_epochs``. Where its EpochCost was not measured
        on this device only the epochs are bounded: another GPU's EpochCost ranks batch sizes, but stops no run.
        """
        most, incumbent_epoch_cost = float(self.job.max_epochs or 1), self.epoch_costs.get(self.incumbent)
        if incumbent_epoch_cost is None:
            return replace(attempt, bound_epochs=most)
        known = self.arms.get(self.incumbent)
        bound = self.job.beta * (known.mean if known else incumbent_epoch_cost * most)
        epoch_cost = self.epoch_costs.get(attempt.batch_size)
        arm = self.arms.get(attempt.batch_size)
        return replace(
            attempt,
            bound_cost=bound,
            bound_epochs=bound / epoch_cost if epoch_cost else None,
            max_epoch_cost=bound / max(1.0, arm.mean_epochs) if arm else bound,
            bound_samples_per_epoch=self.belief.slice_size[1] if self.belief.slice_size else None,
            why=f"{attempt.why[:-1]}; it is given up above {self.weights.text(bound)}, "
            f"{self.job.beta:g} x what {self.incumbent} is believed to cost.",
        )

    def after(self, given_up: int) -> PlannedAttempt:
        """The incumbent, for the case that the exploratory attempt is given up."""
        why = f"{given_up} was given up; {self.incumbent}, {self.standing()}, runs to the end."
        return PlannedAttempt(batch_size=self.incumbent, phase=Phase.INCUMBENT, why=why)

    def take_incumbent(self, reason: str) -> PlannedAttempt:
        """The incumbent alone."""
        why = f"{reason}; this run takes {self.incumbent}, {self.standing()}."
        return PlannedAttempt(batch_size=self.incumbent, phase=Phase.INCUMBENT, why=why)

    def standing(self) -> str:
        """Why the incumbent is the incumbent."""
        if self.arms:
            return "the cheapest known to reach the target"
        return _start_name(self.job, self.incumbent)


def _start_name(job: ZeusJob, start: int) -> str:
    return "the default" if start == job.default_batch_size else "the nearest to the default that fits"


def _held(job: ZeusJob, running: Sequence[Trial], settings: Mapping[str, Any], run_type: str | None) -> str | None:
    """Why no other batch size may be tried now; None where one may."""
    if why := settings.get("budget_spent"):
        return f"A budget is used up: {why}"
    if settings.get("pause_exploration"):
        return "Exploration is paused by a live setting"
    if run_type is not None and run_type not in job.learn_from:
        return f"A run of type {run_type} does not teach the bandit"
    # concurrent runs of Thompson sampling draw different sizes; under the other policy they would try the same one
    bounded = job.policy != "zeus"
    tries = [t for t in running if t.planned.phase.exploring or (bounded and t.planned.bounded)]
    other = next(iter([*tries, *(t for t in running if t.planned.phase is Phase.AUDIT)]), None)
    return None if other is None else f"Another run of this job explores {other.batch_size} now"


def _audit_is_asked_for(settings: Mapping[str, Any], belief: Belief, running: Sequence[Trial]) -> bool:
    """Whether the live setting ``audit_after``, a trial's number, is newer than every audit."""
    after = settings.get("audit_after")
    return after is not None and belief.audits[1] <= after and not any(t.planned.phase is Phase.AUDIT for t in running)


def _audit(job: ZeusJob, belief: Belief, device: DeviceInfo | None) -> Decision:
    """The default, as asked for by a live setting; where it misses its target, the best known size after it."""
    decision = choose(job, belief, device=device, settings={"pause_exploration": True})
    best, b = decision.attempts[-1], job.default_batch_size
    why = f"Audit, asked for on the page: {b}, the default, runs, so that what the job saves is measured."
    attempt = PlannedAttempt(batch_size=b, phase=Phase.AUDIT, why=why)
    second = best.batch_size != b and best.batch_size in belief.reached
    return replace(decision, attempts=(attempt,), stand_in=best if second else None, second_chance=second)


def _explore(context: _Context) -> PlannedAttempt | None:
    """An attempt that comes before sampling: exploration, or the return of a batch size; None where neither is due."""
    start, belief = start_at(context.job.default_batch_size, context.sizes, context.infeasible), context.belief
    # out of memory ends the walk, any other infeasible size is skipped
    walked = [b for b in context.sizes if b in context.too_large or b not in context.infeasible]
    found = next_exploration(walked, start, belief.explored, context.too_large, context.cheapest)
    if found is not None:
        number, b = found
        which = " is the next batch size"
        if number == 1 and b == start:
            which = f", {_start_name(context.job, b)}, comes first"
        elif not any(r == number for r, _ in belief.explored):
            which = f" was the cheapest of round {number - 1} and comes first"
        why = f"Pruning exploration, round {number}: {b}{which}."
        return PlannedAttempt(batch_size=b, phase=Phase.EXPLORE, round=number, why=why)
    settled = {*(context.arms.keys() & context.epoch_costs.keys()), *context.infeasible}
    due = next_return(belief, context.where, context.sizes, settled, context.incumbent)
    if due is None:
        return None
    why = f"{due} has no run on this device among the last {context.job.window} converged ones and is tried once."
    return PlannedAttempt(batch_size=due, phase=Phase.RETURN, why=why)


def _sample(context: _Context, seed: int) -> PlannedAttempt:
    """Thompson sampling (Algorithm 1): one draw per arm from its posterior; the lowest draw runs."""
    text = context.weights.text
    if not context.arms:
        unknown = "has reached the target yet"
        if context.belief.converged:
            unknown = "that reached the target has a known cost here"
        return context.take_incumbent(f"No batch size {unknown}")
    rng = random.Random(seed)
    draws = {b: arm.mean + arm.sd * rng.gauss(0.0, 1.0) for b, arm in context.arms.items()}
    b = min(draws, key=lambda b: (draws[b], b))
    arm = context.arms[b]
    why = (
        f"Thompson sampling: {b} drew {text(draws[b])}, the lowest of {len(draws)} "
        f"(believed {text(arm.mean)} from {arm.runs} run{'s' if arm.runs > 1 else ''})."
    )
    return PlannedAttempt(batch_size=b, phase=Phase.SAMPLE, why=why)
