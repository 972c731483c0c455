"""What only PostgreSQL brings: its clock, its row locks, connections that break, its tables."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from airflow_provider_zeus.cli.upkeep import upgrade_tables as upgrade
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.sql import engine as sql_engine
from airflow_provider_zeus.store.sql import schema
from airflow_provider_zeus.store.sql import trials as sql_trials
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.unit.store.store_kit import report, request


@pytest.fixture
def store(database: str) -> Iterator[SqlStore]:
    store = SqlStore(database, create=True)
    yield store
    store.close()


@contextmanager
def asked_of(url: str) -> Iterator[Callable[[str], object]]:
    """Another client of the database, in a session of its own."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        yield lambda statement: connection.exec_driver_sql(statement)
    engine.dispose()


def limits(monkeypatch: pytest.MonkeyPatch, *, lock_ms: int, idle_ms: int) -> None:
    text = f"SELECT set_config('lock_timeout', '{lock_ms}', true), "
    text += f"set_config('idle_in_transaction_session_timeout', '{idle_ms}', true)"
    monkeypatch.setattr(sql_engine, "_LIMITS", text)


# --- the clock


def test_leases_run_by_the_databases_clock(
    store: SqlStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with asked_of(database) as ask:
        before = float(ask("SELECT extract(epoch FROM clock_timestamp())").scalar())  # type: ignore[attr-defined]
    monkeypatch.setattr(time, "time", lambda: 5.0)  # a host whose clock is wrong
    trial = store.ask(request(1, lease_s=60)).trial
    assert before <= trial.opened_at <= before + 30
    assert trial.lease_until == pytest.approx(trial.opened_at + 60)
    assert store.trials("d.train")[0].state is State.RUNNING
    told = store.tell(trial.key, State.CONVERGED, report())
    assert told.closed_at is not None
    assert trial.opened_at <= told.closed_at <= before + 30
    store.ask(request(2, lease_s=-1))
    assert store.trials("d.train")[-1].state is State.ABANDONED


def test_the_time_is_that_of_the_lock_not_of_the_waiting(store: SqlStore, database: str) -> None:
    """A question that waited for another one is younger than it."""
    store.ask(request(1))
    with asked_of(database) as ask:
        ask("SELECT * FROM zeus_job FOR UPDATE")
        with sql_engine.transaction(sql_engine.engine_of(sql_engine.read_url(database))) as other:
            asked_at = float(
                other.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar() or 0
            )
        threading.Timer(0.4, lambda: ask("COMMIT")).start()
        assert store.ask(request(2)).trial.opened_at >= asked_at + 0.35


# --- locks


def test_a_reader_waits_for_no_writer(store: SqlStore, database: str) -> None:
    store.ask(request(1))
    with asked_of(database) as ask:
        ask("SELECT * FROM zeus_job FOR UPDATE")
        assert [t.number for t in store.trials("d.train")] == [1]
        assert store.jobs() == ["d.train"]
        assert store.ask(request(1, job_id="other")).trial.number == 1, "nor one job for another"


def test_a_lock_that_is_never_given_back_is_an_error_with_a_remedy(
    store: SqlStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ask(request(1))
    limits(monkeypatch, lock_ms=200, idle_ms=60_000)
    with asked_of(database) as ask:
        ask("SELECT * FROM zeus_job FOR UPDATE")
        with pytest.raises(StoreError, match=r"lock timeout.*Another process"):
            store.ask(request(2))
    assert store.ask(request(2)).trial.number == 2


def test_a_writer_that_stops_in_the_middle_does_not_keep_the_job_locked(
    store: SqlStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a task that is suspended, or cut off from the network, between two statements."""
    store.ask(request(1))

    def meanwhile() -> None:
        limits(monkeypatch, lock_ms=60_000, idle_ms=60_000)  # only the other one stops
        store.ask(request(2))

    limits(monkeypatch, lock_ms=60_000, idle_ms=1_000)
    with pytest.raises(StoreError, match="cannot be used"):
        stopped_in_the_middle(database, meanwhile)
    assert [t.number for t in store.trials("d.train")] == [1, 2], (
        "the database ended the session that held the lock"
    )
    assert store.ask(request(3)).trial.number == 3


def stopped_in_the_middle(url: str, meanwhile: Callable[[], object]) -> None:
    with sql_engine.transaction(
        sql_engine.engine_of(sql_engine.read_url(url)), write=True
    ) as connection:
        sql_trials.lock_job(connection, "d.train")
        meanwhile()
        sql_trials.count_job(connection, "d.train", seq=99, newest=99)


def test_a_stricter_default_of_the_site_refuses_no_writer(database: str) -> None:
    url = database + "&options=-cdefault_transaction_isolation%3Dserializable"
    engine = sql_engine.engine_of(sql_engine.read_url(url))
    with sql_engine.transaction(engine, write=True) as connection:
        assert (
            connection.exec_driver_sql("SHOW default_transaction_isolation").scalar()
            == "serializable"
        )
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"
    sql_engine.forget(engine)


def test_limits_of_a_transaction_do_not_stay_with_the_session(
    store: SqlStore, database: str
) -> None:
    store.ask(request(1))
    with sql_engine.engine_of(sql_engine.read_url(database)).connect() as connection:
        assert connection.exec_driver_sql("SHOW lock_timeout").scalar() == f"{sql_engine.LOCK_S:g}s"
        connection.commit()
        # as another client of a pooler would get it
        session = connection.connection.driver_connection.cursor()
        session.execute("SHOW lock_timeout")
        assert session.fetchone() == ("0",)


def test_a_connection_that_broke_is_made_anew(store: SqlStore, database: str) -> None:
    """As after a restart of the database."""
    store.ask(request(1))
    with asked_of(database) as ask:
        ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ="
            " 'airflow-provider-zeus'"
        )
    assert store.ask(request(2)).trial.number == 2


# --- the tables


@pytest.fixture
def connected(airflow_home: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Connection ``zeus_default`` to the database, on a cluster."""
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_DEFAULT", json.dumps({"conn_type": "zeus", "host": database})
    )
    return database


def test_the_upgrade_makes_the_tables_of_an_empty_database_once(connected: str) -> None:
    for create in (True, False):
        with pytest.raises(StoreError, match=r"no tables.*db upgrade"):
            open_store(create=create)
    place = sql_engine.shown(sa.make_url(connected))
    for said, state in ((upgrade(), "now has schema"), (upgrade(), "up to date")):
        assert place in said
        assert state in said
        assert f"schema {schema.HEAD}" in said
    assert open_store().ask(request(1)).trial.number == 1


def _upgrade(start: Barrier) -> None:
    start.wait()
    print(upgrade(), flush=True)


@pytest.mark.slow
def test_two_upgrades_at_once_both_succeed(connected: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(2)
    processes = [spawn.Process(target=_upgrade, args=(start,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [p.exitcode for p in processes] == [0, 0]
    assert open_store().jobs() == []


def test_an_upgrade_that_fails_leaves_nothing_behind(connected: str) -> None:
    engine = sql_engine.engine_of(sql_engine.read_url(connected))
    with sql_engine.transaction(engine, write=True) as connection:
        # of the last that the revision makes
        connection.exec_driver_sql("CREATE TABLE zeus_checkpoint (mine int)")
    with pytest.raises(StoreError, match=r"zeus_checkpoint.* already exists"):
        upgrade()
    assert sa.inspect(engine).get_table_names() == ["zeus_checkpoint"]


# --- the server of these tests


@pytest.mark.nightly
def test_a_test_process_that_is_killed_leaves_no_server_behind() -> None:
    if os.environ.get("ZEUS_TEST_POSTGRES"):
        pytest.skip("ZEUS_TEST_POSTGRES names a server that is not ours")
    code = (
        "import subprocess, sys\ncommand = [sys.executable, '-m', 'tests.postgres']\nkeeper ="
        " subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,"
        " start_new_session=True)\nprint(keeper.pid, keeper.stdout.readline().decode().strip(),"
        " flush=True)\nsys.stdin.read()\n"
    )
    tests = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert tests.stdin
    assert tests.stdout
    pid, _, url = tests.stdout.readline().strip().partition(" ")
    folder = Path(str(sa.make_url(url).query["host"]))
    server = psutil.Process(int((folder / "postmaster.pid").read_text().split()[0]))
    assert server.is_running()
    tests.send_signal(signal.SIGKILL)
    tests.wait(60)
    tests.stdin.close()
    tests.stdout.close()
    server.wait(60)
    deadline = time.monotonic() + 60.0
    while (folder.parent.exists() or alive(int(pid))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not folder.parent.exists()
    assert not alive(int(pid))


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
