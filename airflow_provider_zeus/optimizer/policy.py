"""``choose``: the next decision of a job, under both policies.

``choose`` is pure: job, belief, device, running trials and a seed give one decision, with its
reason as text. The default policy is in ``knowledge_gradient/policy.py``,
the policy ``"zeus"`` in ``thompson.py``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from dataclasses import replace

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.deadline import InTime
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import (
    Decision,
    Phase,
    PlannedAttempt,
)
from airflow_provider_zeus.optimizer import thompson
from airflow_provider_zeus.optimizer.arms import (
    arms_here,
)
from airflow_provider_zeus.optimizer.belief import Belief, belief_tag, model_of, prior
from airflow_provider_zeus.optimizer.learn import learn
from airflow_provider_zeus.optimizer.posterior import own_arithmetic
from airflow_provider_zeus.optimizer.reasons import Why
from airflow_provider_zeus.optimizer.situation import Situation
from airflow_provider_zeus.optimizer.slices import short

__all__ = ["Belief", "belief_tag", "choose", "decision_seed", "fallback", "learn", "prior"]


def decision_seed(job_id: str, number: int, seed: int = 0) -> int:
    """Seed of one decision: the same log gives the same decision (docs/policy.md, trap 9).

    :param seed: of a replay; another one draws other decisions from the same log.
    """
    digest = hashlib.sha256(f"{job_id}\0{number}\0{seed}".encode()).digest()
    return int.from_bytes(digest[:6], "big")  # 48 bits: exact in JSON everywhere


def fallback(job: ZeusJob, *, why: str, finish_by_s: float | None = None) -> Decision:
    """The decision if the log cannot be read: the default batch size without a bound."""
    if not job.chooses_size:
        return measured(job, why=why)
    b = job.default_batch_size
    attempt = PlannedAttempt(batch_size=b, phase=Phase.FALLBACK, why=why, start=_cold(job))
    if finish_by_s is not None:
        attempt = replace(attempt, in_time=InTime(finish_by_s=finish_by_s))
    return Decision(attempts=(attempt,), seed=0, policy=job.policy, stand_in=_smaller(job, b))


def _cold(job: ZeusJob) -> Start | None:
    """The start of an attempt that no earlier model takes part in; None: the job has no starts."""
    return Start.COLD if job.chooses_start else None


def measured(job: ZeusJob, seed: int = 0, *, why: str = "", policy: str = "none") -> Decision:
    """The decision of a job that names no batch sizes.

    ``policy``: ``OUTSIDE`` if the task does not know Zeus.
    """
    tuned = "; its power limit is tuned by its optimizer steps" if job.mode != "measure" else ""
    why = why or f"No batch size is chosen: the task runs as it is, and is measured{tuned}."
    attempt = PlannedAttempt(
        batch_size=None,  # type: ignore[arg-type]
        phase=Phase.MEASURED,
        why=why,
    )
    return Decision(attempts=(attempt,), seed=seed, policy=policy)


@own_arithmetic()
def choose(situation: Situation) -> Decision:
    """Decide the next recurrence: a bounded try and the incumbent after it, or that alone.

    An incumbent from the earlier model is bounded, and the best pair of another start follows it.
    If none is tried or pinned there is a stand-in, for a last attempt that does not fit into
    memory. Behind another size than the default there is a relief, the default, for an attempt
    that fails. If such a size has failed in an earlier try of this run, or in the newest
    runs, which kept no model, the default runs alone.
    """
    job = situation.job
    belief = situation.belief
    finish_by_s = situation.finish_by_s
    if not job.chooses_size:
        return measured(job, situation.seed)
    here = situation.device or belief.last_device()
    times = None
    if finish_by_s is not None:
        from airflow_provider_zeus.optimizer.knowledge_gradient.run_times import RunTimes

        room_s = finish_by_s - situation.now_s
        times = RunTimes.of(belief, here, situation.profiles, room_s)
    if situation.settings.get("pin_batch_size") in job.batch_sizes:
        decision = Decision(attempts=(_pinned(situation),), seed=situation.seed, policy=job.policy)
    else:
        situation = situation._replace(device=here, times=times)
        alone = _asked_audit(situation) or _alone(situation)
        if alone is not None:
            attempts: tuple[PlannedAttempt, ...] = (alone,)
        elif job.policy == "zeus":
            attempts = thompson.recommend(situation)
        else:
            attempts = _by_gradient(situation)
        decision = _with_safety(situation, attempts)
    decision = _completed(decision, belief)
    if finish_by_s is None:
        return decision
    from airflow_provider_zeus.optimizer.knowledge_gradient.run_times import in_time

    return in_time(decision, times, finish_by_s)


def _completed(decision: Decision, belief: Belief) -> Decision:
    """The decision with the newest slice's size, which says that a new target is new."""
    if belief.slice_size is not None:  # tells an attempt without steps that others had some
        size = belief.slice_size[1]
        decision = decision.each(lambda plan: replace(plan, bound_samples_per_epoch=size))
    sentence = belief.target_change()
    if sentence is None:
        return decision
    first, *after = decision.attempts
    return replace(decision, attempts=(first.saying(sentence), *after))


def _by_gradient(situation: Situation) -> tuple[PlannedAttempt, ...]:
    """The attempts under the policy ``"knowledge_gradient"``."""
    # Imported here, since they need numpy, and the other policy does not.
    from airflow_provider_zeus.optimizer.knowledge_gradient import policy, start_policy
    from airflow_provider_zeus.optimizer.knowledge_gradient.decision_context import DecisionContext

    context = DecisionContext.of(situation)
    recommend = policy.recommend
    if situation.job.chooses_start:
        recommend = start_policy.recommend
    first, *after = recommend(context)
    return first.saying(policy.of_drift(situation.belief)), *after


def _pinned(situation: Situation) -> PlannedAttempt:
    """The attempt of a pinned size. From the start that is best for it."""
    settings = situation.settings
    b = settings["pin_batch_size"]
    why = Why.PINNED.of(b=b, by=settings.get("pinned_by", "a live setting"))
    attempt = PlannedAttempt(batch_size=b, phase=Phase.PINNED, why=why)
    if not situation.job.chooses_start:
        return attempt
    from airflow_provider_zeus.optimizer.knowledge_gradient import start_policy
    from airflow_provider_zeus.optimizer.knowledge_gradient.decision_context import DecisionContext

    planned = start_policy.recommend(DecisionContext.of(situation), only=b)
    return replace(attempt, start=planned[0].start)


def _asked_audit(situation: Situation) -> PlannedAttempt | None:
    """The audit that a person asked for, unless one runs or a newer one has run."""
    job = situation.job
    asked_after = situation.settings.get("audit_after")
    if asked_after is None or situation.belief.audits[1] > asked_after:
        return None
    if any(trial.planned.phase is Phase.AUDIT for trial in situation.running):
        return None
    b = job.default_batch_size
    why = Why.AUDIT_ASKED.of(b=b)
    return PlannedAttempt(batch_size=b, phase=Phase.AUDIT, why=why, start=_cold(job))


def _with_safety(situation: Situation, attempts: tuple[PlannedAttempt, ...]) -> Decision:
    """The attempts, with those for a last one that does not fit into memory or fails."""
    job = situation.job
    belief = situation.belief
    decision = Decision(attempts=attempts, seed=situation.seed, policy=job.policy)
    # a try needs no stand-in: the incumbent runs after it
    if len(attempts) == 1 or not attempts[0].tried:
        last = attempts[-1]
        smaller = [b for b in job.batch_sizes if b < last.batch_size]
        barred = belief.barred(model_of(situation.device), smaller)
        stand_in = _smaller(job, last.batch_size, belief.reached, barred)
        if stand_in is not None:
            decision = replace(decision, stand_in=replace(stand_in, start=last.start))
    return replace(decision, reliefs=_reliefs(situation, decision))


def _alone(situation: Situation) -> PlannedAttempt | None:
    """The only attempt of a run after another size than the default failed; else None.

    It is the default, cold and unbounded. If that may not run, the best known of the other sizes
    that reached the target, else the next smaller one.
    """
    job = situation.job
    belief = situation.belief
    default = job.default_batch_size
    failed = frozenset[int]()
    if situation.recurrence:
        failed = belief.failed_in(short(situation.recurrence))
    sentence = Why.FAILED_IN_RUN
    if not failed - {default}:
        failed = belief.failed_lately
        sentence = Why.FAILED_LATELY
    if not failed - {default}:
        return None
    b = default
    which = Why.DEFAULT
    barred = _barred(situation)
    if default in barred:
        other = _best_other(situation, {*failed, default})
        smaller = _smaller(job, default, barred=barred | failed)
        if other is not None:
            b = other
            which = Why.BEST_OTHER
        elif smaller is not None:
            b = smaller.batch_size
            which = Why.NEAREST
    sizes = ", ".join(map(str, sorted(failed)))
    why = Why.TAKES.of(obstacle=sentence.of(sizes=sizes), b=f"{b}, {which.of()}")
    return _safe(situation, b, why)


def _reliefs(situation: Situation, decision: Decision) -> tuple[PlannedAttempt, ...]:
    """The attempts for a last one that fails: one of them runs. None after the default."""
    default = situation.job.default_batch_size
    last = decision.attempts[-1].batch_size
    if last == default and decision.stand_in is None:
        return ()
    reliefs = {}
    if default != last and default not in _barred(situation):
        reliefs[default] = Why.DEFAULT
    planned = {attempt.batch_size for attempt in decision.in_order}
    if not reliefs or default in planned:  # it may have failed itself when a relief is needed
        other = _best_other(situation, planned | {default})
        if other is not None:
            reliefs[other] = Why.BEST_OTHER
    times = arms_here(
        situation.belief,
        situation.device,
        situation.profiles,
        weights=Weights(0.0, 1.0, time_alone=True),
    )
    attempts = []
    for b, which in reliefs.items():
        attempt = _safe(situation, b, Why.RELIEF.of(b=last, relief=b, which=which.of()))
        usual_s = times[b].mean if b in times else None
        attempts.append(replace(attempt, usual_s=usual_s))
    return tuple(attempts)


def _barred(situation: Situation) -> frozenset[int]:
    return situation.belief.barred(model_of(situation.device), situation.job.batch_sizes)


def _best_other(situation: Situation, without: Collection[int]) -> int | None:
    """The cheapest size that reached the target and may run; None if there is none."""
    job, belief, device, profiles, *_ = situation
    sizes = belief.reached.intersection(job.batch_sizes) - _barred(situation) - set(without)
    if not sizes:
        return None
    arms = arms_here(belief, device, profiles, weights=Weights.of(job, device))
    return min(sizes, key=lambda b: (arms[b].mean if b in arms else math.inf, b))


def _safe(situation: Situation, b: int, why: str) -> PlannedAttempt:
    """An attempt after another batch size has failed: cold and unbounded."""
    phase = Phase.EXPLORE
    if b in situation.belief.reached:
        phase = Phase.INCUMBENT
    return PlannedAttempt(batch_size=b, phase=phase, why=why, start=_cold(situation.job))


def _smaller(
    job: ZeusJob, b: int, reached: Collection[int] = (), barred: Collection[int] = ()
) -> PlannedAttempt | None:
    """The attempt if ``b`` does not fit into memory; None if no smaller size may run.

    The next smaller size that reached the target, else the next smaller one.
    """
    smaller = [size for size in job.batch_sizes if size < b]
    fit = [size for size in smaller if size not in barred]
    proven = [size for size in fit if size in reached]
    if not fit:
        return None
    why = (Why.SMALLER_KNOWN if proven else Why.SMALLER).of(b=b)
    return PlannedAttempt(
        batch_size=max(proven or fit), phase=Phase.INCUMBENT if proven else Phase.EXPLORE, why=why
    )
