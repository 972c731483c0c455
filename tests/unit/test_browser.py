"""Which Chromium the browser tests get: small scripts stand in for Chromium and apt-get,
each really run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.ui import browser


def _program(path: Path, lines: str = "echo Chromium 1.0") -> str:
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def no_playwright(monkeypatch: pytest.MonkeyPatch) -> None:
    """Playwright may have a browser of its own on this machine."""
    monkeypatch.setattr(sys, "executable", "/bin/false")


def test_one_on_the_path_is_found(tmp_path: Path) -> None:
    path = _program(tmp_path / "google-chrome")
    assert browser.search({"PATH": str(tmp_path)}) == (path, "")


@pytest.mark.usefixtures("no_playwright")
def test_one_that_does_not_start_is_passed_over(tmp_path: Path) -> None:
    _program(tmp_path / "chromium", "echo install the snap; exit 1")
    path, reason = browser.search({"PATH": str(tmp_path)})
    assert path is None
    assert "apt-get install chromium" in reason
    second = _program(tmp_path / "google-chrome")
    assert browser.search({"PATH": str(tmp_path)}).path == second


@pytest.mark.parametrize("variable", ["CHROMIUM", "CHROME"])
def test_one_that_is_named_comes_first_and_is_never_replaced(tmp_path: Path, variable: str) -> None:
    _program(tmp_path / "chromium")
    named = _program(tmp_path / "mine")
    assert browser.search({"PATH": str(tmp_path), variable: named}).path == named
    path, reason = browser.search({"PATH": str(tmp_path), variable: "/nowhere"})
    assert path is None
    assert f"{variable}=/nowhere" in reason


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_playwright: None) -> Path:
    """A ``PATH`` without a browser, as root."""
    monkeypatch.setattr(os, "environ", {"PATH": str(tmp_path)})
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def test_root_gets_debians_package(bare_machine: Path) -> None:
    chromium = bare_machine / "chromium"
    wrote = f"printf '#!/bin/sh\\n' > {chromium}; /bin/chmod +x {chromium}"
    _program(
        bare_machine / "apt-get",
        f'echo "$DEBIAN_FRONTEND $*" >> {bare_machine}/asked\ncase "$*" in *chromium) {wrote};;'
        " esac",
    )
    assert browser.install().path == str(chromium)
    assert browser.install().path == str(chromium)
    asked = (bare_machine / "asked").read_text().splitlines()
    assert [line.split()[-1] for line in asked] == ["update", "chromium"]  # once
    assert all(line.startswith("noninteractive -qq") for line in asked)


def test_an_installation_that_fails_is_a_reason(bare_machine: Path) -> None:
    _program(bare_machine / "apt-get", "echo E: no such package; exit 100")
    path, reason = browser.install()
    assert path is None
    assert "E: no such package" in reason


def test_others_than_root_install_nothing(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    _program(bare_machine / "apt-get", f"touch {bare_machine}/asked")
    assert browser.install().path is None
    assert not (bare_machine / "asked").exists()


def test_the_reason_is_one_line(capsys: pytest.CaptureFixture[str], bare_machine: Path) -> None:
    _program(bare_machine / "apt-get", "echo one; echo two; exit 100")
    browser.main(["--install"])
    *_, line = capsys.readouterr().out.splitlines()
    assert line.startswith(
        "The browser tests will be skipped: apt-get could not install chromium: one two; install"
    )
