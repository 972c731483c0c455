"""A body is read only when it is known who sends it, and never in full where it is long."""

# ruff: noqa: F811 - fixtures are imported and then named by the tests
from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from tests.security.plugin_kit import connected, head, served, status_of
from tests.unit.plugin.auth_manager import SECRET
from tests.unit.plugin.conftest import admin, anonymous, home, store, token_of, viewer  # noqa: F401
from tests.unit.plugin.kit import ran

SETTINGS = "/zeus/api/dags/d/settings"
PAUSE = {"job_id": "d.train", "pause_exploration": True}
MB = 1024 * 1024
DEEP = "[" * 8000


@pytest.fixture(autouse=True)
def job(store: Store) -> Iterator[Store]:
    """A job with a run."""
    ran(store, 1)
    yield store
    AirflowVariables().delete("zeus-settings:d.train")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "GET"])
def test_an_answer_comes_before_the_body_of_a_stranger(airflow_app: Any, method: str) -> None:
    """It names 100 MB and sends none of them: who waits for them never answers."""
    with served(airflow_app) as port:
        for path in (SETTINGS, "/zeus/api/dags/d/costs", "/zeus/api/jobs", "/zeus/page"):
            with connected(port) as sock:
                sock.settimeout(30)
                named = {"Content_Type": "application/json", "Content_Length": str(100 * MB)}
                sock.sendall(head(method, path, **named))
                assert status_of(sock) in (401, 405), path


@pytest.mark.parametrize(
    ("role", "dag_id", "status"), [("viewer", "d", 403), ("admin", SECRET, 403)]
)
def test_nor_is_the_body_of_one_who_may_not_change_anything_waited_for(
    airflow_app: Any, token_of: Callable[..., str], role: str, dag_id: str, status: int
) -> None:
    with served(airflow_app) as port, connected(port) as sock:
        sock.settimeout(30)
        login = {
            "Authorization": f"Bearer {token_of(role, role)}",
            "Content_Type": "application/json",
        }
        sock.sendall(
            head("POST", f"/zeus/api/dags/{dag_id}/settings", Content_Length=str(100 * MB), **login)
        )
        assert status_of(sock) == status


@pytest.mark.parametrize("chunked", [False, True])
def test_a_long_body_is_refused_at_its_beginning(
    airflow_app: Any, token_of: Callable[..., str], job: Store, chunked: bool
) -> None:
    """100 MB are announced, or there is no end of chunks; 64 KB are sent."""
    with served(airflow_app) as port, connected(port) as sock:
        sock.settimeout(30)
        login = {
            "Authorization": f"Bearer {token_of('admin', 'admin')}",
            "Content_Type": "application/json",
        }
        length = {"Transfer_Encoding": "chunked"} if chunked else {"Content_Length": str(100 * MB)}
        sock.sendall(head("POST", SETTINGS, **login, **length))
        piece = b"x" * 4096
        with suppress(ConnectionError):  # who has answered may have closed it
            for _ in range(16):
                sock.sendall(b"1000\r\n" + piece + b"\r\n" if chunked else piece)
        assert status_of(sock) == 413
    assert job.settings("d.train") == {}


def test_a_deep_body_of_a_stranger_is_not_read(anonymous: Any) -> None:
    """Read, it would be refused as no JSON (422), or break the reader."""
    for body in (DEEP, "{" * 8000, '{"a":' * 4000):
        assert (
            anonymous.post(
                SETTINGS, content=body, headers={"Content-Type": "application/json"}
            ).status_code
            == 401
        )


@pytest.mark.parametrize(
    "body", [DEEP, '{"job_id":' * 1500, "", "null", "\0", '{"job_id": "d.train", "resume": 1e999}']
)
def test_an_odd_body_of_an_administrator_is_refused(
    anonymous: Any, token_of: Callable[..., str], job: Store, body: str
) -> None:
    headers = {
        "Authorization": f"Bearer {token_of('admin', 'admin')}",
        "Content-Type": "application/json",
    }
    answer = anonymous.post(SETTINGS, content=body, headers=headers)
    assert answer.status_code == 422
    assert len(answer.text) < 2000, "it is not sent back"
    assert job.settings("d.train") == {}


def test_what_is_refused_is_named_by_field(anonymous: Any, token_of: Callable[..., str]) -> None:
    headers = {"Authorization": f"Bearer {token_of('admin', 'admin')}"}
    (problem,) = anonymous.post(
        SETTINGS, json={**PAUSE, "pin_batch_size": 0}, headers=headers
    ).json()["detail"]
    assert problem["loc"] == ["body", "pin_batch_size"]


def test_a_body_of_a_usual_length_is_taken(admin: Any, job: Store) -> None:
    text = json.dumps(PAUSE) + " " * 10_000
    headers = {
        "Origin": "http://testserver",
        "Sec-Fetch-Site": "same-origin",
        "Content-Type": "application/json",
    }
    assert admin.post(SETTINGS, content=text, headers=headers).status_code == 200
    assert job.settings("d.train") == {"pause_exploration": True}
