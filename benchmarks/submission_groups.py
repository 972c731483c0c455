"""Groups of recurring submissions that overlap (section 6.3): drawn at random, or read from a file.

A file holds one line per submission: group, start_time [s], end_time [s], dataset, runtime_ratio (its run time as a
multiple of the mean of its dataset). It may be packed by xz. Lines of a group need not stand together nor in order.
"""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.simulation.rows import CsvRow, rows_of

COLUMNS = ("group", "start_time", "end_time", "dataset", "runtime_ratio")
SPAN_S = 61 * 86_400.0  # two months
TAIL = 1.1  # exponent of the Pareto distribution of group sizes: just above 1, where a mean exists
SMALLEST, LARGEST = 5, 50_000  # submissions of one group
GROUP_SPREAD, RUN_SPREAD = 0.8, 0.4  # of the logarithm of run times: between groups of a dataset, and within one
GAP_SPREAD = 1.5  # of the logarithm of (mean gap between starts / mean run time): half of the groups overlap much
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


def draw_groups(jobs: int, runtimes_s: Mapping[str, float], seed: int = 0) -> Iterator[Group]:
    """Groups of ``jobs`` submissions in all; sizes, run times and gaps are heavy-tailed. One seed gives one trace.

    :param runtimes_s: mean run time [s] of each dataset.
    """
    rng, datasets, left, number = random.Random(seed), sorted(runtimes_s), jobs, 0
    while left > 0:
        number += 1
        size = min(left, LARGEST, int(SMALLEST * rng.paretovariate(TAIL)))
        left -= size
        dataset = rng.choice(datasets)
        ratio = _around_1(rng, GROUP_SPREAD)
        gap_s = min(runtimes_s[dataset] * ratio * rng.lognormvariate(0.0, GAP_SPREAD), SPAN_S / size)
        first_s = rng.random() * (SPAN_S - gap_s * size)
        submissions = []
        for start_s in sorted(first_s + rng.random() * gap_s * size for _ in range(size)):
            own = ratio * _around_1(rng, RUN_SPREAD)
            submissions.append(Submission(start_s, start_s + own * runtimes_s[dataset], own))
        yield Group(f"g{number:06}", dataset, tuple(submissions))


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
