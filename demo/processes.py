"""Processes that the demo starts, each in its own session,
so that its children can be ended with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import psutil

from demo.settings import LOGS, ROOT, STATE

RECORD = STATE / "processes.json"


class Process:
    """One running command whose output goes to a log file. Its pid is also its session's id.

    :param logs: folder of the log file; default: the demo's.
    :param user: to run it as, where that is not the user of this process.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        env: Mapping[str, str],
        *,
        nice: int = 0,
        logs: Path | None = None,
        cwd: Path = ROOT,
        user: str | None = None,
    ) -> None:
        logs = logs or LOGS
        for folder in (logs, RECORD.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.log = logs / f"{name}.log"
        if nice:
            command = ["nice", "-n", str(nice), *command]
        with self.log.open("w", encoding="utf-8") as out:
            self._popen = subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                user=user,
            )
        _remember(self.pid)

    @property
    def pid(self) -> int:
        """Process and session id."""
        return self._popen.pid

    def code(self) -> int | None:
        """Exit status, None while it runs."""
        return self._popen.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the exit status; None when it still runs after ``timeout_s``."""
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def tail(self, lines: int = 12) -> str:
        """Return the last lines of its log."""
        return tail(self.log, lines)

    def stop(self, grace_s: float = 10.0) -> None:
        """End it: SIGTERM and ``grace_s`` for a clean end,
        then SIGTERM to the rest of its session, then SIGKILL.
        """
        if self.code() is None:
            self._popen.send_signal(signal.SIGTERM)
            self.wait(grace_s)
        end_session(self.pid)
        self.wait(1.0)


def tail(log: Path, lines: int) -> str:
    """Return the last lines of a text file; empty when there is none."""
    return (
        "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        if log.exists()
        else ""
    )


def members(session: int) -> list[psutil.Process]:
    """Return the living processes of a session."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            continue
    return found


def end_session(session: int, grace_s: float = 3.0) -> None:
    """End every process of a session: SIGTERM, then SIGKILL."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        for process in members(session):
            try:
                process.send_signal(signum)
            except psutil.NoSuchProcess:
                continue
        deadline = time.monotonic() + grace_s
        while members(session) and time.monotonic() < deadline:
            time.sleep(0.1)


def _remember(pid: int) -> None:
    """Record a started process with its start time: its pid may belong to another process later."""
    started = {**_recorded(), str(pid): psutil.Process(pid).create_time()}
    RECORD.write_text(json.dumps(started), encoding="utf-8")


def _recorded() -> dict[str, float]:
    try:
        return dict(json.loads(RECORD.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return {}


def end_leftovers() -> Collection[int]:
    """End the recorded processes of a demo that was killed; return their sessions."""
    ended = [int(pid) for pid, created in _recorded().items() if _is_ours(int(pid), created)]
    for session in ended:
        end_session(session)
    RECORD.unlink(missing_ok=True)
    return ended


def _is_ours(session: int, created: float) -> bool:
    """Whether a recorded session still lives.

    Linux does not reuse a pid while a session has it as its id.
    """
    try:
        return bool(abs(psutil.Process(session).create_time() - created) < 1.0)
    except psutil.NoSuchProcess:
        return bool(members(session))  # its leader has ended, others live
