"""Which Chromium the browser tests drive;
``python -m tests.ui.browser --install`` brings one where none is found.

Tests read ``find_browser()`` and skip with its ``reason`` where ``path`` is None; Playwright gets
``path`` as ``executable_path`` and ``FLAGS`` as ``args``. Standard library only,
but for Playwright's own download.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
REMEDY = (
    "install Chromium (Debian: apt-get install chromium; elsewhere: python -m playwright install"
    " --with-deps chromium) or name one: CHROMIUM=/path/to/chromium"
)
# No sandbox: Chromium refuses to start as root with one, and these tests load pages from this host
# alone.
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Browser(NamedTuple):
    """``path`` of a Chromium that starts, else None and the ``reason`` with its remedy."""

    path: str | None
    reason: str = ""


@cache
def find_browser() -> Browser:
    """The Chromium named by ``CHROMIUM`` or ``CHROME``, else one on ``PATH``,
    else Playwright's own download.
    """
    return search(os.environ)


def search(environ: Mapping[str, str]) -> Browser:
    """``find_browser`` in any environment.

    One that is named but does not start is not replaced by another.
    """
    for variable in ("CHROMIUM", "CHROME"):
        if named := environ.get(variable):
            path = shutil.which(named, path=environ.get("PATH"))
            if path and _starts(path):
                return Browser(path)
            return Browser(None, f"{variable}={named} is no Chromium that starts; {REMEDY}")
    for path in _candidates(environ):
        if _starts(path):
            return Browser(path)
    return Browser(None, f"no Chromium was found; {REMEDY}")


def _candidates(environ: Mapping[str, str]) -> Iterator[str]:
    found = (shutil.which(name, path=environ.get("PATH")) for name in (*NAMES, MAC))
    yield from (path for path in found if path)
    if own := _playwrights_own(environ):
        yield own


def _playwrights_own(environ: Mapping[str, str]) -> str | None:
    """Asked of Playwright in a process of its own: its folders differ by version and system."""
    ask = (
        "from playwright.sync_api import sync_playwright as s\nwith s() as p:"
        " print(p.chromium.executable_path)"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask], env=dict(environ), capture_output=True, text=True, check=False
    )
    path = done.stdout.strip()
    return path if done.returncode == 0 and os.access(path, os.X_OK) else None


def _starts(path: str) -> bool:
    """True if it tells its version: Ubuntu's ``chromium-browser`` may be a script that only
    names a snap.
    """
    try:
        done = subprocess.run([path, "--version"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def install() -> Browser:
    """The browser found, else Debian's package by apt-get where we are root; never an error,
    see ``reason``.
    """
    found = search(os.environ)
    if found.path or any(os.environ.get(v) for v in ("CHROMIUM", "CHROME")):
        return found
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return found
    print("Installing Debian's chromium for the browser tests ...", flush=True)
    quiet = [apt, "-qq", "-o", "DPkg::Lock::Timeout=120"]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        [*quiet, "update"],
        [*quiet, "install", "-y", "--no-install-recommends", "chromium"],
    ):
        done = subprocess.run(
            command,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode and "install" in command:
            return Browser(
                None, f"apt-get could not install chromium: {done.stdout.strip()[-400:]}; {REMEDY}"
            )
    return search(os.environ)


def main(arguments: list[str]) -> None:
    """Print one line: the browser, or what to do for one."""
    browser = install() if "--install" in arguments else find_browser()
    missing = f"will be skipped: {' '.join(browser.reason.split())}"
    print("The browser tests", f"use {browser.path}" if browser.path else missing)


if __name__ == "__main__":
    main(sys.argv[1:])
