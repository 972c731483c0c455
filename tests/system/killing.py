"""The host that trainings are forked from, and the memory limit in which the kernel kills them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import psutil

from tests import fake_nvml

ROOT = Path(__file__).parents[2]
PATIENT_S = 60.0
measured = False  # set by conftest.py


def within_s(promise_s: float) -> float:
    """How long to wait for what is promised within some seconds: longer,
    where they are not measured.
    """
    return promise_s if measured else promise_s + PATIENT_S


class Host:
    """The process from which trainings are forked."""

    def __init__(self, home: Path) -> None:
        environment = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("AIRFLOW", "_AIRFLOW", "ZEUS", "CUDA"))
        }
        environment |= {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).parent),
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
            "AIRFLOW__ZEUS__HEARTBEAT_S": "1",
            "AIRFLOW__ZEUS__LEASE_S": "5",
            "LD_LIBRARY_PATH": (
                f"{fake_nvml.compiled().parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"
            ),
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
            "ZEUS_POWERCAP": str(home / "powercap"),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.kill_host"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._one_asks = Lock()

    def fork(self, **request: Any) -> int:
        """Pid of a new training; any thread may ask."""
        assert self.process.stdin
        assert self.process.stdout
        with self._one_asks:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            return int(self.process.stdout.readline())

    def end(self) -> None:
        """End it; the trainings stay."""
        self.process.kill()
        self.process.communicate()


class MemoryLimit:
    """A memory cgroup of the test's own, in which the kernel kills what asks for more."""

    V1 = Path("/sys/fs/cgroup/memory")
    V2 = Path("/sys/fs/cgroup")
    BYTES = 64 * 2**20

    def __init__(self) -> None:
        version_1 = (self.V1 / "memory.limit_in_bytes").exists()
        self.path = (self.V1 if version_1 else self.V2) / f"zeus-test-{uuid.uuid4().hex}"
        self.path.mkdir()
        try:
            (self.path / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(
                str(self.BYTES)
            )
        except OSError:
            self.path.rmdir()
            raise

    def hold(self, pid: int) -> None:
        """Put a process under it."""
        (self.path / "cgroup.procs").write_text(str(pid))

    @property
    def kills(self) -> int:
        """How many processes the kernel has killed in it."""
        files = (self.path / "memory.oom_control", self.path / "memory.events")
        lines = [
            line.split()
            for file in files
            if file.exists()
            for line in file.read_text().splitlines()
        ]
        return next(int(value) for name, value in lines if name == "oom_kill")

    def remove(self) -> None:
        """Remove it, once nothing is in it."""
        for _ in range(100):
            with suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
