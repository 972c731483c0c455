"""What only the SQL store has: overlapping recurrences, locks, processes."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import sqlite3
import threading
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.sql import engine
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.unit.store.store_kit import report, request


def test_overlapping_recurrences_know_each_other(store: SqlStore) -> None:
    first, second = (store.ask(request(n)).trial for n in (1, 2))
    assert [t.state for t in store.trials("d.train")] == [State.RUNNING, State.RUNNING]
    store.tell(second.key, State.CONVERGED, report())
    third = store.ask(request(3)).trial
    assert (first.asked_after_seq, second.asked_after_seq, third.asked_after_seq) == (0, 0, 1)


def test_a_late_question_of_an_earlier_try_closes_no_newer_one(store: SqlStore) -> None:
    store.ask(request(1, ti_id="new", try_number=2))
    store.ask(request(1, ti_id="old", try_number=1))
    assert {t.key.ti_id: t.state for t in store.trials("d.train")} == {
        "new": State.RUNNING,
        "old": State.RUNNING,
    }


def test_mapped_instances_of_one_run_do_not_close_each_other(store: SqlStore) -> None:
    for i in range(3):
        asked = request(1, ti_id=f"ti-{i}")
        store.ask(replace(asked, origin=replace(asked.origin, map_index=i)))
    assert [t.state for t in store.trials("d.train")] == [State.RUNNING] * 3


def _recurrences(url: str, worker: int, count: int, start: Barrier) -> None:
    try:
        store = SqlStore(url)
        start.wait(300)
        for i in range(count):
            ti_id = f"w{worker}-{i}"
            asked = store.ask(request(worker * 1000 + i, ti_id=ti_id))
            assert (
                store.ask(request(worker * 1000 + i, ti_id=ti_id)).trial.number
                == asked.trial.number
            )
            if i == 0:
                start.wait(300)  # all have asked, none has told: these overlap for sure
            store.heartbeat(asked.trial.key, report(epochs=1.0, profile=1, points=2))
            news = report(asked.trial.batch_size, samples=worker * 1000 + i)
            assert store.tell(asked.trial.key, State.CONVERGED, news).state is State.CONVERGED
    except BaseException:
        start.abort()  # the others must not wait for this one
        raise


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sqlite_url", "database"])
def test_processes_at_once_lose_nothing(place: str, request_: pytest.FixtureRequest) -> None:
    workers = 4
    count = 10
    url = request_.getfixturevalue(place)
    SqlStore(url, create=True).close()
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(workers)
    processes = [
        spawn.Process(target=_recurrences, args=(url, w, count, start)) for w in range(workers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [p.exitcode for p in processes] == [0] * workers
    log = SqlStore(url).trials("d.train")
    assert [t.number for t in log] == list(range(1, workers * count + 1))
    assert sorted(t.told_seq or 0 for t in log) == list(range(1, workers * count + 1))
    assert {t.observation.samples for t in log} == {
        w * 1000 + i for w in range(workers) for i in range(count)
    }
    assert any(t.asked_after_seq != t.number - 1 for t in log), "the recurrences never overlapped"


def _mapped(url: str, indexes: range, start: Barrier) -> None:
    store = SqlStore(url)
    start.wait(300)
    for index in indexes:
        asked = request(1, ti_id=f"ti-{index}")
        answer = store.ask(replace(asked, origin=replace(asked.origin, map_index=index)))
        store.tell(
            answer.trial.key, State.CONVERGED, report(answer.trial.batch_size, samples=index)
        )


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sqlite_url", "database"])
def test_hundreds_of_map_indexes_at_once_have_a_row_each(
    place: str, request_: pytest.FixtureRequest
) -> None:
    workers = 4
    each = 50
    url = request_.getfixturevalue(place)
    SqlStore(url, create=True).close()
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(workers)
    parts = [range(each * w, each * (w + 1)) for w in range(workers)]
    processes = [spawn.Process(target=_mapped, args=(url, part, start)) for part in parts]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [p.exitcode for p in processes] == [0] * workers
    log = SqlStore(url).trials("d.train")
    assert [t.number for t in log] == list(range(1, workers * each + 1))
    assert sorted(t.origin.map_index for t in log) == list(range(workers * each))
    assert all(
        (t.state, t.observation.samples) == (State.CONVERGED, t.origin.map_index) for t in log
    )


def _open(url: str, start: Barrier) -> None:
    start.wait()
    SqlStore(url, create=True).ask(request(os.getpid()))


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sqlite_url", "database"])
def test_several_processes_make_the_tables_together(
    place: str, request_: pytest.FixtureRequest
) -> None:
    url = request_.getfixturevalue(place)
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(3)
    processes = [spawn.Process(target=_open, args=(url, start)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [p.exitcode for p in processes] == [0, 0, 0]
    assert [t.number for t in SqlStore(url).trials("d.train")] == [1, 2, 3]


def test_a_file_is_made_by_one_process_at_a_time(sqlite_url: str) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    with path.with_name("zeus.db.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        opening = threading.Thread(target=lambda: SqlStore(sqlite_url, create=True))
        opening.start()
        opening.join(0.5)
        assert opening.is_alive()
        assert not path.exists()
    opening.join(120)
    assert SqlStore(sqlite_url).jobs() == []


def test_a_writer_waits_for_the_lock_instead_of_failing(store: SqlStore, sqlite_url: str) -> None:
    holder = sqlite3.connect(
        sqlite_url.removeprefix("sqlite:///"), check_same_thread=False, isolation_level=None
    )
    holder.execute("BEGIN IMMEDIATE")
    assert store.trials("d.train") == []  # a reader does not wait
    timer = threading.Timer(0.5, lambda: holder.execute("COMMIT"))
    timer.start()
    assert store.ask(request(1)).trial.number == 1
    timer.join()
    holder.close()


def test_a_child_process_does_not_share_its_parents_connections(
    store: SqlStore, sqlite_url: str
) -> None:
    url = engine.read_url(sqlite_url)
    parent = engine.engine_of(url)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, b"other" if engine.engine_of(url) is not parent else b"same!")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 5) == b"other"
    assert engine.engine_of(url) is parent
