"""What runs would have cost with the default batch size at full power, and what they saved against it. Pure.

The baseline of a run is Epochs(default) x EpochCost(default) at the highest power limit measured, for the slice of that
run (Eq. 6). Epochs(default) is the mean over the default's complete runs; its interval is a bootstrap of that mean.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_zeus.model.cost import Rates, Weights
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import Observation
from airflow_provider_zeus.optimizer.belief import RATES_KEPT
from airflow_provider_zeus.reports.dataset import Dataset
from airflow_provider_zeus.reports.limit_profiles import SAME_W, LimitProfiles
from airflow_provider_zeus.reports.runs import RunTrials, total

DRAWS = 1000
ONE_RUN = "one complete run is no spread"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Sums over runs in one unit: ``baseline - spent = saved`` and ``saved + exploration = settled``; below 0: lost.

    A run that left no model has a baseline of 0: all of it is lost.
    """

    unit: str  # "J" or "s"
    spent: float | None
    baseline: Estimate
    saved: Estimate
    exploration: float | None  # part of ``spent`` that left no model: given up, failed, excess of profiling
    settled: Estimate


@dataclass(frozen=True, slots=True)
class Baseline:
    """The default batch size at full power: the epochs that a run takes, and what one epoch draws."""

    epochs: Estimate  # of the mean; missing with its reason where nothing can be compared
    draws: tuple[float, ...]  # bootstrap of that mean
    rates: tuple[Rates, ...]
    full_power_w: float | None  # None: the device has no limit

    @classmethod
    def of(cls, log: Dataset, profiled: LimitProfiles, rng: random.Random) -> Baseline:
        """Estimate the default from the log; ``rng`` draws the bootstrap."""
        b = log.job.default_batch_size
        epochs, full_w = epochs_of(log, b), profiled.highest_w(b)
        seen = [t.observation for t in log.here() if t.batch_size == b and t.state.kept_model]
        full = [m for o in seen if (m := _at_full_power(o, profiled, b, full_w)) is not None]
        rates = tuple([r for o in full if (r := Rates.of(o)) is not None][-RATES_KEPT:])
        draws = bootstrap_means(epochs, rng)
        if not epochs:
            mean = Estimate.missing(_why_no_epochs(log, b))
        elif not seen:
            mean = Estimate.missing(f"the default batch size {b} has not run on this device")
        elif not rates:
            why = f"what the default batch size {b} draws at full power was neither measured nor profiled"
            mean = Estimate.missing(why)
        else:
            mean = Estimate.bootstrap(math.fsum(epochs) / len(epochs), draws)
            mean = mean.without_interval(ONE_RUN) if len(epochs) == 1 else mean
        return cls(mean, draws, rates, full_w)

    def epoch_cost(self, samples_per_epoch: float | None, weights: Weights) -> float | None:
        """EpochCost [J; s where time alone counts] at full power for a slice of this size; None where not known."""
        costs = [c for r in self.rates if (c := r.epoch_cost(samples_per_epoch, weights)) is not None]
        return math.fsum(costs) / len(costs) if costs else None

    def epoch_costs(self, runs: Sequence[RunTrials], weights: Weights) -> list[float | None]:
        """EpochCost for the slice of each run; 0 for a run without a model. Computed once for each size of a slice."""
        of_size = {size: self.epoch_cost(size, weights) for size in {r.samples_per_epoch for r in runs if r.kept}}
        return [of_size[r.samples_per_epoch] if r.kept else 0.0 for r in runs]

    def compare(self, runs: Sequence[RunTrials], weights: Weights, unit: str) -> Saved:
        """Sum what the runs spent and what the default would have spent; missing with the reason where not known."""
        spent = total(r.spent(weights) for r in runs)
        exploration = total(r.exploration(weights) for r in runs)
        epoch_cost = total(self.epoch_costs(runs, weights))
        if runs:
            ours, theirs = (
                "a figure of one of its attempts is not known",
                "the size of its slice or its energy is not known",
            )
            baseline = self.epochs.times(None if spent is None else epoch_cost, ours if spent is None else theirs)
        else:
            baseline = self.epochs if self.epochs.value is None else Estimate.missing("no run has ended yet")
        saved = baseline.plus(-(spent or 0.0))
        settled = saved.plus(exploration or 0.0)
        if exploration is None and saved.value is not None:
            settled = Estimate.missing("what exploration cost is not known")
        return Saved(unit=unit, spent=spent, baseline=baseline, saved=saved, exploration=exploration, settled=settled)


def _at_full_power(o: Observation, profiled: LimitProfiles, b: int, full_w: float | None) -> Observation | None:
    """The run at full power; one on a device without a limit ran at full power anyway."""
    if o.power_limit_w is None:
        return o
    if full_w is not None:
        return profiled.recosted(b, o, full_w)
    highest_w = None if o.max_power_w is None else o.max_power_w / (o.device_count or 1)
    return o if highest_w is not None and o.power_limit_w >= highest_w - SAME_W else None


def epochs_of(log: Dataset, b: int) -> tuple[float, ...]:
    """Epochs of the complete runs of a batch size on any device, within the job's window, oldest first."""
    runs = [t for t in log.trials if t.batch_size == b and t.state.kept_model]
    runs = [t for t in runs if t.origin.run_type in log.job.learn_from]
    return tuple(t.observation.epochs for t in runs if t.observation.epochs)[-log.job.window :]


def _why_no_epochs(log: Dataset, b: int) -> str:
    """Why no run of a batch size shows how many epochs it takes."""
    ended = [t.origin.run_type for t in log.trials if t.batch_size == b and t.state.kept_model]
    silent = sorted(set(ended).difference(log.job.learn_from))
    if silent:
        return f"the runs of the default batch size {b} are of type {' and '.join(silent)}, which does not teach"
    return f"no run of the default batch size {b} went to its end"


def bootstrap_means(epochs: Sequence[float], rng: random.Random) -> tuple[float, ...]:
    """:data:`DRAWS` means of resamples with replacement; none where there are no epochs."""
    n = len(epochs)
    return tuple(math.fsum(rng.choices(epochs, k=n)) / n for _ in range(DRAWS)) if n else ()
