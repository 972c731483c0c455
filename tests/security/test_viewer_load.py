"""Viewers who ask for much: Airflow keeps its threads, its database connections and its memory."""

# ruff: noqa: F811 - fixtures are imported and then named by the tests
from __future__ import annotations

import asyncio
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.model.size_bounds import MOST_TEXT
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.plugin.api import app, dag_routes, reading
from airflow_provider_zeus.reports.export_rows import csv_of
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.store.sql.store import SqlStore, Store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from tests.security.plugin_kit import (
    client_of,
    connected,
    filled,
    head,
    in_one_loop,
    served,
    status_of,
    until,
)
from tests.unit.plugin.conftest import home, store, token_of, viewer  # noqa: F401
from tests.unit.plugin.kit import JOB, ran
from tests.unit.store.sql.sqlite_kit import execute
from tests.unit.store.store_kit import report, request

EXPORT = "/zeus/api/dags/d/export"
HEAVY = [
    "/zeus/api/jobs",
    "/zeus/api/jobs/d/saved?job_id=d.train",
    "/zeus/api/dags/d/costs?limit=1000",
    "/zeus/api/dags/d/charts",
    EXPORT,
    "/zeus/api/dags/d/runs/run1/costs",
    "/zeus/api/dags/d/runs/run1/charts?job_id=d.train&task_id=train",
    "/zeus/api/dags/d/settings?job_id=d.train",
]
LIGHT = ["/zeus/page", f"/zeus/static/{app.tag()}/page.js", "/api/v2/dags"]
MANY = 45  # more than the threads of Airflow, of which there are 40


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While it is closed the run log does not answer, as a database that hangs."""
    opened = threading.Event()
    real = reading.open_log

    def slow() -> Store | None:
        assert opened.wait(120)
        return real()

    monkeypatch.setattr(reading, "open_log", slow)
    yield opened
    opened.set()


# --- threads


@pytest.mark.parametrize("path", HEAVY)
def test_a_hanging_log_takes_none_of_airflows_threads(
    airflow_app: Any, token_of: Callable[..., str], store: Store, gate: threading.Event, path: str
) -> None:
    ran(store, 1)

    async def main() -> None:
        import anyio.to_thread

        async with client_of(airflow_app, token_of()) as client:
            asked = [asyncio.ensure_future(client.get(path)) for _ in range(MANY)]
            await until(lambda: sum(task.done() for task in asked) > MANY // 2)
            assert anyio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
            for light in LIGHT:
                assert (await asyncio.wait_for(client.get(light), 60)).status_code == 200, light
            gate.set()
            answers = await asyncio.gather(*asked)
            statuses = Counter(answer.status_code for answer in answers)
            assert set(statuses) == {200, 429}
            assert statuses[200] <= 4, "of one user"
            for answer in answers:
                if answer.status_code == 429:
                    assert 1 <= int(answer.headers["Retry-After"]) <= 60
                    assert answer.json()["detail"].endswith(".")
            assert (await client.get(path)).status_code == 200, "and afterwards all is as before"

    in_one_loop(main)


def test_one_user_leaves_room_for_another(
    airflow_app: Any, token_of: Callable[..., str], store: Store, gate: threading.Event
) -> None:
    ran(store, 1)

    async def main() -> None:
        path = HEAVY[2]
        async with (
            client_of(airflow_app, token_of("greedy")) as greedy,
            client_of(airflow_app, token_of("amy")) as amy,
        ):
            many = [asyncio.ensure_future(greedy.get(path)) for _ in range(MANY)]
            await until(lambda: sum(task.done() for task in many) > MANY // 2)
            one = asyncio.ensure_future(amy.get(path))
            await asyncio.sleep(0.2)
            gate.set()
            assert (await one).status_code == 200
            await asyncio.gather(*many)

    in_one_loop(main)


def test_many_users_together_are_bounded_too(
    airflow_app: Any, token_of: Callable[..., str], store: Store, gate: threading.Event
) -> None:
    ran(store, 1)

    async def main() -> None:
        clients = [client_of(airflow_app, token_of(f"user{n}")) for n in range(MANY)]
        asked = [asyncio.ensure_future(client.get(HEAVY[3])) for client in clients]
        await until(lambda: sum(task.done() for task in asked) > MANY // 2)
        gate.set()
        statuses = Counter(answer.status_code for answer in await asyncio.gather(*asked))
        assert statuses[200] <= 8
        assert statuses[200] + statuses[429] == MANY
        for client in clients:
            await client.aclose()

    in_one_loop(main)


def test_a_few_users_together_leave_room_for_another(
    airflow_app: Any, token_of: Callable[..., str], store: Store, gate: threading.Event
) -> None:
    """Two who each take all that one may have took all there is:
    a third read "busy" for a minute.
    """
    ran(store, 1)

    async def main() -> None:
        path = HEAVY[2]
        greedy = [client_of(airflow_app, token_of(f"greedy{n}")) for n in range(3)]
        async with client_of(airflow_app, token_of("amy")) as amy:
            for client in greedy:
                many = [asyncio.ensure_future(client.get(path)) for _ in range(MANY)]
                await until(lambda many=many: sum(task.done() for task in many) > MANY // 2)
            one = asyncio.ensure_future(amy.get(path))
            await asyncio.sleep(0.2)
            gate.set()
            assert (await one).status_code == 200
        for client in greedy:
            await client.aclose()

    in_one_loop(main)


def test_no_thread_is_started_where_a_server_may_fork_its_workers_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker forked while a thread imports numpy waits for ever for it,
    and two such waits are all our threads.
    """
    from airflow_provider_zeus.plugin import ZeusPlugin

    monkeypatch.setattr(
        threading.Thread, "start", lambda thread: pytest.fail(f"{thread.name} is started")
    )
    assert len(ZeusPlugin().fastapi_apps) == 1


def test_a_browser_that_leaves_gives_its_place_back(
    airflow_app: Any, token_of: Callable[..., str], store: Store, gate: threading.Event
) -> None:
    ran(store, 1)

    async def main() -> None:
        async with client_of(airflow_app, token_of()) as client:
            for path in (HEAVY[2], EXPORT):
                for _ in range(20):
                    left = asyncio.ensure_future(client.get(path))
                    await asyncio.sleep(0.01)
                    left.cancel()
                    await asyncio.gather(left, return_exceptions=True)
            gate.set()
            for path in (HEAVY[2], EXPORT):
                for _ in range(600):
                    if (answer := await client.get(path)).status_code == 200:
                        break
                    await asyncio.sleep(0.1)
                assert answer.status_code == 200

    in_one_loop(main)


# --- connections of Airflow's database


def test_at_most_a_quarter_of_airflows_connections(
    airflow_app: Any, token_of: Callable[..., str], store: Store
) -> None:
    from airflow import settings

    for n in range(1, 4):
        ran(store, n)
    taken = 0
    most = 0

    def out(*_: Any) -> None:
        nonlocal taken, most
        taken += 1
        most = max(most, taken)

    def back(*_: Any) -> None:
        nonlocal taken
        taken -= 1

    async def main() -> None:
        clients = [client_of(airflow_app, token_of(f"user{n}")) for n in range(12)]
        paths = [path for path in HEAVY for _ in range(2)]
        await asyncio.gather(*(client.get(path) for client in clients for path in paths))
        for client in clients:
            await client.aclose()

    sa.event.listen(settings.engine, "checkout", out)
    sa.event.listen(settings.engine, "checkin", back)
    try:
        in_one_loop(main)
    finally:
        sa.event.remove(settings.engine, "checkout", out)
        sa.event.remove(settings.engine, "checkin", back)
    assert 0 < most <= (5 + 10) // 4, "pool_size 5, max_overflow 10"


@pytest.mark.parametrize(
    ("pool_size", "max_overflow", "most"),
    [(5, 10, 3), (5, 0, 1), (1, 0, 1), (100, 100, 50), (0, 10, 50), (5, -1, 50)],
)
def test_a_smaller_pool_gets_fewer_threads(pool_size: int, max_overflow: int, most: int) -> None:
    from airflow_provider_zeus.plugin.api.load import threads_for

    assert 1 <= threads_for(pool_size, max_overflow) <= most


# --- memory


@pytest.mark.slow
def test_an_export_takes_as_much_memory_for_many_runs_as_for_few(store: Store, home: Path) -> None:
    filled(store, home / "zeus.db", 1500)

    def peak_b(last: int) -> int:
        tracemalloc.start()
        size = sum(len(text) for text in csv_of(store.pieces("d", "d.train", last=last), Prices()))
        assert size > 100 * last
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    peak_b(10)  # what is imported and compiled
    assert peak_b(1500) < 2 * peak_b(150)


def test_an_export_holds_no_connection_between_two_pieces(store: Store, home: Path) -> None:
    filled(store, home / "zeus.db", 120)
    assert isinstance(store, SqlStore)
    pieces = store.pieces("d", "d.train", last=100)
    assert next(pieces)
    assert store._engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_the_pieces_are_the_runs_in_order(store: Store, home: Path) -> None:
    filled(store, home / "zeus.db", 130)
    ran(store, 131, run_id="run7")  # cleared: run7 is the newest again, with both its trials
    for last in (1, 50, 51, 1000):
        found = [trial for piece in store.pieces("d", "d.train", last=last) for trial in piece]
        assert found == store.runs("d", "d.train", last=last), last


HUGE = "x" * 3_000_000


@pytest.mark.slow
def test_a_reason_of_megabytes_stays_on_the_page_of_its_run(
    viewer: Any, store: Store, home: Path
) -> None:
    filled(store, home / "zeus.db", 30)
    ran(store, 31, run_id="run31", state=State.FAILED, reason="it died")
    execute(
        f"sqlite:///{home / 'zeus.db'}",
        f"UPDATE zeus_trial SET reason = '{HUGE}' WHERE number > 10",
    )
    for path in HEAVY[:4]:
        answer = viewer.get(path)
        assert answer.status_code == 200, path
        assert "x" * 1000 not in answer.text, path
    assert len(viewer.get(EXPORT).text) < 1_000_000
    own = viewer.get("/zeus/api/dags/d/runs/run31/costs")
    assert "x" * (MOST_TEXT - 1) in own.text, "all that is kept of it"
    assert len(own.text) < 20_000


def test_reading_the_overview_loads_no_megabytes(store: Store, home: Path) -> None:
    filled(store, home / "zeus.db", 12)
    execute(f"sqlite:///{home / 'zeus.db'}", f"UPDATE zeus_trial SET reason = '{HUGE}'")
    tracemalloc.start()
    assert len(store.latest(last=12)) == len(store.runs("d", "d.train", last=12)) == 12
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(HUGE)


# --- clients that do not read


@pytest.mark.parametrize(
    "bound",
    [
        pytest.param("CHUNK_TIMEOUT_S", marks=pytest.mark.slow),
        pytest.param("FILE_TIMEOUT_S", marks=pytest.mark.nightly),
    ],
)
def test_a_client_that_takes_nothing_loses_its_place(
    airflow_app: Any,
    token_of: Callable[..., str],
    store: Store,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
) -> None:
    from airflow_provider_zeus.plugin.api import responses as answers

    filled(store, home / "zeus.db", 1500, reason="y" * 9_000)  # more than the kernel keeps for them
    path = EXPORT
    login = {"Authorization": f"Bearer {token_of()}"}

    def lost(bound_s: float) -> list[int]:
        """What three who come one after the other are answered;
        then one comes until it gets a place.
        """
        monkeypatch.setattr(answers, bound, bound_s)
        with (
            connected(port, receive_bytes=4096) as one,
            connected(port, receive_bytes=4096) as two,
            connected(port) as three,
        ):
            statuses = []
            for sock in (one, two, three):
                sock.sendall(head("GET", path, **login))
                statuses.append(status_of(sock))
            for _ in range(240):
                with connected(port) as again:
                    again.sendall(head("GET", path, **login))
                    if status_of(again) == 200:
                        return statuses
                time.sleep(0.5)
        pytest.fail("the first two still have their places, though they take nothing")

    with served(airflow_app) as port:
        # On a busy host a second is over before the third has asked: then all three got a place.
        assert any(lost(bound_s) == [200, 200, 429] for bound_s in (1.0, 4.0, 16.0, 64.0))


# --- answers that are kept


def test_charts_are_worked_out_once_while_nothing_changes(
    viewer: Any, store: Store, home: Path, airflow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    real = dag_routes.JobLog

    def counted_log(*given: Any, **named: Any) -> Any:
        made.append(real(*given, **named))
        return made[-1]

    monkeypatch.setattr(dag_routes, "JobLog", counted_log)

    def asked() -> tuple[int, Any]:
        """How many were worked out for it, and what it says."""
        before = len(made)
        answer = viewer.get("/zeus/api/dags/d/charts")
        assert answer.status_code == 200
        worked_out = len(made) - before
        with monkeypatch.context() as patch:
            patch.setattr(dag_routes, "_charts", reading.LruCache(1))
            assert answer.json() == viewer.get("/zeus/api/dags/d/charts").json(), (
                "as if nothing were kept"
            )
        return worked_out, answer.json()

    for n in range(1, 5):
        ran(store, n)
    first = asked()[1]
    made.clear()
    counted = []

    def fresh() -> bool:
        """Whether the next answer was worked out."""
        counted.append(asked()[0])
        return counted[-1] == 1

    assert not fresh()
    ran(store, 5, epochs=50.0)
    assert fresh(), "a run"
    assert not fresh()
    open_one = store.ask(request(6, job=JOB, ti_id="open")).trial
    assert fresh(), "a run that begins"
    store.heartbeat(open_one.key, report(open_one.batch_size, epochs=2.0))
    assert fresh(), "a heartbeat"
    AirflowVariables().set("zeus-settings:d.train", '{"eta": 0.9}')
    assert fresh(), "a live setting"
    monkeypatch.setenv("AIRFLOW__ZEUS__PRICE_PER_KWH", "0.3")
    assert fresh(), "a price"
    execute(
        f"sqlite:///{home / 'zeus.db'}",
        "UPDATE zeus_trial SET power_limit_w = 123.0 WHERE number = 4",
    )
    assert fresh(), "a row that was changed by hand"
    execute(f"sqlite:///{home / 'zeus.db'}", "DELETE FROM zeus_trial WHERE number = 2")
    assert fresh(), "what was pruned"
    assert not fresh()
    assert asked()[1] != first


def test_what_is_kept_is_bounded() -> None:
    from airflow_provider_zeus.plugin.api.reading import LruCache

    made: list[int] = []
    cache: LruCache[int] = LruCache(3)

    def of(key: int) -> int:
        return cache.get(key, lambda: made.append(key) or key)

    for key in (1, 2, 3, 1, 4, 1, 2):
        assert of(key) == key
    assert made == [1, 2, 3, 4, 2], "the one that was not asked for the longest goes first"
