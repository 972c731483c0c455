"""The kill matrix and the promises as tables: ``python -m tests.system.death_table`` plays both and writes them into
docs/death.md.

What the tests of the matrix see goes, one JSON line a cell, into the file that ``$ZEUS_DEATH_TABLE`` names; given such
files as arguments, the matrix is not played. With the one argument ``promises`` these alone are played.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.system.death_promises import PROMISES, Result, play
from tests.system.death_promises import table as promise_table
from tests.system.death_training import AFTER_ASK, AFTER_TELL, BEFORE_ASK

DOCS = Path(__file__).parents[2] / "docs" / "death.md"
PLAYED = ("tests/system/test_death.py", "tests/system/test_death_airflow.py")
HEAD = {
    "process": ("Fault", "Point", "State read", "Process gone", "Limit back", "Heartbeat", "In the ledger", "Cell"),
    "airflow": ("Fault", "Point", "Airflow: task, run", "State read", "Process gone", "Limit back", "In the ledger"),
}
NOT_PLAYED = {
    ("postgres", "clock back 1 h"): "not applicable: time is the database's own clock, which no process here can move",
}
NOT_HERE = "not played: "  # and why, in place of a state
Line = dict[str, Any]


def note(line: Line) -> None:
    """Write down what a cell came to, where somebody wants to know."""
    if table := os.environ.get("ZEUS_DEATH_TABLE"):
        with Path(table).open("a") as file:
            file.write(json.dumps(line) + "\n")


def process_table(lines: Iterable[Line], store: str) -> str:
    """The cells of one store, in the order in which they were played."""
    mine = [line for line in lines if line["store"] == store]
    rows = [_process_row(line) for line in mine]
    rows += [(f"{fault}", "all seven", why, "", "", "", "", "") for (s, fault), why in NOT_PLAYED.items() if s == store]
    return _table(HEAD["process"], rows)


def airflow_table(lines: Iterable[Line]) -> str:
    """The cells under a real scheduler."""
    return _table(HEAD["airflow"], [_airflow_row(line) for line in lines if line["store"] == "airflow"])


def _process_row(line: Line) -> tuple[str, ...]:
    if line["state"].startswith(NOT_HERE):
        return (line["fault"], line["point"], line["state"], "", "", "", "", "")
    changed = line["point"] not in (BEFORE_ASK, AFTER_ASK, AFTER_TELL)
    return (
        line["fault"],
        line["point"],
        line["state"],
        _seconds(line["gone_s"]),
        _seconds(line["limit_s"]) if changed else "as found",
        _joules(line["beat_j"]),
        _joules(line["told_j"]),
        _seconds(line["cell_s"]),
    )


def _airflow_row(line: Line) -> tuple[str, ...]:
    if line["state"].startswith(NOT_HERE):
        return (f"{line['fault']} ({line['executor']})", line["point"], "", line["state"], "", "", "")
    return (
        f"{line['fault']} ({line['executor']})",
        line["point"],
        line["airflow"],
        line["state"],
        _seconds(line["gone_s"]),
        line["limit"],
        _joules(line["told_j"]),
    )


def _seconds(value: float) -> str:
    return f"{value:.2f} s"


def _joules(value: float | None) -> str:
    return "none yet" if value is None else f"{value:.1f} J"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [" | ".join(head), "|".join(["---"] * len(head)), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" if "---|" not in line else f"|{line}|" for line in lines)


def written(document: str, lines: list[Line]) -> str:
    """The document with its tables made anew; each stands between two comments that name it."""
    tables = {store: process_table(lines, store) for store in ("sqlite", "postgres", "silent")} | {
        "airflow": airflow_table(lines)
    }
    for name, table in tables.items():
        if any(line["store"] == name for line in lines):
            document = _with_table(document, name, table)
    return document


def with_promises(document: str, results: list[Result]) -> str:
    """The document with the tables of its promises made anew."""
    for name, promises in PROMISES.items():
        document = _with_table(document, name, promise_table(promises, results))
    return document


def _with_table(document: str, name: str, table: str) -> str:
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
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
            [sys.executable, "-m", "pytest", "-q", *played], env={**os.environ, "ZEUS_DEATH_TABLE": str(files[0])}
        ).returncode
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    DOCS.write_text(written(DOCS.read_text(), lines))
    print(f"{len(lines)} cells: {DOCS}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
