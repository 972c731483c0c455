"""Options and ports of the cluster, and the environment of its processes."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from demo.settings import DAGS as WEATHER
from demo.settings import ROOT, DemoError

DAGS = Path(__file__).with_name("dags")
JOBS = ("balanced", "energy", "paper", "time")  # one DAG each: dags/cluster_weather.py
WORKERS = ("worker-1", "worker-2")
GPUS = 2  # simulated, of each worker, which runs as many trainings at once
SLICES = 3  # mapped tasks of each run
HEARTBEAT_S = 1.0
LEASE_S = 10.0
MOST_RUNS = 12


def dag_id(job: str) -> str:
    """Return the id of a job's DAG."""
    return f"cluster_{job}"


def job_id(job: str) -> str:
    """Return the id of a job in the run log."""
    return f"{dag_id(job)}.train"


@dataclass(frozen=True, slots=True)
class Options:
    """``CLUSTER_RUNS`` runs of each of the four jobs, over 3 slices each;
    ``CLUSTER_KEEP=1`` keeps logs and models.
    """

    runs: int = 3
    keep: bool = False

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Self:
        """Read the environment. Raises DemoError naming variable, value and remedy."""
        text = env.get("CLUSTER_RUNS", "") or "3"
        if not text.isdecimal() or not 1 <= int(text) <= MOST_RUNS:
            raise DemoError(f"CLUSTER_RUNS={text}: give a whole number from 1 to {MOST_RUNS}.")
        return cls(int(text), env.get("CLUSTER_KEEP", "") not in ("", "0"))


@dataclass(frozen=True, slots=True)
class Site:
    """Folder, ports and secrets of one cluster."""

    folder: Path
    database_port: int
    redis_port: int
    api_port: int
    password: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    jwt_secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    @classmethod
    def fresh(cls, folder: Path) -> Self:
        """Return a site in ``folder`` on free ports."""
        database, redis, api = free_ports(3)
        return cls(folder, database, redis, api)

    @property
    def url(self) -> str:
        """URL of the api-server."""
        return f"http://127.0.0.1:{self.api_port}"

    @property
    def logs(self) -> Path:
        """Folder of the processes' output."""
        return self.folder / "logs"

    @property
    def models(self) -> Path:
        """Folder of the saved models."""
        return self.folder / "models"

    def database(self, name: str, scheme: str = "postgresql+psycopg2") -> str:
        """Return the URL of a database, with its password."""
        return f"{scheme}://postgres:{self.password}@127.0.0.1:{self.database_port}/{name}"

    def state_dir(self, worker: str) -> Path:
        """``[zeus] state_dir`` of a worker: each one represents a host."""
        return self.folder / worker

    def env(self, worker: str | None = None) -> dict[str, str]:
        """Environment of every Airflow process of the cluster; a worker's has its GPUs too."""
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "_AIRFLOW", "ZEUS"))
        }
        own = {} if worker is None else {"CLUSTER_STATE_DIR": str(self.state_dir(worker))}
        return inherited | self._airflow() | _SCHEDULING | own

    def _airflow(self) -> dict[str, str]:
        return {
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "AIRFLOW_CONN_ZEUS_DEFAULT": self.database("zeus", "zeus"),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.api_port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": self.jwt_secret,
            "AIRFLOW__CELERY__BROKER_URL": f"redis://:{self.password}@127.0.0.1:{self.redis_port}/0",
            "AIRFLOW__CELERY__RESULT_BACKEND": "db+" + self.database("airflow"),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            # no login: only this machine can reach it
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.database("airflow"),
            "CLUSTER_MODELS": str(self.models),
            "CUDA_VISIBLE_DEVICES": "",  # the GPUs are simulated: no real one is touched
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(WEATHER), str(ROOT)]),
            "PYTHONWARNINGS": "ignore",
        }


_SCHEDULING = {
    "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__PARALLELISM": str(GPUS * len(WORKERS)),  # no task waits in the broker for long
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",  # the files do not change
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
    # A dead worker is noticed in seconds, not in the five minutes of a real site.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "60",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "5",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
    "AIRFLOW__ZEUS__HEARTBEAT_S": f"{HEARTBEAT_S:g}",
    "AIRFLOW__ZEUS__LEASE_S": f"{LEASE_S:g}",
    "AIRFLOW__ZEUS__MEASURE": "tag:plain",
}


def free_ports(count: int) -> list[int]:
    """Return different free ports on 127.0.0.1."""
    with ExitStack() as probes:
        found = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in found:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in found]
