"""The paper's figures that show what there is to find, and how it is searched: 4, 8 and 20, 17, 18."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.plots import CYCLE, POLICY, name_of, panels, save
from benchmarks.replays import run_policy
from benchmarks.simulation.environment import Log
from benchmarks.simulation.scenario import Scenario

WHITE = 10.0  # times the cheapest configuration: what is dearer is as white


def search_paths(scenarios: Sequence[Scenario], policies: Sequence[str], path: Path) -> Path:
    """Figures 8, 20 and 21: which configurations are run, over the expected cost of each."""
    figure, axes = panels(len(scenarios) * len(policies), across=len(policies), width=4.0, height=2.4)
    rows = [(s, p) for s in scenarios for p in policies]
    for ax, (scenario, policy) in zip(axes, rows, strict=True):
        _map(ax, scenario)
        _path(ax, scenario, run_policy(policy, scenario, scenario.pair.recurrences, 0))
        ax.set_title(f"{name_of(scenario.pair.workload)}: {POLICY[policy][0]}", fontsize=9)
    gpu = scenarios[0].pair.gpu.upper()
    title = (
        f"Search paths on {gpu}, seed 0 (Figures 8, 20, 21)\ndarker dot: later recurrence; star: the last run; "
        "darker field: cheaper\n"
        f"white field: {WHITE:g} times the cheapest or more, not measured, or the target is never reached"
    )
    return save(figure, path, title, [])


def _map(ax: Any, scenario: Scenario) -> None:
    pair = scenario.pair
    cost = {
        (b, p.limit_w): scenario.success_epochs(b) * scenario.epoch(p).cost for b in pair.points for p in pair.points[b]
    }
    field = [
        [math.log10(min(cost.get((b, w), math.inf) / scenario.best_cost, WHITE)) for b in pair.batch_sizes]
        for w in pair.limits_w
    ]
    ax.imshow(field, cmap="Greys_r", vmin=-0.6, vmax=math.log10(WHITE), aspect="auto", origin="lower")
    ax.grid(visible=False)
    ax.set_xticks(range(len(pair.batch_sizes)), pair.batch_sizes, rotation=90 if len(pair.batch_sizes) > 7 else 0)
    ax.set_yticks(range(len(pair.limits_w)), [f"{w:g}" for w in pair.limits_w])
    ax.tick_params(labelsize=7)
    ax.set_ylabel("limit [W]", fontsize=8)
    ax.set_xlabel("batch size", fontsize=8)


def _path(ax: Any, scenario: Scenario, log: Log) -> None:
    at_b = {b: i for i, b in enumerate(scenario.pair.batch_sizes)}
    at_p = {w: i for i, w in enumerate(scenario.pair.limits_w)}
    kept = [runs[: log.attempts[t]] for t, runs in enumerate(log.runs)]
    x = [at_b[r.batch_size] for runs in kept for r in runs]
    y = [at_p[r.limit_w] for runs in kept for r in runs]
    when = [t for t, runs in enumerate(kept) for _ in runs]
    ax.plot(x, y, color="#e2711d", lw=0.8, alpha=0.7)
    ax.scatter(x, y, c=when, cmap="YlOrRd", s=22, edgecolors="#8a4b16", linewidths=0.5, zorder=3)
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
    """Figures 5 and 17: energy to target over the batch size, mean and range of the measured runs, a line per GPU."""
    gpus = list(dict.fromkeys(s.pair.gpu for s in scenarios))
    workloads = list(dict.fromkeys(s.pair.workload for s in scenarios))
    figure, axes = panels(len(workloads), height=3.0)
    for ax, workload in zip(axes, workloads, strict=True):
        here = [s for s in scenarios if s.pair.workload == workload]
        lines = [(CYCLE[gpus.index(s.pair.gpu) % len(CYCLE)], s.pair.gpu.upper(), _by_size(s)) for s in here]
        for colour, label, rows in lines:
            sizes, low, mean, high, sure = zip(*rows, strict=True)
            ax.fill_between(sizes, low, high, color=colour, alpha=0.1, lw=0)
            ax.plot(sizes, mean, "-", lw=1.4, color=colour, label=label)
            for reached in (True, False):
                some = [(b, m) for b, m, s in zip(sizes, mean, sure, strict=True) if s is reached]
                fill = colour if reached else "white"
                ax.plot(*zip(*some, strict=True), "o", ms=4, color=colour, mfc=fill) if some else None
        ax.set_xscale("log", base=2)
        every = sorted({row[0] for *_, rows in lines for row in rows})
        ax.set_xticks(every, _apart(every), rotation=90 if len(every) > 6 else 0, fontsize=7)
        ax.minorticks_off()
        means = [row[2] for *_, rows in lines for row in rows]
        if max(means) > 10 * min(means):
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter("{x:g}")
        else:
            ax.set_ylim(bottom=0)
        ax.set(title=name_of(workload), xlabel="batch size", ylabel="energy to target [MJ]")
    title = (
        "Energy over the batch size, at the power limit of Eq. 7 (Figures 5, 17)\nband: range of the measured runs; "
    )
    return save(figure, path, f"{title}line: mean of those that reached the target; hollow: not all of them did")


def _by_size(scenario: Scenario) -> list[tuple[int, float, float, float, bool]]:
    """(batch size, least, mean and most energy [MJ] of the runs that reached the target, whether all did)."""
    rows = []
    for b, arm in scenario.arms.items():
        reached = [e for e in arm.epochs if e <= scenario.pair.max_epochs]
        if reached:
            low, mean, high = (f(reached) * arm.epoch.energy_j / 1e6 for f in (min, statistics.fmean, max))
            rows.append((b, low, mean, high, len(reached) == len(arm.epochs)))
    return rows


def _apart(sizes: Sequence[int]) -> list[str]:
    """Labels of ascending sizes on a logarithmic axis; none where it would lie on the one before."""
    labels: list[str] = []
    last = 0.0
    for b in sizes:
        far = math.log2(b) - last > math.log2(sizes[-1] / sizes[0]) / 20 or not labels
        labels.append(str(b) if far else "")
        last = math.log2(b) if far else last
    return labels


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
