"""What the log says under another weight: which batch size and power limit, and what a run would spend. No training.

The decision is the job's own: the log is folded under the changed job and ``choose`` is asked with exploration held.
Joules and seconds are the truth; money and carbon are conversions of them for showing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.optimizer.arms import epoch_costs
from airflow_provider_zeus.optimizer.believed import believed
from airflow_provider_zeus.optimizer.cost import Weights
from airflow_provider_zeus.optimizer.estimate import Estimate
from airflow_provider_zeus.optimizer.evidence import Evidence, evidence
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.limits import Profiles
from airflow_provider_zeus.optimizer.policy import choose
from airflow_provider_zeus.optimizer.trial import ProfileSample, Trial, Where

J_PER_KWH, S_PER_H = 3.6e6, 3600.0
NO_ENERGY = "no energy was measured at this batch size on this device"
NO_TIME = "no time was measured at this batch size on this device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a joule and a second stand for, for showing. Raises JobSpecError where one is below 0 or no number."""

    per_kwh: float | None = None
    per_gpu_hour: float | None = None
    g_co2e_per_kwh: float | None = None

    def __post_init__(self) -> None:
        for name in ("per_kwh", "per_gpu_hour", "g_co2e_per_kwh"):
            value: Any = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and 0 <= value < math.inf):
                field = name if name.startswith("g_") else f"price_{name}"
                raise JobSpecError.of(field, value, "not a number of at least 0", "give one, or leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """What the next settled run is, under one weight. Intervals are of the expected run, not of a single one."""

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
    money: Estimate  # in the currency of the prices
    g_co2e: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Today's prospect beside the asked one."""

    now: Prospect
    then: Prospect
    where: Where | None
    left_out: dict[str, int]


def what_if(
    trials: Iterable[Trial] | Evidence,
    job: ZeusJob,
    *,
    eta: float | None = None,
    max_power_w: float | None = None,
    price_per_kwh: float | None = None,
    price_per_gpu_hour: float | None = None,
    g_co2e_per_kwh: float | None = None,
    profiles: Sequence[ProfileSample] = (),
    where: Where | None = None,
) -> WhatIf:
    """The incumbent under another eta, and what a run of it is expected to spend, beside the same today.

    :param job: with its live settings applied.
    :param eta: weight of energy against time (Eq. 2); default the job's.
    :param max_power_w: MAXPOWER of Eq. 2 [W]; default the job's, else the device's.
    :param profiles: samples of the device: with them each run is re-costed at the power limit that Eq. 7 finds at that
        eta (where the job's mode sets limits); without them the limits that the runs had are kept.
    :param where: whose joules and seconds; default the newest device.

    Raises JobSpecError for an eta, a power or a price that cannot be.
    """
    prices = Prices(per_kwh=price_per_kwh, per_gpu_hour=price_per_gpu_hour, g_co2e_per_kwh=g_co2e_per_kwh)
    changed = replace(
        job,
        eta=job.eta if eta is None else eta,
        max_power_w=job.max_power_w if max_power_w is None else max_power_w,
    )
    log, profiled = evidence(trials, job, where), Profiles.of(profiles, job)
    return WhatIf(
        now=_prospect(log, job, profiled, prices),
        then=_prospect(log, changed, profiled, prices),
        where=log.where,
        left_out=log.left_out,
    )


def _prospect(log: Evidence, job: ZeusJob, profiled: Profiles, prices: Prices) -> Prospect:
    device = log.device
    weights = Weights.of(job, device)
    best = {b: profiled.best_w(b, weights) for b in profiled.sums}
    log = _at_best_limits(log, job, profiled, best)
    belief = log.belief()
    samples = [s for at in profiled.sums.values() for s in at.values()]
    held = {"pause_exploration": True}
    attempt = choose(job, belief, profiles=samples, device=device, settings=held).attempts[-1]
    b = attempt.batch_size
    costs = epoch_costs(belief, device, samples, weights)
    epochs = believed(belief, costs, {})[b].epochs
    joules = epoch_costs(belief, device, (), Weights(1.0, 1.0)).get(b)  # energy alone: J per epoch
    seconds = epoch_costs(belief, device, (), Weights(0.0, 1.0)).get(b)
    energy_j, time_s = epochs.times(joules, NO_ENERGY), epochs.times(seconds, NO_TIME)
    limit_w, limit_source = _limit(log, b, best)
    return Prospect(
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
        money=_money(epochs, joules, seconds, device.count if device else 1, prices),
        g_co2e=_carbon(energy_j, prices),
    )


def _at_best_limits(log: Evidence, job: ZeusJob, profiled: Profiles, best: dict[int, float | None]) -> Evidence:
    """The log as if each run of this device had had the limit of Eq. 7; a run that cannot be re-costed stays."""

    def moved(trial: Trial) -> Trial:
        limit_w = best.get(trial.batch_size)
        if limit_w is None or trial.observation.where != log.where:
            return trial
        there = profiled.recosted(trial.batch_size, trial.observation, limit_w)
        return trial if there is None else replace(trial, observation=there)

    return log.at(job, moved)


def _limit(log: Evidence, b: int, best: dict[int, float | None]) -> tuple[float | None, str]:
    found = best.get(b)
    if found is not None:
        return found, "profile"
    seen = [t.observation.power_limit_w for t in log.here() if t.batch_size == b and t.observation.power_limit_w]
    return (seen[-1], "observed") if seen else (None, "no power limit was measured at this batch size on this device")


def _money(epochs: Estimate, joules: float | None, seconds: float | None, count: int, prices: Prices) -> Estimate:
    """Energy by the kWh and time by the hour of each GPU; without any price, or a figure that has one: missing."""
    if prices.per_kwh is None and prices.per_gpu_hour is None:
        return Estimate.missing("no price was given")
    per_epoch = 0.0
    if prices.per_kwh is not None:
        if joules is None:
            return epochs.times(None, NO_ENERGY)
        per_epoch += joules / J_PER_KWH * prices.per_kwh
    if prices.per_gpu_hour is not None:
        if seconds is None:
            return epochs.times(None, NO_TIME)
        per_epoch += seconds / S_PER_H * count * prices.per_gpu_hour
    return epochs.times(per_epoch)


def _carbon(energy_j: Estimate, prices: Prices) -> Estimate:
    if prices.g_co2e_per_kwh is None:
        return Estimate.missing("no carbon intensity was given")
    return energy_j.times(prices.g_co2e_per_kwh / J_PER_KWH)
