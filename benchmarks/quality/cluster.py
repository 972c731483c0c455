"""Groups of submissions on a cluster: GPUs of one kind, one queue, first come first served; and what is said of it.

A submission waits for a GPU and then trains. It holds the GPU for as long as it did in the trace, times what its run
takes as a multiple of the default's expected run: what a policy saves in time frees the GPU for the next one. A further
attempt keeps the GPU. What a run taught is known from its end on, to its own group.
"""

from __future__ import annotations

import heapq
import math
import statistics
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from airflow_provider_zeus.units import J_PER_KWH, S_PER_H
from benchmarks.group_shape import Group, Submission
from benchmarks.plots import POLICY, name_of, panels, save
from benchmarks.quality.overlap import Going, Player
from benchmarks.simulation.scenario import Scenario

SIZES = {"1 to 4": 5, "5 to 19": 20, "20 to 99": 100, "100 and more": math.inf}  # jobs of a group: below which number
PlayerOf = Callable[[str, Scenario, int], Player]  # (policy, scenario, seed)


@dataclass(slots=True)
class Cluster:
    """What the submissions cost the cluster, one entry per submission in the order of their ends."""

    gpus: int
    energy_j: float = 0.0
    busy_s: float = 0.0  # of all GPUs
    waits_s: list[float] = field(default_factory=list)  # from submission to the start of its first attempt
    ends_s: list[float] = field(default_factory=list)  # from submission to its end
    last_end_s: float = 0.0
    runs_below_target: int = 0
    energy_by_size_j: dict[str, float] = field(default_factory=dict)  # by the size of the group: keys of ``SIZES``


class _Job(NamedTuple):
    """A submission with its group's policy."""

    submission: Submission
    player: Player
    size: str  # of its group, a key of ``SIZES``
    scale: float  # seconds of the trace by seconds of the workload as measured


def run_cluster(
    groups: Sequence[Group],
    scenarios: Mapping[str, Scenario],
    policy: str,
    player_of: PlayerOf,
    gpus: int,
    seed: int = 0,
) -> Cluster:
    """Let all groups train on ``gpus`` GPUs under one policy. Luck depends on the seed and a group's name."""
    jobs = []
    for group in groups:
        luck = zlib.crc32(f"{seed}/{group.name}".encode())
        scenario = scenarios[group.dataset]
        player, default_s = player_of(policy, scenario, luck), scenario.default_run.time_s
        size = size_of(group)
        jobs += [_Job(s, player, size, (s.end_s - s.start_s) / default_s) for s in group.submissions]
    jobs.sort(key=lambda job: job.submission.start_s)
    found, queue, free, order = Cluster(gpus), deque[_Job](), gpus, 0
    running: list[tuple[float, int, _Job, Going]] = []

    def start(job: _Job, going: Going, now_s: float) -> None:
        nonlocal order
        order += 1
        took_s = going.run.time_s * job.scale
        used_j = going.run.energy_j * job.scale
        found.energy_j += used_j
        found.energy_by_size_j[job.size] = found.energy_by_size_j.get(job.size, 0.0) + used_j
        found.busy_s += took_s
        heapq.heappush(running, (now_s + took_s, order, job, going))

    def settle(until_s: float) -> None:
        nonlocal free
        while running and running[0][0] <= until_s:
            now_s, _, job, going = heapq.heappop(running)
            following = job.player.end(going)
            if following is not None:
                start(job, following, now_s)
                continue
            found.ends_s.append(now_s - job.submission.start_s)
            found.runs_below_target += not going.run.reached
            found.last_end_s, free = now_s, free + 1
            if queue:
                free -= 1
                begin(queue.popleft(), now_s)

    def begin(job: _Job, now_s: float) -> None:
        found.waits_s.append(now_s - job.submission.start_s)
        start(job, job.player.begin(), now_s)

    for job in jobs:
        settle(job.submission.start_s)
        if free:
            free -= 1
            begin(job, job.submission.start_s)
        else:
            queue.append(job)
    settle(math.inf)
    return found


def size_of(group: Group) -> str:
    """Its key of ``SIZES``."""
    return next(name for name, below in SIZES.items() if len(group.submissions) < below)


def gpus_for(groups: Sequence[Group], load: float) -> int:
    """GPUs that the trace keeps busy at this load, from the first submission to the last."""
    runs = [s for group in groups for s in group.submissions]
    span_s = max(s.start_s for s in runs) - min(s.start_s for s in runs)
    return max(1, math.ceil(math.fsum(s.end_s - s.start_s for s in runs) / max(span_s, 1.0) / load))


def report_of(found: Mapping[float, Mapping[str, Cluster]]) -> dict[str, Any]:
    """By load and policy: energy [kWh], GPU time [h], waits and times to the model [h]; and against Default = 1."""
    report = {
        f"{load:g}": {policy: _figures(of) for policy, of in policies.items()} for load, policies in found.items()
    }
    for policies in report.values():
        if (base := policies.get("default")) is None:
            continue
        sizes = base["energy_by_size_kwh"]
        for f in policies.values():
            f["energy"], f["time"] = f["energy_kwh"] / base["energy_kwh"], f["gpu_h"] / base["gpu_h"]
            f["energy_by_size"] = {size: f["energy_by_size_kwh"][size] / sizes[size] for size in SIZES if size in sizes}
    return report


def _figures(of: Cluster) -> dict[str, Any]:
    waits = sorted(of.waits_s)
    return {
        "gpus": of.gpus,
        "energy_kwh": of.energy_j / J_PER_KWH,
        "gpu_h": of.busy_s / S_PER_H,
        "mean_wait_h": statistics.fmean(waits) / S_PER_H,
        "wait_95_h": waits[int(0.95 * (len(waits) - 1))] / S_PER_H,
        "mean_end_h": statistics.fmean(of.ends_s) / S_PER_H,
        "runs_below_target": of.runs_below_target,
        "energy_by_size_kwh": {size: j / J_PER_KWH for size, j in of.energy_by_size_j.items()},
    }


def draw(figures: Mapping[str, Any], path: Path) -> Path:
    """Energy and time by workload (Figure 9), energy by the size of a group, and how long submissions wait.

    :param figures: a report whose numbers are [mean, half of ci95] over its draws.
    """
    workloads = {w: row for w, row in figures["workloads"].items() if w != "all"}
    policies = [p for p in next(iter(workloads.values())) if p not in ("default", "grid_search")]
    figure, axes = panels(4, across=2, width=4.6, height=2.7)
    for ax, what in zip(axes, ("energy", "time"), strict=False):
        _bars(ax, list(map(name_of, workloads)), {p: [row[p][what] for row in workloads.values()] for p in policies})
        ax.set_ylabel(f"{what} (Default = 1)")
        ax.axhline(1, color="#777777", lw=1)
    of = next(iter(figures["cluster"].values()))
    if "default" in of:
        sizes = list(of["default"]["energy_by_size"])
        _bars(axes[2], sizes, {p: [of[p]["energy_by_size"][size] for size in sizes] for p in policies})
        axes[2].axhline(1, color="#777777", lw=1)
    axes[2].set(ylabel="energy (Default = 1)", xlabel="jobs in a group")
    waits = {p: [of[p]["mean_wait_h"] for of in figures["cluster"].values()] for p in of}
    _bars(axes[3], [f"{float(load):.0%}" for load in figures["cluster"]], waits)
    axes[3].set(ylabel="mean wait [h]", xlabel="load of the cluster under Default")
    title = "Overlapping submissions in the shape of Alibaba's trace (section 6.3)"
    return save(figure, path, title, axes[3].get_legend_handles_labels()[0])


def _bars(ax: Any, names: Sequence[str], rows: Mapping[str, Sequence[Sequence[float]]]) -> None:
    width = 0.8 / len(rows)
    for i, (policy, values) in enumerate(rows.items()):
        at = [j + (i - (len(rows) - 1) / 2) * width for j in range(len(names))]
        label, colour = POLICY[policy]
        means, halves = zip(*values, strict=True)
        low = [min(m, h) for m, h in zip(means, halves, strict=True)]
        ax.bar(
            at, means, width, color=colour, label=label, yerr=[low, halves], error_kw={"lw": 0.8, "ecolor": "#333333"}
        )
    ax.set_xticks(
        range(len(names)), names, rotation=20 if len(names) > 4 else 0, ha="right" if len(names) > 4 else "center"
    )
    ax.tick_params(axis="x", labelsize=8)
