"""Commands to run under a supervisor, and whether processes are alive."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow_provider_zeus.training.process.child import Child

# Starts a child, and a daemon in a session of its own, writes all pids and then does BODY.
FAMILY = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "300"])
daemon = subprocess.Popen(["sleep", "300"], start_new_session=True)
with open("pids.tmp", "w") as file:
    print(os.getpid(), child.pid, daemon.pid, os.getppid(), file=file)
os.rename("pids.tmp", "pids")
BODY
"""


def family(body: str = "time.sleep(300)", *, before: str = "") -> list[str]:
    """A command with a child and a daemon.

    Their pids lie in the file ``pids``, the supervisor's is the last.
    """
    return [sys.executable, "-c", before + FAMILY.replace("BODY", body)]


def pids_of(folder: Path) -> list[int]:
    """Pids that a family wrote: command, child, daemon, supervisor."""
    path = folder / "pids"
    assert waited_for(path.exists), "the command never began"
    return [int(pid) for pid in path.read_text().split()]


def waited_for(is_so: Callable[[], Any], timeout_s: float = 60.0) -> bool:
    """Whether it came in time."""
    until_s = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.01)
    return True


def alive(pids: list[int]) -> list[int]:
    """Those that run; a zombie does not."""
    return [pid for pid in pids if _state(pid) not in ("", "Z", "X")]


def _state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def end(pids: list[int]) -> None:
    """SIGKILL to those that are left, so that a failing test leaves nothing behind."""
    for pid in alive(pids):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def followed(child: Child, timeout_s: float = 120.0) -> int:
    """Exit status of a command that ends."""
    until_s = time.monotonic() + timeout_s
    try:
        while (status := child.follow(0.2)) is None:
            assert time.monotonic() < until_s, "it never ended"
        return status
    finally:
        child.close()
