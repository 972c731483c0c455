"""Statistics of the runs that reached the target."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.optimizer.run_stats import RunStats, counted, with_one_more

RUNS = st.lists(st.tuples(st.sampled_from((32, 64, 128)), st.sampled_from((1.0, 2.5, 9.0, 40.0))))


@given(RUNS, st.randoms(use_true_random=False))
def test_a_count_does_not_depend_on_the_order(runs: list[tuple[int, float]], chance: object) -> None:
    shuffled = sorted(runs, key=lambda _: chance.random())  # type: ignore[attr-defined]
    assert counted(shuffled) == counted(runs), "to the last bit"


@given(RUNS, st.tuples(st.sampled_from((32, 64, 256)), st.sampled_from((2.5, 7.0))))
def test_one_more_is_what_a_fresh_count_gives(runs: list[tuple[int, float]], more: tuple[int, float]) -> None:
    before = counted(runs)
    kept = {b: (dict(ran.times), *ran[1:]) for b, ran in before.items()}
    assert with_one_more(before, *more) == counted([*runs, more])
    assert {b: tuple(ran) for b, ran in before.items()} == kept, "what was counted stays as it was"


@given(RUNS.filter(bool))
def test_the_moments_are_those_of_log_epochs(runs: list[tuple[int, float]]) -> None:
    for b, ran in counted(runs).items():
        logs = [math.log(epochs) for size, epochs in runs if size == b]
        assert ran.runs == len(logs)
        assert ran.mean == pytest.approx(statistics.fmean(logs), abs=1e-12)
        assert ran.squares == pytest.approx(statistics.pvariance(logs) * len(logs), abs=1e-9)


def test_no_runs_have_no_statistics() -> None:
    assert counted([]) == {}
    assert with_one_more({}, 32, 4.0) == {32: RunStats({4.0: 1}, 1, math.log(4.0), 0.0)}
