"""What profiling the power limits costs one training, by workload (section 6.5).

The paper's way: five seconds at each limit, once. Ours: the package's own search, by ``benchmarks.profiler_overhead``.
Against two trainings without profiling: at the best limit (Eq. 7) from the first step on, and at full power.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from airflow_provider_zeus.simulation.scenario import Scenario
from benchmarks.profiler_overhead import overhead
from benchmarks.profiler_replay import Curve
from benchmarks.report import Z

WINDOW_S = 5.0  # section 5
SEEDS = 5  # of the noise that our search meets


class Extra(NamedTuple):
    """Relative extra of one training, as [mean, low, high]."""

    energy: tuple[float, float, float]
    time: tuple[float, float, float]


def papers_way(scenario: Scenario, *, full_power: bool) -> Extra:
    """Five seconds at each limit of the default batch size, then the best limit; exact, so its interval is a point.

    :param full_power: against full power from first to last, from which the windows alone differ; else the best limit.
    """
    b = scenario.pair.default_batch_size
    points, arm = scenario.pair.points[b], scenario.arms[b]
    best = points[-1] if full_power else next(p for p in points if p.limit_w == arm.limit_w)
    epochs = scenario.success_epochs(b)
    extra_s = math.fsum(WINDOW_S * (1 - best.time_s / p.time_s) for p in points)
    extra_j = math.fsum(WINDOW_S * (p.power_w - best.energy_j / p.time_s) for p in points)
    energy, time = extra_j / (epochs * best.energy_j), extra_s / (epochs * best.time_s)
    return Extra((energy,) * 3, (time,) * 3)


def our_way(scenario: Scenario, seeds: int = SEEDS) -> Extra:
    """The package's own search in a training of the same length, against the best limit."""
    pair = scenario.pair
    b = pair.default_batch_size
    points = pair.points[b]
    columns = [np.array(column) for column in zip(*((p.limit_w, p.time_s, p.energy_j) for p in points), strict=True)]
    curve = Curve(f"{pair.name}/{b}", pair.max_power_w, *columns)
    epochs = max(1, round(scenario.success_epochs(b)))
    logging.getLogger("airflow_provider_zeus").setLevel(logging.WARNING)  # a line per training
    found = [overhead(curve, points[-1].time_s, epochs, seed) for seed in range(seeds)]
    return Extra(_interval([f.energy for f in found]), _interval([f.time for f in found]))


def _interval(values: Sequence[float]) -> tuple[float, float, float]:
    mean = statistics.fmean(values)
    half = Z * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return mean, mean - half, mean + half
