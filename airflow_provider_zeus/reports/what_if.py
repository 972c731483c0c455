"""What the job would choose under another eta: batch size and power limit, and what a run would spend. No training.

The choice is that of the job's own policy: it learns from the log under the changed job, with exploration paused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import ProfileSample, Trial, Where
from airflow_provider_zeus.optimizer.policy import choose
from airflow_provider_zeus.optimizer.posterior import posteriors
from airflow_provider_zeus.optimizer.thompson.arms import epoch_costs
from airflow_provider_zeus.reports.dataset import Dataset, as_dataset
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles

NO_ENERGY = "no energy was measured at this batch size on this device"
NO_TIME = "no time was measured at this batch size on this device"
NO_LIMIT = "no power limit was measured at this batch size on this device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The next run without exploration under one eta. Intervals are of the expected run, not of a single one."""

    eta: float
    unit: str  # of cost: "J" of Eq. 2, or "s" where nothing measures energy
    batch_size: int
    why: str
    limit_w: float | None
    limit_source: str  # "profile" (Eq. 7 at this eta), "observed" (of the newest run), or why there is none
    epochs: Estimate
    energy_j: Estimate
    time_s: Estimate
    cost: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Today's forecast beside that under the other eta."""

    now: Forecast
    then: Forecast
    where: Where | None
    left_out: dict[str, int]


def what_if(
    trials: Iterable[Trial] | Dataset,
    job: ZeusJob,
    *,
    eta: float | None = None,
    profiles: Sequence[ProfileSample] = (),
    where: Where | None = None,
) -> WhatIf:
    """Forecast the run that another eta would choose, beside the one that today's eta chooses.

    :param job: with its live settings applied.
    :param eta: weight of energy against time (Eq. 2); default the job's.
    :param profiles: samples of the device: with them each run is re-costed at the power limit that Eq. 7 finds at that
        eta (where the job's mode sets limits); without them the limits that the runs had are kept.
    :param where: the device whose joules and seconds count; default the newest.

    Raises JobSpecError for an eta outside [0, 1].
    """
    changed = job if eta is None else replace(job, eta=eta)
    log, profiled = as_dataset(trials, job, where), LimitProfiles.of(profiles, job)
    return WhatIf(
        now=_forecast(log, job, profiled),
        then=_forecast(log, changed, profiled),
        where=log.where,
        left_out=log.left_out,
    )


def _forecast(log: Dataset, job: ZeusJob, profiled: LimitProfiles) -> Forecast:
    device = log.device
    weights = Weights.of(job, device)
    best = {b: profiled.best_w(b, weights) for b in profiled.sums}
    log = _at_best_limits(log, job, profiled, best)
    belief = log.belief()
    samples = [s for at in profiled.sums.values() for s in at.values()]
    settings = {"pause_exploration": True}
    attempt = choose(job, belief, profiles=samples, device=device, settings=settings).attempts[-1]
    b = attempt.batch_size
    costs = epoch_costs(belief, device, samples, weights)
    epochs = posteriors(belief, costs, {})[b].epochs
    joules = epoch_costs(belief, device, (), Weights(1.0, 1.0)).get(b)  # energy alone: J per epoch
    seconds = epoch_costs(belief, device, (), Weights(0.0, 1.0)).get(b)
    energy_j, time_s = epochs.times(joules, NO_ENERGY), epochs.times(seconds, NO_TIME)
    limit_w, limit_source = best.get(b), "profile"
    if limit_w is None:
        seen = [t.observation.power_limit_w for t in log.here() if t.batch_size == b and t.observation.power_limit_w]
        limit_w, limit_source = (seen[-1], "observed") if seen else (None, NO_LIMIT)
    return Forecast(
        eta=weights.eta,
        unit="s" if weights.time_alone else "J",
        batch_size=b,
        why=attempt.why,
        limit_w=limit_w,
        limit_source=limit_source,
        epochs=epochs,
        energy_j=energy_j,
        time_s=time_s,
        cost=epochs.times(costs.get(b), NO_TIME if seconds is None else NO_ENERGY),
    )


def _at_best_limits(log: Dataset, job: ZeusJob, profiled: LimitProfiles, best: dict[int, float | None]) -> Dataset:
    """The log as if each run of this device had had the limit of Eq. 7; a run that cannot be re-costed stays."""

    def recosted(trial: Trial) -> Trial:
        limit_w = best.get(trial.batch_size)
        if limit_w is None or trial.observation.where != log.where:
            return trial
        observation = profiled.recosted(trial.batch_size, trial.observation, limit_w)
        return trial if observation is None else replace(trial, observation=observation)

    return log.at(job, recosted)
