"""Groups of submissions on a cluster: GPUs of one kind, one queue, first come first served.

A submission waits for a GPU and then trains. It holds the GPU for as long as it did in the trace, times what its run
takes as a multiple of the default's expected run: what a policy saves in time frees the GPU for the next one. A further
attempt keeps the GPU. What a run taught is known from its end on, to its own group.
"""

from __future__ import annotations

import heapq
import math
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_provider_zeus.simulation.scenario import Scenario
from benchmarks.overlap import Going, Player
from benchmarks.submission_groups import Group, Submission

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
