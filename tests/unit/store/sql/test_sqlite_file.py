"""The file of an SQLite log that is deleted, moved or replaced while a run has it open."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import StoreError, UnknownTrialError
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.patience import retried
from airflow_provider_zeus.store.sql import migrate
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.unit.store.sql.sqlite_kit import execute
from tests.unit.store.store_kit import Clock, report, request, run


@pytest.fixture
def path(sqlite_url: str) -> Path:
    return Path(sqlite_url.removeprefix("sqlite:///"))


def backup(path: Path) -> Path:
    """A copy of the log as it is now, by SQLite's own means."""
    copy = path.with_name("backup.db")
    with closing(sqlite3.connect(path)) as log, closing(sqlite3.connect(copy)) as to:
        log.backup(to)
    return copy


def numbers(path: Path) -> list[object]:
    """Numbers of the trials in a file, by another client."""
    return [
        n for (n,) in execute(f"sqlite:///{path}", "SELECT number FROM zeus_trial ORDER BY number")
    ]


def test_a_log_put_back_from_a_backup_is_the_one_that_is_read_and_written(
    store: SqlStore, sqlite_url: str, path: Path, clock: Clock
) -> None:
    reader = SqlStore(sqlite_url, now=clock)
    run(store, 1)
    copy = backup(path)
    late = [store.ask(request(n)).trial for n in range(2, 30)]
    assert len(reader.trials("d.train")) == 29
    copy.replace(path)
    assert [t.number for t in reader.trials("d.train")] == [1]
    with pytest.raises(UnknownTrialError):
        store.heartbeat(late[0].key, report(start_id="a"))
    assert store.ask(request(40)).trial.number == 2
    assert numbers(path) == [1, 2]
    assert execute(sqlite_url, "PRAGMA integrity_check") == [("ok",)]


def test_no_page_of_the_old_log_gets_into_the_new_one(
    store: SqlStore, path: Path, tmp_path: Path
) -> None:
    """A write-ahead log that the old file left behind is not the new one's."""
    copy = backup(path)
    for n in range(1, 40):
        run(store, n)
    assert path.with_name("zeus.db-wal").stat().st_size > 0
    shutil.move(copy, path)
    assert store.trials("d.train") == []
    for n in range(1, 4):
        run(store, n)
    store.close()
    assert numbers(path) == [1, 2, 3]


def test_a_server_leaves_no_rows_beside_the_file(
    store: SqlStore, sqlite_url: str, path: Path
) -> None:
    """It lives for months; a task ends, and closes what it opened."""
    server = SqlStore(sqlite_url, keeps_file_open=False)
    for n in range(1, 40):
        run(store, n)
        assert len(server.trials("d.train")) == n
    store.close()
    assert len(server.trials("d.train")) == 39
    assert not path.with_name("zeus.db-wal").exists()
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    assert numbers(copy) == list(range(1, 40))


def test_a_log_that_was_deleted_is_not_written_and_not_made(store: SqlStore, path: Path) -> None:
    key = store.ask(request(1)).trial.key
    path.unlink()
    for call in (
        lambda: store.heartbeat(key, report(start_id="a")),
        lambda: store.tell(key, State.CONVERGED, report()),
        lambda: store.trials("d.train"),
    ):
        with pytest.raises(StoreError, match=r"zeus\.db is gone"):
            call()
    assert not path.exists()


def test_a_log_that_was_deleted_is_made_by_the_next_run(
    store: SqlStore, sqlite_url: str, path: Path
) -> None:
    old = store.ask(request(1)).trial
    path.unlink()
    assert SqlStore(sqlite_url, create=True).trials("d.train") == []
    with pytest.raises(UnknownTrialError):
        store.heartbeat(old.key, report(start_id="a"))
    store.adopt(old)
    assert store.tell(old.key, State.CONVERGED, report()).state is State.CONVERGED
    assert numbers(path) == [1]


def test_a_new_log_is_made_although_a_task_writes_to_the_empty_file(
    path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.touch()
    journal = migrate.journal_of(path)
    waits: list[float] = []
    with closing(sqlite3.connect(path, isolation_level=None)) as task:

        def journal_of(_: Path) -> str:
            if not waits:
                task.execute("BEGIN IMMEDIATE")
            return journal

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            task.execute("COMMIT")

        monkeypatch.setattr(migrate, "journal_of", journal_of)
        monkeypatch.setattr(migrate, "retried", partial(retried, sleep=sleep))
        store = SqlStore(sqlite_url, create=True)
    assert len(waits) == 1, "SQLite itself does not wait"
    assert store.ask(request(1)).trial.number == 1
    assert execute(sqlite_url, "PRAGMA journal_mode") == [("wal",)]


def test_a_log_that_was_moved_away_and_back_is_the_same(store: SqlStore, path: Path) -> None:
    key = store.ask(request(1)).trial.key
    away = path.with_name("away.db")
    path.rename(away)
    with pytest.raises(StoreError, match="is gone"):
        store.heartbeat(key, report(epochs=1.0, start_id="a"))
    away.rename(path)
    assert store.heartbeat(key, report(epochs=2.0, start_id="a")) is None
    assert store.trials("d.train")[0].observation.epochs == 2.0


SERVER = """
import sys
from airflow_provider_zeus.patience import retried
from airflow_provider_zeus.store.sql import migrate
from airflow_provider_zeus.store.sql.store import SqlStore
print(len(SqlStore(sys.argv[1], keeps_file_open=False).trials("d.train")))
"""


def test_a_log_that_is_opened_again_keeps_its_locks(
    store: SqlStore, sqlite_url: str, path: Path
) -> None:
    """The kernel drops a process's locks of a file with the first descriptor that it closes:
    SQLite's own alone may.

    Else a server that closes its connection takes itself for the last one,
    and removes what the task still uses.
    """
    run(store, 1)
    SqlStore(sqlite_url)  # the same process looks at the file once more
    done = subprocess.run(
        [sys.executable, "-c", SERVER, sqlite_url], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"
    assert path.with_name("zeus.db-wal").exists(), "the task has it open"
    run(store, 2)
    SqlStore(sqlite_url)
    store.close()
    assert numbers(path) == [1, 2]
    assert execute(sqlite_url, "PRAGMA integrity_check") == [("ok",)]
