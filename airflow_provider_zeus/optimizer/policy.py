"""``choose``: the next decision of a job, under both policies.

``choose`` is pure: job, belief, device, running trials and a seed give one decision, with its reason as text. The
default policy is in ``knowledge_gradient/policy.py``, the policy ``"zeus"`` in ``thompson.py``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.deadline import InTime
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import Decision, DeviceInfo, Lineage, Phase, PlannedAttempt, ProfileSample, Trial
from airflow_provider_zeus.optimizer import thompson
from airflow_provider_zeus.optimizer.arms import Arm, arms_of, epoch_costs, epoch_costs_elsewhere, translated
from airflow_provider_zeus.optimizer.belief import UNKNOWN, Belief, belief_tag, prior
from airflow_provider_zeus.optimizer.learn import learn
from airflow_provider_zeus.optimizer.posterior import own_arithmetic
from airflow_provider_zeus.optimizer.reasons import Why
from airflow_provider_zeus.optimizer.slices import short

if TYPE_CHECKING:
    from airflow_provider_zeus.optimizer.knowledge_gradient.run_times import RunTimes

__all__ = ["Belief", "belief_tag", "choose", "decision_seed", "fallback", "learn", "prior"]


def decision_seed(job_id: str, number: int, seed: int = 0) -> int:
    """Seed of one decision: the same log gives the same decision (docs/policy.md, trap 9).

    :param seed: of a replay; another one draws other decisions from the same log.
    """
    digest = hashlib.sha256(f"{job_id}\0{number}\0{seed}".encode()).digest()
    return int.from_bytes(digest[:6], "big")  # 48 bits: exact in JSON everywhere


def fallback(job: ZeusJob, *, why: str, finish_by_s: float | None = None) -> Decision:
    """The decision where the log cannot be read: the default batch size without a bound."""
    if not job.chooses_size:
        return measured(job, why=why)
    b = job.default_batch_size
    in_time = None if finish_by_s is None else InTime(finish_by_s=finish_by_s)
    start = Start.COLD if job.chooses_start else None
    attempt = PlannedAttempt(batch_size=b, phase=Phase.FALLBACK, why=why, in_time=in_time, start=start)
    return Decision(attempts=(attempt,), seed=0, policy=job.policy, stand_in=_smaller(job, b))


def measured(job: ZeusJob, seed: int = 0, *, why: str = "") -> Decision:
    """The decision of a job that names no batch sizes."""
    tuned = "; its power limit is tuned by its optimizer steps" if job.mode != "measure" else ""
    why = why or f"No batch size is chosen: the task runs as it is, and is measured{tuned}."
    attempt = PlannedAttempt(batch_size=None, phase=Phase.MEASURED, why=why)  # type: ignore[arg-type]
    return Decision(attempts=(attempt,), seed=seed, policy="none")


@own_arithmetic()
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
    lineage: Lineage | None = None,
    recurrence: Sequence[str] = (),
) -> Decision:
    """Decide the next recurrence: a bounded exploratory attempt and the incumbent after it, or the incumbent alone.

    An incumbent from the earlier model is bounded, and the best pair of another start follows it. Where none is tried
    or pinned there is a stand-in, for the case that the last attempt does not fit into memory. Behind another size than
    the default there is a relief, the default, for the case that it fails. Where such a size has failed in an earlier
    try of this run, or in the newest runs, which kept no model, the default runs alone.

    :param profiles: profile samples of this job on this device.
    :param device: device of the recurrence; default that of the newest trial.
    :param running: the job's open trials (section 4.4, concurrent submissions).
    :param seed: seed of the decision; see :func:`decision_seed`.
    :param settings: live settings; all are read but ``excluded``, which the belief knows. ``pinned_by``: what pins it,
        where that is none of them.
    :param run_type: run type of the recurrence; one that is not in ``job.learn_from`` explores nothing.
    :param runs_left: recurrences after this one, where the schedule says so; ``job.expected_runs`` comes first. None:
        many. The policy "zeus" does not use it.
    :param finish_by_s: when the recurrence has to end [s since the epoch]; None: no deadline. The policy "zeus" does
        not use it to choose a batch size; its power limit is chosen by it.
    :param now_s: the present time, of the same clock.
    :param lineage: the earlier model of the recurrence, which a job with ``starts`` may start from.
    :param recurrence: names the run that is decided (:attr:`.Trial.recurrence`): its earlier tries may have failed.
    """
    if not job.chooses_size:
        return measured(job, seed)
    times = None
    if finish_by_s is not None:
        from airflow_provider_zeus.optimizer.knowledge_gradient.run_times import RunTimes

        times = RunTimes.of(job, belief, device or belief.last_device(), profiles, finish_by_s - now_s)
    held = _held(job, running, settings or {}, run_type)
    decision = _decided(
        job, belief, profiles, device, running, seed, settings or {}, held, runs_left, times, lineage, recurrence
    )
    if changed := belief.target_change():
        first, *after = decision.attempts
        decision = replace(decision, attempts=(replace(first, why=f"{first.why} {changed}"), *after))
    if finish_by_s is None:
        return decision
    from airflow_provider_zeus.optimizer.knowledge_gradient.run_times import in_time

    return in_time(decision, times, finish_by_s)


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
    lineage: Lineage | None,
    recurrence: Sequence[str],
) -> Decision:
    """The decision of :func:`choose`, whose attempts say nothing about time yet. ``held``: why none may be a try."""
    pinned = settings.get("pin_batch_size")
    if pinned is not None and pinned in job.batch_sizes:
        why = Why.PINNED.of(b=pinned, by=settings.get("pinned_by", "a live setting"))
        start = None
        if job.chooses_start:
            from airflow_provider_zeus.optimizer.knowledge_gradient import start_policy

            known = start_policy.recommend(job, belief, device, profiles, held, lineage=lineage, only=pinned)
            start = known[0].start
        attempt = PlannedAttempt(batch_size=pinned, phase=Phase.PINNED, why=why, start=start)
        return _sized(Decision(attempts=(attempt,), seed=seed, policy=job.policy), belief)
    device = device or belief.last_device()
    safe = _Safe(job, belief, device, profiles)
    asked_after = settings.get("audit_after")  # a trial's number: an audit is asked for, unless a newer one has run
    asked = asked_after is not None and belief.audits[1] <= asked_after
    if asked and not any(t.planned.phase is Phase.AUDIT for t in running):
        b = job.default_batch_size
        attempts: tuple[PlannedAttempt, ...] = (
            PlannedAttempt(
                batch_size=b,
                phase=Phase.AUDIT,
                why=Why.AUDIT_ASKED.of(b=b),
                start=Start.COLD if job.chooses_start else None,
            ),
        )
    elif (alone := safe.alone(recurrence)) is not None:
        attempts = (alone,)
    elif job.policy == "zeus":
        attempts = thompson.recommend(job, belief, device, profiles, held, seed)
    else:
        from airflow_provider_zeus.optimizer.knowledge_gradient.policy import recommend

        if job.expected_runs is not None:
            runs_left = max(job.expected_runs - belief.recurrences - 1, 0)
        if job.chooses_start:
            from airflow_provider_zeus.optimizer.knowledge_gradient.start_policy import recommend as recommend_pair

            attempts = recommend_pair(job, belief, device, profiles, held, runs_left, times, lineage=lineage)
        else:
            attempts = recommend(job, belief, device, profiles, held, runs_left, times)
    decision = Decision(attempts=attempts, seed=seed, policy=job.policy)
    if len(attempts) == 1 or not attempts[0].tried:
        last, model = attempts[-1], UNKNOWN if device is None else device.model
        barred = belief.barred(model, [b for b in job.batch_sizes if b < last.batch_size])
        stand_in = _smaller(job, last.batch_size, belief.reached, barred)
        decision = replace(decision, stand_in=stand_in and replace(stand_in, start=last.start))
    decision = replace(decision, reliefs=safe.reliefs(decision))
    return _sized(decision, belief)


@dataclass(frozen=True, slots=True)
class _Safe:
    """What runs where another batch size has failed, or may fail: the default, cold and unbounded.

    Where the default may not run or has failed too, it is the best known of the other sizes that reached the target.
    """

    job: ZeusJob
    belief: Belief
    device: DeviceInfo | None
    profiles: Sequence[ProfileSample]

    def alone(self, recurrence: Sequence[str]) -> PlannedAttempt | None:
        """The only attempt of a run after a failure of another size than the default; None where there was none."""
        belief, default = self.belief, self.job.default_batch_size
        in_run = belief.failed_in(short(recurrence)) if recurrence else frozenset[int]()
        failed, sentence = in_run, Why.FAILED_IN_RUN
        if not failed - {default}:
            failed, sentence = belief.failed_lately, Why.FAILED_LATELY
        if not failed - {default}:
            return None
        b, which = default, Why.DEFAULT
        if default in self._barred:
            b, which = self._instead_of_default(failed)
        sizes = ", ".join(map(str, sorted(failed)))
        return self._attempt(b, Why.TAKES.of(held=sentence.of(sizes=sizes), b=f"{b}, {which.of()}"))

    def _instead_of_default(self, failed: Collection[int]) -> tuple[int, Why]:
        """The size that runs alone where the default may not: the best other one, else the nearest smaller one.

        The default where there is neither.
        """
        default = self.job.default_batch_size
        other = self._best_other({*failed, default})
        if other is not None:
            return other, Why.BEST_OTHER
        smaller = _smaller(self.job, default, barred=self._barred | frozenset(failed))
        if smaller is not None:
            return smaller.batch_size, Why.NEAREST
        return default, Why.DEFAULT

    def reliefs(self, decision: Decision) -> tuple[PlannedAttempt, ...]:
        """The attempts of which one runs where the last one of the decision fails; none after the default."""
        default, last = self.job.default_batch_size, decision.attempts[-1].batch_size
        planned = {attempt.batch_size for attempt in decision.in_order}
        sizes = [] if default == last or default in self._barred else [default]
        if not sizes or default in planned:  # it may have failed itself when a relief is needed
            other = self._best_other(planned | {default})
            sizes += [] if other is None else [other]
        if last == default and decision.stand_in is None:
            return ()
        names = {b: (Why.DEFAULT if b == default else Why.BEST_OTHER).of() for b in sizes}
        return tuple(self._attempt(b, Why.RELIEF.of(b=last, relief=b, which=names[b]), usual=True) for b in sizes)

    @property
    def _barred(self) -> frozenset[int]:
        model = UNKNOWN if self.device is None else self.device.model
        return self.belief.barred(model, self.job.batch_sizes)

    def _best_other(self, without: Collection[int]) -> int | None:
        """The cheapest size that reached the target and may run; None where there is none."""
        sizes = self.belief.reached.intersection(self.job.batch_sizes) - self._barred - set(without)
        arms = self._arms(Weights.of(self.job, self.device)) if sizes else {}
        return min(sizes, key=lambda b: (arms[b].mean if b in arms else math.inf, b), default=None)

    def _attempt(self, b: int, why: str, *, usual: bool = False) -> PlannedAttempt:
        arm = self._arms(Weights(0.0, 1.0, time_alone=True)).get(b) if usual else None
        return PlannedAttempt(
            batch_size=b,
            phase=Phase.INCUMBENT if b in self.belief.reached else Phase.EXPLORE,
            why=why,
            start=Start.COLD if self.job.chooses_start else None,
            usual_s=None if arm is None else arm.mean,
        )

    def _arms(self, weights: Weights) -> dict[int, Arm]:
        costs = epoch_costs(self.belief, self.device, self.profiles, weights)
        elsewhere = epoch_costs_elsewhere(self.belief, self.device, weights)
        return arms_of(self.belief, translated(costs, elsewhere))


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
    why = (Why.SMALLER_KNOWN if known else Why.SMALLER).of(b=b)
    return PlannedAttempt(batch_size=max(known or fit), phase=Phase.INCUMBENT if known else Phase.EXPLORE, why=why)


def _sized(decision: Decision, belief: Belief) -> Decision:
    """The decision with the size of the newest slice in its attempts: an attempt without a step needs it."""
    if belief.slice_size is None:
        return decision
    size = belief.slice_size[1]
    attempts = tuple(replace(attempt, bound_samples_per_epoch=size) for attempt in decision.attempts)
    stand_in = decision.stand_in and replace(decision.stand_in, bound_samples_per_epoch=size)
    reliefs = tuple(replace(attempt, bound_samples_per_epoch=size) for attempt in decision.reliefs)
    return replace(decision, attempts=attempts, stand_in=stand_in, reliefs=reliefs)


def _held(job: ZeusJob, running: Sequence[Trial], settings: Mapping[str, Any], run_type: str | None) -> str | None:
    """Why no other batch size may be tried now; None where one may."""
    if settings.get("pause_exploration"):
        return Why.PAUSED.of()
    if run_type is not None and run_type not in job.learn_from:
        return Why.RUN_TYPE.of(run_type=run_type)
    # concurrent runs of Thompson sampling draw different sizes; under the other policy they would try the same one
    sampled = job.policy != "zeus"
    tries = [t for t in running if t.planned.phase.exploring or (sampled and t.planned.tried)]
    other = next(iter([*tries, *(t for t in running if t.planned.phase is Phase.AUDIT)]), None)
    return None if other is None else Why.OTHER_RUN.of(b=other.batch_size)
