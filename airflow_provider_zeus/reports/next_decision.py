"""The decision that the next scheduled run of a job makes as its log stands. Pure.

All that is said of that run, and of the batch size that runs where nothing is tried, is of this one decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Decision, Phase, PlannedAttempt, ProfileSample, State, Trial
from airflow_provider_zeus.optimizer.policy import Belief, choose, decision_seed
from airflow_provider_zeus.reports.dataset import Dataset

AUDIT = "audit_after"  # the live setting that asks for a run of the default


@dataclass(frozen=True, slots=True, kw_only=True)
class NextDecision:
    """The attempts of the next run, and what they were decided with."""

    attempts: tuple[PlannedAttempt, ...]
    settled: PlannedAttempt  # that ends with the model where nothing is tried, and the default not run to measure it
    settings: Mapping[str, Any] = field(default_factory=dict)  # live
    room_s: float | None = None  # from the newest run's begin to its deadline: the next one is decided with as much

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
        live, trials = settings or {}, trials or log.lessons
        number = max((t.number for t in trials), default=0) + 1
        job, belief, room_s = log.job, log.belief(), _room(trials) if log.job.finish_by is not None else None
        asked: dict[str, Any] = {
            "profiles": profiles,
            "device": log.device,
            "running": [t for t in trials if t.state is State.RUNNING],
            "seed": decision_seed(trials[0].job_id if trials else "", number, job.seed),
            "finish_by_s": room_s,
        }
        decision = choose(job, belief, settings=live, **asked)
        ends = settled(job, belief, live, **asked) if AUDIT in live else _unmeasured(decision)
        return cls(attempts=decision.attempts, settled=ends, settings=live, room_s=room_s)


def settled(job: ZeusJob, belief: Belief, settings: Mapping[str, Any], **asked: Any) -> PlannedAttempt:
    """The attempt that ends with the model where nothing is tried, and the default is not run to measure it.

    :param settings: live settings.
    :param asked: further arguments of ``choose``.
    """
    live = {name: value for name, value in settings.items() if name != AUDIT}
    return _unmeasured(choose(job, belief, settings=live, **asked))


def _unmeasured(decision: Decision) -> PlannedAttempt:
    """The last attempt, or that after an audit which the policy chose: the best known size."""
    last = decision.attempts[-1]
    return decision.stand_in if last.phase is Phase.AUDIT and decision.stand_in else last


def _room(trials: Sequence[Trial]) -> float | None:
    """Time from the begin of the newest run with a deadline until that deadline [s]; None without one."""
    for trial in sorted(trials, key=lambda t: -t.number):
        known = trial.planned.in_time
        if known is not None and known.finish_by_s is not None:
            begun = min(t.opened_at for t in trials if t.key.ti_id == trial.key.ti_id)
            return known.finish_by_s - begun
    return None
