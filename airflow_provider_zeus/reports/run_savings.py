"""What one scheduled run saved against the default batch size at full power; ``savings.py`` adds up all runs. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import ProfileSample, Trial, Where
from airflow_provider_zeus.reports.baseline import Baseline, Saved
from airflow_provider_zeus.reports.dataset import Dataset, as_dataset
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from airflow_provider_zeus.reports.runs import ENERGY, TIME, RunTrials, recurrences


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSaving:
    """One run against the default at full power, on the run's device."""

    default_batch_size: int
    full_power_w: float | None  # None: the device has no limit
    kept: bool  # whether the run left a model
    measured: bool  # whether the default itself trained to an end in it
    cost: Saved  # Eq. 2
    energy: Saved
    time: Saved
    where: Where
    runs: tuple[RunTrials, ...]  # the run, where its attempts compare
    base: Baseline


@dataclass(frozen=True, slots=True)
class Yardstick:
    """The default at full power on one device, to compare any number of runs of one job with."""

    job: ZeusJob
    where: Where
    base: Baseline

    @classmethod
    def of(cls, log: Dataset, where: Where, *, rng: random.Random, profiles: Sequence[ProfileSample] = ()) -> Yardstick:
        """``log``: the job's runs, those to be compared among them; ``profiles``: of the device ``where``."""
        base = Baseline.of(replace(log, where=where).of_target(), LimitProfiles.of(profiles), rng)
        return cls(log.job, where, base)

    def saving(self, trials: Iterable[Trial]) -> RunSaving:
        """Compare one run; ``trials``: all its tries and attempts."""
        log = as_dataset(trials, self.job, self.where).of_target()
        runs, left_out = recurrences(log)
        kept, base = any(r.kept for r in runs), self.base
        if not runs:
            why_not = f"its attempts do not compare ({'; '.join(left_out)})" if left_out else "none of it was measured"
            base = replace(base, why_not=why_not)
        elif base.why_not is None and not base.knows(runs):
            base = replace(base, why_not="it is older than the runs that the default's cost is estimated from")
        weights = Weights.of(self.job, log.device)

        def compared(weights: Weights, unit: str) -> Saved:
            found = base.compare(runs, weights, unit)
            return found if runs else replace(found, spent=None, exploration=None)

        return RunSaving(
            default_batch_size=self.job.default_batch_size,
            full_power_w=base.full_power_w,
            kept=kept,
            measured=any(map(base.measured, runs)),
            cost=compared(weights, "s" if weights.time_alone else "J"),
            energy=compared(ENERGY, "J"),
            time=compared(TIME, "s"),
            where=self.where,
            runs=tuple(runs),
            base=base,
        )
