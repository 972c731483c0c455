"""Groups of recurring submissions: drawn in the shape of Alibaba's trace,
as far as it is published, or read.

``data/groups.toml`` holds the numbers of the shape, the fitted ones too,
so that a draw needs no fit.
"""

from __future__ import annotations

import random
import tomllib
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from airflow_provider_zeus.errors import JobSpecError
from benchmarks.simulation.traces import rows_of

SHAPE = Path(__file__).parents[1] / "data" / "groups.toml"
OFTEN = 5  # jobs of a group that repeats, in ``share_in_groups_of_5``


@dataclass(frozen=True)
class Shape:
    """The values of the file; ``benchmarks/data/groups.toml`` says what each is and where it
    comes from.
    """

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
        raise JobSpecError.of(
            "shape", str(path), f"cannot be read: {error}", f"Begin with a copy of {SHAPE}"
        ) from None
    values: dict[str, Any] = {}
    for field in fields(Shape):
        entry = found.get(field.name)
        if not isinstance(entry, dict) or "value" not in entry or not entry.get("source"):
            raise JobSpecError.of(
                "shape", str(path), f"has no value with a source of {field.name}", f"See {SHAPE}"
            )
        values[field.name] = (
            tuple(entry["value"]) if isinstance(entry["value"], list) else entry["value"]
        )
    return Shape(**values)


# ---------------------------------------------------------------------- groups of submissions that
# overlap
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


def draw_groups(
    jobs: int, datasets: Sequence[str], seed: int = 0, shape: Shape | None = None
) -> Iterator[Group]:
    """Groups of ``jobs`` submissions in all, of the shape of Alibaba's trace.

    One seed gives one trace.

    A group's mean run time says in which cluster of the trace it is, and so which dataset it trains
    on: the clusters in order take the datasets in order, the last one those that are left. Starts
    and ends are on the trace's clock.

    :param datasets: by the run time of what trains on them, the shortest first.
    """
    shape = shape or read_shape()
    rng = random.Random(seed)
    left = jobs
    number = 0
    while left > 0:
        number += 1
        size = min(left, int((1 - rng.random()) ** (-1 / shape.tail)))
        left -= size
        run_s = shape.mean_run_s * _around_1(rng, shape.group_spread)
        cluster = bisect(shape.cluster_bounds_s, run_s)
        mean_s = shape.cluster_means_s[cluster]
        gap_s = min(
            run_s * shape.gap_median * rng.lognormvariate(0.0, shape.gap_spread),
            shape.span_s / size,
        )
        first_s = rng.random() * (shape.span_s - gap_s * size)
        submissions = []
        for start_s in sorted(first_s + rng.random() * gap_s * size for _ in range(size)):
            own_s = run_s * _around_1(rng, shape.run_spread)
            submissions.append(Submission(start_s, start_s + own_s, own_s / mean_s))
        yield Group(f"g{number:06}", datasets[min(cluster, len(datasets) - 1)], tuple(submissions))


def _around_1(rng: random.Random, spread: float) -> float:
    """Log-normal with mean 1."""
    return rng.lognormvariate(-(spread**2) / 2, spread)


def read_groups(path: Path) -> list[Group]:
    """The groups of a file, by name.

    Raises JobSpecError, in one line, for whatever cannot be read.
    """
    found: dict[str, list[Submission]] = defaultdict(list)
    datasets: dict[str, str] = {}
    for row in rows_of("groups", path, COLUMNS, _REMEDY):
        name = row.text("group")
        dataset = row.text("dataset")
        if datasets.setdefault(name, dataset) != dataset:
            raise row.wrong(
                "dataset", f"differs from the {datasets[name]!r} of its group {name!r} above"
            )
        start_s, end_s = (
            row.number(column, positive=False) for column in ("start_time", "end_time")
        )
        if end_s < start_s:
            raise row.wrong("end_time", "is before its start_time")
        found[name].append(Submission(start_s, end_s, row.number("runtime_ratio")))
    if not found:
        raise JobSpecError.of("groups", str(path), "holds no submission", _REMEDY)
    return [Group(name, datasets[name], tuple(sorted(found[name]))) for name in sorted(found)]
