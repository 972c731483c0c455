"""The choice of a job at another weight of energy against time: batch size, start and power limit.

No training.

The choice is that of the job's own policy: it learns from the same log under the other weight, and
tries nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_zeus.model.cost import Weights, hurried
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Phase, ProfileSample, Trial
from airflow_provider_zeus.reports.dataset import Dataset
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from airflow_provider_zeus.reports.next_run import NextDecision, settled

ETAS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EtaChoice:
    """The choice at one eta if nothing is tried."""

    eta: float
    batch_size: int
    limit_w: float | None
    start: str | None
    pinned: bool = False  # a live setting chose the size, whatever it costs


def choice_at(
    eta: float, log: Dataset, decided: NextDecision, *, profiles: Sequence[ProfileSample] = ()
) -> EtaChoice:
    """The choice at another eta than the job's, as if each run had had its best power limit at that
    eta (Eq. 7).

    :param log: of the job with its live settings applied.
    :param decided: of this log, at the job's own eta: its settings, deadline and earlier model hold
        for this one too; runs that are under way do not.
    :param profiles: samples of the log's device; without them the limits that the runs had are
        kept.

    Raises JobSpecError for an eta outside [0, 1].
    """
    job = replace(log.job, eta=eta)
    weights = Weights.of(job, log.device)
    profiled = LimitProfiles.of(profiles, job)
    best_w = {b: profiled.best_w(b, weights) for b in profiled.sums}
    # limits that the job may not set must not make a size look cheap
    samples = [sample for at_limit in profiled.sums.values() for sample in at_limit.values()]
    situation = decided.situation._replace(
        job=job,
        belief=_at_limits(best_w, log, job, profiled).belief(),
        profiles=samples,
        running=(),
        seed=0,
    )
    attempt = settled(situation)
    # An attempt that must hurry has the fastest limit, and not that of its eta.
    limit_w = profiled.best_w(attempt.batch_size, hurried(weights, attempt))
    if limit_w is None:
        limit_w = log.newest_limit_w(attempt.batch_size)
    return EtaChoice(
        eta=eta,
        batch_size=attempt.batch_size,
        limit_w=limit_w,
        start=attempt.start,
        pinned=attempt.phase is Phase.PINNED,
    )


def _at_limits(
    limits_w: Mapping[int, float | None], log: Dataset, job: ZeusJob, profiled: LimitProfiles
) -> Dataset:
    """The log as if each run of this device had had the limit [W] of its size; a run that cannot be
    re-costed stays.
    """

    def recosted(trial: Trial) -> Trial:
        limit_w = limits_w.get(trial.batch_size)
        if limit_w is None or trial.observation.where != log.where:
            return trial
        observation = profiled.recosted(trial.batch_size, trial.observation, limit_w)
        if observation is None:
            return trial
        return replace(trial, observation=observation)

    return log.at(job, recosted)
