"""Energy and time to the target of all configurations: Figures 2, 11 and 16; and what there is to save: 1 and 15.

No policy and no seed in Figures 1 and 15: expected energy of configurations, as measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.plots import CYCLE, GREY, POLICY, name_of, panels, save
from benchmarks.quality.sweeps import ETAS
from benchmarks.report import half_width
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import PowerMeasurement

BOUNDS_W = (90.0, 210.0)  # of Figure 2


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


def bounds(scenario: Scenario, path: Path) -> Path:
    """Figure 2: all configurations between two lines of equal power, and the Pareto front in close-up."""
    points, run = configurations(scenario), scenario.default_run
    best = front(points)
    (s, s_name), (j, j_name) = units(run.time_s, run.energy_j)
    figure, axes = panels(2, across=2, width=4.8, height=3.6)
    lowest, highest = (f(p.power_w for p in points) for f in (min, max))
    far = max(p.time_s for p in points) / s
    for ax, shown in zip(axes, (points, [p for p in points if p.time_s <= 1.6 * best[0].time_s]), strict=True):
        ax.scatter([p.time_s / s for p in shown], [p.energy_j / j for p in shown], s=12, color="#c0392b", alpha=0.55)
        ax.plot([p.time_s / s for p in best], [p.energy_j / j for p in best], "-o", ms=4, color="#0b7a55")
        ax.set(xlabel=f"time to target [{s_name}]", ylabel=f"energy to target [{j_name}]")
    for power_w, style in (*((w, ":") for w in BOUNDS_W), (lowest, "--"), (highest, "--")):
        axes[0].plot([0, far], [0, far * s * power_w / j], style, color=GREY, lw=1.1)
    dotted = " and ".join(f"{w:g} W" for w in BOUNDS_W)
    said = f"dotted: {dotted} (the paper's)\ndashed: {lowest:.0f} and {highest:.0f} W (measured)"
    axes[0].text(0.02, 0.97, said, transform=axes[0].transAxes, va="top", fontsize=7)
    axes[0].set_xlim(0, far * 1.03)
    axes[0].set_ylim(0, 1.25 * max(p.energy_j for p in points) / j)
    for i, p in enumerate(best):
        at, shift = (p.time_s / s, p.energy_j / j), (6, 6) if i % 2 == 0 else (6, -11)
        label = f"{p.batch_size}, {p.limit_w:g} W"
        axes[1].annotate(label, at, xytext=shift, textcoords="offset points", fontsize=7)
    times, energies = [p.time_s / s for p in best], [p.energy_j / j for p in best]
    axes[1].set_xlim(0.95 * min(times), 1.18 * max(times))
    axes[1].set_ylim(0.95 * min(energies), 1.15 * max(energies))
    axes[0].set_title("all configurations")
    axes[1].set_title("the Pareto front: batch size, limit")
    pair = scenario.pair
    return save(figure, path, f"{name_of(pair.workload)} on {pair.gpu.upper()} (Figure 2)", [])


def envelope(scenario: Scenario, path: Path) -> Path:
    """Figure 11: for each eta the line of equal cost that touches the Pareto front, and the optimum that it touches."""
    points, run, weights = configurations(scenario), scenario.default_run, scenario.weights
    best = front(points)
    (s, s_name), (j, j_name) = units(run.time_s, run.energy_j)
    figure, axes = panels(1, across=1, width=6.2, height=4.2)
    ax = axes[0]
    ax.plot([p.time_s / s for p in best], [p.energy_j / j for p in best], "-o", ms=4, color=GREY, label="Pareto front")
    left, right = 0.97 * best[0].time_s, 1.06 * best[-1].time_s
    low, high = 0.95 * best[-1].energy_j, 1.08 * best[0].energy_j
    for eta, colour in zip(ETAS, CYCLE, strict=False):
        of = {p: eta * p.energy_j + (1 - eta) * weights.max_power_w * p.time_s for p in points}
        optimum = min(points, key=of.__getitem__)
        if eta:
            ends = [(of[optimum] - (1 - eta) * weights.max_power_w * t) / eta / j for t in (left, right)]
            ax.plot([left / s, right / s], ends, ":", color=colour, lw=1.4)
        else:
            ax.axvline(optimum.time_s / s, ls=":", color=colour, lw=1.4)
        label = f"eta {eta:g}: {optimum.batch_size}, {optimum.limit_w:g} W"
        at = (optimum.time_s / s, optimum.energy_j / j)
        ax.plot(*at, "o", ms=15 - 10 * eta, color=colour, label=label, mec="white", zorder=4)
    ax.set_xlim(left / s, right / s)
    ax.set_ylim(low / j, high / j)
    ax.set(xlabel=f"time to target [{s_name}]", ylabel=f"energy to target [{j_name}]")
    pair = scenario.pair
    title = f"{name_of(pair.workload)} on {pair.gpu.upper()}: lines of equal cost around the front (Figure 11)"
    return save(figure, path, title)


def pareto(scenarios: Sequence[Scenario], sweep: Mapping[str, Any], policy: str, path: Path) -> Path:
    """Figures 11 and 16: every configuration, the Pareto front, and where each eta ends."""
    figure, axes = panels(len(scenarios), height=3.0)
    for ax, scenario in zip(axes, scenarios, strict=True):
        run, name = scenario.default_run, scenario.pair.name
        (s, s_name), (j, j_name) = units(run.time_s, run.energy_j)
        found = configurations(scenario)
        points = [(p.time_s / s, p.energy_j / j) for p in found]
        best = [(p.time_s / s, p.energy_j / j) for p in front(found)]
        default = (run.time_s / s, run.energy_j / j)
        ends = [(sweep["time"][e][name][0] * default[0], sweep["energy"][e][name][0] * default[1]) for e in ETAS]
        far, high = (1.12 * max(column) for column in zip(*best, *ends, default, strict=True))
        near = [(t, e) for t, e in points if t <= far and e <= high]
        ax.scatter(*zip(*near, strict=True), s=10, color="#cfcfcf", label="configurations")
        ax.plot(*zip(*best, strict=True), "-", color=GREY, lw=1.6, label="Pareto front")
        ax.plot(*default, "^", color="#c0392b", ms=8, ls="none", label="Default")
        ax.scatter(*zip(*ends, strict=True), c=ETAS, cmap="viridis", s=42, edgecolors="black", linewidths=0.6, zorder=4)
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
    wide = 0.0 if b == default else math.hypot(_half_width(scenario, b), _half_width(scenario, default))
    return Potential(value, value * math.exp(-wide), value * math.exp(wide), b, point.limit_w)


def _half_width(scenario: Scenario, batch_size: int) -> float:
    """Of the mean epochs of the trainings that reached the target, relative."""
    reached = [e for e in scenario.arms[batch_size].epochs if e <= scenario.pair.max_epochs]
    return half_width(reached) / statistics.fmean(reached)


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
        ax.set(title=gpu.upper(), ylabel="energy to target\n(Default = 1)")
    return save(figure, path, "What there is to save (Figures 1, 15)")
