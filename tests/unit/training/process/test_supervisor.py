"""The supervisor alone: what makes it stop, and which processes it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_zeus.training.process import supervisor
from tests.unit.training.commands import alive, end, family, pids_of, waited_for

Process = subprocess.Popen[bytes]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Process]]:
    supervisors: list[Process] = []
    yield supervisors
    for process in supervisors:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
    if (tmp_path / "pids").exists():
        end(pids_of(tmp_path)[:3])


def start(
    started: list[Process],
    tmp_path: Path,
    command: list[str],
    *,
    parent: int | None = None,
    grace_s: float = 5.0,
) -> Process:
    arguments = [str(parent or os.getpid()), str(grace_s), *command]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", supervisor.__file__, *arguments],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    started.append(process)
    return process


def test_a_child_and_a_daemon_outlive_neither_end_of_file_nor_sigterm(
    started: list[Process], tmp_path: Path
) -> None:
    for tell in ("end of file", "SIGTERM"):
        (tmp_path / "pids").unlink(missing_ok=True)
        process = start(started, tmp_path, family())
        pids = pids_of(tmp_path)
        assert process.pid == pids[3]
        assert process.stdin is not None
        process.stdin.close() if tell == "end of file" else process.terminate()
        assert process.wait(60) == 143
        assert alive(pids) == [], tell


def test_what_is_written_to_it_is_no_end(started: list[Process], tmp_path: Path) -> None:
    command = "until [ -e written ]; do sleep 0.01; done; sleep 0.3"
    process = start(started, tmp_path, ["bash", "-c", command])
    assert process.stdin is not None
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    (tmp_path / "written").touch()
    assert process.wait(60) == 0


def test_sigkill_of_the_supervisor_ends_the_command(started: list[Process], tmp_path: Path) -> None:
    process = start(started, tmp_path, family())
    pids = pids_of(tmp_path)
    process.kill()
    assert waited_for(lambda: not alive(pids[:1]))


def test_whoever_started_it_is_dead_already(started: list[Process], tmp_path: Path) -> None:
    process = start(started, tmp_path, ["touch", "began"], parent=1)
    assert process.wait(60) == 1
    assert not (tmp_path / "began").exists()


def test_a_daemon_whose_parents_are_gone_is_found(started: list[Process], tmp_path: Path) -> None:
    """It forked twice and leads a session of its own:
    nothing but its adoption links it to the command.
    """
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open("pids.tmp", "w") as file:
            print(os.getpid(), file=file)
        os.rename("pids.tmp", "pids")
        time.sleep(300)
    os._exit(0)
os.wait()
time.sleep(300)
"""
    process = start(started, tmp_path, [sys.executable, "-c", code])
    (daemon,) = pids_of(tmp_path)
    assert alive([daemon]) == [daemon]
    process.terminate()
    assert process.wait(60) == 143
    assert alive([daemon]) == []


def test_what_starts_others_as_fast_as_it_is_ended_is_ended(
    started: list[Process], tmp_path: Path
) -> None:
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os.fork() or None)
with open("pids.tmp", "w") as file:
    print(os.getpid(), file=file)
os.rename("pids.tmp", "pids")
while True:
    time.sleep(1)
"""
    process = start(started, tmp_path, [sys.executable, "-c", code], grace_s=0.3)
    pids_of(tmp_path)
    process.terminate()
    assert process.wait(60) == 137
    assert alive(pids_of(tmp_path)) == []


def test_zombies_do_not_pile_up(started: list[Process], tmp_path: Path) -> None:
    """A command that never waits for its children's children: they become the supervisor's."""
    code = "for i in $(seq 20); do (true &) ; done; sleep 0.5; echo done; sleep 300"
    process = start(started, tmp_path, ["bash", "-c", code])
    assert process.stdout is not None
    assert process.stdout.readline() == b"done\n"

    def zombies() -> list[str]:
        stats = [Path(f"/proc/{name}/stat") for name in os.listdir("/proc") if name.isdigit()]
        found = []
        for path in stats:
            try:
                state, parent = path.read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state == "Z" and int(parent) == process.pid:
                found.append(path.name)
        return found

    assert waited_for(lambda: not zombies())


def test_the_commands_signals_are_those_of_any_program(
    started: list[Process], tmp_path: Path
) -> None:
    process = start(
        started,
        tmp_path,
        [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGTERM).name)"],
    )
    assert process.stdout is not None
    assert process.stdout.read() == b"SIG_DFL\n"


@pytest.mark.slow
def test_a_daemon_is_not_overlooked_while_the_threads_of_its_parent_end(
    started: list[Process], tmp_path: Path
) -> None:
    """A process whose first thread has ended looks dead,
    and has its children until its last thread ends.
    """
    code = """
import os, subprocess, threading, time
daemon = subprocess.Popen(["bash", "-c", "trap '' TERM; echo > trapped; sleep 300"], start_new_session=True)
for _ in range(200):
    threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
while not os.path.exists("trapped"):
    time.sleep(0.01)
with open("pids.tmp", "w") as file:
    print(os.getpid(), daemon.pid, file=file)
os.rename("pids.tmp", "pids")
time.sleep(300)
"""
    for _ in range(12):
        for name in ("pids", "trapped"):
            (tmp_path / name).unlink(missing_ok=True)
        process = start(started, tmp_path, [sys.executable, "-S", "-c", code], grace_s=0.2)
        pids = pids_of(tmp_path)
        process.terminate()
        process.wait(60)
        assert alive(pids) == []
