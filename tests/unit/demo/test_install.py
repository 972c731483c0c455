"""Progress while pip installs: from the first second, and pip's own words where it fails."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from demo import install

ROOT = Path(__file__).parents[3]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_says_something_at_once_and_then_what_pip_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "EVERY_S", 0.05)
    out = io.StringIO()
    progress = install.Progress(out)
    progress.take("Collecting numpy>=1.26 (from x)\n")
    progress.take("  Downloading numpy-2.0-cp311.whl (18 MB)\n")
    progress.take("Requirement already satisfied: six\n")
    while "Downloading" not in out.getvalue():
        pass
    progress.end()
    first, *_, last = out.getvalue().splitlines()
    assert first.split(" s  ")[1] == "Starting pip"
    assert "Downloading numpy-2.0-cp311.whl (18 MB) (packages so far: 1)" in out.getvalue()
    assert last.endswith("done, packages looked at: 1")


def test_on_a_terminal_it_is_one_line() -> None:
    out = Terminal()
    install.Progress(out).end()
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().startswith("\r")


def test_a_failure_is_pips_own_with_all_that_it_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo.install", "--no-index", "no-such-package-anywhere"],
        cwd=ROOT,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "No matching distribution found for no-such-package-anywhere" in done.stderr
    assert done.stdout.splitlines()[0].endswith(" s  Starting pip")
