"""Where the run log lies (path, host, database) is for those who may edit Connections,
and for nobody else.
"""

# ruff: noqa: F811 - fixtures are imported and then named by the tests
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store import pending
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.plugin.conftest import anonymous, home, store, token_of  # noqa: F401
from tests.unit.plugin.kit import JOB, ran
from tests.unit.store.sql.sqlite_kit import execute
from tests.unit.store.store_kit import DictPort, report, request

NAMED = ["/zeus/api/dags/d/costs", "/zeus/api/dags/d/runs/run1/costs", "/zeus/api/jobs"]
OTHERS = [
    "/zeus/api/dags/d/charts",
    "/zeus/api/dags/d/export",
    "/zeus/api/dags/d/runs/run1/charts?job_id=d.train&task_id=train",
    "/zeus/api/dags/d/settings?job_id=d.train",
    "/zeus/api/jobs/d/saved?job_id=d.train",
]
EVERY = [*NAMED, *OTHERS]
MAY_NOT = ["viewer", "user"]  # of Airflow's simple auth manager: neither may edit Connections
MAY = ["op", "admin"]

Browse = Callable[[str, str], Any]


@pytest.fixture
def browse(anonymous: Any, token_of: Callable[..., str]) -> Browse:
    """The answer to a user of a role."""

    def get(role: str, path: str) -> Any:
        return anonymous.get(path, headers={"Authorization": f"Bearer {token_of(role, role)}"})

    return get


@pytest.mark.parametrize("role", MAY_NOT)
def test_others_get_a_name_that_says_nothing(
    browse: Browse, store: Store, home: Path, role: str
) -> None:
    ran(store, 1)
    for path in EVERY:
        answer = browse(role, path)
        assert answer.status_code == 200, path
        for told in (str(home), "zeus.db", "sqlite:"):
            assert told not in answer.text, path
    names = {browse(role, path).json()["store"] for path in NAMED}
    assert len(names) == 1, "one log has one name"
    assert names != {""}


@pytest.mark.parametrize("role", MAY)
def test_who_may_edit_connections_sees_it(
    browse: Browse, store: Store, home: Path, role: str
) -> None:
    ran(store, 1)
    assert {browse(role, path).json()["store"] for path in NAMED} == {f"sqlite:{home / 'zeus.db'}"}


def test_another_log_has_another_name(
    browse: Browse, store: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(store, 1)
    before = browse("viewer", NAMED[0]).json()["store"]
    (home / "another").mkdir()
    monkeypatch.setenv("AIRFLOW_HOME", str(home / "another"))
    ran(open_store(), 1)
    assert browse("viewer", NAMED[0]).json()["store"] not in ("", before)


def test_who_lacks_the_servers_secret_cannot_check_a_guessed_address_by_the_name(
    browse: Browse, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One address has another name under another ``[api] secret_key``."""
    ran(store, 1)
    names = set()
    for key in ("one", "another"):
        monkeypatch.setenv("AIRFLOW__API__SECRET_KEY", key)
        names.add(browse("viewer", NAMED[0]).json()["store"])
    assert len(names) == 2


@pytest.mark.parametrize("path", EVERY)
def test_an_error_names_it_to_nobody_else(
    browse: Browse, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_DEFAULT", "postgres://me:hunter2@127.0.0.1:1/a_hidden_name"
    )
    for role in (*MAY_NOT, *MAY):
        answer = browse(role, path)
        assert answer.status_code == 503
        assert answer.json()["problem"]
        assert "hunter2" not in answer.text
        assert ("127.0.0.1" in answer.text) == (role in MAY), role
        assert "a_hidden_name" not in answer.text, (
            "no database has answered: it may be a password in the wrong field"
        )


def test_nor_does_a_file_that_cannot_be_read(browse: Browse, store: Store, home: Path) -> None:
    ran(store, 1)
    execute(f"sqlite:///{home / 'zeus.db'}", "UPDATE zeus_alembic_version SET version_num = '0001'")
    for path in EVERY:
        for role in (*MAY_NOT, *MAY):
            answer = browse(role, path)
            assert answer.status_code == 503, path
            assert (str(home) in answer.text) == (role in MAY), path


def test_nor_does_a_change_that_fails(
    anonymous: Any, token_of: Callable[..., str], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_DEFAULT", "postgres://me:hunter2@127.0.0.1:1/a_hidden_name"
    )
    headers = {"Authorization": f"Bearer {token_of('eve', 'user')}"}
    body = {"job_id": "d.train", "resume": True}
    answer = anonymous.post("/zeus/api/dags/d/settings", json=body, headers=headers)
    assert answer.status_code == 503
    assert "127.0.0.1" not in answer.text
    assert "a_hidden_name" not in answer.text


def test_nor_does_a_cost_that_is_kept_in_a_file(browse: Browse, store: Store, home: Path) -> None:
    class Down(DictPort):
        def set(self, key: str, text: str) -> None:
            raise StoreError("no API")

    open_one = store.ask(request(1, job=JOB)).trial
    where = pending.remember(
        Down(), open_one.key, State.CONVERGED, report(), "d.train", state_dir=home / "zeus"
    )
    assert str(home) in where
    run = open_one.origin.run_id
    answer = browse("viewer", f"/zeus/api/dags/d/runs/{run}/costs")
    assert "zeus-untold" in answer.text
    assert str(home) not in answer.text
