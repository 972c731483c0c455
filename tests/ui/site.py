"""An Airflow to look at: DAGs that ran in this process,
and an api-server on 127.0.0.1 with logins on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.integration.jobs import job, zeus_dag
from tests.ports import kept_port

ZEUS_DAG = "zeus_ui_retrain"
PLAIN_DAG = "zeus_ui_plain"
VIEWER = "vic"
ADMIN = "ada"
PASSWORD = "a password of these tests"
RUNS = 16  # enough that what they saved is clear
# as behind a proxy that serves more than Airflow: what holds here holds at the root too
PREFIX = "/team/airflow"
EPOCHS = {16: 60, 32: 8, 64: 6, 128: 7, 256: 60}  # 16 and 256 are given up
START_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Site:
    """Where it listens, the runs of ``ZEUS_DAG``, oldest first, and where their run log lies."""

    url: str
    runs: list[str]
    log: str = ""  # URL of a database; empty: ``zeus.db``


def history() -> list[str]:
    """Run ids of real runs of ``ZEUS_DAG``, trained on the simulated GPU;
    ``PLAIN_DAG`` ran once, without a job.
    """
    from airflow.sdk import DAG, task

    spec = job(
        batch_sizes=[16, 32, 64, 128, 256],
        max_epochs=30,
        power_limits_w=[150, 200, 250],
        profile_s=1.0,
    )
    with DAG(PLAIN_DAG, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as plain:
        task(lambda: None, task_id="nothing")()
    run_dag(plain)
    dag = zeus_dag(ZEUS_DAG, spec, EPOCHS.__getitem__)
    return [run_dag(dag).run_id for _ in range(RUNS)]


def run_dag(dag: Any, **test: Any) -> Any:
    """Runs a DAG in this process by ``dag.test()``."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    with create_session() as session:
        session.merge(DagBundleModel(name="tests"))
    bag = DagBag(dag_folder=os.devnull)
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "tests", None)
    return dag.test(**test)


@contextmanager
def api_server(home: Path, *, prefix: str = PREFIX, **more: str) -> Iterator[Server]:
    """A real api-server over the metadata database of this process,
    or of ``more`` of its environment.
    """
    from airflow.configuration import conf

    with kept_port() as port:
        url = f"http://127.0.0.1:{port}{prefix}"
        passwords = home / "ui_passwords.json"
        passwords.write_text(json.dumps({VIEWER: PASSWORD, ADMIN: PASSWORD}))
        env = os.environ | {
            "AIRFLOW__API__BASE_URL": url,
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__WORKERS": "1",
            # Variables are read here and written there
            "AIRFLOW__CORE__FERNET_KEY": conf.get("core", "fernet_key"),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{VIEWER}:viewer,{ADMIN}:admin",
            "AIRFLOW__ZEUS__HEARTBEAT_S": "2",  # how often a page looks after a running trial
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            **more,
        }
        log = home / "ui_api_server.log"
        with log.open("w") as out:
            server = subprocess.Popen(
                [sys.executable, "-m", "airflow", "api-server"],
                env=env,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            yield Server(url, server, log)
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


@dataclass(frozen=True)
class Server:
    """An api-server that starts."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def ready(self) -> str:
        """Its address, once it answers."""
        _wait(self.url, self.process, self.log)
        return self.url


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            opener.open(f"{url}/api/v2/version", timeout=5).close()
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(
                    f"no api-server after {START_TIMEOUT_S} s:\n{log.read_text()[-3000:]}"
                ) from None
            time.sleep(0.2)
        else:
            return


def main() -> None:
    """The same history in an Airflow that the environment describes; prints its runs as JSON."""
    from airflow.utils import db

    from tests.ui.runs import every_kind

    db.initdb()
    runs = history()
    every_kind()
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
