"""Browsers of Airflow's own api-server app with our plugin in it, and a run log for each test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.store.sql.store import Store
from tests.unit.plugin.auth_manager import SECRET


@pytest.fixture
def anonymous(airflow_app: Any) -> Any:
    """A browser of nobody."""
    from fastapi.testclient import TestClient

    return TestClient(airflow_app, raise_server_exceptions=False)


@pytest.fixture
def token_of(airflow_app: Any) -> Callable[..., str]:
    """A user's token, as a login gives it."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    def token(name: str = "vic", role: str = "viewer", seconds: int = 600) -> str:
        user = SimpleAuthManagerUser(username=name, role=role)
        return get_auth_manager().generate_jwt(user, expiration_time_in_seconds=seconds)

    return token


@pytest.fixture
def viewer(airflow_app: Any, token_of: Callable[..., str]) -> Any:
    """The browser of a user who may only look, logged in."""
    from fastapi.testclient import TestClient

    return TestClient(airflow_app, cookies={"_token": token_of()}, raise_server_exceptions=False)


@pytest.fixture
def admin(airflow_app: Any, token_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The browser of a user who may edit every DAG but ``secret``."""
    from airflow.api_fastapi.app import get_auth_manager
    from fastapi.testclient import TestClient

    def known(*, user: Any, method: str = "GET") -> set[str]:
        return {"d", "e"} if method == "GET" or user.role.lower() == "admin" else set()

    monkeypatch.setattr(get_auth_manager(), "get_authorized_dag_ids", known)
    cookies = {"_token": token_of("admin", "admin")}
    return TestClient(airflow_app, cookies=cookies, raise_server_exceptions=False)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where ``zeus.db`` would lie: a new folder for each test."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def store(airflow_home: Path, home: Path, empty_log: Path) -> Iterator[Store]:
    """``zeus.db``, made."""
    from airflow_provider_zeus.store.open import open_store

    shutil.copy(empty_log, home / "zeus.db")
    made = open_store()
    yield made
    made.close()


@pytest.fixture
def known_dags(airflow_app: Any, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The DAGs that Airflow knows, as the auth manager lists those that a user may read."""
    from airflow.api_fastapi.app import get_auth_manager

    dags = {"d", "e"}
    monkeypatch.setattr(get_auth_manager(), "get_authorized_dag_ids", lambda **_: dags - {SECRET})
    return dags
