"""A backup of an SQLite log, while others write to it and after they were killed;
and the way back.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.store.sql.backup import backup, restore, trials_in
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.unit.store.sql.sqlite_kit import execute
from tests.unit.store.store_kit import run

# Writes runs to the log until it is killed. Its second connection reads all the while, so that SQLite
# leaves the newest rows in the log beside the file, however many there are: what a process that is
# killed within a transaction leaves behind.
WRITER = textwrap.dedent("""
    import sqlite3, sys
    from airflow_provider_zeus.store.sql.store import SqlStore
    from tests.unit.store.store_kit import run
    store = SqlStore(sys.argv[1])
    kept = sqlite3.connect(sys.argv[1].removeprefix("sqlite:///"), isolation_level=None)
    kept.execute("BEGIN")
    kept.execute("SELECT count(*) FROM zeus_trial").fetchall()
    for number in range(100, 10_000):
        run(store, number)
        print(number, flush=True)
""")


@pytest.fixture
def path(sqlite_url: str) -> Path:
    return Path(sqlite_url.removeprefix("sqlite:///"))


@contextmanager
def writing(url: str, at_least: int) -> Iterator[subprocess.Popen[str]]:
    """A process that writes runs; yields once it has written so many, and kills it at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        for _ in range(at_least):
            assert process.stdout.readline(), "the writer has ended"
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def rows(file: Path) -> list[tuple[object, ...]]:
    return execute(
        f"sqlite:///{file}", "SELECT ti_id, attempt, state FROM zeus_trial ORDER BY number"
    )


def test_a_backup_beside_a_writer_is_whole(
    store: SqlStore, sqlite_url: str, path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "log.backup"
    run(store, 1)
    with writing(sqlite_url, 3):
        found = backup(path, file)
    assert found >= 4
    *older, newest = rows(file)
    *older_now, newest_now = rows(path)[:found]
    assert older == older_now
    before_it_ended = (*newest_now[:2], "running")
    assert newest in (newest_now, before_it_ended)
    assert execute(f"sqlite:///{file}", "PRAGMA integrity_check") == [("ok",)]


def test_rows_beside_the_file_are_in_the_backup(
    store: SqlStore, sqlite_url: str, path: Path, tmp_path: Path
) -> None:
    """A writer was killed: its newest rows are in the log beside the file alone."""
    file = tmp_path / "log.backup"
    copy = tmp_path / "copy.db"
    with writing(sqlite_url, 5):
        pass
    assert path.with_name("zeus.db-wal").stat().st_size > 0
    shutil.copy(path, copy)
    found = backup(path, file)
    assert len(rows(copy)) < found, "a copy of the file alone lacks them"
    assert len(rows(path)) == found


def test_a_backup_is_put_back_beside_what_a_killed_writer_left(
    store: SqlStore, sqlite_url: str, path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "log.backup"
    for number in range(1, 4):
        run(store, number)
    assert backup(path, file) == 3
    with writing(sqlite_url, 5):
        pass
    assert path.with_name("zeus.db-wal").stat().st_size > 0
    assert restore(file, path) == 3
    assert [*path.parent.glob("*-wal")] == []
    assert execute(sqlite_url, "PRAGMA journal_mode") == [("wal",)]
    assert execute(sqlite_url, "PRAGMA integrity_check") == [("ok",)]
    run(store, 5)
    assert [ti_id for ti_id, *_ in rows(path)] == ["ti-1", "ti-2", "ti-3", "ti-5"]


def test_a_log_that_another_process_has_open_is_not_replaced(
    store: SqlStore, sqlite_url: str, path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "log.backup"
    run(store, 1)
    backup(path, file)
    with writing(sqlite_url, 2):
        with pytest.raises(StoreError, match="Another process has the run log"):
            restore(file, path)
        assert len(rows(path)) >= 3
    assert [*tmp_path.glob("*.new*")] == []


def test_a_damaged_log_can_be_replaced(store: SqlStore, path: Path, tmp_path: Path) -> None:
    file = tmp_path / "log.backup"
    run(store, 1)
    backup(path, file)
    path.write_bytes(b"no database" * 1000)
    assert restore(file, path) == 1
    assert len(store.trials("d.train")) == 1


def test_a_log_that_is_gone_can_be_restored(store: SqlStore, path: Path, tmp_path: Path) -> None:
    file = tmp_path / "log.backup"
    run(store, 1)
    backup(path, file)
    path.unlink()
    assert restore(file, path) == 1
    assert len(store.trials("d.train")) == 1
    assert path.stat().st_mode & 0o077 == 0


def test_a_log_behind_a_link_is_backed_up_and_put_back(
    store: SqlStore, path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "log.backup"
    link = tmp_path / "link.db"
    link.symlink_to(path)
    run(store, 1)
    for own in (path, path.with_name("zeus.db-wal"), link):
        for named in (path, link):
            with pytest.raises(StoreError, match="belongs to the run log itself"):
                backup(named, own)
    assert backup(link, file) == 1
    run(store, 2)
    store.close()
    assert restore(file, link) == 1
    assert link.readlink() == path
    assert len(rows(path)) == 1
    assert [*path.parent.glob("*.new*")] == []


def test_a_file_system_without_locks_is_no_other_process(
    store: SqlStore, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lockf(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    file = tmp_path / "log.backup"
    run(store, 1)
    backup(path, file)
    monkeypatch.setattr(fcntl, "lockf", lockf)
    with pytest.raises(StoreError, match=r"zeus\.db cannot be locked \(No locks available\)"):
        restore(file, path)
    assert len(rows(path)) == 1


def test_what_is_no_backup_replaces_nothing(store: SqlStore, path: Path, tmp_path: Path) -> None:
    run(store, 1)
    other_version = tmp_path / "other.db"
    empty = tmp_path / "empty.db"
    text = tmp_path / "text.db"
    backup(path, other_version)
    execute(f"sqlite:///{other_version}", "UPDATE zeus_alembic_version SET version_num = '0009'")
    with closing(sqlite3.connect(empty)) as database:
        database.execute("CREATE TABLE a (b)")
    text.write_text("no database")
    for file, problem in (
        (other_version, "other.db is a run log with schema 0009"),
        (empty, "empty.db is no run log: it has no tables of ours"),
        (text, "cannot be read as a run log"),
        (tmp_path / "missing.db", "There is no file"),
        (path, "belongs to the run log itself"),
        (path.with_name("zeus.db-wal"), "belongs to the run log itself"),
    ):
        with pytest.raises(StoreError, match=problem):
            restore(file, path)
    assert len(rows(path)) == 1


def test_a_backup_that_cannot_be_made_leaves_the_older_one(
    store: SqlStore, path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "log.backup"
    run(store, 1)
    backup(path, file)
    before = file.read_bytes()
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(
        StoreError, match=r"zeus\.db cannot be copied into .* \(file is not a database"
    ):
        backup(path, file)
    assert file.read_bytes() == before
    assert trials_in(file) == 1
    assert [*tmp_path.glob("*.new*")] == []


def test_a_copy_for_which_there_is_no_room_names_both_places(
    store: SqlStore, path: Path, tmp_path: Path
) -> None:
    """Of a full disk SQLite does not tell whether it was that of the log or that of the copy."""
    run(store, 1)
    (folder := tmp_path / "full").mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(StoreError, match=f"^{path} cannot be copied into {folder} "):
            backup(path, folder / "log.backup")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [*folder.iterdir()] == []


def test_a_log_without_our_tables_is_named_and_not_its_copy(tmp_path: Path) -> None:
    log = tmp_path / "other.db"
    with closing(sqlite3.connect(log)) as database:
        database.execute("CREATE TABLE a (b)")
    with pytest.raises(StoreError, match=f"^{log} is no run log"):
        backup(log, tmp_path / "log.backup")


def test_a_damaged_page_is_found_and_the_log_named(
    store: SqlStore, path: Path, tmp_path: Path
) -> None:
    run(store, 1)
    store.close()
    with closing(sqlite3.connect(path)) as database:
        (size,) = database.execute("PRAGMA page_size").fetchone()
        root = "SELECT rootpage FROM sqlite_master WHERE name = 'zeus_job'"
        (page,) = database.execute(root).fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    with pytest.raises(StoreError, match=f"^The copy of {path} is damaged"):
        backup(path, tmp_path / "log.backup")
    assert not (tmp_path / "log.backup").exists()


def test_a_file_in_the_place_of_the_new_one_is_left_alone(
    store: SqlStore, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another process that makes the same backup."""
    file = tmp_path / "backup.db"
    monkeypatch.setattr(os, "urandom", bytes)
    others = tmp_path / f"backup.db.{bytes(8).hex()}.new"
    others.write_text("half a backup")
    with pytest.raises(StoreError, match="cannot be made"):
        backup(path, file)
    assert others.read_text() == "half a backup"
    assert not file.exists()


def test_a_folder_that_is_missing_is_named(store: SqlStore, path: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="name a folder where this user may write"):
        backup(path, tmp_path / "missing" / "log.backup")
