"""The cluster's processes: start in order, watch, kill one, end all."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from demo.api import Api
from demo.cluster.memory import Peaks, trainings, tree
from demo.cluster.services import postgres, redis, wait_for_services
from demo.cluster.settings import GPUS, JOBS, WORKERS, Site, dag_id
from demo.processes import Process, tail
from demo.settings import DemoError

MIGRATE_TIMEOUT_S = 180.0
START_TIMEOUT_S = 180.0
MEASURE_EVERY_S = 2.0
AIRFLOW = [sys.executable, "-m", "airflow"]
PARTS = {
    "api-server": ["api-server"],
    "dag-processor": ["dag-processor"],
    "scheduler": ["scheduler", "--skip-serve-logs"],  # the log server would listen on all addresses
}
HEALTH = {"api-server": "metadatabase", "scheduler": "scheduler", "dag-processor": "dag_processor"}
KINDS = dict.fromkeys(WORKERS, "workers")  # the others are their own kind


class Cluster:
    """PostgreSQL, Redis, Airflow's servers and two workers,
    started by :meth:`start` and ended by :meth:`stop`.

    :param say: prints progress.
    """

    def __init__(self, site: Site, say: Callable[[str], object] = print) -> None:
        self.site, self.api, self.peaks = site, Api(site.url), Peaks()
        self._say = say
        self._running: dict[str, Process] = {}
        self._killed: set[str] = set()
        self._measure_at_s = 0.0
        # A separate folder: where root runs this, PostgreSQL's user must be able to reach it.
        self._data = Path(tempfile.mkdtemp(prefix="zeus-cluster-pg-"))

    def start(self) -> None:
        """Start all parts and wait until trainings can run.

        Raises DemoError: a part ended, or took too long.
        """
        services = (self._started(postgres(self.site, self._data)), self._started(redis(self.site)))
        wait_for_services(self.site, *services)
        self._say("  PostgreSQL and Redis answer; making the tables ...")
        self._run("db", "migrate")
        self._run("zeus", "db", "upgrade")
        for name, arguments in PARTS.items():
            self._started(
                Process(name, [*AIRFLOW, *arguments], self.site.env(), logs=self.site.logs)
            )
        for name in WORKERS:
            arguments = [
                "celery",
                "worker",
                "--celery-hostname",
                name,
                "--concurrency",
                str(GPUS),
                "--skip-serve-logs",
            ]
            self._started(
                Process(name, [*AIRFLOW, *arguments], self.site.env(name), logs=self.site.logs)
            )
        self._wait()

    def _started(self, process: Process) -> Process:
        self._running[process.name] = process
        return process

    def _run(self, *arguments: str) -> None:
        """Run an Airflow command. Raises DemoError when it fails."""
        name = "-".join(arguments)
        process = Process(name, [*AIRFLOW, *arguments], self.site.env(), logs=self.site.logs)
        try:
            code = process.wait(MIGRATE_TIMEOUT_S)
        finally:
            process.stop(grace_s=0.5)
        if code != 0:
            why = (
                f"did not end in {MIGRATE_TIMEOUT_S:.0f} s"
                if code is None
                else f"ended with status {code}"
            )
            raise DemoError(
                f"'airflow {' '.join(arguments)}' {why}; log: {process.log}\n{process.tail()}"
            )

    def _wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        waiting: list[str] = []
        while (now_waiting := self._not_ready()) != []:
            if now_waiting != waiting:
                waiting = now_waiting
                self._say(f"  waiting for {', '.join(waiting)} ...")
            self.check()
            if time.monotonic() > deadline:
                tails = "\n".join(
                    f"--- {name}\n{tail(self.site.logs / f'{name}.log', 8)}"
                    for name in self._running
                )
                raise DemoError(
                    f"not ready after {START_TIMEOUT_S:.0f} s: {', '.join(waiting)}\n{tails}"
                )
            time.sleep(0.5)

    def _not_ready(self) -> list[str]:
        health = self.api.healthy()
        missing = [name for name, part in HEALTH.items() if health.get(part) != "healthy"]
        missing += [
            name
            for name in WORKERS
            if f"{name} ready." not in self._running[name].log.read_text("utf-8")
        ]
        dags = [dag_id(job) for job in JOBS]
        return missing or [f"DAG {dag}" for dag in dags if self.api.get(f"dags/{dag}") is None]

    def check(self) -> None:
        """Measure the memory in use, every two seconds at most.

        Raises DemoError when a process has ended by itself.
        """
        if time.monotonic() >= self._measure_at_s:
            self._measure_at_s = time.monotonic() + MEASURE_EVERY_S
            alive = {
                name: process.pid
                for name, process in self._running.items()
                if name not in self._killed
            }
            self.peaks.note({pid: KINDS.get(name, name) for name, pid in alive.items()})
        for name, process in self._running.items():
            if name not in self._killed and (code := process.code()) is not None:
                raise DemoError(
                    f"{name} ended with status {code}; log: {process.log}\n{process.tail()}"
                )

    def trainings(self, worker: str) -> set[int]:
        """Return the pids of the tasks that a worker runs now."""
        return {process.pid for process in trainings(self._running[worker].pid)}

    @contextmanager
    def paused(self, worker: str) -> Iterator[None]:
        """Suspend a worker and its descendants; resume those that still live at the end."""
        stopped = tree(self._running[worker].pid)
        try:
            for process in stopped:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            yield
        finally:
            for process in stopped:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    def kill(self, worker: str) -> int:
        """Send SIGKILL to a worker and its descendants, as if its host died;
        return their number.
        """
        self._killed.add(worker)
        ended = tree(self._running[worker].pid)
        for process in ended:  # the worker first: it must not report its children's end
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(ended, timeout=10)
        return len(ended)

    def stop(self) -> None:
        """End all processes, workers first and the databases last."""
        order = [*WORKERS, *reversed(PARTS), "redis", "postgres"]
        processes = [self._running.pop(name) for name in order if name in self._running]
        below = [member for process in processes for member in tree(process.pid)]
        for process in processes:
            process.stop(grace_s=5.0)
        end(below)
        shutil.rmtree(self._data, ignore_errors=True)


def end(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL to those that still run; a pid that was reused is left alone."""
    left = [process for process in processes if process.is_running()]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=5)
