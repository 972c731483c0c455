"""The default batch size at full power, estimated from the log: what each run would have cost without Zeus. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_zeus.optimizer.belief import RATES_KEPT
from airflow_provider_zeus.optimizer.cost import Rates, Weights
from airflow_provider_zeus.optimizer.estimate import Estimate
from airflow_provider_zeus.optimizer.evidence import Evidence
from airflow_provider_zeus.optimizer.limits import SAME_W, Profiles
from airflow_provider_zeus.optimizer.trial import Observation, State

DRAWS = 1000
COMPLETE = (State.CONVERGED, State.EXHAUSTED)  # given-up runs are cut off: they would make the baseline too cheap
ONE_RUN = "one complete run is no spread"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """``baseline - spent = saved`` in one unit; below 0: lost. What left no model is all loss."""

    unit: str  # "J" or "s"
    spent: float | None
    baseline: Estimate
    saved: Estimate


@dataclass(frozen=True, slots=True)
class Baseline:
    """The default at full power: epochs that its runs took, and what one epoch draws."""

    epochs: tuple[float, ...]
    rates: tuple[Rates, ...]
    full_power_w: float | None
    means: tuple[float, ...]  # bootstrap of the mean of ``epochs``
    why_not: str | None

    @classmethod
    def of(cls, log: Evidence, profiled: Profiles, rng: random.Random) -> Baseline:
        """What the log tells of the default batch size at the highest limit; ``rng`` draws the bootstrap."""
        b = log.job.default_batch_size
        epochs = epochs_of(log, b)
        full_w = profiled.highest_w(b)
        seen = [t.observation for t in log.here() if t.batch_size == b and t.state in COMPLETE]
        moved = [m for o in seen if (m := _at_full_power(o, profiled, b, full_w)) is not None]
        rates = [r for o in moved if (r := Rates.of(o)) is not None][-RATES_KEPT:]
        why_not = None
        if not epochs:
            why_not = f"no run of the default batch size {b} went to its end"
        elif not seen:
            why_not = f"the default batch size {b} has not run on this device"
        elif not rates:
            why_not = f"what the default batch size {b} draws at full power was neither measured nor profiled"
        return cls(epochs, tuple(rates), full_w, bootstrap_means(epochs, rng), why_not)

    def epoch_cost(self, size: float | None, weights: Weights) -> float | None:
        """EpochCost at full power for a slice of this many samples."""
        costs = [c for r in self.rates if (c := r.epoch_cost(size, weights)) is not None]
        return math.fsum(costs) / len(costs) if costs else None

    def run(self, size: float | None, weights: Weights) -> Estimate:
        """What one run would have cost."""
        if self.why_not:
            return Estimate.missing(self.why_not)
        return self.mean_epochs().times(
            self.epoch_cost(size, weights), "the size of its slice or its energy is not known"
        )

    def mean_epochs(self) -> Estimate:
        """Epochs(default), where there is no ``why_not``."""
        mean = math.fsum(self.epochs) / len(self.epochs)
        estimate = Estimate.bootstrap(mean, self.means)
        return estimate.without_interval(ONE_RUN) if len(self.epochs) == 1 else estimate


def _at_full_power(o: Observation, profiled: Profiles, b: int, full_w: float | None) -> Observation | None:
    """The run at full power; one whose device has no limit ran so anyway."""
    if o.power_limit_w is None:
        return o
    if full_w is None:  # never profiled: only a run at the device's highest limit is one at full power
        highest = None if o.max_power_w is None else o.max_power_w / (o.device_count or 1)
        return o if highest is not None and o.power_limit_w >= highest - SAME_W else None
    return profiled.recosted(b, o, full_w)


def epochs_of(log: Evidence, b: int) -> tuple[float, ...]:
    """Epochs of the complete runs of a batch size on any device, within the job's window."""
    runs = [t for t in log.trials if t.batch_size == b and t.state in COMPLETE]
    runs = [t for t in runs if t.origin.run_type in log.job.learn_from]
    return tuple(t.observation.epochs for t in runs if t.observation.epochs)[-log.job.window :]


def bootstrap_means(epochs: Sequence[float], rng: random.Random) -> tuple[float, ...]:
    """Means of so many draws with replacement; none where there are no epochs."""
    n = len(epochs)
    return tuple(math.fsum(rng.choices(epochs, k=n)) / n for _ in range(DRAWS)) if n else ()
