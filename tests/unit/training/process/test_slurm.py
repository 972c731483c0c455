"""The process that stands between the supervisor and ``sbatch``: whatever ends the wait, the job is cancelled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_zeus.training.process import slurm, supervisor
from airflow_provider_zeus.training.process.child import Child
from tests.fake_slurm import FakeSlurm
from tests.unit.training.commands import waited_for

SCRIPT = [sys.executable, "-I", "-S", slurm.__file__]
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
    return [*SCRIPT, str(cluster.bin / "sbatch"), f"--chdir={cluster.shared}", *options, "--wrap", job]


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
        tmp_path, "sbatch", "touch submitting; sleep 0.7; echo 'Submitted batch job 42 on cluster gpu'; sleep 60"
    )
    fake(tmp_path, "scancel", f'echo "$@" > {tmp_path}/cancelled')
    process = subprocess.Popen([*SCRIPT, sbatch, "x"], cwd=tmp_path)
    assert waited_for((tmp_path / "submitting").exists, 60)
    process.terminate()
    assert process.wait(60) == 143
    assert (tmp_path / "cancelled").read_text() == "--clusters gpu 42\n"


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


def test_without_sbatch_it_ends_as_a_shell_does(tmp_path: Path) -> None:
    process, lines = child([*SCRIPT, str(tmp_path / "sbatch"), "train.sbatch"])
    assert finished(process) == 127
    assert "No such file" in lines[0]
