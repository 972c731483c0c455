"""The table as a reader sees it."""

from __future__ import annotations

from airflow_provider_zeus.model.trial import Phase, State
from demo.table import HEAD, LEGEND, progress, table
from tests.unit.demo.rows import row


def words(text: str) -> list[str]:
    return text.split()


def test_one_line_per_run_with_every_figure() -> None:
    head, line = table([row(3050.0, 9000.0, epochs=12.25)])
    assert "  ".join(HEAD).split() == words(head)
    figures = ["64", "100 W", "12.2", "0.424 Wh", "12 s", "0.847 Wh", "2.5 Wh"]
    assert words(line) == words(
        " ".join(["2013-W13", *figures, "sampling", "simulated", "Because."])
    )


def test_columns_are_aligned() -> None:
    rows = [
        row(3050.0, 9000.0),
        row(123_050.0, 9.0, attempts=((16, State.GIVEN_UP), (2048, State.CONVERGED))),
    ]
    lines = table(rows)[:3]
    assert (
        len(
            {
                line.index(word)
                for line, word in zip(lines, ("phase", "sampling", "sampling"), strict=True)
            }
        )
        == 1
    )


def test_states_are_marked_and_only_marks_in_use_are_explained() -> None:
    states = ((16, State.GIVEN_UP), (64, State.EXHAUSTED))
    lines = table([row(1000.0, attempts=states)])
    assert "16* 64~" in lines[1]
    assert lines[2] == ", ".join(f"{mark} {LEGEND[mark]}" for mark in "*~")
    assert len(table([row(1000.0)])) == 2
    assert "32!" in table([row(1000.0, attempts=((32, State.FAILED),))])[1]


def test_a_missing_figure_is_a_dash_and_never_zero() -> None:
    line = table([row(None, limit_w=None, epochs=None, source=None)])[1]
    assert line.split()[2:8] == ["-"] * 6
    assert " none " in line


def test_in_a_narrow_terminal_each_reason_stands_below_its_run() -> None:
    long = row(1000.0, 2000.0, why="word " * 50)
    head, head_why, line, *reason = table([long], width=110)
    assert head_why.strip() == "why"
    assert "simulated" in line
    assert max(map(len, (head, line, *reason))) <= 110
    assert words(" ".join(reason)) == ["word"] * 50, "nothing is cut"
    assert table([long], width=1000) == table([long])


def test_progress_is_the_run_in_one_line() -> None:
    line = progress(row(3050.0, phase=Phase.EXPLORE, epochs=12.0))
    figures = ["64", "100 W", "12 epochs", "0.424 Wh", "12 s", "cost", "0.847 Wh"]
    assert words(line) == words(" ".join(["2013-W13", *figures, "exploring"]))
