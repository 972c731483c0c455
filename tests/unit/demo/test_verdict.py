"""Break-even and totals."""

from __future__ import annotations

import re
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.trial import Phase, State
from demo.verdict import break_even, verdict
from tests.golden import Table
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
def test_break_even_is_where_the_sums_cross_permanently(pairs: list[tuple[int, int]]) -> None:
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


def total(name: str, said: str) -> list[str]:
    """Figures of a total's line: ours, the baseline's, the change in percent and its direction."""
    (line,) = (line for line in said.splitlines() if line.split()[0] == name)
    return re.findall(r"[\d.]+|less|MORE", line)


FIGURE = re.compile(r"\d+(?:\.\d+)?")


def test_a_saving_and_a_loss_read_alike() -> None:
    assert total("cost", text(row(1000.0, 2000.0))) == ["0.3", "0.6", "50", "less"]
    assert total("cost", text(row(3000.0, 2000.0))) == ["0.8", "0.6", "50", "MORE"]


def test_totals_are_sums_of_all_runs() -> None:
    said = text(row(1000.0, 3000.0), row(2000.0, 3000.0, slice_key="2013-W14"))
    assert FIGURE.findall(said.splitlines()[0]) == ["2", "32"], (
        "runs, and the baseline's batch size"
    )
    assert total("energy", said) == ["0.4", "0.8", "50", "less"]
    assert total("time", said) == ["0.2", "0.4", "50", "less"]
    assert "Break-even: run 1 (2013-W13)" in said


def test_the_run_that_broke_even_is_named() -> None:
    later = [row(1000.0, 3000.0, slice_key=f"2013-W{week}") for week in (14, 15)]
    assert "Break-even: run 3 (2013-W15)" in text(row(6000.0, 3000.0), *later)


def test_a_projection_uses_the_latest_runs_after_exploration_and_says_what_it_is() -> None:
    tried = row(50_000.0, 2000.0, phase=Phase.EXPLORE)
    useful = [row(cost, 2000.0) for cost in (9000.0, 1000.0, 1000.0, 1000.0, 1000.0, 1000.0)]
    behind, saved = text(tried, *useful).splitlines()[-1].split(". ", 1)
    assert FIGURE.findall(behind) == ["7", "13.9"], "runs, Wh above the baseline"
    assert FIGURE.findall(saved) == ["5", "0.278", "50"], (
        "latest runs, Wh saved by each, runs to go"
    )
    assert "not a promise" in saved


def test_without_a_saving_to_project_there_is_no_projection() -> None:
    tried = row(50_000.0, 2000.0, phase=Phase.RETURN)
    for said in (text(tried), text(tried, row(2500.0, 2000.0))):
        assert not re.search(r"after about \d+", said)
    assert "nothing to compare" in text(row(None, 2000.0), row(1000.0))


def test_runs_without_figures_are_left_out_aloud() -> None:
    said = text(row(1000.0, 2000.0), row(None, 2000.0), row(1000.0, None))
    assert said.startswith("1 run against")
    assert "2 runs left out" in said


def test_a_run_without_a_model_is_all_loss() -> None:
    said = text(row(1000.0, 5000.0), row(3000.0, 5000.0, kept=False))
    assert total("cost", said) == ["1.1", "1.4", "20", "less"]
    assert "1 run kept no model" in said


TRIED = row(50_000.0, 2000.0, phase=Phase.EXPLORE)
RETURNED = row(50_000.0, 2000.0, phase=Phase.RETURN)
CHEAP = [row(cost, 2000.0) for cost in (9000.0, 1000.0, 1000.0, 1000.0, 1000.0, 1000.0)]
VERDICTS = {
    "a run saved, one left no model, one has no figures": [
        row(1000.0, 3000.0),
        row(2000.0, 3000.0, kept=False),
        row(None, 1.0),
    ],
    "another size was tried, and cheaper runs followed": [TRIED, *CHEAP],
    "a size was tried again": [RETURNED],
    "a size was tried again, and a dear run followed": [RETURNED, row(2500.0, 2000.0)],
    "no run of the demo has figures": [row(None, 2000.0)],
}


@pytest.mark.parametrize("situation", VERDICTS)
def test_what_the_demo_ends_with(situation: str) -> None:
    Table("demo").check(situation, text(*VERDICTS[situation]))


def test_a_hard_week_is_explained_at_a_glance() -> None:
    usual = [row(1000.0, 3000.0, slice_key=f"2013-W{week}") for week in (14, 15, 16)]
    hard = row(
        9000.0,
        9000.0,
        slice_key="2013-W22",
        attempts=((512, State.GIVEN_UP), (256, State.CONVERGED)),
    )
    said = text(*usual, hard).splitlines()[-1]
    assert said.startswith("2013-W22 cost the most, 2.5 Wh: its data are hard at any size")
    assert said.endswith("and 512 was tried and given up.")
    assert "cost the most" not in text(*usual, row(9000.0, 3000.0, slice_key="2013-W22")), (
        "dear by itself"
    )
