"""The process that stands between the supervisor and ``sbatch``: whatever ends the wait,
the job is cancelled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from airflow_provider_zeus.training.process import slurm, supervisor
from airflow_provider_zeus.training.process.child import Child
from tests.fake_slurm import FakeSlurm
from tests.unit.training.commands import waited_for

SCRIPT = slurm.words([])  # no note, no job: submits
STARTER = """
import os, subprocess, sys
command = [sys.executable, "-I", "-S", sys.argv[1], str(os.getpid()), "3", *sys.argv[2:]]
subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True).wait()
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeSlurm]:
    slurm = FakeSlurm(tmp_path)
    yield slurm
    slurm.stop()


def words(cluster: FakeSlurm, *options: str, job: str = "sleep 600") -> list[str]:
    return [
        *SCRIPT,
        str(cluster.bin / "sbatch"),
        f"--chdir={cluster.shared}",
        *options,
        "--wrap",
        job,
    ]


def child(command: list[str]) -> tuple[Child, list[str]]:
    lines: list[str] = []
    return Child(command, os.environ, lines.append), lines


def fake(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return str(folder / name)


def finished(process: Child) -> int:
    while (status := process.follow(0.1)) is None:
        pass
    process.close()
    return status


@pytest.mark.parametrize(("job", "status"), [("exit 0", 0), ("exit 5", 5), ("kill -9 $$", 1)])
def test_its_status_is_the_jobs(cluster: FakeSlurm, job: str, status: int) -> None:
    process, lines = child(words(cluster, job=job))
    assert finished(process) == status
    assert lines[0] == "Submitted batch job 1"
    assert len(lines) == (1 if status == 0 else 2)
    assert status == 0 or f"job 1 ended with status {status}" in lines[1]


@pytest.mark.parametrize("options", [[], ["--parsable"], ["--parsable", "--wait"]])
def test_the_end_of_the_wait_cancels_the_job(cluster: FakeSlurm, options: list[str]) -> None:
    process, lines = child(words(cluster, *options))
    assert waited_for(lambda: cluster.jobs() and cluster.jobs()[0]["state"] == "RUNNING", 60)
    assert waited_for(lambda: process.follow(0.05) is None and lines, 60)
    assert process.stop() == 143
    process.close()
    assert cluster.wait_for("CANCELLED")["status"] == 1
    assert lines[-1] == "Slurm job 1 is cancelled."


def test_sigkill_of_the_task_cancels_the_job(cluster: FakeSlurm) -> None:
    """Of the process that Airflow started: nothing in it can run then."""
    task = subprocess.Popen([sys.executable, "-c", STARTER, supervisor.__file__, *words(cluster)])
    cluster.wait_for("RUNNING")
    task.send_signal(signal.SIGKILL)
    task.wait()
    cluster.wait_for("CANCELLED")


def test_a_job_whose_number_is_not_printed_yet_is_cancelled_too(tmp_path: Path) -> None:
    sbatch = fake(
        tmp_path,
        "sbatch",
        "touch submitting; sleep 0.2; echo 'Submitted batch job 42 on cluster gpu'; sleep 60",
    )
    fake(tmp_path, "scancel", f'echo "$@" > {tmp_path}/cancelled')
    process = subprocess.Popen([*SCRIPT, sbatch, "x"], cwd=tmp_path)
    assert waited_for((tmp_path / "submitting").exists, 60)
    process.terminate()
    assert process.wait(60) == 143
    assert (tmp_path / "cancelled").read_text() == "--clusters=gpu 42\n"


@pytest.mark.parametrize(
    ("sbatch", "scancel", "said"),
    [
        ("exec sleep 60", "exit 0", "printed no number"),
        ("echo Submitted batch job 7; exec sleep 60", "exit 1", "could not be cancelled"),
        ("echo Submitted batch job 7; exec sleep 60", "exec sleep 60", "could not be cancelled"),
        ("echo Submitted batch job 7; exec sleep 60", None, "could not be cancelled"),
    ],
    ids=["quiet", "refused", "hangs", "not there"],
)
@pytest.mark.slow
def test_what_cannot_be_cancelled_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sbatch: str, scancel: str | None, said: str
) -> None:
    path = fake(tmp_path, "sbatch", f"touch began; {sbatch}")
    if scancel:
        fake(tmp_path, "scancel", scancel)
    process = subprocess.Popen([*SCRIPT, path], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert waited_for((tmp_path / "began").exists, 60)
    process.terminate()
    assert said in process.communicate(timeout=60)[0]
    assert process.returncode == 143


def test_a_note_leaves_the_job_alone_when_the_task_is_killed(
    cluster: FakeSlurm, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    note.touch()
    command = words(cluster)
    command[: len(SCRIPT)] = slurm.words([], note=str(note))
    task = subprocess.Popen([sys.executable, "-c", STARTER, supervisor.__file__, *command])
    cluster.wait_for("RUNNING")
    task.send_signal(signal.SIGKILL)
    task.wait()
    assert waited_for(lambda: not processes_with(str(note)), 60), "all but the job has ended"
    assert cluster.jobs()[0]["state"] == "RUNNING"


def processes_with(argument: str) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if argument in (process.info["cmdline"] or ()):
            found.append(process.pid)
    return found


def follow(cluster: FakeSlurm, line: str = "Submitted batch job 1") -> list[str]:
    """The command that waits for a job that is there."""
    return slurm.words([str(cluster.bin / "sbatch"), "train.sbatch"], job=line)


@pytest.mark.parametrize(("job", "status"), [("exit 0", 0), ("exit 5", 5), ("kill -9 $$", 1)])
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_job_that_is_there_is_waited_for(
    cluster: FakeSlurm, job: str, status: int, forgotten: bool
) -> None:
    submitted, _ = child(words(cluster, job=job))
    assert finished(submitted) == status
    if forgotten:
        cluster.forget(1, accounts=True)
    process, lines = child(follow(cluster))
    assert finished(process) == status
    assert lines[0] == "Submitted batch job 1", "which is the value of the task"
    assert len(lines) == (1 if status == 0 else 2)
    assert len(cluster.jobs()) == 1


def test_the_end_of_the_wait_cancels_a_job_that_was_there(cluster: FakeSlurm) -> None:
    submitted = subprocess.run(
        [cluster.bin / "sbatch", f"--chdir={cluster.shared}", "--wrap", "sleep 600"],
        capture_output=True,
        check=True,
        text=True,
    )
    cluster.wait_for("RUNNING")
    process, lines = child(follow(cluster, submitted.stdout.strip()))
    assert waited_for(lambda: process.follow(0.05) is None and cluster.looks(), 60)
    assert process.stop() == 143
    process.close()
    assert cluster.wait_for("CANCELLED")["status"] == 1
    assert lines[-1] == "Slurm job 1 is cancelled."
    cluster.forget(1, accounts=True)
    process, lines = child(follow(cluster))
    assert finished(process) == 143, "CANCELLED by 1000, as sacct says"
    assert "Slurm says CANCELLED" in lines[-1]


@pytest.mark.parametrize(
    ("squeue", "sacct", "state"),
    [
        ("echo RUNNING", "exit 1", "RUNNING"),
        ("printf 'COMPLETED\\nRUNNING\\nFAILED\\n'", "exit 1", "RUNNING"),
        ("exit 0", "echo 'TIMEOUT|0:0'", "TIMEOUT"),
        ("echo Invalid job id specified >&2; exit 1", "echo 'FAILED|3:0'", "FAILED"),
        ("echo Invalid job id specified >&2; exit 1", "exit 1", slurm.UNKNOWN),
        ("echo Invalid job id specified >&2; exit 1", None, slurm.UNKNOWN),
        ("echo Unable to contact slurm controller >&2; exit 1", "echo 'FAILED|3:0'", None),
        (None, "echo 'COMPLETED|0:0'", "COMPLETED"),
        (None, None, slurm.UNKNOWN),
        ("printf '\\377\\n'", "exit 1", "\ufffd"),
        ("exit 0", "printf '\\377|9999:0'", "\ufffd"),
    ],
)
def test_how_slurm_says_that_a_job_stands(
    tmp_path: Path, squeue: str | None, sacct: str | None, state: str | None
) -> None:
    if squeue is not None:
        fake(tmp_path, "squeue", squeue)
    if sacct is not None:
        fake(tmp_path, "sacct", sacct)
    assert slurm.Job("7", "", str(tmp_path / "sbatch")).state() == state


@pytest.mark.parametrize(
    ("code", "status"),
    [("3:0", 3), ("0:9", 1), ("", 1), ("-1:0", 1), ("9999:0", 1), ("\u0663:0", 1), ("x" * 99, 1)],
)
def test_the_status_of_a_job_that_failed(tmp_path: Path, code: str, status: int) -> None:
    fake(tmp_path, "sacct", f"echo 'FAILED|{code}'")
    assert slurm.Job("7", "", str(tmp_path / "sbatch")).status("FAILED") == status


@pytest.mark.parametrize(
    "line",
    [
        "",
        "x",
        "-7",
        "7 8",
        "\u0667",
        "7;gpu one",
        "7;$(id)",
        "7;\u0661",
        "Submitted batch job",
        "Submitted batch job 7; rm -rf /",
        "sbatch: Submitted batch job 7",
    ],
)
def test_a_line_that_names_no_job(line: str) -> None:
    assert slurm.job_of(line, "sbatch") is None


@pytest.mark.parametrize(
    ("line", "number", "cluster"),
    [
        ("Submitted batch job 7", "7", ""),
        ("Submitted batch job 7 on cluster gpu-1.b_2\n", "7", "gpu-1.b_2"),
        ("7", "7", ""),
        ("7;gpu", "7", "gpu"),
        ("7;--gpu", "7", "--gpu"),
    ],
)
def test_a_line_that_names_a_job(line: str, number: str, cluster: str) -> None:
    assert slurm.job_of(line, "sbatch") == slurm.Job(number, cluster, "sbatch")


def test_a_name_of_a_cluster_is_no_option(tmp_path: Path) -> None:
    fake(tmp_path, "scancel", f'echo "$@" > {tmp_path}/cancelled')
    slurm.Job("7", "--all", str(tmp_path / "sbatch")).cancel()
    assert (tmp_path / "cancelled").read_text() == "--clusters=--all 7\n"


def test_without_sbatch_it_ends_as_a_shell_does(tmp_path: Path) -> None:
    process, lines = child([*SCRIPT, str(tmp_path / "sbatch"), "train.sbatch"])
    assert finished(process) == 127
    assert "No such file" in lines[0]
