"""Statistics of the runs that reached the target, by batch size. They do not depend on the order of the runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self


class RunStats(NamedTuple):
    """Runs of one batch size that reached the target."""

    times: Mapping[float, int]  # epochs: number of runs that took them
    runs: int
    mean: float  # of log Epochs
    squares: float  # sum of squared deviations from that mean

    @classmethod
    def of(cls, times: Mapping[float, int]) -> Self:
        """Statistics of runs, given by how many runs took each number of epochs."""
        logs = [(math.log(epochs), n) for epochs, n in sorted(times.items())]
        runs = sum([n for _, n in logs])
        mean = sum([v * n for v, n in logs]) / runs
        return cls(times, runs, mean, sum([(v - mean) ** 2 * n for v, n in logs]))


Runs = Mapping[int, RunStats]  # by batch size


def counted(runs: Iterable[tuple[int, float]]) -> Runs:
    """Statistics by batch size, of runs given as (batch size, epochs)."""
    times: dict[int, dict[float, int]] = {}
    for b, epochs in runs:
        of_size = times.setdefault(b, {})
        of_size[epochs] = of_size.get(epochs, 0) + 1
    return {b: RunStats.of(of_size) for b, of_size in times.items()}


def with_one_more(runs: Runs, b: int, epochs: float) -> Runs:
    """``runs`` and one more of this batch size, which took so many epochs."""
    times = runs[b].times if b in runs else {}
    return {**runs, b: RunStats.of({**times, epochs: times.get(epochs, 0) + 1})}
