"""PostgreSQL that does not answer: each call ends with an error that says so,
and the next one is as good as new.
"""

from __future__ import annotations

import importlib.util
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.sql import engine, watchdog
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.postgres import empty_database, server, stopped
from tests.unit.store.store_kit import report, request

MOST = 25  # connections of the server


@pytest.fixture(scope="module")
def admin_url() -> Iterator[str]:
    """A server of these tests' own: they stop it."""
    try:
        with server(max_connections=MOST) as url:
            yield url
    except OSError as error:
        pytest.skip(f"no PostgreSQL server starts here: {error}")


@pytest.fixture(params=[driver for driver in engine.DRIVERS if importlib.util.find_spec(driver)])
def url(request: pytest.FixtureRequest, admin_url: str) -> Iterator[str]:
    with empty_database(admin_url) as found:
        yield found.replace("psycopg2", request.param, 1)


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    store = SqlStore(url, create=True)
    yield store
    store.close()


@contextmanager
def soon() -> Iterator[None]:
    """Within it a call that gets no answer ends after a second; the tables take longer."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(watchdog, "CALL_S", 1.0)
        patched.setitem(engine._CLIENT, "connect_timeout", 2)
        yield


@contextmanager
def open_transaction(url: str, *, write: bool) -> Iterator[sa.Connection]:
    with engine.transaction(engine.engine_of(engine.read_url(url)), write=write) as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
        yield connection


@pytest.mark.parametrize("write", [pytest.param(False, marks=pytest.mark.nightly), True])
@pytest.mark.slow
def test_a_statement_ends_though_the_server_is_stopped(
    store: SqlStore, url: str, admin_url: str, write: bool
) -> None:
    with (
        pytest.raises(StoreError, match="no answer for 1 s") as caught,
        soon(),
        open_transaction(url, write=write) as connection,
        stopped(admin_url),
    ):
        connection.exec_driver_sql("SELECT 2")
    assert (caught.value.passing, caught.value.unsure) == (True, False)
    assert store.ask(request(1)).trial.number == 1


def test_a_commit_that_gets_no_answer_may_be_stored(
    store: SqlStore, url: str, admin_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server takes it up when it goes on."""
    store.ask(request(1))
    standing = stopped(admin_url)

    def change() -> None:
        with open_transaction(url, write=True) as connection:
            connection.exec_driver_sql("UPDATE zeus_job SET told_seq = 7")
            monkeypatch.setattr(watchdog, "CALL_S", 1.0)  # of the commit alone
            sa.event.listen(connection, "commit", lambda _: standing.__enter__())

    with pytest.raises(StoreError, match="no answer for 1 s") as caught:
        change()
    standing.__exit__(None, None, None)
    assert (caught.value.passing, caught.value.unsure) == (True, True)


@pytest.mark.nightly
def test_rows_that_stop_coming_end_the_call(url: str, store: SqlStore, admin_url: str) -> None:
    """Of a log that is read in portions."""
    store.ask(request(1))

    def read() -> None:
        with open_transaction(url, write=False) as connection:
            found = connection.execution_options(yield_per=1).exec_driver_sql(
                "SELECT generate_series(1, 100000)"
            )
            assert next(iter(found))[0] == 1
            with stopped(admin_url):
                list(found)

    with pytest.raises(StoreError, match="no answer for 1 s"), soon():
        read()


@pytest.mark.nightly
def test_a_new_connection_to_a_stopped_server_ends(store: SqlStore, admin_url: str) -> None:
    with soon(), stopped(admin_url), pytest.raises(StoreError, match="cannot be used") as caught:
        store.trials("d.train")
    assert caught.value.passing
    assert store.trials("d.train") == []


@pytest.mark.slow
def test_a_listener_that_never_answers_is_an_error(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        silent = (
            sa.make_url(url)
            .set(host="127.0.0.1", port=port, query={})
            .render_as_string(hide_password=False)
        )
        with soon(), pytest.raises(StoreError, match="cannot be used") as caught:
            SqlStore(silent)
    assert caught.value.passing


def test_without_a_thread_there_is_no_watch_and_nothing_fails(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    assert store.ask(request(1)).trial.number == 1


@pytest.mark.parametrize("write", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_the_server_itself_ends_a_statement_that_lasts(
    url: str, store: SqlStore, monkeypatch: pytest.MonkeyPatch, write: bool
) -> None:
    limits = engine._LIMITS.replace("'statement_timeout', '9s'", "'statement_timeout', '200'")
    monkeypatch.setattr(engine, "_LIMITS", limits)
    with (
        pytest.raises(StoreError, match="statement timeout") as caught,
        open_transaction(url, write=write) as connection,
    ):
        connection.exec_driver_sql("SELECT pg_sleep(60)")
    assert caught.value.passing


@pytest.mark.nightly  # they wait in turns, by a real clock
def test_forty_at_once_on_a_server_with_fewer_connections_are_all_served(
    url: str, store: SqlStore
) -> None:
    def recur(n: int) -> State:
        mine = SqlStore(url)
        key = mine.ask(request(n, job_id=f"job-{n % 8}")).trial.key
        mine.heartbeat(key, report())
        return mine.tell(key, State.CONVERGED, report()).state

    others = [
        sa.create_engine(url, poolclass=sa.NullPool).connect() for _ in range(MOST - 8)
    ]  # some slots are reserved
    try:
        with ThreadPoolExecutor(40) as pool:
            assert list(pool.map(recur, range(40))) == [State.CONVERGED] * 40
    finally:
        for other in others:
            other.close()
    assert sum(len(store.trials(f"job-{n}")) for n in range(8)) == 40


@pytest.mark.slow
def test_no_connection_is_kept_between_two_calls(url: str, store: SqlStore) -> None:
    store.ask(request(1))
    with open_transaction(url, write=False) as connection:
        ours = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'airflow-provider-zeus'"
        )
        assert connection.exec_driver_sql(ours).scalar() == 1
