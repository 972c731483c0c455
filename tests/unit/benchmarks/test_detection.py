"""``benchmarks.detection``: generated jobs, and which of their changes are found."""

from __future__ import annotations

import math

import pytest

from benchmarks import detection
from benchmarks.detection import Cell, alarms, job, play


def test_a_job_changes_before_run_15_and_hangs_on_its_seed() -> None:
    cell = Cell(0.0, 0.001, 3.2, 1)
    found = job(cell, 3)
    assert (found, len(found)) == (job(cell, 3), 27)
    assert found != job(cell, 4)
    usual = [item.runs[0].epochs for item in found if item.runs[0].batch_size == 64]
    assert usual[0] == round(math.exp(detection.LEVEL))
    assert usual[-1] == pytest.approx(3.2 * usual[0], rel=0.05)


def test_a_large_change_is_found_at_its_second_run_and_a_quiet_job_has_none() -> None:
    assert alarms(job(Cell(0.0, 0.01, 3.2, 1), 1)) == [17]
    assert play(Cell(0.0, 0.01, 3.2, 3)) == [1.0, 1.0]
    assert play(Cell(0.0, 0.1, 1.0, 2)) == [0.0]


def test_it_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert detection.main(["--seeds", "1", "--jobs", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:6]] == [
        "| 0.1, 0.1",
        "| 0.1, 0.25",
        "| 0.3, 0.1",
        "| 0.3, 0.25",
    ]
    assert "false alarms per 100 runs in the mean" in lines[6]
