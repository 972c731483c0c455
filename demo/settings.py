"""Paths, names and options of the demo."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parent.parent
DAGS = ROOT / "dags"
STATE = ROOT / ".demo"
HOME = STATE / "airflow"
LOGS = STATE / "logs"
BASELINE = STATE / "baseline"

PRODUCER = "zeus_weather_slices"
EMIT = "emit_next"
CONSUMER = "zeus_weather_retrain"
TRAIN = "train"
JOB_ID = f"{CONSUMER}.{TRAIN}"
PLAIN = "zeus_plain"  # a DAG that does not know Zeus: rung 0
LADDER = "zeus_ladder"  # the DAG of the first two rungs
TAB = "plugin/zeus-cost"  # of a DAG in Airflow's UI: cost of its runs
WEEKS = 40  # slices in the year


class DemoError(Exception):
    """The demo cannot go on; the message says why and where to look."""


@dataclass(frozen=True, slots=True)
class Options:
    """``DEMO_SLICES`` weeks to train on, ``DEMO_PORT`` to try first,
    ``DEMO_EXIT=1`` to end after the table.
    """

    slices: int = 20
    port: int = 8080
    stay: bool = True

    @classmethod
    def read(cls, env: Mapping[str, str], *, terminal: bool) -> Self:
        """Read the environment. Raises DemoError naming variable, value and remedy."""
        slices = _number(env, "DEMO_SLICES", 20, 1, WEEKS)
        port = _number(env, "DEMO_PORT", 8080, 1024, 65535)
        return cls(slices, port, terminal and env.get("DEMO_EXIT", "") in ("", "0"))


def _number(env: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = env.get(name, "") or str(default)
    if not text.isdecimal() or not least <= int(text) <= most:
        raise DemoError(f"{name}={text}: give a whole number from {least} to {most}.")
    return int(text)


def airflow_env(port: int) -> dict[str, str]:
    """Environment of every Airflow process of the demo: its own home and port,
    no inherited Airflow settings.
    """
    url = f"http://127.0.0.1:{port}"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "_AIRFLOW"))}
    return inherited | {
        "AIRFLOW_HOME": str(HOME),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # one training, and the emission of the next slice beside it
        "AIRFLOW__CORE__PARALLELISM": "2",
        # no login: only this machine can reach it
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        # the files do not change under the demo
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
        # tasks of a killed demo are adopted soon
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15",
        # a run's tasks follow each other sooner
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
        # and its dead tasks are noticed
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
        "AIRFLOW__ZEUS__ATTEMPT_ROOT": str(HOME / "models"),
        # rung 0: nothing else is needed for it
        "AIRFLOW__ZEUS__MEASURE": f"tag:zeus, !{PRODUCER}, !{CONSUMER}",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
