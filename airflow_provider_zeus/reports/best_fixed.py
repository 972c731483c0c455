"""The batch size that would have been cheapest for every run, by what the log holds today: hindsight. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from airflow_provider_zeus.model.cost import Rates, Weights
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.optimizer.belief import RATES_KEPT
from airflow_provider_zeus.reports.baseline import epochs_of
from airflow_provider_zeus.reports.dataset import Dataset
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles


@dataclass(frozen=True, slots=True)
class BestFixed:
    """One batch size on one device: means over its complete runs, without what profiling cost."""

    batch_size: int
    limit_w: float | None  # None: the limits that its runs had
    epochs: float
    rates: tuple[Rates, ...]

    def run(self, samples_per_epoch: float | None, weights: Weights) -> float | None:
        """Cost of one run [J; s where time alone counts] on a slice of this size; None where not known."""
        costs = [c for r in self.rates if (c := r.epoch_cost(samples_per_epoch, weights)) is not None]
        return self.epochs * math.fsum(costs) / len(costs) if costs else None


def best_fixed(
    log: Dataset, weights: Weights, samples_per_epoch: float | None, profiled: LimitProfiles
) -> BestFixed | None:
    """The cheapest batch size on a slice of this size, each at its best profiled power limit.

    None where no batch size has reached the target on this device with a known cost.
    """
    here, priced = log.here(), []
    for b in sorted({t.batch_size for t in here if t.state is State.CONVERGED}):
        epochs, best_w = epochs_of(log, b), profiled.best_w(b, weights)
        seen = [t.observation for t in here if t.batch_size == b and t.state.kept_model]
        at_best = [] if best_w is None else [m for o in seen if (m := profiled.recosted(b, o, best_w)) is not None]
        rates = [r for o in at_best if (r := Rates.of(o)) is not None]
        rates = (rates or [r for o in seen if (r := Rates.of(o)) is not None])[-RATES_KEPT:]
        if epochs and rates:
            one = BestFixed(b, best_w if at_best else None, math.fsum(epochs) / len(epochs), tuple(rates))
            if (cost := one.run(samples_per_epoch, weights)) is not None:
                priced.append((cost, b, one))
    return min(priced, key=lambda p: p[:2])[2] if priced else None
