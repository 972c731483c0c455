"""The kill matrix and the promises as tables: ``python -m tests.system.death_table`` plays both and
writes them into docs/death.md.

What the tests of the matrix see goes, one JSON line a cell, into the file that
``$ZEUS_DEATH_TABLE`` names; given such files as arguments, the matrix is not played. With the one
argument ``promises`` these alone are played.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.system.death_promises import PROMISES, Result, play
from tests.system.death_promises import table as promise_table
from tests.system.death_training import AFTER_ASK, AFTER_TELL, BEFORE_ASK, POINTS

DOCS = Path(__file__).parents[2] / "docs" / "death.md"
PLAYED = ("tests/system/test_death.py", "tests/system/test_death_airflow.py")
STORES = {"process": ("sqlite", "postgres"), "silent": ("silent",), "airflow": ("airflow",)}
HEAD = ("Fault", "Points", "State read", "Gone, s", "Limit back, s")
NOT_YET_STORED = ", not yet stored"
WAITS = "†"  # stands for NOT_YET_STORED in a table
NOT_HERE = "not played: "  # and why, in place of a state
Line = dict[str, Any]


def note(line: Line) -> None:
    """Write down what a cell came to, where somebody wants to know."""
    if table := os.environ.get("ZEUS_DEATH_TABLE"):
        with Path(table).open("a") as file:
            file.write(json.dumps(line) + "\n")


def process_table(lines: Iterable[Line]) -> str:
    """A row for each fault: the states that were read,
    and the worst of its cells in each figure.
    """
    rows = [
        (*_row(fault, cells), _worst(_lost_j(cells), digits=1))
        for fault, cells in _by_fault(lines).items()
    ]
    return _table((*HEAD, "Lost, J"), rows)


def airflow_table(lines: Iterable[Line]) -> str:
    """The same under a real scheduler, with what Airflow says of the task and its run."""
    rows = [
        (*_row(fault, cells), _runs_of([cell["airflow"] for cell in cells]))
        for fault, cells in _by_fault(lines).items()
    ]
    return _table((*HEAD, "Task, run"), rows)


def _by_fault(lines: Iterable[Line]) -> dict[str, list[Line]]:
    cells: dict[str, list[Line]] = {}
    for line in lines:
        celery = line.get("executor") == "CeleryExecutor"
        fault = f"{line['fault']} (Celery)" if celery else line["fault"]
        cells.setdefault(fault, []).append(line)
    return cells


def _row(fault: str, cells: list[Line]) -> tuple[str, ...]:
    points = sorted({POINTS.index(cell["point"]) for cell in cells})
    states = [_state_at(cells, POINTS[point]) for point in points]
    played = _played(cells)
    return (
        fault,
        _runs_of_numbers([point + 1 for point in points]),
        _runs_of(states),
        _worst([cell["gone_s"] for cell in played], digits=2),
        _worst(_limits_s(played), digits=2),
    )


def _played(cells: list[Line]) -> list[Line]:
    return [cell for cell in cells if not cell["state"].startswith(NOT_HERE)]


def _state_at(cells: list[Line], point: str) -> str:
    """What was read at this point: one state unless two stores differ."""
    states = dict.fromkeys(cell["state"] for cell in cells if cell["point"] == point)
    return " / ".join(states).replace(NOT_YET_STORED, WAITS)


def _limits_s(cells: list[Line]) -> list[float]:
    """How long the limit took, in the cells that had changed it."""
    changed = [cell for cell in cells if cell["point"] not in (BEFORE_ASK, AFTER_ASK, AFTER_TELL)]
    return [cell["limit_s"] for cell in changed if cell["limit_s"] is not None]


def _lost_j(cells: list[Line]) -> list[float]:
    """Energy that a heartbeat or an end had brought and the ledger lacks."""
    measured = [cell for cell in _played(cells) if cell["beat_j"] is not None]
    return [max(cell["beat_j"] - (cell["told_j"] or 0.0), 0.0) for cell in measured]


def _worst(figures: list[float], digits: int) -> str:
    if not figures:
        return "–"
    return f"{max(figures):.{digits}f}"


def _runs_of(words: list[str]) -> str:
    """``a, b ×2``: each word, and how often it follows itself."""
    runs = [(word, len(list(same))) for word, same in groupby(words)]
    return ", ".join(f"{word} ×{times}" if times > 1 else word for word, times in runs)


def _runs_of_numbers(numbers: list[int]) -> str:
    """``1–3, 5``: numbers that follow each other as their first and last."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [" | ".join(head), "|".join(["---"] * len(head)), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" if "---|" not in line else f"|{line}|" for line in lines)


def written(document: str, lines: list[Line]) -> str:
    """The document with its tables made anew; each stands between two comments that name it."""
    for name, stores in STORES.items():
        played = [line for line in lines if line["store"] in stores]
        if not played:
            continue
        table = airflow_table(played) if name == "airflow" else process_table(played)
        document = _with_table(document, name, table)
    return document


def with_promises(document: str, results: list[Result]) -> str:
    """The document with the tables of its promises made anew."""
    for name, promises in PROMISES.items():
        document = _with_table(document, name, promise_table(promises, results))
    return document


def _with_table(document: str, name: str, table: str) -> str:
    begin = f"<!-- {name} -->"
    end = f"<!-- end of {name} -->"
    if begin not in document:
        return document
    before, _, rest = document.partition(begin)
    return f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"


def main() -> int:
    """Play what is not given, write the tables; the status of the tests."""
    if any(name.startswith("-") for name in sys.argv[1:]):
        print(__doc__)
        return 0
    if not (files := [Path(name) for name in sys.argv[1:]]) or sys.argv[1:] == ["promises"]:
        results = play(PROMISES)
        DOCS.write_text(with_promises(DOCS.read_text(), results))
        bad = [result.test for result in results if result.ended == "failed"]
        print(f"{len(results)} tests of promises, {len(bad)} failed: {DOCS}")
        if files:
            return bool(bad)
    status = 0
    if not files:
        with tempfile.NamedTemporaryFile(suffix=".jsonl", delete=False) as file:
            files = [Path(file.name)]
        played = [path for path in PLAYED if Path(path).exists()]
        status = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *played],
            env={**os.environ, "ZEUS_DEATH_TABLE": str(files[0])},
        ).returncode
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    DOCS.write_text(written(DOCS.read_text(), lines))
    print(f"{len(lines)} cells: {DOCS}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
