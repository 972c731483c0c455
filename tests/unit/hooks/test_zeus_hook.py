"""Connection type ``zeus`` as Airflow's UI shows and tests it: through Airflow's own API."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_zeus import airflow_compat
from airflow_provider_zeus.hooks.zeus import ZeusHook, about_dags, month_saved
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import ProfileSample, State
from airflow_provider_zeus.store.sql.schema import HEAD
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.unit.plugin.conftest import token_of  # noqa: F401
from tests.unit.store.store_kit import JOB, request, run, seen

Press = Callable[..., tuple[bool, str]]


@pytest.fixture
def client(airflow_app: Any, token_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    """A logged-in browser's view of the api-server's core API."""
    from fastapi.testclient import TestClient

    monkeypatch.setenv("AIRFLOW__CORE__TEST_CONNECTION", "Enabled")
    monkeypatch.delenv("AIRFLOW_CONN_ZEUS_DEFAULT", raising=False)
    return TestClient(
        airflow_app, headers={"Authorization": f"Bearer {token_of('admin', 'admin')}"}
    )


@pytest.fixture
def press(client: Any) -> Press:
    """The button "Test" of the form."""

    def pressed(**fields: Any) -> tuple[bool, str]:
        body = {"connection_id": "zeus_default", "conn_type": "zeus", **fields}
        answer = client.post("/api/v2/connections/test", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["status"], answer.json()["message"]

    return pressed


def test_the_form_shows_the_fields_of_a_trial_log(client: Any) -> None:
    answer = client.get("/ui/connections/hook_meta")
    assert answer.status_code == 200, answer.text
    (form,) = [c for c in answer.json() if c["connection_type"] == "zeus"]
    assert form["hook_name"] == ZeusHook.hook_name
    standard = form["standard_fields"]
    assert not [name for name, field in standard.items() if field and field["hidden"]]
    assert (standard["url_schema"]["title"], standard["login"]["title"]) == ("Database", "User")
    assert "postgresql://" in standard["host"]["placeholder"]
    assert standard["port"]["placeholder"] == "5432"
    assert form["extra_fields"]["store"]["schema"]["enum"] == ["sql", "variable"]
    assert form["extra_fields"]["store"]["value"] == "sql"
    assert "verify-full" in form["extra_fields"]["sslmode"]["schema"]["enum"]


def test_a_log_that_can_be_read(press: Press, database: str) -> None:
    store = SqlStore(database, create=True)
    store.ask(request(1))
    url = sa.make_url(database)
    fields = {"login": url.username, "password": "s3cr3t/@", "schema": url.database}
    said = f"The run log at {store.identity} can be read: 1 job."
    host = str(url.query["host"])
    assert press(host=host, extra='{"store": "sql", "sslmode": null}', **fields) == (True, said)
    assert press(host=host, extra='{"sslmode": "prefer", "connect_timeout": 5}', **fields) == (
        True,
        said,
    )
    assert press(host=f"postgresql:///?host={host}", **fields) == (True, said), (
        "a URL that leaves fields out"
    )
    assert press(host=database) == (True, said), "a whole URL"


def test_a_database_without_our_tables_stays_without_them(press: Press, database: str) -> None:
    status, message = press(host=database)
    assert not status
    assert "'airflow zeus db upgrade'" in message
    assert sa.inspect(sa.create_engine(database)).get_table_names() == []


def test_another_schema_stays_as_it_is(press: Press, database: str) -> None:
    SqlStore(database, create=True).close()
    with sa.create_engine(database).begin() as connection:
        connection.exec_driver_sql("UPDATE zeus_alembic_version SET version_num = '0000'")
    status, message = press(host=database)
    assert not status
    assert "schema 0000" in message
    assert "export it with that version" in message
    with sa.create_engine(database).begin() as connection:
        version = connection.exec_driver_sql(
            "SELECT version_num FROM zeus_alembic_version"
        ).scalar()
    assert version == "0000" != HEAD


def test_a_file_is_not_made(press: Press, tmp_path: Path) -> None:
    status, message = press(extra=json.dumps({"sqlalchemy_url": f"sqlite:///{tmp_path}/zeus.db"}))
    assert not status
    assert f"{tmp_path}/zeus.db" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"host": "mysql://u:s3cr3t@db/c"}, "host: the run log is not kept in mysql"),
        ({"host": "mongodb://u:s3cr3t@db/c"}, "host: the run log is not kept in mongodb"),
        (
            {"host": "127.0.0.1", "port": 1, "login": "u", "password": "s3cr3t", "schema": "c"},
            "Connection refused",
        ),
        ({"password": "s3cr3t"}, "it names no database"),
        ({"extra": '{"store": "redis"}'}, "extra store = '...': there is no such store"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(
    press: Press, fields: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    status, message = press(**fields)
    assert not status
    assert said in message
    assert "s3cr3t" not in message + caplog.text


def test_airflows_variables(press: Press) -> None:
    status, message = press(extra='{"store": "variable"}')
    assert status
    assert "zeus-log:<job>" in message
    assert "0 jobs" in message


def test_the_form_imports_no_hook() -> None:
    """Nor the libraries of forms that older ways need."""
    code = (
        "import sys\nfrom airflow.providers_manager import ProvidersManager as Manager\nmanager ="
        " Manager()\nmanager.initialize_providers_hooks()\nassert 'extra__zeus__store' in"
        " manager._connection_form_widgets\nours = {m for m in sys.modules if"
        " m.startswith('airflow_provider_zeus.')}\nassert not ours &"
        " {'airflow_provider_zeus.hooks.zeus', 'airflow_provider_zeus.store'}, ours\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_a_month_is_compared_with_the_default_of_the_newest_run(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/zeus.db", create=True)
    run(store, 1)
    store.ask(request(2, job=replace(JOB, default_batch_size=64)))
    newest = store.trials("d.train")[-1]
    saved = month_saved(store, "d", "d.train", 0.0, newest.opened_at + 1.0)
    assert isinstance(saved, str)
    assert "default batch size 64" in saved


def test_a_month_of_a_job_without_batch_sizes_is_judged_by_the_profile_of_its_device(
    tmp_path: Path,
) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/zeus.db", create=True)
    key = store.ask(request(1, job=ZeusJob(), device=None)).trial.key
    profile = [
        ProfileSample(batch_size=7, limit_w=w, samples=100, energy_j=j, time_s=s, steps=100)
        for w, j, s in ((250.0, 1000.0, 10.0), (150.0, 700.0, 11.0))
    ]
    told = seen(epochs=None, step_kind=7, samples=1000, power_limit_w=150.0)
    store.tell(key, State.DONE, Report(observation=told, profile=profile))
    opened_at = store.trials("d.train")[0].opened_at
    saved = month_saved(store, "d", "d.train", 0.0, opened_at + 1.0)
    assert not isinstance(saved, str), saved
    assert saved.runs == 1
    assert saved.energy is not None
    assert saved.energy.mean() == pytest.approx(3000.0, rel=0.1), "10 J and 7 J a step"


def test_where_airflows_database_cannot_be_read_no_dag_has_an_owner(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused() -> None:
        raise RuntimeError("a task may not read it")

    monkeypatch.setattr(airflow_compat, "create_session", refused)
    assert about_dags(["d"]) == {}
    assert "cannot be read" in caplog.text


def test_a_job_of_which_no_run_can_be_read_has_a_reason_in_place_of_a_saving(
    tmp_path: Path,
) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/zeus.db", create=True)
    assert month_saved(store, "d", "d.train", 0.0, 1.0) == "no run of it can be read here"
