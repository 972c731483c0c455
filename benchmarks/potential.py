"""What there is to save: Figures 1 and 15. No policy and no seed: expected energy of configurations, as measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from airflow_provider_zeus.simulation.scenario import Scenario
from airflow_provider_zeus.simulation.traces import PowerMeasurement
from benchmarks.plots import name_of, panels, save
from benchmarks.report import Z

KINDS = {"batch size": "#2f6fde", "power limit": "#e08a1e", "both": "#0b7a55"}


class Potential(NamedTuple):
    """The least energy to the target of some configurations, Default = 1, with the 95 % interval of that ratio.

    The interval is that of the mean epochs of the few trainings that were measured (delta method).
    """

    value: float
    low: float
    high: float
    batch_size: int
    limit_w: float


def potentials(scenario: Scenario) -> dict[str, Potential]:
    """By kind: the best batch size at full power, the best limit at the default size, and the best of both."""
    pair, default = scenario.pair, scenario.pair.default_batch_size
    full = [(b, scenario.full_power(b)) for b in pair.batch_sizes]
    limits = [(default, p) for p in pair.points[default]]
    both = [(b, p) for b in pair.batch_sizes for p in pair.points[b]]
    return {kind: _least(scenario, some) for kind, some in zip(KINDS, (full, limits, both), strict=True)}


def _least(scenario: Scenario, configurations: Sequence[tuple[int, PowerMeasurement]]) -> Potential:
    b, point = min(configurations, key=lambda c: scenario.success_epochs(c[0]) * c[1].energy_j)
    value = scenario.success_epochs(b) * point.energy_j / scenario.default_run.energy_j
    default = scenario.pair.default_batch_size
    error = 0.0 if b == default else math.hypot(_error(scenario, b), _error(scenario, default))
    return Potential(value, value * math.exp(-Z * error), value * math.exp(Z * error), b, point.limit_w)


def _error(scenario: Scenario, batch_size: int) -> float:
    """Relative standard error of the mean epochs of the trainings that reached the target."""
    reached = [e for e in scenario.arms[batch_size].epochs if e <= scenario.pair.max_epochs]
    if len(reached) < 2:
        return 0.0
    return statistics.stdev(reached) / math.sqrt(len(reached)) / statistics.fmean(reached)


def potential(scenarios: Sequence[Scenario], path: Path) -> Path:
    """Figures 1 and 15: bars for each workload, one panel per GPU."""
    gpus = list(dict.fromkeys(s.pair.gpu for s in scenarios))
    figure, axes = panels(len(gpus), across=1, width=9.0, height=2.5)
    for ax, gpu in zip(axes, gpus, strict=True):
        here = [s for s in scenarios if s.pair.gpu == gpu]
        found: list[Mapping[str, Potential]] = [potentials(s) for s in here]
        for i, (kind, colour) in enumerate(KINDS.items()):
            at = [n + (i - 1) * 0.27 for n in range(len(here))]
            bars = [of[kind] for of in found]
            ax.bar(
                at,
                [p.value for p in bars],
                0.25,
                color=colour,
                label=f"best {kind}" if kind != "both" else "best of both",
            )
            spread = [[p.value - p.low for p in bars], [p.high - p.value for p in bars]]
            ax.errorbar(at, [p.value for p in bars], spread, fmt="none", ecolor="#333333", lw=0.8)
        ax.axhline(1.0, color="#333333", lw=1.0, ls="--")
        ax.set_xticks(range(len(here)), [name_of(s.pair.workload) for s in here])
        ax.grid(visible=False, axis="x")
        ax.set_title(gpu.upper())
        ax.set_ylabel("energy to target\n(Default = 1)")
    return save(figure, path, "What there is to save (Figures 1, 15)")
