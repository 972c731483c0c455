"""The routes inside Airflow's own app, with logins on: who may see what,
and what odd requests get.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.plugin import DAG_ROUTE, NAV_ROUTE, RUN_ROUTE, ZeusPlugin
from airflow_provider_zeus.plugin.api import app as assets
from airflow_provider_zeus.plugin.api import reading
from airflow_provider_zeus.plugin.views import dag_view, run_view
from airflow_provider_zeus.store.pending import pending_key
from airflow_provider_zeus.store.sql.schema import VERSION_TABLE
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from airflow_provider_zeus.store.variables.store import VariableStore
from tests.unit.plugin.auth_manager import SECRET
from tests.unit.plugin.kit import JOB, ran
from tests.unit.store.store_kit import request

CHARTS = "echarts.common.min.js"
DAG_COSTS = "/zeus/api/dags/{}/costs"
RUN_COSTS = "/zeus/api/dags/{}/runs/{}/costs"


def data_routes(dag_id: str = "d", run_id: str = "run1") -> list[str]:
    return [
        DAG_COSTS.format(quote(dag_id, safe="")),
        RUN_COSTS.format(quote(dag_id, safe=""), quote(run_id, safe="")),
    ]


def every_route() -> list[tuple[str, str]]:
    """Method and path of each."""
    from airflow_provider_zeus.plugin.api.app import app

    return [(next(iter(route.methods)), re.sub(r"{\w+}", "x", route.path)) for route in app.routes]


def shown(answer: Any) -> tuple[Any, ...]:
    """What an answer tells of runs: a DAG's rows, a run's parts."""
    return tuple(answer.get("rows", ())) + tuple(answer.get("parts", ()))


# --- login and permission


def test_every_route_needs_a_login(anonymous: Any) -> None:
    paths = every_route()
    assert len(paths) >= 4
    for method, path in paths:
        assert anonymous.request(method, f"/zeus{path}").status_code == 401, path


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect"])
def test_no_description_of_the_api_is_served(viewer: Any, path: str) -> None:
    assert viewer.get(f"/zeus{path}").status_code == 404


def test_a_viewer_may_look(viewer: Any, store: Store) -> None:
    ran(store, 1)
    for path in [*data_routes(), "/zeus/page", f"/zeus/static/{assets.tag()}/page.js"]:
        assert viewer.get(path).status_code == 200, path


def test_a_page_leaves_no_rows_beside_the_file_of_the_log(
    viewer: Any, store: Store, home: Path
) -> None:
    """The api-server lives for months: were its connection open,
    a copy of the file would lack the newest rows.
    """
    for number in range(1, 4):
        ran(store, number)
        assert viewer.get(data_routes()[0]).status_code == 200
    store.close()  # the tasks have ended
    assert viewer.get(data_routes()[0]).status_code == 200
    assert not (home / "zeus.db-wal").exists()


def test_a_token_in_the_header_counts_too(anonymous: Any, token_of: Callable[..., str]) -> None:
    assert (
        anonymous.get("/zeus/page", headers={"Authorization": f"Bearer {token_of()}"}).status_code
        == 200
    )


def test_a_dag_that_one_may_not_read_is_closed(viewer: Any, store: Store) -> None:
    ran(store, 1, dag_id=SECRET)
    for path in data_routes(SECRET):
        answer = viewer.get(path)
        assert answer.status_code == 403, path
        assert "run1" not in answer.text
    for path in data_routes("d"):  # nor by its job's or its run's name through another DAG
        answer = viewer.get(path, params={"job_id": "d.train", "dag_id": SECRET}).json()
        assert (shown(answer), answer["jobs"]) == ((), [])


@pytest.mark.parametrize(
    ("where", "token", "status"),
    [
        ("header", "garbage", 403),
        ("header", "", 401),
        ("header", "expired", 401),
        ("cookie", "garbage", 403),
        ("cookie", "", 401),
        ("cookie", "expired", 401),
    ],
)
def test_a_token_that_is_none(
    anonymous: Any, token_of: Callable[..., str], store: Store, where: str, token: str, status: int
) -> None:
    ran(store, 1)
    token = token_of(seconds=-60) if token == "expired" else token
    headers = (
        {"Authorization": f"Bearer {token}"} if where == "header" else {"Cookie": f"_token={token}"}
    )
    for path in [*data_routes(), "/zeus/page"]:
        assert anonymous.get(path, headers=headers).status_code == status, path


# --- whose runs are whose


def test_the_rows_of_a_dag(viewer: Any, store: Store) -> None:
    for n in (1, 2, 3):
        ran(store, n)
    answer = viewer.get(data_routes()[0]).json()
    assert [r["run_id"] for r in answer["rows"]] == ["run3", "run2", "run1"]
    assert (answer["jobs"], answer["job_id"], answer["note"]) == (["d.train"], "d.train", None)
    assert answer["rows"][0]["energy"]["value"] > 0
    assert answer["totals"][0]["runs"] == 3
    assert "Target accuracy >= 0.8" in answer["facts"]


def test_a_run_of_another_dag_gives_nothing(viewer: Any, store: Store) -> None:
    ran(store, 1)
    ran(store, 2, dag_id="other")
    answer = viewer.get(RUN_COSTS.format("d", "run2")).json()
    assert (answer["parts"], answer["note"]) == ([], run_view.NO_TRIAL)


def test_a_job_of_another_dag_gives_nothing(viewer: Any, store: Store) -> None:
    ran(store, 1)
    ran(store, 2, dag_id="other", job_id="theirs")
    answer = viewer.get(DAG_COSTS.format("d"), params={"job_id": "theirs"}).json()
    assert (answer["jobs"], "rows" in answer) == (["d.train"], False)
    assert "'theirs'" in answer["note"]
    assert (
        viewer.get(RUN_COSTS.format("d", "run1"), params={"job_id": "theirs"}).json()["parts"] == []
    )


def test_a_job_that_two_dags_share_shows_each_its_own_runs(viewer: Any, store: Store) -> None:
    ran(store, 1)
    ran(store, 2, dag_id="other")
    for path, run in ((DAG_COSTS.format("d"), "run1"), (DAG_COSTS.format("other"), "run2")):
        answer = viewer.get(path).json()
        assert [r["run_id"] for r in answer["rows"]] == [run]
        drawn = viewer.get(path.replace("/costs", "/charts")).json()
        assert drawn["cost"]["option"]["xAxis"]["data"] == [f"s{run[-1]}"]


def test_a_run_shows_its_attempts(viewer: Any, store: Store) -> None:
    for n in (1, 2):
        ran(store, n)
    (part,) = viewer.get(RUN_COSTS.format("d", "run1")).json()["parts"]
    (attempt,) = part["attempts"]
    assert attempt["why"] == "32, the default, comes first."
    assert attempt["ended"].startswith("It reached its target")
    assert (part["job_id"], part["title"], part["map_index"]) == ("d.train", "train", None)


def test_the_limit_counts_whole_runs(viewer: Any, store: Store) -> None:
    for n in (1, 2, 3):
        ran(store, n)
    ran(store, 4, run_id="run1")  # cleared: run1 is the newest again, with both its trials
    answer = viewer.get(DAG_COSTS.format("d"), params={"limit": 2}).json()
    assert [(r["run_id"], len(r["attempts"])) for r in answer["rows"]] == [("run3", 1), ("run1", 2)]
    assert answer["more"]
    assert not viewer.get(DAG_COSTS.format("d"), params={"limit": 3}).json()["more"]


def test_live_settings_and_pending_costs_are_shown(
    viewer: Any, store: Store, airflow_home: Path
) -> None:
    variables = AirflowVariables()
    variables.set("zeus-settings:d.train", '{"eta": 1.0, "pin_batch_size": 64}')
    trial = store.ask(request(1, lease_s=-1, job=JOB)).trial  # its lease has expired
    variables.set(pending_key(trial.key), "{}")
    try:
        answer = viewer.get(data_routes()[0]).json()
    finally:
        variables.delete(pending_key(trial.key))
        variables.delete("zeus-settings:d.train")
    assert answer["settings"] == [
        "Live setting: eta set to 1.0",
        "Live setting: batch size pinned to 64",
    ]
    assert "eta 1" in answer["facts"]
    assert answer["rows"][0]["state_text"] == "not yet stored"


# --- no log, a broken one


def test_without_a_log_the_page_says_so_and_makes_none(viewer: Any, home: Path) -> None:
    assert [viewer.get(path).json()["note"] for path in data_routes()] == [
        dag_view.NO_JOB,
        run_view.NO_TRIAL,
    ]
    assert list(home.iterdir()) == []


def test_a_dag_without_a_job(viewer: Any, store: Store) -> None:
    ran(store, 1)
    answer = viewer.get(DAG_COSTS.format("another"))
    assert (answer.status_code, answer.json()["note"], answer.json()["jobs"]) == (
        200,
        dag_view.NO_JOB,
        [],
    )


def test_a_job_in_variables_as_the_how_to_says_is_shown_and_one_elsewhere_is_told_of(
    viewer: Any, anonymous: Any, token_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[4] / "docs/how-to/database.md").read_text()
    (named,) = re.findall(
        r"connections add (\S+) --conn-type zeus --conn-extra '(.*variable.*)'", page
    )
    uri = json.dumps({"conn_type": "zeus", "extra": json.loads(named[1])})
    variables = AirflowVariables()
    try:
        ran(VariableStore(variables, overlap_possible=False), 1)
        monkeypatch.setenv(f"AIRFLOW_CONN_{named[0].upper()}", uri)
        assert viewer.get(DAG_COSTS.format("d")).json()["jobs"] == ["d.train"]
        monkeypatch.delenv(f"AIRFLOW_CONN_{named[0].upper()}")
        monkeypatch.setenv("AIRFLOW_CONN_ZEUS_MINE", uri)
        monkeypatch.setattr(reading, "bounded", lambda call, _: call())  # however busy the host is
        told = " The log of another Connection has jobs of this DAG;"
        notes = [viewer.get(path).json()["note"] for path in data_routes()]
        assert [told in note for note in notes] == [True, True]
        assert not any("zeus_mine" in note for note in notes), "a viewer may not read Connections"
        may_read = {"Authorization": f"Bearer {token_of('op', 'op')}"}
        named = [anonymous.get(path, headers=may_read).json()["note"] for path in data_routes()]
        assert ["The log of Connection zeus_mine has jobs" in note for note in named] == [
            True,
            True,
        ]
        assert viewer.get(DAG_COSTS.format("another")).json()["note"] == dag_view.NO_JOB
    finally:
        for name in ("zeus-jobs", "zeus-log:d.train"):
            variables.delete(name)


def test_logs_that_do_not_answer_hold_up_no_page(
    viewer: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and says nothing
        for n in range(6):
            uri = f"zeus://u:p@127.0.0.1:{silent.getsockname()[1]}/db"
            monkeypatch.setenv(f"AIRFLOW_CONN_ZEUS_SILENT{n}", uri)
        looked: list[str] = []
        begun = threading.Event()
        opened = reading.open_store
        wait = reading.bounded

        def bounded(call: Callable[[], str], most_s: float) -> str:
            try:
                return wait(call, most_s / 10)
            except TimeoutError:
                assert begun.wait(60), "its thread may begin late"
                raise

        def open_store(conn_id: str = "zeus_default", **named: Any) -> Store:
            looked.append(conn_id)
            if conn_id == "zeus_silent0":
                begun.set()
            return opened(conn_id, **named)

        monkeypatch.setattr(reading, "bounded", bounded)

        monkeypatch.setattr(reading, "open_store", open_store)
        one_minute = SimpleNamespace(monotonic=lambda: 90.0, time=time.time)  # it keeps an answer
        monkeypatch.setattr(reading, "time", one_minute)
        for _ in range(3):
            assert viewer.get(DAG_COSTS.format("silent")).json()["note"] == dag_view.NO_JOB
        # it gave up before it had asked all, and did not begin again
        assert len(set(looked) - {"zeus_default"}) < 6
        assert looked.count("zeus_silent0") == 1


@pytest.mark.parametrize(
    "change",
    [
        "opened_at = 1e15",
        "epochs = 1e-308",
        "closed_at = -1e15",
        "time_s = -9e999",
        "energy_j = 1e300",
    ],
)
def test_a_number_that_cannot_be_is_left_out_of_every_answer(
    viewer: Any, store: Store, home: Path, change: str
) -> None:
    for n in (1, 2):
        ran(store, n, price_per_kwh=0.3, price_currency="EUR", g_co2e_per_kwh=300.0)
    with sa.create_engine(f"sqlite:///{home / 'zeus.db'}").begin() as connection:
        connection.execute(sa.text(f"UPDATE zeus_trial SET {change} WHERE number = 1"))
    routes = [
        DAG_COSTS.format("d"),
        "/zeus/api/dags/d/charts",
        "/zeus/api/dags/d/export",
    ]
    for path in (
        *routes,
        *data_routes(),
        "/zeus/api/jobs",
        "/zeus/api/months",
        "/zeus/api/months/saved",
    ):
        assert viewer.get(path).status_code == 200, path
    assert (
        "1 attempt of this log cannot be read: d.train/1"
        in viewer.get(DAG_COSTS.format("d")).json()["left_out"]
    )
    assert [row["run_id"] for row in viewer.get(DAG_COSTS.format("d")).json()["rows"]] == ["run2"]


def test_a_currency_that_is_no_text_hides_no_months(viewer: Any, store: Store, home: Path) -> None:
    for n in (1, 2):
        ran(store, n, price_per_kwh=0.3, price_currency="EUR")
    with sa.create_engine(f"sqlite:///{home / 'zeus.db'}").begin() as connection:
        connection.execute(sa.text("UPDATE zeus_trial SET price_currency = x'ff' WHERE number = 1"))
    for path in ("/zeus/api/months", "/zeus/api/months/saved"):
        assert viewer.get(path).status_code == 200, path


def test_another_schema_is_named_and_left_alone(admin: Any, store: Store, home: Path) -> None:
    url = f"sqlite:///{home / 'zeus.db'}"
    with sa.create_engine(url).begin() as connection:
        connection.execute(sa.text("UPDATE zeus_alembic_version SET version_num = '0009'"))
    for path in data_routes():
        answer = admin.get(path)
        assert answer.status_code == 503
        assert "has schema 0009" in answer.json()["problem"]
        assert "export it with that version" in answer.json()["problem"], "the remedy"
    with sa.create_engine(url).connect() as connection:
        assert connection.scalar(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")) == "0009"


def test_a_store_that_cannot_be_reached_is_named_without_its_password(
    admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", "postgres://me:hunter2@127.0.0.1:1/zeus")
    for path in data_routes():
        answer = admin.get(path)
        assert answer.status_code == 503
        assert "127.0.0.1:1" in answer.json()["problem"]
        assert "hunter2" not in answer.text


def test_a_connection_of_the_metadata_database_counts_at_once(
    admin: Any, home: Path, airflow_home: Path
) -> None:
    from airflow.models import Connection
    from airflow.utils.session import create_session

    from airflow_provider_zeus.store.sql.store import SqlStore

    elsewhere = SqlStore(f"sqlite:///{home / 'elsewhere.db'}", create=True)
    ran(elsewhere, 1)
    assert admin.get(data_routes()[0]).json()["note"] == dag_view.NO_JOB
    with create_session() as session:
        session.add(
            Connection(conn_id="zeus_default", conn_type="sqlite", host=str(home / "elsewhere.db"))
        )
    try:
        answer = admin.get(data_routes()[0]).json()
    finally:
        with create_session() as session:
            session.delete(
                session.scalar(sa.select(Connection).where(Connection.conn_id == "zeus_default"))
            )
        elsewhere.close()
    assert ([r["run_id"] for r in answer["rows"]], answer["store"]) == (
        ["run1"],
        f"sqlite:{home / 'elsewhere.db'}",
    )


# --- odd requests

BAD_IDS = [
    "~",
    "a\0b",
    "a\nb",
    "x" * 10_000,
    "../d",
    "..%2f",
    "<script>alert(1)</script>",
    "' OR 1=1 --",
    "ü" * 250,
    "%",
]


@pytest.mark.parametrize("bad", BAD_IDS)
def test_forged_ids_give_nothing(viewer: Any, store: Store, bad: str) -> None:
    ran(store, 1)
    for path in [
        *data_routes(bad),
        *data_routes("d", bad)[1:],
        f"/zeus/static/{quote(bad, safe='')}/page.html",
    ]:
        answer = viewer.get(path)
        assert answer.status_code in (200, 404), path
        if answer.status_code == 200:
            assert answer.headers["Content-Type"] == "application/json"
            assert shown(answer.json()) == ()
    for path in data_routes():
        answer = viewer.get(path, params={"job_id": bad})
        if "\0" in bad:  # PostgreSQL refuses it
            assert answer.status_code == 404
        else:
            assert (answer.status_code, shown(answer.json())) == (200, ())


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "x", "1e3", ""])
def test_limits_out_of_range_are_refused(viewer: Any, limit: str) -> None:
    assert viewer.get(DAG_COSTS.format("d"), params={"limit": limit}).status_code == 422


def test_only_reading(viewer: Any) -> None:
    for path in data_routes():
        assert [
            viewer.request(m, path).status_code for m in ("POST", "PUT", "DELETE", "PATCH")
        ] == [405] * 4


def test_any_dag_is_not_a_dag(viewer: Any, store: Store) -> None:
    """Airflow takes ``~`` for "any DAG that one may read"."""
    ran(store, 1, dag_id="~")
    assert [viewer.get(path).status_code for path in data_routes("~")] == [404, 404]


# --- headers and files


def test_every_answer_is_strict(
    viewer: Any, anonymous: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_ = [
        viewer.get(p) for p in [*data_routes(), "/zeus/page", "/zeus/nowhere", "/zeus/static/x/y"]
    ]
    answers_ += [
        viewer.get(data_routes("~")[0]),
        anonymous.get("/zeus/page"),
        viewer.post("/zeus/page"),
    ]
    monkeypatch.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", "postgres://127.0.0.1:1/zeus")
    answers_.append(viewer.get(data_routes()[0]))
    assert [a.status_code for a in answers_] == [200, 200, 200, 404, 404, 404, 401, 405, 503]
    for answer in answers_:
        policy = answer.headers["Content-Security-Policy"]
        for part in (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "frame-ancestors 'self'",
        ):
            assert part in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] in ("no-store", "no-cache")


def test_the_page_has_nothing_inline_and_all_its_files(viewer: Any) -> None:
    page = viewer.get("/zeus/page").text
    assert not re.search(
        r"<style|style=|<script(?![^>]*src=)|\son\w+=|//", page.removeprefix("<!doctype html>")
    )
    files = re.findall(r'(?:src|href)="(static/[^"]+)"', page)
    assert {f.rpartition("/")[2] for f in files} >= {
        "page.css",
        "ui.js",
        "page.js",
        "echarts.common.min.js",
    }
    for file in files[:-1]:
        answer = viewer.get(f"/zeus/{file}")
        assert answer.status_code == 200
        assert answer.headers["Cache-Control"] == "private, max-age=31536000, immutable"
    assert viewer.get("/zeus/static/another/page.js").headers["Cache-Control"] == "no-cache"


OURS = sorted(p.name for p in assets.STATIC.glob("*.js") if p.name != CHARTS)


@pytest.mark.parametrize("name", OURS)
def test_the_scripts_set_text_only(name: str) -> None:
    script = (assets.STATIC / name).read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?://", script
    )


@pytest.fixture
def charts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The page's files in a folder of the test; writes the chart library's there."""
    folder = tmp_path / "static"
    folder.mkdir()
    for name in ("page.html", "page.js", "ui.js", "page.css"):
        (folder / name).write_bytes((assets.STATIC / name).read_bytes())
    monkeypatch.setattr(assets, "STATIC", folder)

    def write(plain: bytes | None, zipped: bytes | None = None) -> None:
        for suffix, data in (("", plain), (".gz", zipped)):
            if data is not None:
                (folder / f"{CHARTS}{suffix}").write_bytes(data)
        forget()

    def forget() -> None:
        for cached in (assets.names, assets.asset, assets.tag, assets.html):
            cached.cache_clear()

    forget()
    yield write
    forget()


def test_the_chart_library_is_sent_compressed_as_it_was_built(viewer: Any, charts: Any) -> None:
    ready = gzip.compress(b"window.echarts = {};", 1, mtime=7)
    charts(b"window.echarts = {};", ready)
    with viewer.stream("GET", f"/zeus/static/{assets.tag()}/{CHARTS}") as answer:
        assert b"".join(answer.iter_raw()) == ready
    assert answer.headers["Content-Encoding"] == "gzip"
    assert "immutable" in answer.headers["Cache-Control"]
    plain = viewer.get(
        f"/zeus/static/{assets.tag()}/{CHARTS}", headers={"Accept-Encoding": "identity"}
    )
    assert "Content-Encoding" not in plain.headers
    assert plain.content == b"window.echarts = {};"


@pytest.mark.parametrize(
    "zipped", [None, gzip.compress(b"of another version", mtime=0), b"no gzip at all"]
)
def test_a_missing_or_wrong_compressed_copy_is_made_in_memory(
    viewer: Any, charts: Any, zipped: bytes | None
) -> None:
    charts(b"window.echarts = {};", zipped)
    answer = viewer.get(f"/zeus/static/{assets.tag()}/{CHARTS}")
    assert (answer.content, answer.headers["Content-Encoding"]) == (b"window.echarts = {};", "gzip")


def test_without_the_chart_library_the_page_still_answers(viewer: Any, charts: Any) -> None:
    charts(None)
    assert viewer.get(f"/zeus/static/{assets.tag()}/{CHARTS}").status_code == 404
    assert viewer.get("/zeus/page").status_code == 200


def test_the_files_addresses_change_with_the_files(charts: Any) -> None:
    charts(b"1")
    first = assets.tag()
    charts(b"2")
    assert assets.tag() != first
    assert assets.tag() in assets.html().decode()


# --- the plugin itself


def test_a_page_that_cannot_be_loaded_leaves_the_api_server_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "airflow_provider_zeus.plugin.api.app", None)
    assert ZeusPlugin().fastapi_apps == []
    assert "airflow_provider_zeus.plugin.api.app" in caplog.text


def test_its_addresses_hold_behind_a_path_prefix() -> None:
    for view in ZeusPlugin.external_views:
        assert not view["href"].startswith(("/", "http"))
    assert len({v["url_route"] for v in ZeusPlugin.external_views}) == len(
        ZeusPlugin.external_views
    )
    assert {v["destination"]: v["url_route"] for v in ZeusPlugin.external_views} == {
        "nav": NAV_ROUTE,
        "dag": DAG_ROUTE,
        "dag_run": RUN_ROUTE,
    }


def test_as_many_queries_for_many_runs_as_for_few(viewer: Any, store: Store) -> None:
    ran(store, 1)
    counted: list[str] = []

    def count(*executed: Any) -> None:
        counted.append(executed[2])

    sa.event.listen(sa.Engine, "before_cursor_execute", count)
    try:
        viewer.get(data_routes()[0])
        few = len(counted)
        for n in range(2, 40):
            ran(store, n, state=State.CONVERGED)
        counted.clear()
        assert len(viewer.get(data_routes()[0]).json()["rows"]) == 39
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", count)
    assert 0 < len(counted) <= few
