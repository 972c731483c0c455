"""The paper's figures that show what there is to find, and how it is searched: 4, 8 and 20, 17, 18."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_provider_zeus.simulation.environment import Log
from airflow_provider_zeus.simulation.scenario import Scenario
from benchmarks.plots import CYCLE, POLICY, name_of, panels, save
from benchmarks.quality.tradeoff import units
from benchmarks.replays import run_policy


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


def choices(scenario: Scenario, policies: Sequence[str], path: Path) -> Path:
    """Figure 4: the batch sizes that each policy runs, recurrence by recurrence; a cross: missed or given up."""
    figure, axes = panels(len(policies), across=len(policies), width=3.8, height=2.8)
    sizes = {b: i for i, b in enumerate(scenario.pair.batch_sizes)}
    for ax, policy in zip(axes, policies, strict=True):
        log = run_policy(policy, scenario, scenario.pair.recurrences, 0)
        runs = [(t, r) for t, of in enumerate(log.runs, 1) for r in of[: log.attempts[t - 1]]]
        for reached, mark, colour in ((True, "o", POLICY[policy][1]), (False, "x", "#c0392b")):
            shown = [(t, sizes[r.batch_size]) for t, r in runs if r.reached is reached]
            ax.plot(*zip(*shown, strict=True), mark, ms=4, ls="none", color=colour) if shown else None
        ax.set_yticks(range(len(sizes)), list(sizes), fontsize=7)
        ax.set_title(POLICY[policy][0], fontsize=9)
        ax.set(xlabel="recurrence", ylabel="batch size")
    pair = scenario.pair
    title = f"{name_of(pair.workload)} on {pair.gpu.upper()}, seed 0: batch sizes that were run (Figure 4)"
    return save(figure, path, f"{title}\ncross: stopped, or the target was missed", [])


def over_batch_size(scenarios: Sequence[Scenario], path: Path) -> Path:
    """Figure 17: energy to target over the batch size, mean and range of the measured runs."""
    figure, axes = panels(len(scenarios))
    for ax, scenario in zip(axes, scenarios, strict=True):
        rows = []
        _, (j, j_name) = units(0.0, scenario.default_run.energy_j)
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
        ax.set(title=name_of(scenario.pair.workload), xlabel="batch size", ylabel=f"energy to target [{j_name}]")
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
    axes[0].set(xlabel="power limit [W]", ylabel="energy (highest limit = 1)")
    gpu = scenarios[0].pair.gpu.upper()
    return save(figure, path, f"Energy over the power limit on {gpu}, default batch size (Figure 18)")
