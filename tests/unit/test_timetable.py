"""The timetable of the slow tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TESTS = """
import time, pytest

@pytest.fixture
def late():
    yield
    time.sleep(1.1)

@pytest.mark.slow
def test_one(late): pass

@pytest.mark.slow
@pytest.mark.skip(reason="no GPU")
def test_two(): pass

def test_three(): pass
"""


def run(folder: Path, *options: str) -> str:
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.timetable", "--rootdir", str(folder), *options]
    root = Path(__file__).parents[2]
    done = subprocess.run([*command, f"{folder}/test_it.py"], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout


def test_each_part_with_its_time_and_its_command(tmp_path: Path) -> None:
    said = run(tmp_path, "-m", "slow")
    assert re.search(r"timetable: (?!0:00)\d+:\d\d min", said)
    assert re.search(r"^ +(?!0:00)\d+:\d\d min +2 tests   make test-slow PART=\S*test_it\.py$", said, re.MULTILINE), (
        said
    )


def test_other_runs_have_none(tmp_path: Path) -> None:
    assert "timetable" not in run(tmp_path, "-m", "not slow")
    assert "timetable" not in run(tmp_path)
