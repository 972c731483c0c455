"""The picture of cumulative regret, Figures 7 and 19 of the paper."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.plots import POLICY, name_of, panels, save
from benchmarks.replays import Replays, Task
from benchmarks.report import half_width


def regret(results: Mapping[Task, Replays], policies: Sequence[str], gpu: str, path: Path) -> Path:
    """Figures 7 and 19: cumulative regret, mean and its 95 % confidence band."""
    here = {t: r for t, r in results.items() if t.gpu == gpu and t.policy in policies}
    workloads = list(dict.fromkeys(t.workload for t in here))
    figure, axes = panels(len(workloads))
    for ax, workload in zip(axes, workloads, strict=True):
        for policy in policies:
            curves = next(
                r.expected_regret
                for t, r in here.items()
                if (t.workload, t.policy) == (workload, policy)
            )
            columns = list(zip(*curves, strict=True))
            mean = [max(statistics.fmean(c), 1e-3) for c in columns]
            half = list(map(half_width, columns))
            x, (label, colour) = range(1, len(mean) + 1), POLICY[policy]
            ax.plot(x, mean, color=colour, label=label)
            low = [max(m - h, m / 3) for m, h in zip(mean, half, strict=True)]
            ax.fill_between(
                x,
                low,
                [m + h for m, h in zip(mean, half, strict=True)],
                color=colour,
                alpha=0.18,
                lw=0,
            )
        ax.set_yscale("log")
        ax.set_ylim(bottom=max(ax.get_ylim()[0], 0.02))
        ax.set(title=name_of(workload), xlabel="recurrence", ylabel="cumulative regret [C*]")
    return save(figure, path, f"Cumulative regret on {gpu.upper()} (Figures 7, 19)")
