"""What a check says at its end, of parts that passed, failed and hung;
and how a failure is repeated.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import checks, run_order
from tests.checks import Ended, Part

ROOT = Path(__file__).parents[2]
MAKEFILE = """
fine:
\t@true
bad:
\t@false
red:
\t@{python} -m pytest -q -p no:cacheprovider -n 1 --rootdir . --junitxml=test-results/red.xml test_red.py
hangs:
\t@{python} -m pytest -q -p no:cacheprovider -n 1 --rootdir . test_hangs.py || true
"""
RED = """
def test_fine(): pass
def test_red(): assert 2 == 3, "two is not three"
"""
HANGS = """
import pathlib, threading
def wait_for_ever():
    pathlib.Path("hanging").touch()
    threading.Event().wait()
def test_that_hangs(): wait_for_ever()
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with parts of its own, as the root of a checkout."""
    (tmp_path / "Makefile").write_text(MAKEFILE.format(python=sys.executable))
    (tmp_path / "test_red.py").write_text(RED)
    (tmp_path / "test_hangs.py").write_text(HANGS)
    (tmp_path / "conftest.py").write_text("from tests.run_order import pytest_configure\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test-results").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        monkeypatch.delenv(name)
    return tmp_path


def test_a_part_that_passes_and_one_that_fails(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fine, red = (checks.run(Part(name, name, 300)) for name in ("fine", "red"))
    assert (fine.fine, red.fine) == (True, False)
    said = "\n".join(checks.closing([fine, red]))
    assert re.search(r"^ +\d+:\d\d min  passed +make fine$", said, re.M)
    assert re.search(r"^ +\d+:\d\d min  FAILED +make red$", said, re.M)
    assert re.search(r"^ +[\d.]+ s  test_red\.py::test_fine$", said, re.M), "among the slowest"
    assert "    test_red.py::test_red: AssertionError: two is not three" in said

    # the command that it prints runs the same tests in the same order, with the same seed
    (repeat,) = re.findall(
        r"^\.venv/bin/python -m pytest (--randomly.*)$", capfd.readouterr().out, re.M
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *repeat.split()]
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "two is not three" in again.stdout
    assert re.search(
        r"--randomly-seed=\d+ --randomly-dont-reorganize @test-results/order/gw\d-failure-1\.txt",
        repeat,
    )


def test_tests_that_failed_do_not_hide_that_lint_may_have_failed_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test-results").mkdir()
    case = '<testcase classname="test_red" name="test_red"><failure message="no"/></testcase>'
    (tmp_path / "test-results" / "test-lowest.xml").write_text(f"<testsuite>{case}</testsuite>")
    said = checks.closing([Ended(checks.CHECK[0], 2, 1.0)])
    assert said[-2:] == [
        "    test_red.py::test_red: no",
        "    whether lint failed too stands in what it printed above",
    ]


def test_a_part_that_hangs_is_ended_and_says_where(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = subprocess.Popen.wait

    def until_it_hangs(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        while timeout == 7.0 and not Path("hanging").exists():
            assert process.poll() is None
            time.sleep(0.05)
        if timeout == 7.0:
            raise subprocess.TimeoutExpired("make", timeout)
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", until_it_hangs)
    monkeypatch.setattr(checks, "DYING_S", 60)  # however busy the host is
    ended = checks.run(Part("hangs", "hangs", 7))
    assert ended.status is None
    said = checks.closing([Ended(Part("fine", "fine", 300), 0, 1.0), ended])
    assert "gw0 was in test_hangs.py::test_that_hangs" in "\n".join(said)
    assert any(re.search(r"test_hangs\.py:\d wait_for_ever$", line) for line in said[-40:])


def test_a_nightly_run_leaves_its_line(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "NIGHTLY", (Part("fine", "fine", 300), Part("bad", "bad", 300)))
    assert checks.main(["nightly"]) == 1
    assert checks.main(["nightly", "tests/system", "tests/ui"]) == 0
    both, one = (checkout / "test-results" / "nightly.txt").read_text().splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d no commit: make fine passed in 0 min; make bad FAILED in 0 min", both
    )
    assert one.endswith("no commit: make fine PART='tests/system tests/ui' passed in 0 min")


def test_the_parts_are_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert {
        word
        for part in (*checks.CHECK, *checks.NIGHTLY)
        for word in part.make.split()
        if word.isalpha()
    } <= targets
    assert run_order.FOLDER.parts[0] == checks.RESULTS.name
