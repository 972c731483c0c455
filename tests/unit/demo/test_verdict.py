"""Break-even and totals."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.optimizer.trial import Phase
from demo.verdict import break_even, verdict
from tests.unit.demo.rows import row


@pytest.mark.parametrize(
    ("ours", "theirs", "run"),
    [
        ([], [], None),
        ([1.0], [1.0], 1),
        ([2.0], [1.0], None),
        ([3.0, 1.0, 1.0], [2.0, 2.0, 2.0], 2),
        ([1.0, 4.0, 1.0], [2.0, 2.0, 2.0], 3),
        ([1.0, 1.0, 9.0], [2.0, 2.0, 2.0], None),
    ],
)
def test_break_even(ours: list[float], theirs: list[float], run: int | None) -> None:
    assert break_even(ours, theirs) == run


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_break_even_is_where_the_sums_cross_for_good(pairs: list[tuple[int, int]]) -> None:
    ours, theirs = zip(*pairs, strict=True)
    ahead = [a <= b for a, b in zip(accumulate(ours), accumulate(theirs), strict=True)]
    run = break_even(ours, theirs)
    if run is None:
        assert not ahead[-1]
    else:
        assert all(ahead[run - 1 :])
        assert run == 1 or not ahead[run - 2]


def text(*rows: object) -> str:
    return "\n".join(verdict(rows))  # type: ignore[arg-type]


def test_a_saving_and_a_loss_read_alike() -> None:
    assert "cost         1.0 kJ  against       2.0 kJ : 50 % less" in text(row(1000.0, 2000.0))
    assert "cost         3.0 kJ  against       2.0 kJ : 50 % MORE" in text(row(3000.0, 2000.0))


def test_totals_are_sums_of_all_runs() -> None:
    said = text(row(1000.0, 3000.0), row(2000.0, 3000.0, slice_key="2013-W14"))
    assert said.startswith("2 runs against always training at 32 and full power:")
    assert "energy       1.5 kJ  against       3.0 kJ : 50 % less" in said
    assert "time         0.2 min against       0.4 min: 50 % less" in said
    assert "Break-even: run 1 (2013-W13)" in said


def test_the_run_that_broke_even_is_named() -> None:
    later = [row(1000.0, 3000.0, slice_key=f"2013-W{week}") for week in (14, 15)]
    assert "Break-even: run 3 (2013-W15)" in text(row(6000.0, 3000.0), *later)


def test_a_projection_uses_the_latest_runs_after_exploration_and_says_what_it_is() -> None:
    tried = row(50_000.0, 2000.0, phase=Phase.EXPLORE)
    useful = [row(cost, 2000.0) for cost in (9000.0, 1000.0, 1000.0, 1000.0, 1000.0, 1000.0)]
    said = text(tried, *useful)
    assert "Not even after 7 runs: 50.0 kJ above the baseline." in said
    assert "The latest 5 runs after exploration saved 1.0 kJ each" in said
    assert "after about 50 more" in said
    assert "not a promise" in said


def test_what_cannot_be_told_is_not_told() -> None:
    tried = row(50_000.0, 2000.0, phase=Phase.RETURN)
    assert "No run has used what was learnt yet, so when it breaks even cannot be told." in text(tried)
    assert "saved nothing either, so when it breaks even cannot be told" in text(tried, row(2500.0, 2000.0))
    assert "nothing to compare" in text(row(None, 2000.0), row(1000.0))


def test_runs_without_figures_are_left_out_aloud() -> None:
    said = text(row(1000.0, 2000.0), row(None, 2000.0), row(1000.0, None))
    assert said.startswith("1 run against")
    assert "2 runs left out" in said


def test_a_run_without_a_model_is_all_loss() -> None:
    said = text(row(1000.0, 5000.0), row(3000.0, 5000.0, kept=False))
    assert "cost         4.0 kJ  against       5.0 kJ : 20 % less" in said
    assert "1 run kept no model" in said
