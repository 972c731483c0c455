"""What each run would have cost with the batch size that runs now, at its best power limit: hindsight. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_zeus.model.cost import Rates, Weights, hurried
from airflow_provider_zeus.model.trial import PlannedAttempt, State
from airflow_provider_zeus.optimizer.belief import RATES_KEPT
from airflow_provider_zeus.reports.baseline import Baseline
from airflow_provider_zeus.reports.dataset import Dataset
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from airflow_provider_zeus.reports.slice_epochs import RunId


@dataclass(frozen=True, slots=True)
class BestFixed:
    """One batch size on one device, without what profiling cost."""

    batch_size: int
    limit_w: float | None  # None: the limits that its runs had
    epochs: Mapping[RunId, float]  # expected, or its own, on the slice of each run
    rates: tuple[Rates, ...]

    def epoch_cost(self, samples_per_epoch: float | None, weights: Weights) -> float | None:
        """EpochCost [J; s where time alone counts] on a slice of this size; None where not known."""
        costs = [c for r in self.rates if (c := r.epoch_cost(samples_per_epoch, weights)) is not None]
        return math.fsum(costs) / len(costs) if costs else None

    def run(self, run: RunId, samples_per_epoch: float | None, weights: Weights) -> float | None:
        """Cost of one run [J; s where time alone counts] on its slice of this size; None where not known."""
        epoch_cost = self.epoch_cost(samples_per_epoch, weights)
        return None if epoch_cost is None or run not in self.epochs else self.epochs[run] * epoch_cost


def fixed(
    planned: PlannedAttempt, log: Dataset, base: Baseline, weights: Weights, profiled: LimitProfiles
) -> BestFixed | None:
    """The batch size of an attempt; None where it has not run on this device, or never reached the job's target."""
    b, runs = planned.batch_size, log.of_target()
    reached = any(t.batch_size == b and t.state is State.CONVERGED for t in runs.trials)
    if base.epochs is None or not reached:
        return None
    best_w = profiled.best_w(b, hurried(weights, planned))
    seen = [t.observation for t in runs.here() if t.batch_size == b and t.state.kept_model]
    at_best = [] if best_w is None else [m for o in seen if (m := profiled.recosted(b, o, best_w)) is not None]
    rates = tuple([r for o in at_best or seen if (r := Rates.of(o)) is not None][-RATES_KEPT:])
    if not rates:
        return None
    epochs = dict(zip(base.epochs.column, base.epochs.of(b).mean(0).tolist(), strict=True))
    return BestFixed(b, best_w if at_best else None, epochs, rates)
