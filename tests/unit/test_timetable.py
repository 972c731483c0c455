"""The timetable of the slow tests, and which of them look at the seconds that are promised."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.system import conftest, killing
from tests.timetable import LONG

TESTS = """
import pytest

@pytest.mark.slow
def test_one(): pass

@pytest.mark.slow
@pytest.mark.skip(reason="no GPU")
def test_two(): pass

def test_three(): pass
"""
CONFTEST = """
def pytest_runtest_logreport(report):
    report.duration = 61.0 if report.when == "teardown" and "test_one" in report.nodeid else 0.0
"""


def run(folder: Path, *options: str) -> str:
    (folder / "test_it.py").write_text(TESTS)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\n  nightly\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.timetable",
        "--rootdir",
        str(folder),
        *options,
    ]
    root = Path(__file__).parents[2]
    bare = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command.append(f"{folder}/test_it.py")
    done = subprocess.run(command, cwd=root, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_part_with_its_time_and_its_command(tmp_path: Path) -> None:
    said = run(tmp_path, "-m", "slow and not nightly")
    assert "timetable: 1:01 min" in said
    assert re.search(
        r"^ +1:01 min +2 tests   make test-slow PART=\S*test_it\.py$", said, re.MULTILINE
    ), said


def test_other_runs_have_none(tmp_path: Path) -> None:
    assert "timetable" not in run(tmp_path, "-m", "not slow")
    assert "timetable" not in run(tmp_path)


@pytest.mark.parametrize(("expression", "target"), LONG.items())
def test_the_promised_seconds_are_measured_by_night_alone(
    monkeypatch: pytest.MonkeyPatch, expression: str, target: str
) -> None:
    monkeypatch.setattr(killing, "measured", None)
    conftest.pytest_configure(SimpleNamespace(option=SimpleNamespace(markexpr=expression)))
    assert killing.measured == (target == "nightly-tests")
