"""The published shape of Alibaba's trace, and what follows from it: ``python -m benchmarks.group_shape``.

Prints the fitted numbers of ``data/groups.toml``: the tail of the group sizes, the spread of the groups' run times, and
the six clusters that k-means forms of them. The file holds them, so that a draw needs no fit.
"""

from __future__ import annotations

import argparse
import csv
import random
import tomllib
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from airflow_provider_zeus.errors import JobSpecError
from benchmarks.command import command
from benchmarks.simulation.traces import rows_of

SHAPE = Path(__file__).with_name("data") / "groups.toml"
OFTEN = 5  # jobs of a group that repeats, in ``share_in_groups_of_5``
SQUAD = 2  # place of squad among the workloads by run time, from 0, on V100 and A40
CLUSTERS = 6
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """The values of the file; ``benchmarks/data/groups.toml`` says what each is and where it comes from."""

    jobs: int
    span_days: float
    share_in_groups_of_5: float
    mean_run_s: float
    squad_mean_run_s: float
    tail: float
    group_spread: float
    cluster_bounds_s: tuple[float, ...]
    cluster_means_s: tuple[float, ...]
    run_spread: float
    gap_median: float
    gap_spread: float

    @property
    def span_s(self) -> float:
        """Seconds that the trace spans."""
        return self.span_days * 86_400.0


def read_shape(path: Path = SHAPE) -> Shape:
    """The shape of a file. Raises JobSpecError where a number or its source is missing."""
    try:
        found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise JobSpecError.of("shape", str(path), f"cannot be read: {error}", f"Begin with a copy of {SHAPE}") from None
    values: dict[str, Any] = {}
    for field in fields(Shape):
        entry = found.get(field.name)
        if not isinstance(entry, dict) or "value" not in entry or not entry.get("source"):
            raise JobSpecError.of("shape", str(path), f"has no value with a source of {field.name}", f"See {SHAPE}")
        values[field.name] = tuple(entry["value"]) if isinstance(entry["value"], list) else entry["value"]
    return Shape(**values)


def tail_of(share: float) -> float:
    """The exponent at which so large a share of all jobs is in groups of ``OFTEN`` or more."""
    return _bisected(lambda tail: share_in_large(tail) - share, 1.01, 3.0)


def share_in_large(tail: float) -> float:
    """Share of jobs in groups of ``OFTEN`` or more where P(at least n jobs) = n ** -tail; falls with the tail."""
    least = 100_000
    rest = (least + 0.5) ** (1 - tail) / (tail - 1)  # of the sum from there on
    mean = float(np.sum(np.arange(1.0, least + 1) ** -tail)) + rest
    small = float(np.sum(np.arange(1.0, OFTEN) ** -tail)) - (OFTEN - 1) * float(OFTEN) ** -tail
    return float(1 - small / mean)


def spread_of(shape: Shape) -> float:
    """The spread of the groups' run times at which the cluster that squad takes has its published mean."""
    return _bisected(lambda spread: squad_mean(shape, spread) - shape.squad_mean_run_s, 0.5, 4.0)


def squad_mean(shape: Shape, spread: float) -> float:
    """Mean run time [s] of the cluster that squad takes."""
    return clusters_of(group_runs(shape, spread))[1][SQUAD]


def group_runs(shape: Shape, spread: float) -> Floats:
    """Mean run times of as many groups as the trace has [s], ascending: one seed, log-normal around ``mean_run_s``."""
    mean_size = float(np.sum(np.arange(1.0, 100_000) ** -shape.tail))
    normal = np.random.default_rng(0).standard_normal(round(shape.jobs / mean_size))
    return np.sort(shape.mean_run_s * np.exp(spread * normal - spread**2 / 2))


def clusters_of(runs: Floats, count: int = CLUSTERS) -> tuple[list[float], list[float]]:
    """(bounds, means) of the clusters that k-means forms of ascending values, by Lloyd's steps from equal sums."""
    sums = np.concatenate([[0.0], np.cumsum(runs)])
    ends = np.searchsorted(sums, sums[-1] * np.arange(1, count) / count)
    ends = np.clip(ends, np.arange(1, count), len(runs) - np.arange(count - 1, 0, -1))  # none is empty
    for _ in range(1000):
        at = np.concatenate([[0], ends, [len(runs)]])
        means = np.diff(sums[at]) / np.diff(at)
        moved = np.searchsorted(runs, (means[1:] + means[:-1]) / 2)
        if np.array_equal(moved, ends):
            break
        ends = moved
    return [float(b) for b in (means[1:] + means[:-1]) / 2], [float(m) for m in means]


def _bisected(wrong: Callable[[float], float], low: float, high: float) -> float:
    """Where a function changes its sign."""
    below = wrong(low) > 0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if (wrong(middle) > 0) == below else (low, middle)
    return (low + high) / 2


# ---------------------------------------------------------------------- groups of submissions that overlap
COLUMNS = ("group", "start_time", "end_time", "dataset", "runtime_ratio")
_REMEDY = f"Give a CSV file with the columns {', '.join(COLUMNS)}"


class Submission(NamedTuple):
    """One submission as the cluster saw it."""

    start_s: float
    end_s: float
    ratio: float  # its run time as a multiple of the mean of its dataset


class Group(NamedTuple):
    """One recurring job."""

    name: str
    dataset: str
    submissions: tuple[Submission, ...]  # by start


def draw_groups(jobs: int, datasets: Sequence[str], seed: int = 0, shape: Shape | None = None) -> Iterator[Group]:
    """Groups of ``jobs`` submissions in all, of the shape of Alibaba's trace. One seed gives one trace.

    A group's mean run time says in which cluster of the trace it is, and so which dataset it trains on: the clusters in
    order take the datasets in order, the last one those that are left. Starts and ends are on the trace's clock.

    :param datasets: by the run time of what trains on them, the shortest first.
    """
    shape = shape or read_shape()
    rng, left, number = random.Random(seed), jobs, 0
    while left > 0:
        number += 1
        size = min(left, int((1 - rng.random()) ** (-1 / shape.tail)))
        left -= size
        run_s = shape.mean_run_s * _around_1(rng, shape.group_spread)
        cluster = bisect(shape.cluster_bounds_s, run_s)
        mean_s = shape.cluster_means_s[cluster]
        gap_s = min(run_s * shape.gap_median * rng.lognormvariate(0.0, shape.gap_spread), shape.span_s / size)
        first_s = rng.random() * (shape.span_s - gap_s * size)
        submissions = []
        for start_s in sorted(first_s + rng.random() * gap_s * size for _ in range(size)):
            own_s = run_s * _around_1(rng, shape.run_spread)
            submissions.append(Submission(start_s, start_s + own_s, own_s / mean_s))
        yield Group(f"g{number:06}", datasets[min(cluster, len(datasets) - 1)], tuple(submissions))


def _around_1(rng: random.Random, spread: float) -> float:
    """Log-normal with mean 1."""
    return rng.lognormvariate(-(spread**2) / 2, spread)


def share_beside(groups: Iterable[Group]) -> float:
    """Share of the submissions that begin while another of their group runs, on the trace's clock."""
    beside = every = 0
    for group in groups:
        busy_until_s = -1.0
        for s in group.submissions:
            every += 1
            beside += s.start_s < busy_until_s
            busy_until_s = max(busy_until_s, s.end_s)
    return beside / every


def write_groups(path: Path, groups: Iterable[Group]) -> None:
    """A file that :func:`read_groups` reads back unchanged."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for group in groups:
            writer.writerows((group.name, s.start_s, s.end_s, group.dataset, s.ratio) for s in group.submissions)


def read_groups(path: Path) -> list[Group]:
    """The groups of a file, by name. Raises JobSpecError, in one line, for whatever cannot be read."""
    found: dict[str, list[Submission]] = defaultdict(list)
    datasets: dict[str, str] = {}
    for row in rows_of("groups", path, COLUMNS, _REMEDY):
        name, dataset = row.text("group"), row.text("dataset")
        if datasets.setdefault(name, dataset) != dataset:
            raise row.wrong("dataset", f"differs from the {datasets[name]!r} of its group {name!r} above")
        start_s, end_s = (row.number(column, positive=False) for column in ("start_time", "end_time"))
        if end_s < start_s:
            raise row.wrong("end_time", "is before its start_time")
        found[name].append(Submission(start_s, end_s, row.number("runtime_ratio")))
    if not found:
        raise JobSpecError.of("groups", str(path), "holds no submission", _REMEDY)
    return [Group(name, datasets[name], tuple(sorted(found[name]))) for name in sorted(found)]


@command()
def main(args: argparse.Namespace) -> None:
    """Print what follows from the published numbers."""
    shape = read_shape()
    print(f"tail = {tail_of(shape.share_in_groups_of_5):.3f}")
    spread = spread_of(shape)
    runs = group_runs(shape, spread)
    bounds, means = clusters_of(runs)
    shares = np.diff(np.concatenate([[0], np.searchsorted(runs, bounds), [len(runs)]])) / len(runs)
    print(f"group_spread = {spread:.3f}\ncluster_bounds_s = {[round(b) for b in bounds]}")
    print(f"cluster_means_s = {[round(m) for m in means]}\nshares of the groups: {[f'{s:.2%}' for s in shares]}")
    print(f"median of the groups' mean run times: {np.median(runs):.0f} s")
