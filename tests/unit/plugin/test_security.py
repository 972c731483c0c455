"""Every route of the app, as it stands:
a new one is met by these tests without being named here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_zeus.store.sql.store import Store
from tests.unit.plugin.auth_manager import SECRET
from tests.unit.plugin.kit import ran

OURS = {"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"}
SCRIPT = "<script>alert(1)</script>"


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    """(method, path, what the schema says) of all routes, from the app's own schema."""
    from airflow_provider_zeus.plugin.api.app import app

    paths = app.openapi()["paths"]
    return [
        (method.upper(), path, what)
        for path, ways in paths.items()
        for method, what in ways.items()
    ]


def filled(path: str, **values: str) -> str:
    """A route's path with ids in it."""
    return re.sub(r"{(\w+)}", lambda m: quote(values.get(m[1], "x"), safe=""), f"/zeus{path}")


def asked(client: Any, method: str, path: str, **more: Any) -> Any:
    body = {"job_id": "d.train", "pause_exploration": True}
    more |= (
        {"json": body, "headers": {**OURS, **more.get("headers", {})}} if method != "GET" else {}
    )
    return client.request(method, path, params={**needed(path), "job_id": "d.train"}, **more)


def needed(address: str) -> dict[str, Any]:
    """Query parameters that a route asks for, with values that it takes."""
    for _, path, what in operations():
        if re.fullmatch(re.sub(r"{\w+}", "[^/]+", f"/zeus{path}"), address):
            asked_for = [
                p for p in what.get("parameters", ()) if p["in"] == "query" and p["required"]
            ]
            return {p["name"]: p["schema"].get("enum", ["train"])[0] for p in asked_for}
    return {}


def test_the_schema_names_every_route() -> None:
    from airflow_provider_zeus.plugin.api.app import app

    routes = {
        (m, getattr(r, "path", ""))
        for r in app.routes
        for m in getattr(r, "methods", set()) - {"HEAD"}
    }
    assert {(method, path) for method, path, _ in operations()} == routes
    assert len(routes) >= 8


def test_nobody_gets_in_without_a_login(
    anonymous: Any, token_of: Callable[..., str], store: Store
) -> None:
    ran(store, 1)
    expired = {"Cookie": f"_token={token_of(seconds=-60)}"}
    forged = {"Cookie": f"_token={token_of()[:-4]}AAAA"}
    for method, path, _ in operations():
        path = filled(path, dag_id="d", run_id="run1")
        assert asked(anonymous, method, path).status_code == 401, path
        assert asked(anonymous, method, path, headers=expired).status_code == 401, path
        assert asked(anonymous, method, path, headers=forged).status_code == 403, path
    assert store.settings("d.train") == {}


def test_a_viewer_changes_nothing(viewer: Any, store: Store) -> None:
    ran(store, 1)
    changing = [(m, p) for m, p, _ in operations() if m != "GET"]
    assert changing
    for method, path in changing:
        assert asked(viewer, method, filled(path, dag_id="d")).status_code == 403, path
    assert store.settings("d.train") == {}


def test_a_dag_that_is_denied_is_closed_everywhere(viewer: Any, store: Store) -> None:
    ran(store, 1, dag_id=SECRET, job_id="hidden-job")
    ran(store, 2)
    for method, path, _ in operations():
        if "{dag_id}" in path:
            assert (
                asked(viewer, method, filled(path, dag_id=SECRET, run_id="run1")).status_code == 403
            ), path
        elif method == "GET":
            assert "hidden-job" not in asked(viewer, method, filled(path)).text, path


def test_another_dags_run_or_job_is_not_told(viewer: Any, store: Store) -> None:
    ran(store, 1, dag_id="other", job_id="hidden-job", reason="hidden-reason")
    ran(store, 2)
    for method, path, _ in operations():
        if method == "GET" and "{dag_id}" in path:
            address = filled(path, dag_id="d", run_id="run1")
            answer = viewer.get(address, params={**needed(address), "job_id": "hidden-job"})
            assert answer.status_code in (200, 404), path
            assert "hidden-reason" not in answer.text, path
            assert "V100" not in answer.text, path


@pytest.mark.parametrize(
    "name", ["../page.html", "..%2fpage.html", "%2e%2e/auth.py", "..\\auth.py", "/etc/passwd", ""]
)
def test_no_path_leads_out(viewer: Any, name: str) -> None:
    for address in (
        f"/zeus/static/x/{name}",
        f"/zeus/static/{name}/page.js",
        f"/zeus/static/x/{quote(name, safe='')}",
    ):
        answer = viewer.get(address)
        assert answer.status_code in (200, 404), address
        assert "root:" not in answer.text
        assert "requires_access_dag" not in answer.text


def test_scripts_in_ids_come_back_as_json_alone(viewer: Any, store: Store) -> None:
    ran(store, 1, dag_id=SCRIPT, run_id=SCRIPT, job_id=SCRIPT)
    for method, path, _ in operations():
        if method == "GET" and "/api/" in path:
            address = filled(path, dag_id=SCRIPT, run_id=SCRIPT)
            answer = viewer.get(address, params={**needed(address), "job_id": SCRIPT})
            assert answer.status_code in (200, 404), path
            assert not answer.headers["Content-Type"].startswith("text/html"), path
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_every_answer_may_be_framed_by_airflow_alone(
    viewer: Any, anonymous: Any, store: Store
) -> None:
    for client in (viewer, anonymous):
        for method, path, _ in operations():
            policy = asked(client, method, filled(path)).headers["Content-Security-Policy"]
            assert "frame-ancestors 'self'" in policy, path
            assert "script-src 'self';" in policy, path
            assert "unsafe" not in policy, path


def test_reading_writes_nothing(viewer: Any, store: Store, home: Path) -> None:
    from airflow_provider_zeus.store.variables.airflow import AirflowVariables

    for n in (1, 2, 3):
        ran(store, n)

    def held() -> tuple[Any, ...]:
        files = {
            p.name: hashlib.sha256(p.read_bytes()).hexdigest()
            for p in home.iterdir()
            if p.suffix == ".db"
        }
        return (
            files,
            [(t.number, t.state, t.told_seq) for t in store.trials("d.train")],
            AirflowVariables().keys("zeus"),
        )

    before = held()
    assert before[0]
    for method, path, _ in operations():
        if method == "GET":
            assert asked(viewer, method, filled(path, dag_id="d", run_id="run1")).status_code in (
                200,
                404,
            ), path
    assert held() == before


TEXTS = st.text(max_size=60) | st.sampled_from(
    ["d", "run1", "d.train", "~", SCRIPT, "../..", "a\0b", "%00", "'; --", "ü" * 99]
)
NUMBERS = st.integers(-(2**70), 2**70) | st.floats() | TEXTS | st.sampled_from([0, 1, 0.5, 64])
BODIES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=6,
)


@st.composite
def requests_(draw: st.DrawFn) -> tuple[str, str, dict[str, Any], Any]:
    """A request that the schema describes, with values that it may not expect."""
    method, path, what = draw(st.sampled_from(operations()))
    query: dict[str, Any] = {}
    values: dict[str, str] = {}
    for parameter in what.get("parameters", ()):
        name = parameter["name"]
        if parameter["in"] == "path":
            values[name] = draw(st.sampled_from(["d", "run1"]) | TEXTS)
        elif draw(st.booleans()) or parameter.get("required"):
            query[name] = draw(NUMBERS if "string" not in str(parameter["schema"]) else TEXTS)
    body = None
    if "requestBody" in what:
        fields = ("job_id", "pause_exploration", "pin_batch_size", "resume", "eta", "factors")
        body = draw(BODIES | st.dictionaries(st.sampled_from(fields), BODIES))
    return method, filled(path, **values), query, body


@settings(
    max_examples=max(40, settings().max_examples),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(request=requests_())
def test_no_request_of_a_viewer_breaks_the_app(viewer: Any, store: Store, request: Any) -> None:
    asked_oddly(viewer, store, *request)


@settings(
    max_examples=max(40, settings().max_examples),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(request=requests_())
def test_no_request_of_an_admin_breaks_the_app(admin: Any, store: Store, request: Any) -> None:
    """Whose bodies are read, which a viewer's are not."""
    asked_oddly(admin, store, *request)


def asked_oddly(client: Any, store: Store, method: str, path: str, query: Any, body: Any) -> None:
    if not store.jobs():
        ran(store, 1)
    more = {} if body is None else {"json": body, "headers": OURS}
    assert client.request(method, path, params=query, **more).status_code < 500
