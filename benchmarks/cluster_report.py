"""What ``benchmarks.groups`` says of a cluster with a queue, and its picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster_queue import SIZES, Cluster
from benchmarks.plots import POLICY, name_of, panels, save
from benchmarks.report import table

HOUR_S, KWH_J = 3600.0, 3.6e6


def report_of(found: Mapping[float, Mapping[str, Cluster]]) -> dict[str, Any]:
    """By load and policy: energy [kWh], GPU time [h], waits and times to the model [h]."""
    return {f"{load:g}": {policy: _figures(of) for policy, of in policies.items()} for load, policies in found.items()}


def _figures(of: Cluster) -> dict[str, Any]:
    waits = sorted(of.waits_s)
    return {
        "gpus": of.gpus,
        "energy_kwh": of.energy_j / KWH_J,
        "gpu_h": of.busy_s / HOUR_S,
        "mean_wait_h": statistics.fmean(waits) / HOUR_S,
        "wait_95_h": waits[int(0.95 * (len(waits) - 1))] / HOUR_S,
        "mean_end_h": statistics.fmean(of.ends_s) / HOUR_S,
        "runs_below_target": of.runs_below_target,
        "energy_by_size_kwh": {size: j / KWH_J for size, j in of.energy_by_size_j.items()},
    }


def markdown_of(report: Mapping[str, Any]) -> list[str]:
    """Its chapter of ``report.md``."""
    rows = []
    for load, policies in report.items():
        for policy, f in policies.items():
            row = [
                load,
                str(f["gpus"]),
                policy,
                f"{f['energy_kwh']:,.0f}",
                f"{f['gpu_h']:,.0f}",
                f"{f['mean_wait_h']:.2f}",
            ]
            rows.append([*row, f"{f['wait_95_h']:.1f}", f"{f['mean_end_h']:.2f}", str(f["runs_below_target"])])
    head = ["load", "GPUs", "policy", "energy [kWh]", "GPU time [h]", "mean wait [h]", "95 % wait at most [h]"]
    said = (
        "One queue, first come first served, on the trace's clock. Load: of the GPUs under the default configuration."
    )
    lines = ["## A cluster with a queue", "", said, ""]
    lines += table([*head, "mean time to the model [h]", "below target"], rows)
    of = next(iter(report.values()))
    if "default" in of:
        names = [p for p in of if p != "default"]
        sizes = [size for size in SIZES if size in of["default"]["energy_by_size_kwh"]]
        lines += ["", "Energy by the number of jobs in a group, Default = 1:", ""]
        lines += table(["policy", *sizes], [[p, *(f"{_by_size(of, p, size):.3f}" for size in sizes)] for p in names])
    return lines


def _by_size(of: Mapping[str, Any], policy: str, size: str) -> float:
    return float(of[policy]["energy_by_size_kwh"][size] / of["default"]["energy_by_size_kwh"][size])


def draw(report: Mapping[str, Any], path: Path) -> Path:
    """Energy and time by workload (Figure 9), energy by the size of a group, and how long submissions wait."""
    workloads = {w: row for w, row in report["workloads"].items() if w != "all"}
    policies = [p for p in next(iter(workloads.values())) if p not in ("default", "grid_search")]
    figure, axes = panels(4, across=2, width=4.6, height=2.7)
    for ax, what in zip(axes, ("energy", "time"), strict=False):
        _bars(ax, list(map(name_of, workloads)), {p: [row[p][what] for row in workloads.values()] for p in policies})
        ax.set_ylabel(f"{what} (Default = 1)")
        ax.axhline(1, color="#777777", lw=1)
    of = next(iter(report["cluster"].values()))
    sizes = [size for size in SIZES if size in of[policies[0]]["energy_by_size_kwh"]]
    if "default" in of:
        _bars(axes[2], sizes, {p: [_by_size(of, p, size) for size in sizes] for p in policies})
        axes[2].axhline(1, color="#777777", lw=1)
    axes[2].set_ylabel("energy (Default = 1)")
    axes[2].set_xlabel("jobs in a group")
    waits = {p: [of[p]["mean_wait_h"] for of in report["cluster"].values()] for p in of}
    _bars(axes[3], [f"{float(load):.0%}" for load in report["cluster"]], waits)
    axes[3].set_yscale("log")
    axes[3].set_ylabel("mean wait [h]")
    axes[3].set_xlabel("load of the cluster under Default")
    title = "Overlapping submissions in the shape of Alibaba's trace (section 6.3)"
    return save(figure, path, title, axes[3].get_legend_handles_labels()[0])


def _bars(ax: Any, names: Sequence[str], rows: Mapping[str, Sequence[float]]) -> None:
    width = 0.8 / len(rows)
    for i, (policy, values) in enumerate(rows.items()):
        at = [j + (i - (len(rows) - 1) / 2) * width for j in range(len(names))]
        label, colour = POLICY[policy]
        ax.bar(at, values, width, color=colour, label=label)
    ax.set_xticks(
        range(len(names)), names, rotation=20 if len(names) > 4 else 0, ha="right" if len(names) > 4 else "center"
    )
    ax.tick_params(axis="x", labelsize=8)
