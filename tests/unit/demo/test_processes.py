"""Whatever the demo starts can be ended, children included, and nobody else's process is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from demo import processes
from demo.processes import Process, end_leftovers, members
from demo.servers import free_port
from demo.settings import DemoError

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(processes, "RECORD", tmp_path / "processes.json")


def start(code: str = STUBBORN) -> Process:
    process = Process("test", [sys.executable, "-c", code], dict(os.environ))
    deadline = time.monotonic() + 60.0
    while "ready" not in process.tail() and process.code() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return process


@pytest.mark.slow
def test_a_process_that_ignores_sigterm_is_ended_with_its_children() -> None:
    process = start()
    assert len(members(process.pid)) == 2
    assert os.getsid(process.pid) == process.pid != os.getsid(0)
    process.stop(grace_s=0.3)
    assert members(process.pid) == []
    assert process.code() == -9


def test_a_process_that_ends_in_time_is_not_killed() -> None:
    process = start(
        "import signal, sys, time\n"
        "signal.signal(15, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    process.stop()
    assert process.code() == 7


@pytest.mark.slow
def test_leftovers_are_ended_by_the_next_demo_even_without_their_leader() -> None:
    process = start()
    os.kill(process.pid, 9)
    process.wait(60)
    (child,) = members(process.pid)
    assert end_leftovers() == [process.pid]
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert end_leftovers() == []


def test_a_pid_that_belongs_to_somebody_else_by_now_is_left_alone() -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    try:
        processes.RECORD.write_text(
            json.dumps({str(other.pid): psutil.Process(other.pid).create_time() - 100})
        )
        assert end_leftovers() == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_corrupt_record_is_no_reason_to_fail() -> None:
    processes.RECORD.write_text("{cut")
    assert end_leftovers() == []


def test_a_taken_port_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert port < free_port(port) < port + 50


def test_no_free_port_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: tuple[str, int]) -> None:
        raise OSError("taken")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(DemoError, match="DEMO_PORT"):
        free_port(9000)
