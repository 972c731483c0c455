"""The demo's Airflow: api-server, scheduler and dag-processor on 127.0.0.1, no triggerer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import psutil

from demo.api import Api
from demo.guards import Stopped
from demo.processes import Process, members, tail
from demo.settings import LOGS, ROOT, DemoError

MIGRATE_TIMEOUT_S = 400.0
START_TIMEOUT_S = 400.0
PARTS = {
    "api-server": ["api-server"],
    "dag-processor": ["dag-processor"],
    "scheduler": ["scheduler", "--skip-serve-logs"],  # the log server would listen on all addresses
}


class Servers:
    """Airflow's processes, started by :meth:`start` and ended by :meth:`stop`."""

    def __init__(self, env: Mapping[str, str], dag_ids: Sequence[str]) -> None:
        self.url = env["AIRFLOW__API__BASE_URL"]
        self.api = Api(self.url)
        self.peak_mib = 0.0
        self._measure_at_s = 0.0
        self._env = env
        self._dag_ids = dag_ids
        self._running: list[Process] = []

    def start(self) -> None:
        """Start all servers and wait until the DAGs can run.

        Raises DemoError: one ended, or a timeout.
        """
        migrate(self._env)
        for name, arguments in PARTS.items():
            self._running.append(
                Process(name, [sys.executable, "-m", "airflow", *arguments], self._env)
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        waiting: list[str] = []
        while (now_waiting := self._not_ready()) != []:
            if now_waiting != waiting:
                waiting = now_waiting
                print(f"  waiting for {', '.join(waiting)} ...", flush=True)
            self.check()
            if time.monotonic() > deadline:
                raise DemoError(
                    f"Airflow was not ready after {START_TIMEOUT_S:.0f} s: see the logs in {LOGS}."
                )
            time.sleep(0.5)
        for dag_id in self._dag_ids:
            self.api.unpause(dag_id)

    def _not_ready(self) -> list[str]:
        health = self.api.healthy()
        parts = {
            "api-server": "metadatabase",
            "scheduler": "scheduler",
            "dag-processor": "dag_processor",
        }
        missing = [name for name, part in parts.items() if health.get(part) != "healthy"]
        return missing or [
            f"DAG {dag}" for dag in self._dag_ids if self.api.get(f"dags/{dag}") is None
        ]

    def check(self) -> None:
        """Measure the memory in use, every two seconds at most.

        Raises DemoError when a server has ended.
        """
        if time.monotonic() >= self._measure_at_s:
            self._measure_at_s = time.monotonic() + 2.0
            self.peak_mib = max(self.peak_mib, self._resident_mib())
        for process in self._running:
            if (code := process.code()) is not None:
                raise DemoError(
                    f"{process.name} ended with status {code}; log: {process.log}\n{process.tail()}"
                )

    def stay(self) -> None:
        """Keep running until a signal ends the demo."""
        print("Airflow stays up until Ctrl-C.", flush=True)
        try:
            while True:
                time.sleep(2.0)
                self.check()
        except Stopped:
            print(flush=True)

    def _resident_mib(self) -> float:
        """Resident memory of the servers and the executor's workers,
        without the tasks that they run [MiB].
        """
        total = 0
        for process in self._running:
            for member in members(process.pid):
                try:
                    if member.pid == process.pid or member.ppid() == process.pid:
                        total += member.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
        return total / 2**20

    def stop(self) -> None:
        """End all servers; the scheduler first and with time,
        so that a training can still report its end.
        """
        while self._running:
            self._running.pop().stop()


def migrate(env: Mapping[str, str]) -> None:
    """Create or upgrade Airflow's database, once per version. Raises DemoError."""
    home = Path(env["AIRFLOW_HOME"])
    done = home / f".migrated-{metadata.version('apache-airflow')}"
    if done.exists():
        return
    home.mkdir(parents=True, exist_ok=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / "migrate.log"
    print("  making Airflow's database ...", flush=True)
    with log.open("w", encoding="utf-8") as out:
        command = [sys.executable, "-m", "airflow", "db", "migrate"]
        try:
            code = subprocess.run(
                command,
                cwd=ROOT,
                env=env,
                stdout=out,
                stderr=out,
                timeout=MIGRATE_TIMEOUT_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise DemoError(
                f"'airflow db migrate' did not end in {MIGRATE_TIMEOUT_S:.0f} s; log: {log}"
            ) from None
    if code:
        raise DemoError(
            f"'airflow db migrate' ended with status {code}; log: {log}\n{tail(log, 12)}"
        )
    done.touch()


def free_port(wanted: int) -> int:
    """Return ``wanted``, or the next free port above it on 127.0.0.1. Raises DemoError after 50."""
    for port in range(wanted, min(wanted + 50, 65536)):
        with socket.socket() as probe:
            if os.name == "posix":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise DemoError(
        f"No port from {wanted} to {wanted + 49} is free on 127.0.0.1: name another with DEMO_PORT."
    )
