"""An SQLite log on a disk that several hosts may use: it has no write-ahead log,
whose index hosts do not share.
"""

from __future__ import annotations

import multiprocessing
import socket
import sqlite3
import time
from contextlib import closing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.sql import backup, sqlite_file
from airflow_provider_zeus.store.sql.sqlite_file import BESIDE_READERS, ONE_FILE
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.unit.store.sql.sqlite_kit import execute
from tests.unit.store.store_kit import Clock, report, request, run

RUNS = 8  # of each host


def mounted(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """Let the kernel say that these file systems are mounted."""
    mounts = folder / "mounts"
    mounts.write_text(text)
    monkeypatch.setattr(sqlite_file, "MOUNTS", mounts)


@pytest.fixture
def on_nfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch, tmp_path, f"/dev/vda / ext4 rw 0 0\nserver:/home {tmp_path} nfs4 rw 0 0\n")


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/data/airflow", "ext4"),
        ("/data/shared/airflow", "nfs4"),
        ("/data/shared2", "ext4"),
        ("/data/with space/airflow", "fuse.sshfs"),
        ("/data/tab\there/airflow", "nfs4"),
        ("/data/back\\040slash/airflow", "nfs4"),
        ("/twice/airflow", "cifs"),
    ],
)
def test_a_path_is_on_the_file_system_that_was_mounted_nearest_to_it_last(
    folder: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "/dev/vda / ext4 rw 0 0\nserver:/a /data/shared nfs4 rw 0 0\nme@b:/ /data/with\\040space"
        " fuse.sshfs rw 0 0\ns:/t /data/tab\\011here nfs4 rw 0 0\n"
        "s:/b /data/back\\134040slash nfs4 rw 0 0\n/dev/vdb /twice xfs rw 0 0\n//server/c /twice cifs rw 0 0\n"
    )
    mounted(monkeypatch, tmp_path, text)
    assert sqlite_file.file_system(Path(folder) / "zeus.db") == kind
    assert sqlite_file.journal_of(Path(folder) / "zeus.db") == (
        BESIDE_READERS if kind == "ext4" else ONE_FILE
    )


def test_where_the_kernel_names_no_mounts_the_disk_is_the_hosts_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sqlite_file, "MOUNTS", Path("/no/such/file"))
    assert sqlite_file.journal_of(Path("/data/zeus.db")) == BESIDE_READERS


@pytest.mark.usefixtures("on_nfs")
def test_a_new_log_there_has_no_write_ahead_log_and_a_backup_leaves_it_so(
    sqlite_url: str, tmp_path: Path, clock: Clock
) -> None:
    store = SqlStore(sqlite_url, create=True, now=clock)
    log = tmp_path / "zeus.db"
    run(store, 1)
    assert execute(sqlite_url, "PRAGMA journal_mode") == [("delete",)]
    backup.backup(log, tmp_path / "copy")
    backup.restore(tmp_path / "copy", log)
    assert execute(sqlite_url, "PRAGMA journal_mode") == [("delete",)]
    assert [t.number for t in store.trials("d.train")] == [1]


def test_a_log_that_came_there_leaves_its_write_ahead_log_when_nobody_else_has_it_open(
    store: SqlStore, sqlite_url: str, clock: Clock, request_: pytest.FixtureRequest
) -> None:
    run(store, 1)
    store.close()
    request_.getfixturevalue("on_nfs")
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as other:
        other.execute("SELECT count(*) FROM zeus_trial").fetchone()
        beside = SqlStore(sqlite_url, now=clock)
        assert len(beside.trials("d.train")) == 1
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        beside.close()
    alone = SqlStore(sqlite_url, now=clock)
    run(alone, 2)
    assert execute(sqlite_url, "PRAGMA journal_mode") == [("delete",)]
    assert [t.number for t in alone.trials("d.train")] == [1, 2]


def _on_a_host(name: str, clock_ahead_s: float, url: str, start: Barrier) -> None:
    socket.gethostname = lambda: name
    store = SqlStore(url, now=lambda: time.time() + clock_ahead_s)
    start.wait(300)
    for i in range(RUNS):
        asked = store.ask(request(i, ti_id=f"{name}-{i}", job_id="shared"))
        store.heartbeat(asked.trial.key, report(epochs=1.0, points=2))
        store.tell(asked.trial.key, State.CONVERGED, report(asked.trial.batch_size))


@pytest.mark.slow
@pytest.mark.usefixtures("on_nfs")
def test_two_hosts_whose_clocks_differ_lose_no_run(sqlite_url: str) -> None:
    """Nothing in the log depends on a host's name, or on its processes:
    a container may have another name each time.
    """
    SqlStore(sqlite_url, create=True).close()
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(2)
    hosts = [("a-host", 0.0), ("no-such-host", 60.0)]
    processes = [
        spawn.Process(target=_on_a_host, args=(*host, sqlite_url, start)) for host in hosts
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, 0]
    trials = SqlStore(sqlite_url).trials("shared")
    assert [t.number for t in trials] == list(range(1, 2 * RUNS + 1))
    assert {t.state for t in trials} == {State.CONVERGED}
    assert {t.key.ti_id for t in trials} == {
        f"{name}-{i}" for name, _ in hosts for i in range(RUNS)
    }
    assert execute(sqlite_url, "PRAGMA integrity_check") == [("ok",)]
