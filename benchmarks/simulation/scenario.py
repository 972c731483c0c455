"""A recurring job with known true costs: those of each batch size,
and the best one (the oracle of section 6.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import DeviceInfo
from benchmarks.simulation.traces import Pair, PowerMeasurement


@dataclass(frozen=True, slots=True)
class Epoch:
    """Energy, time and cost of one epoch."""

    energy_j: float
    time_s: float
    cost: float  # [J], Eq. 2


@dataclass(frozen=True, slots=True)
class BatchSizeTruth:
    """True figures of one batch size."""

    batch_size: int
    limit_w: float  # the power limit of Eq. 7
    epoch: Epoch  # at that limit
    # the first epoch ever of this batch size: an equal part of its samples at every limit
    profiling: Epoch
    epochs: tuple[float, ...]  # to the target, one per measured run; inf: never

    def run(self, allowed: float) -> tuple[float, float]:
        """Return (expected epochs of a run limited to ``allowed``,
        probability that it reaches the target).
        """
        n = len(self.epochs)
        return sum([min(e, allowed) for e in self.epochs]) / n, sum(
            [e <= allowed for e in self.epochs]
        ) / n


@dataclass(frozen=True)
class Scenario:
    """One workload on one GPU under one eta."""

    pair: Pair
    eta: float = 0.5

    @property
    def weights(self) -> Weights:
        """eta and MAXPOWER of Eq. 2."""
        return Weights(self.eta, self.pair.max_power_w)

    @cached_property
    def arms(self) -> Mapping[int, BatchSizeTruth]:
        """True figures by batch size, ascending."""
        arms = {}
        for b, points in self.pair.points.items():
            best = min(points, key=lambda p: (self.epoch(p).cost, p.limit_w))
            energy_j = math.fsum(p.energy_j for p in points) / len(points)
            time_s = math.fsum(p.time_s for p in points) / len(points)
            profiling = Epoch(energy_j, time_s, self.weights.cost(energy_j, time_s))
            arms[b] = BatchSizeTruth(
                b, best.limit_w, self.epoch(best), profiling, self.pair.epochs[b]
            )
        return arms

    def epoch(self, point: PowerMeasurement) -> Epoch:
        """Energy, time and cost of an epoch at one power limit."""
        return Epoch(point.energy_j, point.time_s, self.weights.cost(point.energy_j, point.time_s))

    def full_power(self, batch_size: int) -> PowerMeasurement:
        """The highest limit measured at this batch size."""
        return self.pair.points[batch_size][-1]

    def success_epochs(self, batch_size: int) -> float:
        """Expected epochs until a run reaches its target, failed runs before it included;
        inf: it never does.
        """
        mean, chance = self.arms[batch_size].run(self.pair.max_epochs)
        return mean / chance if chance else math.inf

    def run_cost(self, batch_size: int) -> float:
        """Expected cost [J] of one run, which ends at the target or at ``max_epochs``."""
        arm = self.arms[batch_size]
        return arm.run(self.pair.max_epochs)[0] * arm.epoch.cost

    def expected_cost(self, batch_size: int) -> float:
        """Expected cost [J] until a run of this batch size reaches its target."""
        return self.success_epochs(batch_size) * self.arms[batch_size].epoch.cost

    @cached_property
    def best(self) -> int:
        """The batch size that is cheapest in expectation."""
        return min(self.arms, key=self.expected_cost)

    @cached_property
    def best_cost(self) -> float:
        """C* [J]: cost of a recurrence to an oracle, the unit of regret."""
        return self.expected_cost(self.best)

    @cached_property
    def default_run(self) -> Epoch:
        """Expected run of the default batch size at full power, the baseline of energy and time."""
        b = self.pair.default_batch_size
        one = self.epoch(self.full_power(b))
        epochs = self.success_epochs(b)
        return Epoch(one.energy_j * epochs, one.time_s * epochs, one.cost * epochs)

    @property
    def device(self) -> DeviceInfo:
        """The GPU, for ``choose``."""
        return DeviceInfo(
            model=self.pair.gpu, max_power_w=self.pair.max_power_w, energy_source="simulated"
        )

    def job(self, **fields: Any) -> ZeusJob:
        """Return the job of this scenario, without audits;
        ``fields`` override fields of :class:`ZeusJob`.
        """
        spec: dict[str, Any] = {
            "batch_sizes": self.pair.batch_sizes,
            "default_batch_size": self.pair.default_batch_size,
            "target": "metric >= 1",
            "max_epochs": self.pair.max_epochs,
            "eta": self.eta,
            "job_id": self.pair.name,
            "audit": 0.0,  # what the policy costs is judged without what is spent on knowing it
        }
        return ZeusJob(**{**spec, **fields})
