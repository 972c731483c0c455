"""Memory of the cluster's processes, by kind: proportional set size,
so that forks' shared pages count once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil

TRAININGS = "trainings"


class Peaks:
    """Peak memory [MiB] of each kind of process, and of all together."""

    def __init__(self) -> None:
        self.by_kind_mib: dict[str, float] = {}
        self.total_mib = 0.0

    def note(self, kinds: Mapping[int, str]) -> None:
        """Measure once.

        ``kinds``: kind of each pid that the cluster started;
        the workers' trainings are a kind too.
        """
        now: dict[str, float] = {}
        for pid, kind in kinds.items():
            for each, mib in _of_tree(pid, kind):
                now[each] = now.get(each, 0.0) + mib
        for kind, mib in now.items():
            self.by_kind_mib[kind] = max(self.by_kind_mib.get(kind, 0.0), mib)
        self.total_mib = max(self.total_mib, sum(now.values()))


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants; empty when it has ended."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def trainings(worker_pid: int) -> list[psutil.Process]:
    """Return the processes of the tasks that a Celery worker runs, and their children."""
    try:
        pool = psutil.Process(worker_pid).children()
        return [process for each in pool for process in each.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _of_tree(pid: int, kind: str) -> list[tuple[str, float]]:
    tasks = {process.pid for process in trainings(pid)} if kind == "workers" else set()
    return [
        (TRAININGS if process.pid in tasks else kind, _mib(process.pid)) for process in tree(pid)
    ]


def _mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    except (OSError, StopIteration):  # it has ended
        return 0.0
