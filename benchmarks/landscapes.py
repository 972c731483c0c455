"""The paper's figures that show what there is to find, and how it is searched: 8 and 20, 11 and 16, 17, 18."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_zeus.simulation.log import Log
from airflow_provider_zeus.simulation.scenario import Scenario
from benchmarks.plots import CYCLE, GREY, POLICY, name_of, panels, save
from benchmarks.replays import run_policy
from benchmarks.sweeps import ETAS


def _units(time_s: float, energy_j: float) -> tuple[tuple[float, str], tuple[float, str]]:
    """(seconds, name) and (joules, name) of units in which these figures read well."""
    time = (3600.0, "h") if time_s > 3600 else (60.0, "min")
    return time, (1e6, "MJ") if energy_j > 1e6 else (1e3, "kJ")


def search_paths(scenarios: Sequence[Scenario], policies: Sequence[str], path: Path) -> Path:
    """Figures 8, 20 and 21: which configurations are run, over the expected cost of each."""
    figure, axes = panels(len(scenarios) * len(policies), across=len(policies), width=4.0, height=2.4)
    rows = [(s, p) for s in scenarios for p in policies]
    for ax, (scenario, policy) in zip(axes, rows, strict=True):
        _map(ax, scenario)
        _path(ax, scenario, run_policy(policy, scenario, scenario.pair.recurrences, 0))
        ax.set_title(f"{name_of(scenario.pair.workload)}: {POLICY[policy][0]}", fontsize=9)
    gpu = scenarios[0].pair.gpu.upper()
    title = f"Search paths on {gpu}, seed 0 (Figures 8, 20, 21)\ndarker field: cheaper; darker dot: later recurrence"
    return save(figure, path, title, [])


def _map(ax: Any, scenario: Scenario) -> None:
    pair = scenario.pair
    cost = {
        (b, p.limit_w): scenario.success_epochs(b) * scenario.epoch(p).cost for b in pair.points for p in pair.points[b]
    }
    field = [
        [min(math.log10(cost.get((b, w), math.inf) / scenario.best_cost), 1.0) for b in pair.batch_sizes]
        for w in pair.limits_w
    ]
    ax.imshow(field, cmap="Greys_r", vmin=-0.6, vmax=1.0, aspect="auto", origin="lower")
    ax.grid(visible=False)
    ax.set_xticks(range(len(pair.batch_sizes)), pair.batch_sizes, rotation=90 if len(pair.batch_sizes) > 7 else 0)
    ax.set_yticks(range(len(pair.limits_w)), [f"{w:g}" for w in pair.limits_w])
    ax.tick_params(labelsize=7)
    ax.set_ylabel("limit [W]", fontsize=8)


def _path(ax: Any, scenario: Scenario, log: Log) -> None:
    at_b = {b: i for i, b in enumerate(scenario.pair.batch_sizes)}
    at_p = {w: i for i, w in enumerate(scenario.pair.limits_w)}
    kept = [runs[: log.attempts[t]] for t, runs in enumerate(log.runs)]
    x = [at_b[r.batch_size] for runs in kept for r in runs]
    y = [at_p[r.limit_w] for runs in kept for r in runs]
    when = [t for t, runs in enumerate(kept) for _ in runs]
    ax.plot(x, y, color="#e2711d", lw=0.8, alpha=0.7)
    ax.scatter(x, y, c=when, cmap="YlOrRd", s=22, edgecolors="white", linewidths=0.4, zorder=3)
    ax.plot(x[-1], y[-1], "*", color="#00a37a", ms=12, mec="white", zorder=4)


def pareto(scenarios: Sequence[Scenario], sweep: Mapping[str, Any], policy: str, path: Path) -> Path:
    """Figures 11 and 16: every configuration, the Pareto front, and where each eta ends."""
    figure, axes = panels(len(scenarios), height=3.0)
    for ax, scenario in zip(axes, scenarios, strict=True):
        run, swept = scenario.default_run, sweep[scenario.pair.name]
        (s, s_name), (j, j_name) = _units(run.time_s, run.energy_j)
        points = [(t / s, e / j) for t, e in _configurations(scenario)]
        front, default = _front(points), (run.time_s / s, run.energy_j / j)
        ends = [(swept[eta][1] * default[0], swept[eta][0] * default[1]) for eta in ETAS]
        far, high = (1.12 * max(column) for column in zip(*front, *ends, default, strict=True))
        near = [(t, e) for t, e in points if t <= far and e <= high]
        ax.scatter(*zip(*near, strict=True), s=10, color="#cfcfcf", label="configurations")
        ax.plot(*zip(*front, strict=True), "-", color=GREY, lw=1.6, label="Pareto front")
        ax.plot(*default, "^", color="#c0392b", ms=8, ls="none", label="Default")
        ax.scatter(*zip(*ends, strict=True), c=ETAS, cmap="viridis", s=42, edgecolors="black", linewidths=0.6, zorder=4)
        for at, eta in ((ends[0], 0), (ends[-1], 1)):
            ax.annotate(f"eta {eta}", at, xytext=(7, 5), textcoords="offset points", fontsize=7)
        ax.set_title(name_of(scenario.pair.workload))
        ax.set_xlabel(f"time to target [{s_name}]")
        ax.set_ylabel(f"energy to target [{j_name}]")
    title = (
        f"Energy against time on {scenarios[0].pair.gpu.upper()} (Figures 11, 16)\n"
        f"round dots: the last five recurrences of {POLICY[policy][0]}, eta from 0 to 1"
    )
    return save(figure, path, title)


def _configurations(scenario: Scenario) -> list[tuple[float, float]]:
    """Expected (time to target [s], energy to target [J]) of every configuration that reaches it."""
    reaching = {b: scenario.success_epochs(b) for b in scenario.pair.batch_sizes}
    return [
        (epochs * p.time_s, epochs * p.energy_j)
        for b, epochs in reaching.items()
        if math.isfinite(epochs)
        for p in scenario.pair.points[b]
    ]


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    front: list[tuple[float, float]] = []
    for t, j in sorted(points):
        if not front or j < front[-1][1]:
            front.append((t, j))
    return front


def over_batch_size(scenarios: Sequence[Scenario], path: Path) -> Path:
    """Figure 17: energy to target over the batch size, mean and range of the measured runs."""
    figure, axes = panels(len(scenarios))
    for ax, scenario in zip(axes, scenarios, strict=True):
        rows = []
        _, (j, j_name) = _units(0.0, scenario.default_run.energy_j)
        for b, arm in scenario.arms.items():
            reached = [e for e in arm.epochs if e <= scenario.pair.max_epochs]
            if reached:
                one = arm.epoch.energy_j / j
                rows.append((b, min(reached) * one, statistics.fmean(reached) * one, max(reached) * one))
        sizes, low, mean, high = zip(*rows, strict=True)
        ax.fill_between(sizes, low, high, color="#2f6fde", alpha=0.2, lw=0, label="range of the measured runs")
        ax.plot(sizes, mean, "o-", ms=4, color="#2f6fde", label="mean of the runs that reached the target")
        ax.set_xscale("log", base=2)
        ax.set_xticks(sizes, sizes, rotation=90 if len(sizes) > 7 else 0, fontsize=7)
        ax.minorticks_off()
        if max(mean) > 20 * min(mean):
            ax.set_yscale("log")
        else:
            ax.set_ylim(bottom=0, top=1.1 * max(high))
        ax.set_title(name_of(scenario.pair.workload))
        ax.set_xlabel("batch size")
        ax.set_ylabel(f"energy to target [{j_name}]")
    gpu = scenarios[0].pair.gpu.upper()
    return save(figure, path, f"Energy over the batch size on {gpu}, at the power limit of Eq. 7 (Figure 17)")


def over_limit(scenarios: Sequence[Scenario], path: Path) -> Path:
    """Figure 18: energy to target over the power limit."""
    figure, axes = panels(1, across=1, width=6.5, height=3.4)
    for scenario, colour in zip(scenarios, CYCLE * len(scenarios), strict=False):
        points = scenario.pair.points[scenario.pair.default_batch_size]
        full = points[-1].energy_j
        label = name_of(scenario.pair.workload)
        axes[0].plot(
            [p.limit_w for p in points], [p.energy_j / full for p in points], "o-", ms=3, color=colour, label=label
        )
    axes[0].set_xlabel("power limit [W]")
    axes[0].set_ylabel("energy (highest limit = 1)")
    gpu = scenarios[0].pair.gpu.upper()
    return save(figure, path, f"Energy over the power limit on {gpu}, default batch size (Figure 18)")
