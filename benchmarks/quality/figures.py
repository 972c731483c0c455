"""The paper's figures that show replays: 6, 7 and 19, 9, 10, 12, 13, 14 and 23, 22."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.plots import CYCLE, POLICY, name_of, panels, save
from benchmarks.quality.sweeps import BETAS, ETAS
from benchmarks.replays import Replays, Task
from benchmarks.report import half_width


def savings(report: Mapping[str, Any], policies: Sequence[str], gpu: str, path: Path) -> Path:
    """Figures 6 and 23: energy and time of the last five recurrences, per workload."""
    pairs = {pair: found for pair, found in report["pairs"].items() if pair.endswith(f"/{gpu}")}
    shown = [p for p in policies if p != "default"]
    names = [name_of(pair.partition("/")[0]) for pair in pairs]
    figure, axes = panels(2, across=1, width=9.0, height=2.6)
    for ax, (figure_of, label) in zip(axes, _SAVINGS.items(), strict=True):
        rows = {p: [found[p][figure_of][0] for found in pairs.values()] for p in shown}
        errors = {p: [found[p][figure_of][1] for found in pairs.values()] for p in shown}
        _bars(ax, [*names, "geom. mean"], {p: [*v, geometric_mean(v)] for p, v in rows.items()}, errors)
        ax.set_ylabel(f"{label}\n(Default = 1)")
    return save(figure, path, f"Last five recurrences on {gpu.upper()} (Figures 6, 23)")


_SAVINGS = {"eta_last5": "energy", "tta_last5": "time"}


def gpus(report: Mapping[str, Any], policies: Sequence[str], path: Path) -> Path:
    """Figure 14: geometric mean over the workloads, per GPU."""
    found = list(dict.fromkeys(pair.partition("/")[2] for pair in report["pairs"]))
    shown = [p for p in policies if p != "default"]
    figure, axes = panels(2, across=2, width=4.5, height=2.8)
    for ax, (figure_of, label) in zip(axes, _SAVINGS.items(), strict=True):
        here = [[of for pair, of in report["pairs"].items() if pair.endswith(f"/{g}")] for g in found]
        means = {p: [geometric_mean(of[p][figure_of][0] for of in some) for some in here] for p in shown}
        _bars(ax, [g.upper() for g in found], means)
        ax.set_ylabel(f"{label} (Default = 1)")
    return save(figure, path, "GPU models, geometric mean over the workloads (Figure 14)")


def _bars(
    ax: Any, groups: Sequence[str], rows: Mapping[str, Sequence[float]], errors: Mapping[str, Sequence[float]] = {}
) -> None:
    """Groups of bars, one per policy, and a line at 1."""
    width = 0.8 / len(rows)
    for i, (policy, values) in enumerate(rows.items()):
        at = [g + (i - (len(rows) - 1) / 2) * width for g in range(len(values))]
        label, colour = POLICY[policy]
        ax.bar(at, values, width * 0.92, label=label, color=colour)
        if policy in errors:
            n = len(errors[policy])
            ax.errorbar(at[:n], values[:n], errors[policy], fmt="none", ecolor="#333333", lw=0.8)
    ax.axhline(1.0, color="#333333", lw=1.0, ls="--")
    ax.set_xticks(range(len(groups)), groups)
    ax.grid(visible=False, axis="x")


def regret(results: Mapping[Task, Replays], policies: Sequence[str], gpu: str, path: Path) -> Path:
    """Figures 7 and 19: cumulative regret, mean and its 95 % confidence band."""
    here = {t: r for t, r in results.items() if t.gpu == gpu and t.policy in policies}
    workloads = list(dict.fromkeys(t.workload for t in here))
    figure, axes = panels(len(workloads))
    for ax, workload in zip(axes, workloads, strict=True):
        for policy in policies:
            curves = next(r.expected_regret for t, r in here.items() if (t.workload, t.policy) == (workload, policy))
            columns = list(zip(*curves, strict=True))
            mean = [max(statistics.fmean(c), 1e-3) for c in columns]
            half = list(map(half_width, columns))
            x, (label, colour) = range(1, len(mean) + 1), POLICY[policy]
            ax.plot(x, mean, color=colour, label=label)
            low = [max(m - h, m / 3) for m, h in zip(mean, half, strict=True)]
            ax.fill_between(x, low, [m + h for m, h in zip(mean, half, strict=True)], color=colour, alpha=0.18, lw=0)
        ax.set_yscale("log")
        ax.set_ylim(bottom=max(ax.get_ylim()[0], 0.02))
        ax.set(title=name_of(workload), xlabel="recurrence", ylabel="cumulative regret [C*]")
    return save(figure, path, f"Cumulative regret on {gpu.upper()} (Figures 7, 19)")


def etas(report: Mapping[str, Any], policies: Sequence[str], gpu: str, path: Path) -> Path:
    """Figure 22: how much eta improves energy and time; one column per policy."""
    policies = [p for p in policies if gpu in report["sweeps"]["eta"][p]["energy"][ETAS[0]]]
    figure, axes = panels(2 * len(policies), across=len(policies), width=3.4, height=2.6)
    for column, policy in enumerate(policies):
        for ax, (name, of) in zip(axes[column :: len(policies)], report["sweeps"]["eta"][policy].items(), strict=True):
            _lines(ax, ETAS, {e: {name: 1 / figure[0] for name, figure in of[e].items()} for e in ETAS}, gpu)
            ax.axhline(1.0, color="#333333", lw=0.8)
            ax.set_title(POLICY[policy][0], fontsize=9)
            ax.set(xlabel="eta", ylabel=f"{name} saved: Default / ours")
            ax.set_xticks(ETAS)
    for row in (axes[: len(policies)], axes[len(policies) :]):
        alike(row)
    return save(figure, path, f"eta trades time for energy on {gpu.upper()} (Figure 22)")


def betas(report: Mapping[str, Any], path: Path) -> Path:
    """Figure 12: energy of all recurrences over beta; a panel per GPU and policy."""
    sweep = report["sweeps"]["beta"]
    gpus_here = list(
        dict.fromkeys(pair.partition("/")[2] for pair in next(iter(sweep.values()))[BETAS[0]] if "/" in pair)
    )
    panel = [(policy, gpu) for gpu in gpus_here for policy in sweep]
    figure, axes = panels(len(panel), across=len(sweep), width=3.4, height=2.6)
    for ax, (policy, gpu) in zip(axes, panel, strict=True):
        _lines(ax, BETAS, {b: {name: figure[0] for name, figure in sweep[policy][b].items()} for b in BETAS}, gpu)
        ax.axvline(2.0, color="#333333", lw=0.8, ls=":")
        ax.set_title(f"{POLICY[policy][0]}, {gpu.upper()}", fontsize=9)
        ax.set(xlabel="beta", ylabel="energy (beta 2 = 1)")
    alike(axes)
    return save(figure, path, "Early-stopping threshold (Figure 12)")


def _lines(ax: Any, xs: Sequence[float], of: Mapping[float, Mapping[str, float]], gpu: str) -> None:
    """One for each workload of a GPU, and their geometric mean."""
    pairs = [pair for pair in of[xs[0]] if pair.endswith(f"/{gpu}")]
    for pair, colour in zip(pairs, CYCLE * len(pairs), strict=False):
        label = name_of(pair.partition("/")[0])
        ax.plot(xs, [of[x][pair] for x in xs], "o-", ms=3, color=colour, label=label)
    ax.plot(xs, [of[x][gpu] for x in xs], "k--", lw=2.2, label="geometric mean")


def parts(report: Mapping[str, Any], path: Path) -> Path:
    """Figure 13: time of all recurrences without one part of the algorithm; a panel per policy and GPU."""
    sweep = {policy: of["time"] for policy, of in report["sweeps"]["parts"].items()}
    first = next(iter(next(iter(sweep.values())).values()))
    gpus_here = list(dict.fromkeys(pair.partition("/")[2] for pair in first if "/" in pair))
    panel = [(policy, gpu) for gpu in gpus_here for policy in reversed(sweep)]
    figure, axes = panels(len(panel), across=len(sweep), width=5.6, height=2.9)
    for ax, (policy, gpu) in zip(axes, panel, strict=True):
        of = sweep[policy]
        pairs = [pair for pair in next(iter(of.values())) if pair.endswith(f"/{gpu}")]
        rows = {part: [found[name][0] for name in (*pairs, gpu)] for part, found in of.items()}
        names = [*(name_of(pair.partition("/")[0]) for pair in pairs), "geom. mean"]
        _bars(ax, [name.replace(" ", "\n") for name in names], rows)
        most = max(v for row in rows.values() for v in row)
        if most > 3:
            ax.set_yscale("log")
            ax.set_ylim(0.5, 1.5 * most)
            ax.set_yticks([x for x in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if x < 1.5 * most])
            ax.yaxis.set_major_formatter("{x:g}")
            ax.minorticks_off()
        else:
            ax.set_ylim(0, 1.15 * most)
        ax.tick_params(axis="x", labelsize=7)
        ax.set_title(f"{POLICY[policy][0]}, {gpu.upper()}", fontsize=9)
        ax.set_ylabel("time of all recurrences\n(whole algorithm = 1)")
    return save(figure, path, "Without one of its parts (Figure 13)")


def clusters(found: Mapping[str, Any], gpu: str, path: Path) -> Path:
    """Figure 9: cumulative energy and time of overlapping submissions, per workload; what is too high is written."""
    figure, axes = panels(2, across=1, width=9.0, height=2.8)
    policies = [p for p in next(iter(found.values())) if p != "default"]
    for ax, name in zip(axes, ("energy", "time"), strict=True):
        rows = {p: [row[p][name][0] for row in found.values()] for p in policies}
        errors = {p: [row[p][name][1] for row in found.values()] for p in policies}
        shown = {p: [min(v, TOP) for v in values] for p, values in rows.items()}
        cut = {p: [e if v < TOP else 0.0 for v, e in zip(rows[p], errors[p], strict=True)] for p in policies}
        _bars(ax, [name_of(workload) for workload in found], shown, cut)
        bars = [container for container in ax.containers if hasattr(container, "patches")]
        for bar, value in (
            each for of, p in zip(bars, policies, strict=True) for each in zip(of, rows[p], strict=True)
        ):
            if value > TOP:
                text, at = f"{value:,.{0 if value >= 10 else 1}f}", (bar.get_x() + bar.get_width() / 2, TOP)
                ax.annotate(text, at, ha="center", va="bottom", fontsize=7)
        ax.set_ylim(0, 1.1 * TOP)
        ax.set_ylabel(f"{name} of all submissions\n(Default = 1)")
    title = f"Groups of submissions that overlap, drawn in the shape of Alibaba's, {gpu.upper()} (Figure 9)"
    return save(figure, path, f"{title}\nbars that are cut off bear their figure")


TOP = 1.5  # of the axes


def slices(logs: Mapping[str, Sequence[Any]], sizes: Sequence[int], path: Path) -> Path:
    """Figure 10: energy, time and the batch size that was kept, slice by slice, one column per policy.

    :param logs: by policy, the runs of each slice (``benchmarks.quality.slice_trainings``).
    """
    figure, axes = panels(3 * len(logs), across=len(logs), width=5.2, height=2.0)
    at = {b: i for i, b in enumerate(sizes)}
    for column, (policy, log) in enumerate(logs.items()):
        label, colour = POLICY[policy]
        energy, time, kept = axes[column :: len(logs)]
        weeks = range(1, len(log) + 1)
        energy.plot(weeks, [sum(r.energy_j for r in runs) / 1e3 for runs in log], "o-", ms=3, color=colour)
        time.plot(weeks, [sum(r.time_s for r in runs) for runs in log], "o-", ms=3, color=colour)
        kept.plot(weeks, [at[runs[-1].batch_size] for runs in log], "o-", ms=4, color=colour)
        given_up = [(week, at[r.batch_size]) for week, runs in zip(weeks, log, strict=True) for r in runs[:-1]]
        if given_up:
            kept.plot(*zip(*given_up, strict=True), "x", ms=6, color="#c0392b")
        energy.set_title(label, fontsize=9)
        energy.set_ylabel("energy [kJ]")
        time.set_ylabel("time [s]")
        kept.set_ylabel("batch size")
        kept.set_yticks(range(len(sizes)), list(sizes), fontsize=7)
        kept.set_xlabel("slice")
    for row in range(2):
        alike(axes[row * len(logs) : (row + 1) * len(logs)])
    return save(figure, path, "Slices of data that drift (Figure 10); cross: given up", [])


def alike(row: Sequence[Any]) -> None:
    """Panels side by side get one scale."""
    low, high = zip(*(ax.get_ylim() for ax in row), strict=True)
    for ax in row:
        ax.set_ylim(min(low), max(high))
