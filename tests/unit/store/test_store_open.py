"""``open_store()``: which Connection leads where, and what is said when none does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.cli.upkeep import upgrade_tables as upgrade
from airflow_provider_zeus.errors import StoreError, UndefinedConnectionError
from airflow_provider_zeus.store import open as opening
from airflow_provider_zeus.store.base import UPGRADE
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.sql.schema import HEAD
from tests.unit.store.store_kit import request

pytestmark = pytest.mark.usefixtures("airflow_home")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.delenv("AIRFLOW_CONN_ZEUS_DEFAULT", raising=False)
    return tmp_path


Define = Callable[..., None]


@pytest.fixture
def define(airflow_home: object) -> Iterator[Define]:
    """Define Connection zeus_default in Airflow's database."""
    from airflow.models import Connection
    from airflow.utils.session import create_session

    def add(**values: Any) -> None:
        with create_session() as session:
            session.add(Connection(conn_id="zeus_default", **values))

    yield add
    with create_session() as session:
        session.query(Connection).filter(Connection.conn_id == "zeus_default").delete()


def executor(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", name)


@pytest.mark.parametrize(
    "name",
    [
        "LocalExecutor",
        "SequentialExecutor",
        "airflow.executors.local_executor.LocalExecutor",
        "LocalExecutor,alias:airflow.executors.local_executor.LocalExecutor",
    ],
)
def test_without_a_connection_a_host_has_its_own_file(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    executor(monkeypatch, name)
    store = open_store()
    assert store.identity == f"sqlite:{home / 'zeus.db'}"
    store.ask(request(1))
    assert [t.number for t in open_store(create=False).trials("d.train")] == [1]


@pytest.mark.parametrize(
    "name",
    [
        "CeleryExecutor",
        "KubernetesExecutor",
        "LocalExecutor,CeleryExecutor",
        "LocalKubernetesExecutor",
        "MyExecutor",
    ],
)
def test_without_a_connection_a_cluster_gets_the_remedy(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    executor(monkeypatch, name)
    with pytest.raises(StoreError, match=r"'zeus_default'.*PostgreSQL"):
        open_store()
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("name", ["LocalExecutor", "CeleryExecutor"])
def test_another_connection_that_is_not_defined_is_no_file(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    executor(monkeypatch, name)
    remedy = f"no Connection 'zeus_prod'.*zeus_conn_id.*'{UPGRADE} --conn-id zeus_prod'"
    for test_run in (False, True):
        monkeypatch.setattr(opening, "is_test_run", lambda answer=test_run: answer)
        with pytest.raises(UndefinedConnectionError, match=remedy):
            open_store("zeus_prod")
    assert list(home.iterdir()) == []


def test_a_test_run_counts_as_on_this_host(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor(monkeypatch, "CeleryExecutor")
    monkeypatch.setattr(opening, "is_test_run", lambda: True)
    assert open_store().identity == f"sqlite:{home / 'zeus.db'}"


def test_the_ui_makes_no_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor(monkeypatch, "LocalExecutor")
    with pytest.raises(StoreError, match="no run log yet"):
        open_store(create=False)
    assert list(home.iterdir()) == []


def test_a_look_up_that_fails_is_not_an_absence(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.secrets.metastore import MetastoreBackend

    def fails(*args: object, **kwargs: object) -> None:
        raise ConnectionError("database gone, password=s3cr3t")

    executor(monkeypatch, "LocalExecutor")
    monkeypatch.setattr(MetastoreBackend, "get_connection", fails)
    for conn_id in ("zeus_default", "zeus_prod"):
        with pytest.raises(StoreError, match="cannot be looked up") as caught:
            open_store(conn_id)
        assert "s3cr3t" not in str(caught.value)
        assert not isinstance(caught.value, UndefinedConnectionError), "nobody knows that"
    assert list(home.iterdir()) == []


def test_a_connection_in_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_DEFAULT", '{"conn_type": "zeus", "extra": {"store": "variable"}}'
    )
    executor(monkeypatch, "CeleryExecutor")
    store = open_store(overlap_possible=False)
    assert store.identity == "Airflow Variables zeus-log:<job>"
    assert store.ask(request(1, job_id="in-the-environment")).trial.number == 1
    with pytest.raises(StoreError, match="max_active_tis_per_dag=1"):
        open_store(overlap_possible=True).ask(request(1, job_id="in-the-environment"))
    assert open_store().jobs() == ["in-the-environment"]
    from airflow_provider_zeus.store.variables.airflow import AirflowVariables

    port = AirflowVariables()
    for key in port.keys("zeus-"):
        port.delete(key)


def test_a_connection_in_airflows_database_is_found_by_a_command_line_too(
    home: Path, define: Define
) -> None:
    """Outside a task and outside server context Airflow's own look-up does not look there."""
    url = f"sqlite:///{home / 'costs.db'}"
    define(conn_type="zeus", extra=f'{{"sqlalchemy_url": "{url}"}}')
    with pytest.raises(StoreError, match=r"sqlite:.*costs\.db"):
        open_store(create=False)
    open_store().ask(request(1))
    store = open_store(create=False)
    assert store.identity == f"sqlite:{home / 'costs.db'}"
    assert [t.number for t in store.trials("d.train")] == [1]


def test_the_file_of_a_connection_is_not_made_where_tasks_run_on_other_hosts(
    home: Path, define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor(monkeypatch, "CeleryExecutor")
    define(conn_type="sqlite", host=str(home / "costs.db"))
    with pytest.raises(StoreError, match=f"elsewhere run '{UPGRADE}' once"):
        open_store()
    assert list(home.iterdir()) == []


def test_the_upgrade_makes_the_tables_and_says_so(
    home: Path, define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor(monkeypatch, "CeleryExecutor")
    define(conn_type="sqlite", host=str(home / "costs.db"))
    for said, state in ((upgrade(), "now has schema"), (upgrade("zeus_default"), "up to date")):
        assert f"sqlite:{home}/costs.db" in said
        assert state in said
        assert f"schema {HEAD}" in said
    assert open_store().ask(request(1)).trial.number == 1


def test_the_upgrade_says_what_it_cannot_do(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor(monkeypatch, "CeleryExecutor")
    with pytest.raises(StoreError, match="no Connection 'nowhere'"):
        upgrade("nowhere")
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_DEFAULT", '{"conn_type": "zeus", "extra": {"store": "variable"}}'
    )
    assert "nothing to upgrade" in upgrade()


def test_a_broken_connection_is_an_error(home: Path, define: Define) -> None:
    define(conn_type="zeus")
    with pytest.raises(StoreError, match=r"'zeus_default': host = ''"):
        open_store()


@pytest.mark.parametrize(
    "module",
    [
        "store",
        "store.base",
        "store.open",
        "store.rules",
        "store.variables.airflow",
        "store.pending",
    ],
)
def test_importing_loads_neither_airflow_nor_a_database(module: str) -> None:
    code = (
        f"import sys, airflow_provider_zeus.{module}\n"
        "heavy = {'sqlalchemy', 'alembic', 'airflow', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
