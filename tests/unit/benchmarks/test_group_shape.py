"""The shape of Alibaba's trace: each number has its source,
and what is fitted follows from what is published.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from airflow_provider_zeus.errors import JobSpecError
from benchmarks.quality.group_shape import OFTEN, SHAPE, Shape, draw_groups, read_shape

SQUAD = 2  # place of squad among the workloads by run time, from 0, on V100 and A40
CLUSTERS = 6
Floats = NDArray[np.float64]


def tail_of(share: float) -> float:
    """The exponent at which so large a share of all jobs is in groups of ``OFTEN`` or more."""
    return _bisected(lambda tail: share_in_large(tail) - share, 1.01, 3.0)


def share_in_large(tail: float) -> float:
    """Share of jobs in groups of ``OFTEN`` or more where P(at least n jobs) = n ** -tail;
    falls with the tail.
    """
    least = 100_000
    rest = (least + 0.5) ** (1 - tail) / (tail - 1)  # of the sum from there on
    mean = float(np.sum(np.arange(1.0, least + 1) ** -tail)) + rest
    small = float(np.sum(np.arange(1.0, OFTEN) ** -tail)) - (OFTEN - 1) * float(OFTEN) ** -tail
    return float(1 - small / mean)


def spread_of(shape: Shape) -> float:
    """The spread of the groups' run times at which the cluster that squad takes has its
    published mean.
    """
    return _bisected(lambda spread: squad_mean(shape, spread) - shape.squad_mean_run_s, 0.5, 4.0)


def squad_mean(shape: Shape, spread: float) -> float:
    """Mean run time [s] of the cluster that squad takes."""
    return clusters_of(group_runs(shape, spread))[1][SQUAD]


def group_runs(shape: Shape, spread: float) -> Floats:
    """Mean run times of as many groups as the trace has [s], ascending: one seed,
    log-normal around ``mean_run_s``.
    """
    mean_size = float(np.sum(np.arange(1.0, 100_000) ** -shape.tail))
    normal = np.random.default_rng(0).standard_normal(round(shape.jobs / mean_size))
    return np.sort(shape.mean_run_s * np.exp(spread * normal - spread**2 / 2))


def clusters_of(runs: Floats, count: int = CLUSTERS) -> tuple[list[float], list[float]]:
    """(bounds, means) of the clusters that k-means forms of ascending values,
    by Lloyd's steps from equal sums.
    """
    sums = np.concatenate([[0.0], np.cumsum(runs)])
    ends = np.searchsorted(sums, sums[-1] * np.arange(1, count) / count)
    # none is empty
    ends = np.clip(ends, np.arange(1, count), len(runs) - np.arange(count - 1, 0, -1))
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


def test_each_number_of_the_shape_has_its_source() -> None:
    shape = read_shape()
    text = SHAPE.read_text(encoding="utf-8")
    assert text.count("source = ") == text.count("value = ") == 12
    assert (shape.jobs, shape.span_days, shape.share_in_groups_of_5) == (1_200_000, 62, 0.65)
    assert shape.mean_run_s == pytest.approx(5988.61 - 949.91)
    assert shape.squad_mean_run_s == pytest.approx((1446915 - 1427642) / 1.1779405764729405, abs=1)
    assert text.count("assumed = true") == 3


def test_what_is_fitted_follows_from_what_is_published() -> None:
    shape = read_shape()
    assert tail_of(shape.share_in_groups_of_5) == pytest.approx(shape.tail, abs=0.001)
    assert share_in_large(shape.tail) == pytest.approx(0.65, abs=0.001)
    assert squad_mean(shape, shape.group_spread) == pytest.approx(shape.squad_mean_run_s, rel=0.01)
    assert spread_of(shape) == pytest.approx(shape.group_spread, abs=0.001)
    bounds = shape.cluster_bounds_s
    means = shape.cluster_means_s
    assert all(a < bound < b for bound, (a, b) in zip(bounds, pairwise(means), strict=True))


def test_a_large_draw_repeats_as_often_as_published() -> None:
    """The rest is in groups that so small a draw does not hold."""
    sizes = [len(group.submissions) for group in draw_groups(300_000, ["squad"], seed=1)]
    assert sum(size for size in sizes if size >= 5) / 300_000 == pytest.approx(0.65, abs=0.05)


def test_clusters_by_hand() -> None:
    bounds, means = clusters_of(np.array([1.0, 2.0, 3.0, 100.0, 110.0]), 2)
    assert (bounds, means) == ([pytest.approx((2 + 105) / 2)], [2.0, 105.0])


def test_a_shape_without_a_source_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "shape.toml"
    for text, said in (
        ("", "no value with a source of jobs"),
        ("[jobs]\nvalue = 1", "of jobs"),
        ("[", "cannot be read"),
    ):
        path.write_text(text)
        with pytest.raises(JobSpecError, match=said) as error:
            read_shape(path)
        assert "\n" not in str(error.value)
