"""The table of the kill matrix: every cell has its line, those too that could not be played."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.system.death_airflow_cells import AirflowOutcome
from tests.system.death_cells import FAULTS, Outcome
from tests.system.death_promises import PROMISES, ROOT, Promise, Result
from tests.system.death_promises import table as promise_table
from tests.system.death_table import (
    DOCS,
    NOT_HERE,
    airflow_table,
    note,
    process_table,
    with_promises,
    written,
)
from tests.system.death_training import POINTS

SEEN = Outcome(
    "sqlite", "SIGKILL", "between epochs", "abandoned", 0.011, 0.034, 51.8, 51.9, "converged", 3.2
)
LATER = replace(SEEN, point="after the last epoch", gone_s=0.02, beat_j=52.0, told_j=50.5)
LAST_LINE = "| SIGKILL | 4–5 | abandoned ×2 | 0.02 | 0.03 | 1.5 |"


def test_a_line_of_the_table_has_the_worst_of_its_cells() -> None:
    cells = [SEEN.to_dict(), LATER.to_dict()]
    assert process_table(cells).splitlines()[-1] == LAST_LINE


def test_where_two_stores_differ_both_states_stand_there() -> None:
    other = replace(SEEN, store="postgres", state="failed, not yet stored")
    row = process_table([SEEN.to_dict(), other.to_dict()]).splitlines()[-1]
    assert row.startswith("| SIGKILL | 4 | abandoned / failed† |")


def test_what_was_not_played_stands_there_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUS_DEATH_TABLE", str(tmp_path / "cells"))
    note(Outcome("sqlite", "memory limit", "after ask", state=NOT_HERE + "no cgroup").to_dict())
    lines = [json.loads(line) for line in (tmp_path / "cells").read_text().splitlines()]
    assert "| memory limit | 2 | not played: no cgroup | – | – | – |" in process_table(lines)


def test_a_line_under_airflow_has_its_executor_and_what_airflow_says() -> None:
    cell = AirflowOutcome(
        "SIGKILL", "between epochs", "CeleryExecutor", "failed, failed", "none", 0.05, told_j=9.0
    )
    assert airflow_table([cell.to_dict()]).splitlines()[-1] == (
        "| SIGKILL (Celery) | 4 | none | 0.05 | – | failed, failed |"
    )


def test_only_the_tables_of_what_was_played_are_made_anew() -> None:
    document = (
        "a\n<!-- process -->\nold\n<!-- end of process -->\nb\n<!-- silent -->\nkept\n<!-- end of"
        " silent -->\n"
    )
    anew = written(document, [SEEN.to_dict()])
    assert "old" not in anew
    assert anew.startswith("a\n<!-- process -->\n\n| Fault |")
    assert anew.endswith(
        "<!-- end of process -->\nb\n<!-- silent -->\nkept\n<!-- end of silent -->\n"
    )


def test_the_manual_has_every_cell() -> None:
    text = DOCS.read_text()
    for name, cells in (("process", 56), ("silent", 11), ("airflow", 19)):
        part = text.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
        rows = [line for line in part.splitlines() if line.startswith("| ")][1:]
        assert sum(len(points(row)) for row in rows) == cells, name
    for fault in FAULTS:
        assert f"| {fault} | 1–{len(POINTS)} |" in text


def points(row: str) -> list[int]:
    """The points of a row: ``1–3, 5`` is 1, 2, 3 and 5."""
    ranges = [part.split("–") for part in row.split(" | ")[1].split(", ")]
    return [point for ends in ranges for point in range(int(ends[0]), int(ends[-1]) + 1)]


def test_the_tests_of_each_promise_are_there() -> None:
    every = [promise for promises in PROMISES.values() for promise in promises]
    assert [promise.case for promise in every if not promise.tests] == []
    assert [test for promise in every for test in promise.tests if not is_there(test)] == []


@cache
def tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def is_there(test: str) -> bool:
    path, *inside = test.split("::")
    node: Any = tree(path)
    for name in inside:
        node = next(
            (each for each in getattr(node, "body", []) if getattr(each, "name", "") == name), None
        )
    return node is not None


def test_the_manual_has_every_promise() -> None:
    text = DOCS.read_text()
    for name, promises in PROMISES.items():
        part = text.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
        for promise in promises:
            assert f"| {promise.case} | {promise.holds} |" in part
        assert not re.search(r"\((?:failed|skipped|not played)", part)


def test_a_row_says_how_the_tests_of_all_parameters_ended() -> None:
    promise = Promise("a case", "it holds", ("tests/unit/test_a.py::test_b",))
    results = [
        Result("tests/unit/test_a.py::test_b[1]", "passed"),
        Result("tests/unit/test_a.py::test_b[2]", "passed"),
    ]
    assert promise_table([promise], results).endswith("| a case | it holds |")
    failed = [*results, Result("tests/unit/test_a.py::test_b[3]", "failed")]
    assert promise_table([promise], failed).endswith("| it holds (failed) |")
    assert promise_table([promise], [Result("tests/unit/test_a.py::test_c", "passed")]).endswith(
        "| it holds (not played) |"
    )


def test_the_table_of_promises_takes_its_place() -> None:
    document = "a\n<!-- kept -->\nanother row\n<!-- end of kept -->\nb\n"
    assert "another row" not in with_promises(document, [])
    assert with_promises(document, []).endswith("<!-- end of kept -->\nb\n")
