"""The site, built once for all tests and processes of a run."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.docs.blocks import ROOT
from tests.docs.html import Page, read
from tests.ui.conftest import running_chromium


@dataclass(frozen=True)
class Built:
    """A site in a folder."""

    folder: Path
    cpu_s: float  # that the build took

    @cached_property
    def pages(self) -> dict[str, Page]:
        """Its pages by their paths."""
        found = sorted(self.folder.rglob("*.html"))
        return {
            str(path.relative_to(self.folder)): read(path)
            for path in found
            if path.name != "404.html"
        }

    def text(self, page: str) -> str:
        """What a page says, and the addresses within it."""
        return f"{self.pages[page].text} {' '.join(self.pages[page].anchors)}"


@pytest.fixture(autouse=True)
def _process_as_found() -> Iterator[None]:
    """What a page's code does to the loggers of others (as a migration by alembic does) ends
    with its test.
    """
    manager = logging.root.manager
    loggers = {
        name: each for name, each in manager.loggerDict.items() if isinstance(each, logging.Logger)
    }
    found = {name: (each.disabled, each.propagate, each.level) for name, each in loggers.items()}
    level = logging.root.level
    yield
    logging.root.setLevel(level)
    for name, each in manager.loggerDict.items():
        if isinstance(each, logging.Logger):
            disabled, propagate, level = found.get(name, (False, each.propagate, each.level))
            each.disabled = disabled
            each.propagate = propagate
            if each.level != level:  # to set one clears the caches of all loggers
                each.setLevel(level)


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    """A browser that ends with the tests that need it."""
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The site as ``make docs`` builds it.

    The first process of pytest-xdist builds it, the others wait.
    """
    pytest.importorskip("mkdocs", reason="pip install 'airflow-provider-zeus[docs]'")
    base = tmp_path_factory.getbasetemp()
    base = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    folder = base / "site"
    done = base / "site.json"
    with (base / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            done.write_text(json.dumps(_build(folder, base / "pages")))
        cpu_s, failed = json.loads(done.read_text())
    assert not failed, failed
    return Built(folder, cpu_s)


def _build(site: Path, pages: Path) -> tuple[float, str]:
    """CPU seconds of a build, and what it printed where it failed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "docs_site", str(site), str(pages)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took_s, done.stdout + done.stderr if done.returncode else ""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the library
        """Nothing: the tests look at what the browser asks for."""


@pytest.fixture(scope="session")
def served(built: Built) -> Iterator[str]:
    """Its address on a server of this host."""
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(_Quiet, directory=str(built.folder))
    ) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
