"""What each test process ran, in its order: to repeat a failure,
and to say where a run stood that was ended.

Tests come in a random order and workers share them differently each time, so a test that fails by
what ran before it would never fail again. Each process writes the ids of its tests into
``test-results/order/<worker>.txt`` as they begin. A failure is shown with one command that repeats
all that its process ran, in the same order and with the same seed. SIGUSR1 writes the stacks of all
threads into ``<worker>.stacks``.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import checks

FOLDER = checks.ORDER


class RunOrder:
    """Of one test process.

    :param folder: exists.
    """

    def __init__(self, folder: Path, worker: str) -> None:
        self._folder = folder
        self._worker = worker
        self._began = (folder / f"{worker}.txt").open("w", buffering=1)
        self._stacks = (folder / f"{worker}.stacks").open("w")
        self._ran: list[str] = []
        self._failures = 0
        faulthandler.register(signal.SIGUSR1, file=self._stacks, all_threads=True)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self._ran.append(nodeid)
        self._began.write(f"{nodeid}\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any) -> Iterator[None]:
        """Give a failure the command that repeats it."""
        report: Any = yield
        if report.failed:
            self._failures += 1
            kept = self._folder / f"{self._worker}-failure-{self._failures}.txt"
            # another run in this checkout began the folder anew
            self._folder.mkdir(parents=True, exist_ok=True)
            kept.write_text("".join(f"{nodeid}\n" for nodeid in self._ran))
            seed = getattr(item.config.option, "randomly_seed", None)
            order = "" if seed is None else f"--randomly-seed={seed} --randomly-dont-reorganize "
            repeat = (
                f".venv/bin/python -m pytest {order}@{os.path.relpath(kept, item.config.rootpath)}"
            )
            report.sections.append((f"all that {self._worker} ran, up to this failure", repeat))
        return report  # type: ignore[no-any-return]

    def pytest_unconfigure(self) -> None:
        """Give the signal back."""
        faulthandler.unregister(signal.SIGUSR1)
        self._began.close()
        self._stacks.close()


def pytest_configure(config: Any) -> None:
    """Begin; the first process empties the folder."""
    folder = config.rootpath / FOLDER
    worker = getattr(config, "workerinput", {}).get("workerid", "main")
    if worker == "main":
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    config.pluginmanager.register(RunOrder(folder, worker))
