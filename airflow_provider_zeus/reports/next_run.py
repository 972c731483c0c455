"""The decision that the next scheduled run of a job makes as its log stands. Pure.

All that is said of that run, and of the batch size that runs if nothing is tried, is of this one
decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import (
    Lineage,
    Phase,
    PlannedAttempt,
    ProfileSample,
    State,
    Trial,
    incumbent_or_last,
)
from airflow_provider_zeus.optimizer.policy import Belief, choose, decision_seed
from airflow_provider_zeus.optimizer.situation import Situation
from airflow_provider_zeus.reports.baseline import Baseline, fixed
from airflow_provider_zeus.reports.dataset import ENERGY, TIME, Dataset
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from airflow_provider_zeus.reports.slice_epochs import estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class NextDecision:
    """The attempts of the next run, and the situation that they were decided in.

    Its deadline is as far away as that of the newest run was when it began; its earlier model is
    the one that the log shows. ``settled``: ends with the model if nothing is tried, and the
    default is not run to measure it.
    """

    attempts: tuple[PlannedAttempt, ...]
    settled: PlannedAttempt  # a try or an audit says little of the runs after it
    situation: Situation

    @classmethod
    def of(
        cls,
        log: Dataset,
        *,
        profiles: Sequence[ProfileSample] = (),
        trials: Sequence[Trial] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> Self:
        """Decide as the next scheduled run would, from the same log.

        :param profiles: of the log's device.
        :param trials: the job's, those that are running among them; default: those of the log.
        :param settings: live settings.
        """
        trials = trials or log.lessons
        job = log.job
        job_id = ""
        number = 1
        if trials:
            job_id = trials[0].job_id
            number += max(t.number for t in trials)
        belief = log.belief()
        room_s = None
        if job.finish_by is not None:
            room_s = _room(trials)
        situation = Situation(
            job=job,
            belief=belief,
            device=log.device,
            profiles=profiles,
            running=[t for t in trials if t.state is State.RUNNING],
            # The seed of the run itself, so that pages name the very size that it will choose.
            seed=decision_seed(job_id, number),
            settings=settings or {},
            finish_by_s=room_s,
            lineage=_lineage(job, trials),
        )
        decision = choose(situation)
        last = incumbent_or_last(decision.attempts)
        if last.phase is Phase.AUDIT:
            last = settled(situation)
        return cls(attempts=decision.attempts, settled=last, situation=situation)

    def epochs_of_start(self, attempt: PlannedAttempt, belief: Belief) -> Estimate | None:
        """Epochs of an attempt that starts from the earlier model; None for a cold one."""
        lineage = self.situation.lineage
        if attempt.start in (None, Start.COLD) or lineage is None:
            return None
        from airflow_provider_zeus.optimizer.knowledge_gradient.start_policy import start_epochs

        return start_epochs(belief, Start(attempt.start), lineage, b=attempt.batch_size)


def settled(situation: Situation) -> PlannedAttempt:
    """The attempt that ends with the model if nothing is tried, and the default is not run to
    measure it.
    """
    # An audit that a person asked for would run the default, as one of the job's own would.
    live = {name: v for name, v in situation.settings.items() if name != "audit_after"}
    unaudited = replace(situation.job, audit=0.0)
    decision = choose(situation._replace(job=unaudited, settings=live))
    return incumbent_or_last(decision.attempts)


def _lineage(job: ZeusJob, trials: Sequence[Trial]) -> Lineage | None:
    """The newest model of a job that chooses its start; that its value was kept is supposed."""
    if not job.chooses_start:
        return None
    own = [t for t in trials if t.job_version == job.job_version]
    teaching = [t for t in own if t.origin.run_type in job.learn_from]
    models = [t for t in teaching if t.state.left_model]
    if not models:
        return None
    newest = max(models, key=lambda t: t.number)
    # a run that was not needed kept an older model, which ages by it
    age = 0
    if newest.state is State.NOT_NEEDED:
        age = newest.lineage.from_age or 0
    return Lineage.after(newest, 1 + age)


def _room(trials: Sequence[Trial]) -> float | None:
    """Time from the beginning of the newest run with a deadline until that deadline [s]; None
    without one.
    """
    for trial in sorted(trials, key=lambda t: -t.number):
        in_time = trial.planned.in_time
        if in_time is not None:
            begun = min(t.opened_at for t in trials if t.key.ti_id == trial.key.ti_id)
            return in_time.finish_by_s - begun
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Upcoming:
    """The next decision.

    Energy and time are those of one complete run of ``batch_size`` on the newest slice.

    Intervals are of the median run, not of a single one.
    """

    attempts: tuple[PlannedAttempt, ...]
    batch_size: int
    limit_w: float | None
    epochs: Estimate
    energy_j: Estimate
    time_s: Estimate


def upcoming(
    log: Dataset, base: Baseline, decided: NextDecision, *, profiles: Sequence[ProfileSample] = ()
) -> Upcoming:
    """Energy, time and epochs that are expected of the next run.

    :param base: of this log; it has the epochs that each batch size needs.
    :param decided: of this log.
    """
    kept, *_ = decided.attempts
    # A bounded audit is a try as any other: another size is kept if it is given up.
    if kept.phase is not Phase.AUDIT or kept.tried:
        kept = incumbent_or_last(decided.attempts)
    b = kept.batch_size
    weights = Weights.of(log.job, log.device)
    best = fixed(kept, log, base, weights, profiled=LimitProfiles.of(profiles, log.job))
    why_not = f"batch size {b} has not run on this device, or never reached the target"
    # the baseline knows better why its own size cannot be told
    if b == base.batch_size:
        why_not = base.why_not or why_not
    nothing = Estimate.missing(why_not)
    run = Upcoming(
        attempts=decided.attempts,
        batch_size=b,
        limit_w=None,
        epochs=nothing,
        energy_j=nothing,
        time_s=nothing,
    )
    if base.epochs is None or best is None:
        return run
    epochs = decided.epochs_of_start(kept, log.belief())
    if epochs is None:
        epochs = estimate(base.epochs.on_newest_slice(b))
    if log.job.max_epochs:
        epochs = epochs.mapped(partial(min, float(log.job.max_epochs)))
    epoch_j = best.epoch_cost(base.usual_size, ENERGY)
    epoch_s = best.epoch_cost(base.usual_size, TIME)
    return replace(
        run,
        limit_w=best.limit_w,
        epochs=epochs,
        energy_j=epochs.times(epoch_j, "no energy was measured at this batch size"),
        time_s=epochs.times(epoch_s, "no time was measured at this batch size"),
    )


def next_rung(job: ZeusJob) -> str:
    """The next step of a job that chooses no batch size, to save more."""
    by_size = (
        "To save by the batch size, too, name batch_sizes, default_batch_size, target and "
        "max_epochs in the task's "
        "ZeusJob (docs/quick-start.md)"
    )
    if job.mode == "measure":
        by_limit = 'To save energy, mode="optimize" tunes the power limit of a torch training.'
        return f"{by_limit} {by_size}."
    return f"{by_size}."
