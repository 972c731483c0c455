"""A planted password is looked for where people look: logs, XComs, pages, errors, the doctor, files, rendered fields.

It stands in the Connection, in Variables and in the environment of a real run; the database of the log answers, or not.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.sdk import DAG

from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.store.open import REMEDY
from tests.integration.jobs import job, zeus_dag
from tests.unit.cli.conftest import Zeus, home, zeus  # noqa: F401  fixtures
from tests.unit.plugin.api.test_app import data_routes
from tests.unit.plugin.conftest import token_of, viewer  # noqa: F401  fixtures

PLANTED = "hunter2-Planted"
DEAD = f"postgresql://zeus:{PLANTED}@127.0.0.1:1/zeus?sslpassword={PLANTED}"


@pytest.fixture(params=["reachable", "unreachable", "misread", "strict and unreachable"])
def site(
    request: pytest.FixtureRequest,
    home: Path,  # noqa: F811  a fixture
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """The Connection with the password in it, and Variables and an environment with it."""
    from airflow_provider_zeus.store.sql.store import SqlStore
    from airflow_provider_zeus.store.variables.airflow import AirflowVariables

    url = {"misread": f"postgresql://zeus:{PLANTED}@ss@127.0.0.1:1/zeus"}.get(request.param, DEAD)
    if request.param == "reachable":
        plain = sa.make_url(request.getfixturevalue("database")).set(password=PLANTED)
        url = plain.render_as_string(hide_password=False)
        SqlStore(url, create=True).close()
    extra = {"store": "sql", "sqlalchemy_url": url}
    connection = {"conn_type": "zeus", "host": "db", "password": PLANTED, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("DB_PASSWORD", PLANTED)
    port = AirflowVariables()
    names = [f"zeus-settings:planted_{request.param.split()[0]}.train", "zeus-db_password"]
    port.set(names[0], json.dumps({"db_password": PLANTED, "eta": f"{PLANTED}"}))
    port.set(names[1], PLANTED)
    yield request.param
    for name in names:
        port.delete(name)


@pytest.mark.slow
@pytest.mark.usefixtures("asks_briefly")
def test_a_planted_password_is_found_nowhere(
    site: str,
    run_dag: Any,
    airflow_home: Path,
    tmp_path: Path,
    zeus: Zeus,  # noqa: F811
    viewer: Any,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG, "airflow_provider_zeus")
    caplog.set_level(logging.INFO)
    said: dict[str, str] = {}
    name = site.split()[0]
    spec = job(strict=site.startswith("strict"))
    dag = zeus_dag(f"planted_{name}", spec)
    states = [run_dag(dag).state]
    with DAG(f"planted_command_{name}") as commands:
        line = json.dumps({"accuracy": 0.95})
        ZeusCommandOperator(task_id="train", job=job(device="none"), command=["echo", line])
    states.append(run_dag(commands).state)
    assert states == (["failed", "success"] if spec.strict else ["success", "success"])

    out = capsys.readouterr()
    said["streams"] = out.out + out.err
    said["xcoms and fields"] = "\n".join(_rows())
    for command in (
        ["doctor"],
        ["doctor", "--json"],
        ["jobs", "list"],
        ["repair"],
        ["runs", "list", "x"],
    ):
        done = zeus(*command)
        said[f"airflow zeus {' '.join(command)}"] = done.out + done.err
    for path in [*data_routes(), "/zeus/page"]:
        answer = viewer.get(path)
        said[path] = answer.text + str(answer.headers)
    said["hook"] = str(_hook())
    for folder in (airflow_home / "zeus", tmp_path):
        said |= {
            str(p): p.read_bytes().decode(errors="replace")
            for p in folder.rglob("*.json*")
            if p.is_file()
        }
    said["log"] = caplog.text

    assert len(said["log"]) > 100
    assert "zeus_decision" in said["xcoms and fields"]
    reached = "can be read" in said["hook"]
    assert reached == (site == "reachable"), said["hook"]
    assert site == "reachable" or "cannot be" in said["airflow zeus doctor"]
    assert {where: text for where, text in said.items() if PLANTED in text} == {}
    assert PLANTED not in REMEDY


def _rows() -> Iterator[str]:
    """Every XCom and rendered field of these runs, as the metadata database holds them."""
    from airflow.utils.session import create_session

    with create_session() as session:
        for table in ("xcom", "rendered_task_instance_fields", "serialized_dag", "log"):
            for row in session.execute(sa.text(f"SELECT * FROM {table}")):
                yield repr(tuple(row))


def _hook() -> Any:
    from airflow_provider_zeus.hooks.zeus import ZeusHook

    return ZeusHook().test_connection()
