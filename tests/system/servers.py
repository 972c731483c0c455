"""A whole Airflow on 127.0.0.1: api-server, scheduler with LocalExecutor and dag-processor,
in a home of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from demo.api import Api, part
from demo.settings import DemoError
from tests.ports import kept_port

PARTS = {
    "api-server": ["api-server"],
    "dag-processor": ["dag-processor"],
    "scheduler": ["scheduler", "--skip-serve-logs"],  # the log server would listen on all addresses
}
TRIGGERER = "triggerer"  # where tasks defer
AIRFLOW = [sys.executable, "-m", "airflow"]
START_TIMEOUT_S = 300.0


class Site:
    """An Airflow that runs, and what its REST API can do to a task."""

    def __init__(self, url: str, home: Path, env: dict[str, str] | None = None) -> None:
        self.api = Api(url)
        self.home = home
        self._env, self._running = env or {}, dict[str, subprocess.Popen[bytes]]()

    def start(self, name: str) -> None:
        """Start one of its servers."""
        with (self.home / f"{name}.log").open("ab") as out:
            self._running[name] = subprocess.Popen(
                [*AIRFLOW, *PARTS.get(name, [name, "--skip-serve-logs"])],
                env=self._env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """SIGKILL to one of its servers and all that it started."""
        server = self._running.pop(name)
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()

    def stop(self, name: str) -> None:
        """End one of its servers: SIGTERM, then to what is left of its session, then SIGKILL."""
        server = self._running.pop(name)
        if server.poll() is None:
            server.terminate()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(subprocess.TimeoutExpired):
                server.wait(8)
            try:
                os.killpg(server.pid, number)
            except ProcessLookupError:
                return

    def stop_all(self) -> None:
        """End them, the newest first."""
        for name in reversed(list(self._running)):
            self.stop(name)

    def ready(self) -> bool:
        """Whether all of it answers. Fails where a server has ended."""
        for name, server in self._running.items():
            if server.poll() is not None:
                log = (self.home / f"{name}.log").read_text(errors="replace")
                raise AssertionError(
                    f"{name} ended with status {server.returncode}:\n{log[-3000:]}"
                )
        health = self.api.healthy()
        return all(
            health.get(p) == "healthy" for p in ("metadatabase", "scheduler", "dag_processor")
        )

    def trigger(self, dag_id: str) -> str:
        """Start a run; its id.

        Asked again where SQLite, which takes one writer at a time, made the server give up.
        """
        for again in (True, True, False):
            try:
                return str(
                    self.api.post(f"dags/{dag_id}/dagRuns", {"logical_date": None})["dag_run_id"]
                )
            except DemoError as error:
                if not again or "Database error" not in str(error):
                    raise
                time.sleep(1)
        raise AssertionError

    def run_state(self, dag_id: str, run_id: str) -> str:
        """State of a run."""
        return str(self.api.get(f"dags/{dag_id}/dagRuns/{part(run_id)}")["state"])

    def task(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """A task instance as the API shows it."""
        return self.api.get(f"dags/{dag_id}/dagRuns/{part(run_id)}/taskInstances/{task_id}")

    def mark_failed(self, dag_id: str, run_id: str, task_id: str) -> None:
        """What the UI's "mark as failed" does."""
        path = f"dags/{dag_id}/dagRuns/{part(run_id)}/taskInstances/{task_id}"
        self.api._call("PATCH", path, {"new_state": "failed"})

    def clear(self, dag_id: str, run_id: str, task_ids: list[str], **options: bool) -> list[str]:
        """What the UI's "clear" does; the tasks that were cleared, or with ``dry_run`` would be."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": task_ids,
            "only_failed": False,
            **options,
        }
        cleared = self.api.post(f"dags/{dag_id}/clearTaskInstances", body)["task_instances"]
        return sorted(ti["task_id"] for ti in cleared)

    def wait_for_run(self, dag_id: str, run_id: str, timeout_s: float = 240.0) -> str:
        """State of a run that has ended.

        Asked for twice a second: each question keeps the api-server busy.
        """
        over = lambda: self.run_state(dag_id, run_id) in ("success", "failed")  # noqa: E731
        wait_until(over, timeout_s, f"the end of {dag_id}", every_s=0.5)
        return self.run_state(dag_id, run_id)


def wait_until(
    is_so: Callable[[], Any], timeout_s: float, what: str, every_s: float = 0.1
) -> float:
    """Wait; seconds that it took. Fails when it never comes."""
    start_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - start_s < timeout_s, f"waited {timeout_s:g} s in vain for {what}"
        time.sleep(every_s)
    return time.monotonic() - start_s


@contextmanager
def airflow(home: Path, **settings: str) -> Iterator[Site]:
    """Servers over the DAG files in ``home/dags``;
    ``settings`` are environment variables of all of them.
    """
    with kept_port() as port:
        env = _environment(home, port) | settings
        subprocess.run(
            [*AIRFLOW, "db", "migrate"],
            env=env,
            cwd=home,
            check=True,
            capture_output=True,
            timeout=300,
        )
        site = Site(f"http://127.0.0.1:{port}", home, env)
        try:
            for name in PARTS:
                site.start(name)
            wait_until(site.ready, START_TIMEOUT_S, "Airflow", every_s=0.5)
            yield site
        finally:
            site.stop_all()


def _environment(home: Path, port: int) -> dict[str, str]:
    url = f"http://127.0.0.1:{port}"
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "_AIRFLOW", "ZEUS"))
    }
    return inherited | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
        "CUDA_VISIBLE_DEVICES": "",  # no test reads, let alone sets, a real GPU
        "ZEUS_POWERCAP": str(home / "powercap"),
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "PYTHONWARNINGS": "ignore",
    }
