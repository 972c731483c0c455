"""Policy ``"zeus"``: pruning exploration and Gaussian Thompson sampling (Algorithms 1 to 3), the traps settled.

``choose`` is pure: job, belief, device, trials now running and a seed give one decision, with its reason in words.
What differs from the paper, and why, stands in ``docs/policy.md``.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_zeus.optimizer.arms import Arm, arms_of, epoch_costs, epoch_costs_elsewhere, translated
from airflow_provider_zeus.optimizer.belief import UNKNOWN, Belief, belief_tag, prior
from airflow_provider_zeus.optimizer.cost import Weights
from airflow_provider_zeus.optimizer.exploration import next_exploration, next_return, start_at
from airflow_provider_zeus.optimizer.fold import learn
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.stand_in import smaller
from airflow_provider_zeus.optimizer.trial import (
    EXPLORING,
    Attempt,
    Decision,
    DeviceInfo,
    Phase,
    ProfileSample,
    Trial,
    Where,
)

__all__ = ["Belief", "belief_tag", "choose", "decision_seed", "fallback", "learn", "prior"]


def decision_seed(job_id: str, number: int, user_seed: int) -> int:
    """Seed of one decision: the same log and user seed give the same decision (upstream trap 9)."""
    digest = hashlib.sha256(f"{job_id}\0{number}\0{user_seed}".encode()).digest()
    return int.from_bytes(digest[:6], "big")  # 48 bits: exact in JSON everywhere


def fallback(job: ZeusJob, batch_size: int | None = None, *, why: str, seed: int = 0) -> Decision:
    """The decision where no log can be read: ``batch_size`` (default: the job's) without a bound."""
    b = job.default_batch_size if batch_size is None else batch_size
    decision = _decision(seed, job, Attempt(batch_size=b, phase=Phase.FALLBACK, why=why))
    return replace(decision, stand_in=smaller(job, b))


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
) -> Decision:
    """What the next recurrence runs: one bounded exploratory attempt and the incumbent after it, or the incumbent.

    What runs alone, pinned ones apart, has another size stand in for it where it does not fit into memory.
    ``running`` are the job's open trials (section 4.4, concurrent submissions); ``settings`` may hold
    ``pin_batch_size`` and ``pause_exploration``. Without ``device`` the newest trial's is assumed. A ``run_type`` that
    is not in ``job.learn_from`` explores nothing, since what it finds would not be learnt.
    """
    settings = settings or {}
    pinned = settings.get("pin_batch_size")
    if pinned is not None and pinned in job.batch_sizes:
        why = f"Batch size {pinned} is pinned by a live setting."
        return _sized(_decision(seed, job, Attempt(batch_size=pinned, phase=Phase.PINNED, why=why)), belief)
    device = device or belief.last_device()
    held = _held(job, running, settings, run_type)
    if job.policy != "zeus":
        from airflow_provider_zeus.optimizer.recommend import recommend

        attempts, second = recommend(job, belief, device, profiles, held)
        decision = Decision(
            attempts=attempts,
            seed=seed,
            policy=job.policy,
            stand_in=second,
            second_chance=second is not None,
        )
        return _with_stand_in(job, belief, device, decision)
    view = _View.of(job, belief, device, profiles)
    first = view.take_incumbent(held) if held else _explore(view) or _sample(view, seed)
    if first.batch_size != view.incumbent and belief.newest[1]:
        first = view.take_incumbent("The run before died")  # a retry ends with a model, whatever killed that run
    if first.batch_size == view.incumbent:
        return _with_stand_in(job, belief, device, _decision(seed, job, first))
    return _sized(_decision(seed, job, view.bounded(first), view.after(first.batch_size)), belief)


def _decision(seed: int, job: ZeusJob, *attempts: Attempt) -> Decision:
    return Decision(attempts=attempts, seed=seed, policy=job.policy)


def _with_stand_in(job: ZeusJob, belief: Belief, device: DeviceInfo | None, decision: Decision) -> Decision:
    if len(decision.in_order) > 1:
        return _sized(decision, belief)
    first, model = decision.attempts[0].batch_size, UNKNOWN if device is None else device.model
    barred = belief.barred(model, [b for b in job.batch_sizes if b < first])
    return _sized(replace(decision, stand_in=smaller(job, first, belief.reached, barred)), belief)


def _sized(decision: Decision, belief: Belief) -> Decision:
    """The decision whose attempts know the size of the newest slice: one without a step can tell that it lacks some."""
    if belief.slice_size is None:
        return decision
    size = belief.slice_size[1]
    attempts = tuple(replace(attempt, bound_samples_per_epoch=size) for attempt in decision.attempts)
    stand_in = decision.stand_in and replace(decision.stand_in, bound_samples_per_epoch=size)
    return replace(decision, attempts=attempts, stand_in=stand_in)


@dataclass(frozen=True, slots=True)
class _View:
    """What one decision looks at."""

    job: ZeusJob
    belief: Belief
    where: Where | None
    sizes: Sequence[int]  # ascending
    too_large: Sequence[int]  # out of memory
    infeasible: Sequence[int]  # those, what keeps dying, and what is struck
    arms: Mapping[int, Arm]
    epoch_costs: Mapping[int, float]  # measured here; an arm without one has the EpochCost of another GPU (section 7)
    weights: Weights
    incumbent: int

    @classmethod
    def of(cls, job: ZeusJob, belief: Belief, device: DeviceInfo | None, profiles: Sequence[ProfileSample]) -> _View:
        sizes = sorted(job.batch_sizes)
        weights = Weights.of(job, device)
        model = UNKNOWN if device is None else device.model
        too_large = [b for b in sizes if belief.out_of_memory(b, model)]
        never = belief.barred(model, sizes)
        infeasible = [b for b in sizes if b in never]
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
        """Of these batch sizes the one believed cheapest; one without a belief counts last."""
        return min(pool, key=lambda b: (self.arms[b].mean if b in self.arms else math.inf, b))

    def incumbent_cost(self) -> float | None:
        """Believed cost [J] of a run of the incumbent; where it never converged, of its ``max_epochs``.

        None where its EpochCost was not measured on this device.
        """
        epoch_cost = self.epoch_costs.get(self.incumbent)
        if epoch_cost is None:  # another GPU's is good enough to rank batch sizes, not to stop a run by
            return None
        if self.incumbent in self.arms:
            return self.arms[self.incumbent].mean
        return None if self.job.max_epochs is None else epoch_cost * self.job.max_epochs

    def bounded(self, attempt: Attempt) -> Attempt:
        """The attempt with its bound: beta x the incumbent's believed cost (section 4.4, traps 7 and 8)."""
        cost = self.incumbent_cost()
        if cost is None:
            return replace(attempt, bound_epochs=float(self.job.max_epochs or 1))
        bound = self.job.beta * cost
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

    def after(self, given_up: int) -> Attempt:
        """The attempt that keeps a model when the exploratory one is given up."""
        why = f"{given_up} was given up; {self.incumbent}, {self.standing()}, runs to the end."
        return Attempt(batch_size=self.incumbent, phase=Phase.INCUMBENT, why=why)

    def take_incumbent(self, reason: str) -> Attempt:
        """The incumbent instead of anything new."""
        why = f"{reason}; this run takes {self.incumbent}, {self.standing()}."
        return Attempt(batch_size=self.incumbent, phase=Phase.INCUMBENT, why=why)

    def standing(self) -> str:
        """What the incumbent is, in words."""
        if self.arms:
            return "the cheapest known to reach the target"
        return _start_name(self.job, self.incumbent)


def _start_name(job: ZeusJob, start: int) -> str:
    return "the default" if start == job.default_batch_size else "the nearest to the default that fits"


def _held(job: ZeusJob, running: Sequence[Trial], settings: Mapping[str, Any], run_type: str | None) -> str | None:
    """Why nothing new is tried now; None when nothing speaks against it."""
    if settings.get("pause_exploration"):
        return "Exploration is paused by a live setting"
    if run_type is not None and run_type not in job.learn_from:
        return f"A run of type {run_type} does not teach the bandit"
    # Thompson sampling spreads concurrent runs by itself; without it two would try the same batch size
    bounded = job.policy != "zeus"
    other = next((t for t in running if t.planned.phase in EXPLORING or (bounded and t.planned.bounded)), None)
    return None if other is None else f"Another run of this job explores {other.batch_size} now"


def _explore(view: _View) -> Attempt | None:
    """The attempt that must come before sampling: exploring or returning; None when none must."""
    start = start_at(view.job.default_batch_size, view.sizes, view.infeasible)
    walked = [b for b in view.sizes if b in view.too_large or b not in view.infeasible]  # what dies is passed over
    found = next_exploration(walked, start, view.belief.explored, view.too_large, view.cheapest)
    if found is not None:
        number, b = found
        return Attempt(batch_size=b, phase=Phase.EXPLORE, round=number, why=_why_explored(view, number, b, start))
    settled = {*(view.arms.keys() & view.epoch_costs.keys()), *view.infeasible}
    b_due = next_return(view.belief, view.where, view.sizes, settled, view.incumbent)
    if b_due is None:
        return None
    why = f"{b_due} has no run on this device among the last {view.job.window} converged ones and is tried once."
    return Attempt(batch_size=b_due, phase=Phase.RETURN, why=why)


def _why_explored(view: _View, number: int, b: int, start: int) -> str:
    head = f"Pruning exploration, round {number}: "
    if number == 1 and b == start:
        return head + f"{b}, {_start_name(view.job, b)}, comes first."
    if not any(r == number for r, _ in view.belief.explored):
        return head + f"{b} was the cheapest of round {number - 1} and comes first."
    return head + f"{b} is the next batch size."


def _sample(view: _View, seed: int) -> Attempt:
    """Thompson sampling (Algorithm 1): one draw per arm from its posterior, the lowest runs."""
    if not view.arms:
        reached = (
            "that reached the target has a known cost here" if view.belief.converged else "has reached the target yet"
        )
        return view.take_incumbent(f"No batch size {reached}")
    rng = random.Random(seed)
    draws = {b: arm.mean + arm.sd * rng.gauss(0.0, 1.0) for b, arm in view.arms.items()}
    b = min(draws, key=lambda b: (draws[b], b))
    arm = view.arms[b]
    why = (
        f"Thompson sampling: {b} drew {view.weights.text(draws[b])}, the lowest of {len(draws)} "
        f"(believed {view.weights.text(arm.mean)} from {arm.runs} run{'s' if arm.runs > 1 else ''})."
    )
    return Attempt(batch_size=b, phase=Phase.SAMPLE, why=why)
