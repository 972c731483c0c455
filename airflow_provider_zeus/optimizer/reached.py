"""Runs that reached the target, counted by batch size: what they tell does not depend on their order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self


class Reached(NamedTuple):
    """Runs of one batch size that reached the target."""

    times: Mapping[float, int]  # epochs: how many runs took them
    runs: int
    mean: float  # of log Epochs
    squares: float  # around that mean, summed

    @classmethod
    def of(cls, times: Mapping[float, int]) -> Self:
        """Runs given by how many took so many epochs."""
        logs = [(math.log(epochs), n) for epochs, n in sorted(times.items())]
        runs = sum([n for _, n in logs])
        mean = sum([v * n for v, n in logs]) / runs
        return cls(times, runs, mean, sum([(v - mean) ** 2 * n for v, n in logs]))


Runs = Mapping[int, Reached]  # by batch size


def counted(runs: Iterable[tuple[int, float]]) -> Runs:
    """Of (batch size, epochs) of each run."""
    times: dict[int, dict[float, int]] = {}
    for b, epochs in runs:
        of_size = times.setdefault(b, {})
        of_size[epochs] = of_size.get(epochs, 0) + 1
    return {b: Reached.of(of_size) for b, of_size in times.items()}


def with_one_more(runs: Runs, b: int, epochs: float) -> Runs:
    """``runs``, and one of this batch size that took so many epochs."""
    times = runs[b].times if b in runs else {}
    return {**runs, b: Reached.of({**times, epochs: times.get(epochs, 0) + 1})}
