"""What one scheduled run saved against the default batch size at full power; ``saving.py`` adds up all. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_zeus.optimizer.baseline import Baseline, Saved
from airflow_provider_zeus.optimizer.cost import Weights
from airflow_provider_zeus.optimizer.estimate import Estimate
from airflow_provider_zeus.optimizer.evidence import evidence
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.limits import Profiles
from airflow_provider_zeus.optimizer.recurrences import ENERGY, TIME, Recurrence, recurrences
from airflow_provider_zeus.optimizer.trial import ProfileSample, Trial, Where


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSaving:
    """One run against the default at full power, on the run's device."""

    default_batch_size: int
    full_power_w: float | None  # None: the device has no limit
    kept: bool  # whether a model came out
    exploration: float | None  # part of the cost that left no model: given up, died, excess of profiling
    cost: Saved  # Eq. 2
    energy: Saved
    time: Saved


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What a run of the default at full power costs on one device, for any number of runs of one job."""

    job: ZeusJob
    where: Where
    base: Baseline

    @classmethod
    def of(
        cls,
        complete: Iterable[Trial],
        job: ZeusJob,
        where: Where,
        *,
        rng: random.Random,
        profiles: Sequence[ProfileSample] = (),
    ) -> Yardstick:
        """``complete``: the trials of the default batch size that ended with a model; ``profiles``: of that device."""
        log = evidence(complete, job, where).of_target()
        return cls(job, where, Baseline.of(log, Profiles.of(profiles), rng))

    def saving(self, own: Iterable[Trial]) -> RunSaving:
        """Of the run that these trials (tries, attempts) are."""
        log = evidence(own, self.job, self.where).of_target()
        runs, left_out = recurrences(log)
        weights = Weights.of(self.job, log.device)
        run = runs[0] if runs else None
        why_not = f"its attempts do not compare ({'; '.join(left_out)})" if left_out else "none of it was measured"
        return RunSaving(
            default_batch_size=self.job.default_batch_size,
            full_power_w=self.base.full_power_w,
            kept=run is not None and run.kept,
            exploration=run.exploration(weights) if run else None,
            cost=self._against(run, weights, "s" if weights.time_alone else "J", why_not),
            energy=self._against(run, ENERGY, "J", why_not),
            time=self._against(run, TIME, "s", why_not),
        )

    def _against(self, run: Recurrence | None, weights: Weights, unit: str, why_not: str) -> Saved:
        spent = run.spent(weights) if run else None
        if run is None or spent is None:
            gone = Estimate.missing(why_not if run is None else "a figure of one of its attempts is not known")
            return Saved(unit=unit, spent=None, baseline=gone, saved=gone)
        baseline = self.base.run(run.samples_per_epoch, weights)
        if not run.kept:
            return Saved(unit=unit, spent=spent, baseline=baseline, saved=Estimate(-spent, -spent, -spent))
        saved = baseline if baseline.value is None else baseline.plus(-spent)
        return Saved(unit=unit, spent=spent, baseline=baseline, saved=saved)
