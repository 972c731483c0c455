"""The shape of Alibaba's trace, its groups on a cluster with a queue, and what is said of it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job_checks import POLICIES
from benchmarks import groups as benchmark
from benchmarks.group_shape import (
    SHAPE,
    Group,
    Submission,
    clusters_of,
    draw_groups,
    read_shape,
    share_in_large,
    spread_of,
    squad_mean,
    tail_of,
    write_groups,
)
from benchmarks.groups import player_of
from benchmarks.quality.cluster import Cluster, gpus_for, run_cluster, size_of
from benchmarks.quality.overlap import Default, play
from benchmarks.simulation.scenario import Scenario
from tests.strategies import REPRODUCIBLE
from tests.unit.benchmarks.simulation.tiny import scenarios, tiny, write


def test_each_number_of_the_shape_has_its_source() -> None:
    shape, text = read_shape(), SHAPE.read_text(encoding="utf-8")
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
    bounds, means = shape.cluster_bounds_s, shape.cluster_means_s
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


def run(scenario: Scenario, submissions: list[Submission], gpus: int, policy: str = "default") -> Cluster:
    return run_cluster([Group("a", "squad", tuple(submissions))], {"squad": scenario}, policy, player_of, gpus)


def test_a_queue_by_hand(tmp_path: Path) -> None:
    """Default takes 24 s, 10 s on the trace's clock. Three come at 0 s."""
    scenario = tiny(tmp_path)
    three = [Submission(0.0, 10.0, 1.0)] * 3
    one, two, three_gpus = (run(scenario, three, gpus) for gpus in (1, 2, 3))
    assert one.waits_s == [pytest.approx(t) for t in (0, 10, 20)]
    assert two.waits_s == [pytest.approx(t) for t in (0, 0, 10)]
    assert three_gpus.waits_s == [0, 0, 0]
    assert one.ends_s == [pytest.approx(t) for t in (10, 20, 30)]
    assert (one.busy_s, one.last_end_s) == (pytest.approx(30), pytest.approx(30))
    assert one.energy_j == two.energy_j == pytest.approx(3 * 3 * 1520 * 10 / 24)
    assert one.energy_by_size_j == {"1 to 4": one.energy_j}


def test_a_further_attempt_keeps_the_gpu(tmp_path: Path) -> None:
    """The next one begins after the last attempt of the one before."""
    scenario = tiny(tmp_path)
    apart = [Submission(float(t), t + 24.0, 1.0) for t in range(12)]
    found = run(scenario, apart, 1, "zeus")
    assert found.busy_s == pytest.approx(found.last_end_s), "one GPU, never idle: all attempts one after another"
    assert len(found.ends_s) == len(found.waits_s) == 12


@REPRODUCIBLE
@given(
    scenarios(),
    st.sampled_from([*POLICIES, "default", "grid_search"]),
    st.lists(st.tuples(st.floats(0, 50), st.floats(1, 9)), min_size=1, max_size=12),
    st.integers(1, 4),
)
def test_no_gpu_trains_two_and_every_submission_ends(
    scenario: Scenario, policy: str, spans: list[tuple[float, float]], gpus: int
) -> None:
    found = run(scenario, [Submission(start, start + length, 1.0) for start, length in spans], gpus, policy)
    assert len(found.waits_s) == len(found.ends_s) == len(spans)
    assert min(found.waits_s) >= 0
    assert sum(found.ends_s) == pytest.approx(sum(found.waits_s) + found.busy_s)
    assert found.busy_s <= gpus * (found.last_end_s - min(s for s, _ in spans)) * (1 + 1e-9)
    assert sum(found.energy_by_size_j.values()) == pytest.approx(found.energy_j)


def test_with_a_gpu_for_each_it_is_the_replay_without_a_queue(tmp_path: Path) -> None:
    scenario = tiny(tmp_path)
    default_s = scenario.default_run.time_s
    spans = [Submission(100.0 * t, 100.0 * t + default_s, 1.0) for t in range(20)]
    found, plain = run(scenario, spans, 20), play(Default(scenario), scenario, spans)
    assert found.energy_j == pytest.approx(plain.energy_j)
    assert found.busy_s == pytest.approx(plain.time_s)


def test_load_and_sizes() -> None:
    group = Group("a", "squad", tuple(Submission(10.0 * t, 10.0 * t + 30.0, 1.0) for t in range(11)))
    assert gpus_for([group], 1.0) == 4, "330 s of training within 100 s"
    assert gpus_for([group], 0.5) == 7
    assert [size_of(group._replace(submissions=group.submissions[:n])) for n in (4, 5, 11)] == [
        "1 to 4",
        "5 to 19",
        "5 to 19",
    ]


@pytest.mark.slow
def test_the_benchmark_with_a_cluster(tmp_path: Path) -> None:
    write(tmp_path)
    path, out = tmp_path / "groups.csv", tmp_path / "out"
    many = tuple(Submission(10.0 * t, 10.0 * t + 24.0, 1.0) for t in range(30))
    write_groups(path, [Group("a", "squad", many), Group("b", "squad", many[:3])])
    arguments = ["--traces", str(tmp_path), "--trace", str(path), "--out", str(out), "--processes", "1"]
    assert benchmark.main([*arguments, "--policies", "zeus", "default", "--loads", "0.9", "1.2"]) == 0
    cluster = json.loads((out / "report.json").read_text())["cluster"]
    assert set(cluster) == {"0.9", "1.2"}
    assert cluster["0.9"]["default"]["gpus"] > cluster["1.2"]["default"]["gpus"]
    assert cluster["0.9"]["zeus"]["energy_kwh"] < cluster["0.9"]["default"]["energy_kwh"], (
        "the best costs 4000 J of 4680"
    )
    assert set(cluster["0.9"]["zeus"]["energy_by_size_kwh"]) == {"1 to 4", "20 to 99"}
    assert (out / "groups.png").stat().st_size > 5_000
