"""What the job would choose under another eta: batch size and power limit, and what a run would spend. No training.

The choice is that of the job's own policy: it learns from the log under the changed job, and tries nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_zeus.model.cost import Weights, hurried, observed_cost
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import PlannedAttempt, ProfileSample, State, Trial
from airflow_provider_zeus.optimizer.arms import epoch_costs, run_variance
from airflow_provider_zeus.optimizer.posterior import posteriors
from airflow_provider_zeus.optimizer.starts import start_of
from airflow_provider_zeus.reports.dataset import ENERGY, TIME, Dataset, total
from airflow_provider_zeus.reports.limit_profiles import RATE_SD, LimitProfiles, same_limit
from airflow_provider_zeus.reports.next_run import NextDecision, settled
from airflow_provider_zeus.reports.slice_epochs import DRAWS, SliceEpochs, estimate, slice_epochs

NO_ENERGY = "no energy was measured at this batch size on this device"
NO_TIME = "no time was measured at this batch size on this device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The next run without exploration under one eta. Intervals are of the expected run, not of a single one."""

    eta: float
    unit: str  # of cost: "J" of Eq. 2, or "s" where nothing measures energy
    batch_size: int
    start: str | None  # of a job that chooses it
    why: str
    limit_w: float | None
    limit_source: str  # "profile" (Eq. 7 at this eta), "observed" (of the newest run), or why there is none
    epochs: Estimate
    of_cold: float  # these epochs against those of a cold start
    energy_j: Estimate
    time_s: Estimate
    cost: Estimate
    epoch_j: float | None  # energy of an epoch
    epoch_s: float | None  # time of an epoch
    observed: Observed  # runs that reached the target at this batch size, start and limit, on this device

    def epoch_cost(self, weights: Weights) -> float | None:
        """EpochCost [J; s where time alone counts] of this choice under other weights; None where not known."""
        if self.epoch_s is None or (self.epoch_j is None and weights.eta > 0):
            return None
        return weights.cost(self.epoch_j, self.epoch_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Means of complete runs; None where there is none, or a figure of one is not known."""

    runs: int
    energy_j: float | None
    time_s: float | None
    cost: float | None  # at the eta of the forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Today's forecast beside that under the other eta."""

    now: Forecast
    then: Forecast
    gain: Estimate  # what a run of ``then`` costs less than one of ``now``, both at the other eta, on the newest slice

    @property
    def same(self) -> bool:
        """Whether both choose the same batch size, start and power limit."""
        pairs = [(each.batch_size, each.start) for each in (self.now, self.then)]
        return pairs[0] == pairs[1] and same_limit(self.now.limit_w, self.then.limit_w)

    @property
    def gains(self) -> bool:
        """Whether the other choice is surely cheaper: its interval holds no loss."""
        return self.gain.low is not None and self.gain.low > 0


def what_if(
    log: Dataset,
    *,
    eta: float | None = None,
    profiles: Sequence[ProfileSample] = (),
    epochs: SliceEpochs | None = None,
    decided: NextDecision | None = None,
) -> WhatIf:
    """Forecast the run that another eta would choose, beside the one that runs today.

    :param log: of the job with its live settings applied; joules and seconds of its device count.
    :param eta: weight of energy against time (Eq. 2); default the job's.
    :param profiles: samples of the device: with them each run is re-costed at the power limit that Eq. 7 finds at that
        eta (where the job's mode sets limits); without them the limits that the runs had are kept.
    :param epochs: the fit to these trials, where it was made already.
    :param decided: of this log, what runs today; default: without live settings.

    Raises JobSpecError for an eta outside [0, 1].
    """
    job, profiled = log.job, LimitProfiles.of(profiles, log.job)
    changed = job if eta is None else replace(job, eta=eta)
    decided = decided or NextDecision.of(log, profiles=profiles)
    now = then = _forecast(log, job, profiled, decided)
    if changed.eta != job.eta:
        then = _forecast(log, changed, profiled, decided)
    return WhatIf(
        now=now,
        then=then,
        gain=_gain(log, now, then, Weights.of(changed, log.device), epochs),
    )


def _gain(log: Dataset, now: Forecast, then: Forecast, weights: Weights, epochs: SliceEpochs | None) -> Estimate:
    """Joint draws of the one model of epochs: the slice's difficulty and the curve's level cancel where they may."""
    cost_now, cost_then = now.epoch_cost(weights), then.epoch_cost(weights)
    if cost_now is None or cost_then is None:
        return Estimate.missing(NO_ENERGY)
    import numpy as np

    rng = np.random.default_rng(0)
    epochs = epochs or slice_epochs(log.of_target(), rng)
    if epochs is None:
        return Estimate.missing("no run has ended yet")
    # Both EpochCosts vary: by the profile, and as means of runs. Two limits of one batch size have the same runs.
    belief, variances = log.belief(), np.full(2, RATE_SD**2)
    if now.batch_size != then.batch_size and log.where is not None:
        runs = [len(belief.rates.get((b, log.where), ())) for b in (now.batch_size, then.batch_size)]
        variances += run_variance(belief, log.device, weights)[0] / np.maximum(runs, 1)
    noise = np.exp(np.sqrt(variances)[:, None] * rng.standard_normal((2, DRAWS)))
    ours = epochs.on_newest_slice(now.batch_size) * now.of_cold * cost_now * noise[0]
    theirs = epochs.on_newest_slice(then.batch_size) * then.of_cold * cost_then * noise[1]
    return estimate(ours - theirs)


def _observed(log: Dataset, kept: PlannedAttempt, limit_w: float | None, weights: Weights) -> Observed:
    runs = [
        t.observation
        for t in log.of_target().here()
        if t.batch_size == kept.batch_size
        and kept.start in (None, start_of(t))
        and t.state is State.CONVERGED
        and (limit_w is None or same_limit(t.observation.power_limit_w, limit_w))
    ]

    def mean(values: Iterable[float | None]) -> float | None:
        whole = total(values)
        return whole / len(runs) if runs and whole is not None else None

    return Observed(
        runs=len(runs),
        energy_j=mean(o.energy_j for o in runs),
        time_s=mean(o.time_s for o in runs),
        cost=mean(observed_cost(o, weights) for o in runs),
    )


def _forecast(log: Dataset, job: ZeusJob, profiled: LimitProfiles, decided: NextDecision) -> Forecast:
    """What runs today; under another eta what the job would choose if its runs had had their best limits."""
    device = log.device
    weights = Weights.of(job, device)
    best = {b: profiled.best_w(b, weights) for b in profiled.sums}
    samples = [s for at in profiled.sums.values() for s in at.values()]
    raw, attempt = log, decided.settled
    if job.eta != log.job.eta:
        belief = _at_best_limits(log, job, profiled, best).belief()
        asked: dict[str, Any] = {"profiles": samples, "device": device, "finish_by_s": decided.room_s}
        asked["lineage"] = decided.lineage
        attempt = settled(job, belief, decided.settings, **asked)
    b = attempt.batch_size
    best[b] = profiled.best_w(b, hurried(weights, attempt))
    log = _at_best_limits(log, job, profiled, best)
    belief = log.belief()
    costs = epoch_costs(belief, device, samples, weights)
    cold = posteriors(belief, costs, {})[b].epochs
    epochs = decided.epochs_of_start(attempt, belief) or cold
    joules = epoch_costs(belief, device, (), ENERGY).get(b)
    seconds = epoch_costs(belief, device, (), TIME).get(b)
    energy_j, time_s = epochs.times(joules, NO_ENERGY), epochs.times(seconds, NO_TIME)
    limit_w, limit_source = best.get(b), "profile"
    if limit_w is None:
        limit_w = log.newest_limit_w(b)
        no_limit = "no power limit was measured at this batch size on this device"
        limit_source = no_limit if limit_w is None else "observed"
    return Forecast(
        eta=weights.eta,
        unit=weights.unit,
        batch_size=b,
        start=attempt.start,
        why=attempt.why,
        limit_w=limit_w,
        limit_source=limit_source,
        epochs=epochs,
        of_cold=(epochs.value or 1.0) / (cold.value or 1.0),
        energy_j=energy_j,
        time_s=time_s,
        cost=epochs.times(costs.get(b), NO_TIME if seconds is None else NO_ENERGY),
        epoch_j=joules,
        epoch_s=seconds,
        observed=_observed(raw, attempt, limit_w, weights),
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
