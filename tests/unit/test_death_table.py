"""The table of the kill matrix: every cell has its line, those too that could not be played."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.system.death_cells import FAULTS, Outcome
from tests.system.death_promises import PROMISES, ROOT, Promise, Result
from tests.system.death_promises import table as promise_table
from tests.system.death_table import DOCS, NOT_HERE, note, process_table, with_promises, written
from tests.system.death_training import POINTS

SEEN = Outcome("sqlite", "SIGKILL", "between epochs", "abandoned", 0.011, 0.034, 51.8, 51.9, "converged", 3.2)


def test_a_line_of_the_table() -> None:
    assert process_table([SEEN.to_dict()], "sqlite").splitlines()[-1] == (
        "| SIGKILL | between epochs | abandoned | 0.01 s | 0.03 s | 51.8 J | 51.9 J | 3.20 s |"
    )


def test_what_was_not_played_stands_there_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEUS_DEATH_TABLE", str(tmp_path / "cells"))
    note(Outcome("sqlite", "memory limit", "after ask", state=NOT_HERE + "no cgroup").to_dict())
    lines = [json.loads(line) for line in (tmp_path / "cells").read_text().splitlines()]
    assert "| memory limit | after ask | not played: no cgroup |" in process_table(lines, "sqlite")


def test_only_the_tables_of_what_was_played_are_made_anew() -> None:
    document = "a\n<!-- sqlite -->\nold\n<!-- end of sqlite -->\nb\n<!-- postgres -->\nkept\n<!-- end of postgres -->\n"
    anew = written(document, [SEEN.to_dict()])
    assert "old" not in anew
    assert anew.startswith("a\n<!-- sqlite -->\n\n| Fault |")
    assert anew.endswith("<!-- end of sqlite -->\nb\n<!-- postgres -->\nkept\n<!-- end of postgres -->\n")


def test_the_manual_has_every_cell() -> None:
    text = DOCS.read_text()
    for store, rows in (("sqlite", 56), ("postgres", 49 + 1), ("silent", 11), ("airflow", 19)):
        table = text.partition(f"<!-- {store} -->")[2].partition(f"<!-- end of {store} -->")[0].strip().splitlines()
        assert len(table) == rows + 2, store
    for fault in FAULTS:
        assert sum(line.startswith(f"| {fault} |") for line in text.splitlines()) >= len(POINTS)


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
        node = next((each for each in getattr(node, "body", []) if getattr(each, "name", "") == name), None)
    return node is not None


def test_the_manual_has_every_promise() -> None:
    text = DOCS.read_text()
    for name, promises in PROMISES.items():
        part = text.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
        for promise in promises:
            assert f"| {promise.case} | {promise.holds} |" in part
        assert " failed |" not in part
        assert "not played |" not in part


def test_a_row_says_how_the_tests_of_all_parameters_ended() -> None:
    promise = Promise("a case", "it holds", ("tests/unit/test_a.py::test_b",))
    results = [
        Result("tests/unit/test_a.py::test_b[1]", "passed", 1.0),
        Result("tests/unit/test_a.py::test_b[2]", "passed", 0.5),
    ]
    assert promise_table([promise], results).endswith("| a case | it holds | `unit/test_a.py::test_b` | held, 1.5 s |")
    failed = [*results, Result("tests/unit/test_a.py::test_b[3]", "failed", 0.0)]
    assert promise_table([promise], failed).endswith("| failed |")
    assert promise_table([promise], [Result("tests/unit/test_a.py::test_c", "passed", 0.0)]).endswith("| not played |")


def test_the_table_of_promises_takes_its_place() -> None:
    document = "a\n<!-- kept -->\nanother row\n<!-- end of kept -->\nb\n"
    assert "another row" not in with_promises(document, [])
    assert with_promises(document, []).endswith("<!-- end of kept -->\nb\n")
