"""One run log from everywhere: a task of a real scheduler, the api-server, the command line, a bare process.

The Connection lies in the environment or in Airflow's database; the executor is one that runs tasks elsewhere.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from tests.postgres import empty_database
from tests.system import servers
from tests.system.servers import Site, airflow, wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]

IN_ENVIRONMENT = "zeus_default"
IN_DATABASE = "zeus_in_database"
NOWHERE = "zeus_nowhere"
PASSWORD = "s3cr3t/p@ss"

READ = """
def read(conn_id, job_id):
    from airflow_provider_zeus.store.open import open_store

    store = open_store(conn_id, create=False)
    return [store.identity, [[t.key.ti_id, t.key.attempt, t.number] for t in store.trials(job_id)]]
"""
DAGS = f"""
from airflow.sdk import DAG, task
from airflow_provider_zeus import ZeusJob
from log_reader import read

for name in ("{IN_ENVIRONMENT}", "{IN_DATABASE}", "{NOWHERE}", "{NOWHERE}_strict"):
    conn_id, strict = name.removesuffix("_strict"), name.endswith("_strict")
    job = ZeusJob(
        batch_sizes=[16, 32], default_batch_size=32, target="accuracy >= 0.9", max_epochs=4,
        device="simulated:v100/shufflenet", strict=strict,
    )
    with DAG(name, schedule=None):

        @task.zeus(job, zeus_conn_id=conn_id)
        def train(run=None):
            for _ in run.epochs():
                for _ in range(20):
                    run.step()
                run.report(accuracy=0.95)
            return run.batch_size

        if "nowhere" in conn_id:
            train()
        else:
            train() >> task(task_id="read")(read)(conn_id, name + ".train")
"""
PLUGIN = """
from airflow.plugins_manager import AirflowPlugin
from fastapi import FastAPI
from log_reader import read

app = FastAPI(openapi_url=None)
app.get("/read")(lambda conn_id, job_id: read(conn_id, job_id))


class Reader(AirflowPlugin):
    name = "reader"
    fastapi_apps = [{"app": app, "url_prefix": "/reader", "name": "reader"}]
"""
EXECUTOR = """
from airflow.executors.local_executor import LocalExecutor


class FarExecutor(LocalExecutor):  # by its name nobody knows that its tasks run here
    pass
"""


class Log:
    """What every reader must say of one Connection."""

    def __init__(self, identity: str, trials: list[list[Any]]) -> None:
        self.identity = identity
        self.trials = trials


@pytest.fixture(scope="module")
def databases(postgres: str) -> Iterator[dict[str, str]]:
    with empty_database(postgres) as one, empty_database(postgres) as other:
        yield {IN_ENVIRONMENT: one, IN_DATABASE: other}


def fields(url: str) -> dict[str, Any]:
    """A Connection as people fill it in."""
    there = sa.make_url(url)
    host = str(there.query.get("host", there.host))
    return {
        "conn_type": "zeus",
        "host": host,
        "schema": there.database,
        "login": there.username,
        "password": PASSWORD,
    }


class Everywhere(Site):
    """The servers, and processes with their environment."""

    env: dict[str, str]

    def process(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(
            command,
            env=self.env | env,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def task_log(self, dag_id: str, run_id: str) -> str:
        folder = self.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}" / "task_id=train"
        return "".join(path.read_text() for path in folder.glob("*.log"))


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory, databases: dict[str, str]
) -> Iterator[Everywhere]:
    home = tmp_path_factory.mktemp("airflow")
    for folder, files in {
        "dags": {"opens.py": DAGS},
        "plugins": {"reader.py": PLUGIN},
        "lib": {"log_reader.py": READ, "far_executor.py": EXECUTOR},
    }.items():
        (home / folder).mkdir()
        for name, text in files.items():
            (home / folder / name).write_text(text)
    settings = {
        "AIRFLOW_CONN_ZEUS_DEFAULT": json.dumps(fields(databases[IN_ENVIRONMENT])),
        "AIRFLOW__CORE__EXECUTOR": "far_executor.FarExecutor",
        "PYTHONPATH": str(home / "lib"),
    }
    with airflow(home, **settings) as running:
        site = Everywhere(running.api.url, home)
        site.env = servers._environment(home, int(running.api.url.rpartition(":")[2])) | settings
        site.api.post(
            "connections", {"connection_id": IN_DATABASE, **fields(databases[IN_DATABASE])}
        )
        for conn_id in (IN_ENVIRONMENT, IN_DATABASE):
            done = site.process("-m", "airflow", "zeus", "db", "upgrade", "--conn-id", conn_id)
            assert "(new)" in done.stdout, done.stderr
        wait_until(lambda: site.api.get(f"dags/{NOWHERE}_strict") is not None, 60, "the DAGs")
        yield site


@pytest.fixture(scope="module", params=[IN_ENVIRONMENT, IN_DATABASE])
def run(request: pytest.FixtureRequest, site: Everywhere) -> tuple[str, Log]:
    """A Connection, and what a task of a finished run read over it."""
    conn_id = str(request.param)
    run_id = site.trigger(conn_id)
    assert site.wait_for_run(conn_id, run_id, 120) == "success", site.task_log(conn_id, run_id)
    read = site.api.get(
        f"dags/{conn_id}/dagRuns/{servers.part(run_id)}/taskInstances/read/xcomEntries/return_value"
    )
    ti_id = site.task(conn_id, run_id, "train")["id"]
    log = Log(*(read["value"] if not isinstance(read["value"], str) else json.loads(read["value"])))
    assert log.trials == [[ti_id, 1, 1]], "the trial of the task that trained"
    return conn_id, log


def test_a_task_finds_the_log_of_its_connection(
    run: tuple[str, Log], databases: dict[str, str]
) -> None:
    conn_id, log = run
    there = sa.make_url(databases[conn_id])
    assert log.identity.startswith(f"postgresql://{there.host or ''}")
    assert str(there.database) in log.identity
    assert "s3cr3t" not in log.identity


def test_the_api_server_finds_the_same(run: tuple[str, Log], site: Everywhere) -> None:
    conn_id, log = run
    path = f"/reader/read?conn_id={conn_id}&job_id={conn_id}.train"
    assert site.api._send("GET", path, None, None) == [log.identity, log.trials]


def test_the_cost_page_finds_the_same(site: Everywhere, run: tuple[str, Log]) -> None:
    conn_id, log = run
    token = site.api._token
    answer = json.dumps(site.api._send("GET", f"/zeus/api/dags/{conn_id}/costs", None, token))
    if conn_id == IN_ENVIRONMENT:
        assert log.identity in answer
    else:
        assert log.identity not in answer, "the page reads the default Connection"


def test_the_command_line_finds_the_same(site: Everywhere, run: tuple[str, Log]) -> None:
    conn_id, log = run
    done = site.process(
        "-m",
        "airflow",
        "zeus",
        "export",
        f"{conn_id}.train",
        "--format",
        "json",
        "--conn-id",
        conn_id,
    )
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, done.stdout[done.stdout.index('{"format"') :].splitlines())
    rows = [trial for line in lines if "run" in line for trial in line["run"]["trials"]]
    assert [[t["ti_id"], t["attempt"], t["number"]] for t in rows] == log.trials
    assert PASSWORD not in done.stdout + done.stderr


@pytest.mark.parametrize("context", ["", "server", "client"])
def test_a_bare_process_finds_the_same(
    site: Everywhere, run: tuple[str, Log], context: str
) -> None:
    """Outside server context Airflow's own look-up does not see its database."""
    conn_id, log = run
    code = f"import json\nfrom log_reader import read\nprint('READ', json.dumps(read('{conn_id}', '{conn_id}.train')))"
    done = site.process("-c", code, **({"_AIRFLOW_PROCESS_CONTEXT": context} if context else {}))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.partition("READ ")[2]) == [log.identity, log.trials]


def test_without_a_connection_a_far_task_trains_at_its_default_and_says_what_to_do(
    site: Everywhere,
) -> None:
    run_id = site.trigger(NOWHERE)
    assert site.wait_for_run(NOWHERE, run_id, 120) == "success"
    value = site.api.get(
        f"dags/{NOWHERE}/dagRuns/{servers.part(run_id)}/taskInstances/train/xcomEntries/return_value"
    )
    assert int(value["value"]) == 32
    said = site.task_log(NOWHERE, run_id)
    assert "default batch size 32" in said
    assert "'zeus_nowhere'" in said
    assert "'airflow zeus db upgrade --conn-id zeus_nowhere'" in said
    assert not (site.home / "zeus.db").exists()


def test_without_a_connection_a_strict_far_task_fails_and_says_what_to_do(site: Everywhere) -> None:
    run_id = site.trigger(f"{NOWHERE}_strict")
    assert site.wait_for_run(f"{NOWHERE}_strict", run_id, 120) == "failed"
    said = site.task_log(f"{NOWHERE}_strict", run_id)
    assert "'zeus_nowhere'" in said
    assert "'airflow zeus db upgrade --conn-id zeus_nowhere'" in said


def test_no_password_in_any_log(site: Everywhere, run: tuple[str, Log]) -> None:
    logs = [path for path in site.home.rglob("*.log") if path.is_file()]
    assert len(logs) >= 4
    assert not [str(path) for path in logs if PASSWORD in path.read_text(errors="replace")]
