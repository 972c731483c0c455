"""A command in a process of its own: its exit status, its output, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from airflow_provider_zeus.model.trial import Observation, State
from airflow_provider_zeus.training.interrupts import TrainingKilled
from airflow_provider_zeus.training.process.child import Child, Follower
from airflow_provider_zeus.training.protocol.events import ResultLine, ResultWriter
from tests.unit.training.commands import alive, end, family, followed, pids_of, waited_for

ROOT = Path(__file__).parents[4]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """Starts a command in ``tmp_path``; ``said`` is what it wrote.

    Nothing of it is left after the test.
    """
    started: list[Child] = []

    def begin(command: list[str], said: list[str] | None = None, **kwargs: Any) -> Child:
        child = Child(
            command,
            os.environ,
            (said if said is not None else []).append,
            cwd=str(tmp_path),
            **kwargs,
        )
        started.append(child)
        return child

    yield begin
    for child in started:
        child._process.kill()
        child._process.wait()
        child.close()
    if (tmp_path / "pids").exists():
        end(pids_of(tmp_path)[:3])


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["bash", "-c", "exit 3"], 3),
        (["bash", "-c", "kill -9 $$"], 137),
        (["bash", "-c", "kill -TERM $$"], 143),
    ],
)
def test_exit_status(start: Callable[..., Child], command: list[str], status: int) -> None:
    assert followed(start(command)) == status


@pytest.mark.parametrize(
    ("name", "status", "problem"),
    [
        ("no_such_command", 127, "No such file or directory"),
        ("not_executable", 126, "Permission denied"),
        ("no_program", 126, "Exec format error"),
    ],
)
def test_a_command_that_cannot_be_started(
    start: Callable[..., Child], tmp_path: Path, name: str, status: int, problem: str
) -> None:
    for present, mode in (("not_executable", 0o644), ("no_program", 0o755)):
        (tmp_path / present).write_text("hello")
        (tmp_path / present).chmod(mode)
    said: list[str] = []
    child = start([f"./{name}"], said)
    assert followed(child) == status
    assert said == [child.last_line] == [f"./{name}: {problem}"]


def test_a_folder_that_is_not_there_is_an_error_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Child(["true"], os.environ, print, cwd=str(tmp_path / "no"))


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"no newline at the end", ["no newline at the end"]),
        (b" 10%\r 50%\r100%\nkept 32\n", [" 10%", " 50%", "100%", "kept 32"]),
        (b"windows\r\nlines\r\n", ["windows", "lines"]),
        (b"done\n\n  \n", ["done"]),
        (b"a\xff\xfeb \xe2\x82\n", ["a\ufffd\ufffdb \ufffd"]),
        ("energie 5 \N{EURO SIGN}\n".encode(), ["energie 5 \N{EURO SIGN}"]),
        (b"cut \xe2\x82", ["cut \ufffd"]),
        (b"", []),
    ],
)
def test_output_line_by_line(start: Callable[..., Child], written: bytes, lines: list[str]) -> None:
    said: list[str] = []
    child = start(python(f"import os; os.write(1, {written!r})"), said)
    assert followed(child) == 0
    assert said == lines
    assert child.last_line == (lines[-1] if lines else "")


def test_a_character_that_arrives_in_two_parts_is_one(start: Callable[..., Child]) -> None:
    said: list[str] = []
    child = start(
        python("import os, time; os.write(1, b'\\xe2\\x82'); time.sleep(.3); os.write(1, b'\\xac\\r'); "
               "time.sleep(.3); os.write(1, b'\\nend')"),
        said,
    )  # fmt: skip
    assert followed(child) == 0
    assert said == ["\N{EURO SIGN}", "end"]


def test_a_very_long_line_is_passed_on_in_parts_and_nothing_is_lost(
    start: Callable[..., Child],
) -> None:
    said: list[str] = []
    child = start(python("print('x' * 3_000_000); print('end')"), said)
    assert followed(child) == 0
    assert said[-1] == child.last_line == "end"
    assert sum(len(part) for part in said[:-1]) == 3_000_000
    assert max(len(part) for part in said) <= 2 * 65536


def test_stdout_and_stderr_come_in_order(start: Callable[..., Child]) -> None:
    said: list[str] = []
    child = start(["bash", "-c", "echo one; echo two >&2; echo three"], said)
    assert followed(child) == 0
    assert said == ["one", "two", "three"]


def test_it_reads_no_input_and_leads_no_terminal(start: Callable[..., Child]) -> None:
    said: list[str] = []
    child = start(
        python("import os, sys; print(repr(sys.stdin.read()), os.getsid(0) == os.getppid())"), said
    )
    assert followed(child) == 0
    assert said == ["'' True"]


def test_following_returns_while_it_runs_and_is_silent(start: Callable[..., Child]) -> None:
    child = start(["sleep", "60"])
    start_s = time.monotonic()
    assert child.follow(0.2) is None
    assert time.monotonic() - start_s > 0.1
    assert child.stop() == 143


def test_stopping_ends_children_and_daemons(start: Callable[..., Child], tmp_path: Path) -> None:
    child = start(family())
    pids = pids_of(tmp_path)
    assert alive(pids) == pids
    assert child.stop() == 143
    assert alive(pids) == []
    assert child.stop() == 143, "a second time changes nothing"


def test_what_ignores_a_polite_end_is_killed_after_its_grace(
    start: Callable[..., Child], tmp_path: Path
) -> None:
    child = start(
        family(before="import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"), grace_s=0.5
    )
    pids = pids_of(tmp_path)
    start_s = time.monotonic()
    assert child.stop() == 137
    assert time.monotonic() - start_s > 0.4
    assert alive(pids) == []


def test_a_command_has_time_to_save_before_its_end(
    start: Callable[..., Child], tmp_path: Path
) -> None:
    said: list[str] = []
    body = (
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(.5), print('saved'),"
        " sys.exit(5)))\ntime.sleep(300)"
    )
    child = start(family(body), said, grace_s=60.0)
    pids = pids_of(tmp_path)
    assert waited_for(lambda: _catches_sigterm(pids[0]))
    assert child.stop() == 5
    assert said == ["saved"]


def _catches_sigterm(pid: int) -> bool:
    (caught,) = [
        x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("SigCgt")
    ]
    return bool(int(caught.split()[1], 16) & 1 << (signal.SIGTERM - 1))


@pytest.mark.parametrize("body", ["pass", "os._exit(0)"])
def test_a_daemon_that_holds_the_output_keeps_nobody_waiting(
    start: Callable[..., Child], tmp_path: Path, body: str
) -> None:
    """And is ended: its command is over."""
    child = start(family(body))
    assert followed(child) == 0
    assert alive(pids_of(tmp_path)) == []


def test_stopping_while_it_floods_its_output(start: Callable[..., Child], tmp_path: Path) -> None:
    child = start(family("while True: print('x' * 1000)"))
    pids = pids_of(tmp_path)
    for _ in range(5):
        child.follow(0.1)
    assert child.stop() in (143, 120)
    child.close()
    assert alive(pids) == []


def test_letting_go_while_it_floods_its_output_ends_it_too(
    start: Callable[..., Child], tmp_path: Path
) -> None:
    child = start(family("while True: print('x' * 1000)"))
    pids = pids_of(tmp_path)
    child.close()
    assert waited_for(lambda: not alive(pids[:3]))
    child._process.wait(60)


def test_a_supervisor_that_was_killed_does_not_block(
    start: Callable[..., Child], tmp_path: Path
) -> None:
    """Its command ends with it; a daemon may be left, and holds the output."""
    child = start(family())
    pids = pids_of(tmp_path)
    os.kill(pids[3], signal.SIGKILL)
    assert waited_for(lambda: not alive(pids[:1])), "the command"
    assert followed(child) == -signal.SIGKILL


STARTER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from airflow_provider_zeus.training.interrupts import TrainingKilled
from airflow_provider_zeus.training.process.child import Child
child = Child(sys.argv[2:], os.environ, print)
while child.follow(1.0) is None:
    pass
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_death_of_whoever_started_it_ends_all_of_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(ROOT), *family()], cwd=tmp_path)
    try:
        pids = pids_of(tmp_path)
        starter.send_signal(number)
        assert waited_for(lambda: not alive(pids))
    finally:
        starter.kill()
        starter.wait()
        end(pids_of(tmp_path))


def test_the_guardian_of_a_limit_outlives_a_training_that_ignores_its_end(
    start: Callable[..., Child], tmp_path: Path
) -> None:
    """Else the limit that was set would stay: the training dies by SIGKILL,
    and gives nothing back itself.
    """
    state = tmp_path / "v100.gpu"
    code = f"""
import signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
signal.signal(signal.SIGTERM, signal.SIG_IGN)
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
gpu = SimulatedGpu("v100", load="shufflenet", state_file={str(state)!r})
with LimitControl(gpu, {str(tmp_path)!r}) as limits:
    limits.set_w(100.0)
    print("set", flush=True)
    time.sleep(300)
"""
    said: list[str] = []
    child = start(python(code), said, grace_s=0.5)
    while not said:
        assert child.follow(0.2) is None
    assert said == ["set"]
    from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu

    gpu = SimulatedGpu("v100", load="shufflenet", state_file=state)
    assert gpu.limit_w() == 100.0
    assert child.stop() == 137
    assert waited_for(lambda: gpu.limit_w() == 250.0)


class TestFollower:
    def test_new_whole_lines_once(self, tmp_path: Path) -> None:
        path = tmp_path / "result.jsonl"
        follower = Follower(path)
        assert follower.news() == [], "not there yet"
        write = ResultWriter(path)
        write(ResultLine(kind="start", start_id="a"))
        assert [line.kind for line in follower.news()] == ["start"]
        assert follower.news() == []
        text = ResultLine(kind="attempt", start_id="a", attempt=1).to_json()
        with path.open("a") as file:
            file.write(text[:20])
            file.flush()
            assert follower.news() == [], "half a line"
            file.write(text[20:] + "\n")
        assert [line.kind for line in follower.news()] == ["attempt"]

    def test_what_a_signal_interrupts_is_read_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "result.jsonl"
        ResultWriter(path)(ResultLine(kind="start", start_id="a"))
        follower = Follower(path)
        with monkeypatch.context() as patched:
            patched.setattr(ResultLine, "from_json", Mock(side_effect=TrainingKilled("stopped")))
            with pytest.raises(TrainingKilled):
                follower.news()
        assert [line.kind for line in follower.news()] == ["start"]

    def test_what_is_no_result_is_said_once_and_what_follows_is_read(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "result.jsonl"
        path.write_bytes(b"hello\n\xff\n")
        follower = Follower(path)
        assert follower.news() == []
        ResultWriter(path)(ResultLine(kind="final", start_id="a"))
        assert [line.kind for line in follower.news()] == ["final"]
        with path.open("a") as file:
            file.write("hello again\n")
        assert follower.news() == []
        (said,) = [r.getMessage() for r in caplog.records]
        assert "no result line of version 1" in said
        assert "hello" not in said

    def test_a_line_of_another_kind_costs_no_line_around_it(self, tmp_path: Path) -> None:
        path = tmp_path / "result.jsonl"
        end = ResultLine(
            kind="end",
            start_id="a",
            attempt=1,
            state=State.CONVERGED,
            observation=Observation(energy_j=7.0),
        )
        final = ResultLine(kind="final", start_id="a", attempt=1)
        path.write_text(
            "".join(f"{x}\n" for x in (end.to_json(), '{"v":1,"kind":"new-kind"}', final.to_json()))
        )
        follower = Follower(path)
        assert follower.news() == [end, final]
        assert follower.news() == []
