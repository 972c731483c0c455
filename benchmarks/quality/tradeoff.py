"""Energy and time to the target of all configurations: Figures 2, 11 and 16;
and what there is to save: 1 and 15.

No policy and no seed in Figures 1 and 15: expected energy of configurations, as measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.plots import GREY, POLICY, name_of, panels, save
from benchmarks.quality.sweeps import ETAS
from benchmarks.report import half_width
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import PowerMeasurement


class Configuration(NamedTuple):
    """Expected time [s] and energy [J] until the target is reached."""

    time_s: float
    energy_j: float
    batch_size: int
    limit_w: float
    power_w: float


def configurations(scenario: Scenario) -> list[Configuration]:
    """Every configuration that reaches its target."""
    reaching = {b: scenario.success_epochs(b) for b in scenario.pair.batch_sizes}
    return [
        Configuration(epochs * p.time_s, epochs * p.energy_j, b, p.limit_w, p.power_w)
        for b, epochs in reaching.items()
        if math.isfinite(epochs)
        for p in scenario.pair.points[b]
    ]


def front(points: Sequence[Configuration]) -> list[Configuration]:
    """Those that no other beats in both time and energy, by time."""
    found: list[Configuration] = []
    for point in sorted(points):
        if not found or point.energy_j < found[-1].energy_j:
            found.append(point)
    return found


def units(time_s: float, energy_j: float) -> tuple[tuple[float, str], tuple[float, str]]:
    """(seconds, name) and (joules, name) of units in which these figures read well."""
    time = (3600.0, "h") if time_s > 3600 else (60.0, "min")
    return time, (1e6, "MJ") if energy_j > 1e6 else (1e3, "kJ")


def pareto(
    scenarios: Sequence[Scenario], sweep: Mapping[str, Any], policy: str, path: Path
) -> Path:
    """Figures 11 and 16: every configuration, the Pareto front, and where each eta ends."""
    figure, axes = panels(len(scenarios), height=3.0)
    for ax, scenario in zip(axes, scenarios, strict=True):
        run = scenario.default_run
        name = scenario.pair.name
        (s, s_name), (j, j_name) = units(run.time_s, run.energy_j)
        found = configurations(scenario)
        points = [(p.time_s / s, p.energy_j / j) for p in found]
        best = [(p.time_s / s, p.energy_j / j) for p in front(found)]
        default = (run.time_s / s, run.energy_j / j)
        ends = [
            (sweep["time"][e][name][0] * default[0], sweep["energy"][e][name][0] * default[1])
            for e in ETAS
        ]
        far, high = (1.12 * max(column) for column in zip(*best, *ends, default, strict=True))
        near = [(t, e) for t, e in points if t <= far and e <= high]
        ax.scatter(*zip(*near, strict=True), s=10, color="#cfcfcf", label="configurations")
        ax.plot(*zip(*best, strict=True), "-", color=GREY, lw=1.6, label="Pareto front")
        ax.plot(*default, "^", color="#c0392b", ms=8, ls="none", label="Default")
        ax.scatter(
            *zip(*ends, strict=True),
            c=ETAS,
            cmap="viridis",
            s=42,
            edgecolors="black",
            linewidths=0.6,
            zorder=4,
        )
        for at, eta in ((ends[0], 0), (ends[-1], 1)):
            ax.annotate(f"eta {eta}", at, xytext=(7, 5), textcoords="offset points", fontsize=7)
        ax.set(
            title=name_of(scenario.pair.workload),
            xlabel=f"time to target [{s_name}]",
            ylabel=f"energy to target [{j_name}]",
        )
    title = (
        f"Energy against time on {scenarios[0].pair.gpu.upper()} (Figures 11, 16)\n"
        f"round dots: the last five recurrences of {POLICY[policy][0]}, eta from 0 to 1"
    )
    return save(figure, path, title)


KINDS = ("batch size", "power limit", "both")


class Potential(NamedTuple):
    """The least energy to the target of some configurations, Default = 1,
    with the 95 % interval of that ratio.

    The interval is that of the mean epochs of the few trainings that were measured (delta method).
    """

    value: float
    low: float
    high: float
    batch_size: int
    limit_w: float


def potentials(scenario: Scenario) -> dict[str, Potential]:
    """By kind: the best batch size at full power, the best limit at the default size,
    and the best of both.
    """
    pair = scenario.pair
    default = scenario.pair.default_batch_size
    full = [(b, scenario.full_power(b)) for b in pair.batch_sizes]
    limits = [(default, p) for p in pair.points[default]]
    both = [(b, p) for b in pair.batch_sizes for p in pair.points[b]]
    return {
        kind: _least(scenario, some) for kind, some in zip(KINDS, (full, limits, both), strict=True)
    }


def _least(scenario: Scenario, configurations: Sequence[tuple[int, PowerMeasurement]]) -> Potential:
    b, point = min(configurations, key=lambda c: scenario.success_epochs(c[0]) * c[1].energy_j)
    value = scenario.success_epochs(b) * point.energy_j / scenario.default_run.energy_j
    default = scenario.pair.default_batch_size
    wide = (
        0.0
        if b == default
        else math.hypot(_half_width(scenario, b), _half_width(scenario, default))
    )
    return Potential(value, value * math.exp(-wide), value * math.exp(wide), b, point.limit_w)


def _half_width(scenario: Scenario, batch_size: int) -> float:
    """Of the mean epochs of the trainings that reached the target, relative."""
    reached = [e for e in scenario.arms[batch_size].epochs if e <= scenario.pair.max_epochs]
    return half_width(reached) / statistics.fmean(reached)
