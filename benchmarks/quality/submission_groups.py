"""Groups of recurring submissions that overlap (section 6.3): in the shape of Alibaba's trace, or from a file.

A file holds one line per submission: group, start_time [s], end_time [s], dataset, runtime_ratio (its run time as a
multiple of the mean of its dataset). It may be packed by xz. Lines of a group need not stand together nor in order.
"""

from __future__ import annotations

import csv
import random
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.simulation.traces import CsvRow, rows_of
from benchmarks.group_shape import Shape, read_shape

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
        found[name].append(_submission(row))
    if not found:
        raise JobSpecError.of("groups", str(path), "holds no submission", _REMEDY)
    return [Group(name, datasets[name], tuple(sorted(found[name]))) for name in sorted(found)]


def _submission(row: CsvRow) -> Submission:
    start_s, end_s = (row.number(name, positive=False) for name in ("start_time", "end_time"))
    if end_s < start_s:
        raise row.wrong("end_time", "is before its start_time")
    return Submission(start_s, end_s, row.number("runtime_ratio"))
