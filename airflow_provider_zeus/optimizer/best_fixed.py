"""The batch size that, run every time, would have been cheapest by what the log knows today: hindsight. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_zeus.optimizer.baseline import COMPLETE, epochs_of
from airflow_provider_zeus.optimizer.belief import RATES_KEPT
from airflow_provider_zeus.optimizer.cost import Rates, Weights
from airflow_provider_zeus.optimizer.evidence import Evidence
from airflow_provider_zeus.optimizer.limits import Profiles
from airflow_provider_zeus.optimizer.trial import Observation, State


@dataclass(frozen=True, slots=True)
class BestFixed:
    """One batch size on one device: means over its complete runs, without what profiling cost."""

    batch_size: int
    limit_w: float | None  # None: its runs as they were
    epochs: float
    rates: tuple[Rates, ...]

    def run(self, size: float | None, weights: Weights) -> float | None:
        """What one run costs [J; s where time alone counts] on a slice of this many samples; None where not known."""
        costs = [c for r in self.rates if (c := r.epoch_cost(size, weights)) is not None]
        return self.epochs * math.fsum(costs) / len(costs) if costs else None


def best_fixed(log: Evidence, weights: Weights, size: float | None, profiled: Profiles) -> BestFixed | None:
    """The cheapest on a slice of ``size`` samples, at its best profiled power limit.

    None where no batch size has reached the target on this device with a known cost.
    """
    reached = sorted({t.batch_size for t in log.here() if t.state is State.CONVERGED})
    found = [known for b in reached if (known := _known(log, weights, b, profiled)) is not None]
    priced = [(cost, one.batch_size, one) for one in found if (cost := one.run(size, weights)) is not None]
    return min(priced, key=lambda p: p[:2])[2] if priced else None


def _known(log: Evidence, weights: Weights, b: int, profiled: Profiles) -> BestFixed | None:
    epochs = epochs_of(log, b)
    best_w = profiled.best_w(b, weights)
    seen = [t.observation for t in log.here() if t.batch_size == b and t.state in COMPLETE]
    moved = [] if best_w is None else [m for o in seen if (m := profiled.recosted(b, o, best_w)) is not None]
    rates = _rates(moved) or _rates(seen)
    if not epochs or not rates:
        return None
    return BestFixed(b, best_w if moved else None, math.fsum(epochs) / len(epochs), rates)


def _rates(seen: Sequence[Observation]) -> tuple[Rates, ...]:
    return tuple([r for o in seen if (r := Rates.of(o)) is not None][-RATES_KEPT:])
