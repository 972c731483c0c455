"""Turns of the processes that write to one SQLite file: in order, given back by the dead,
missed by nobody.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.store.sql import engine
from airflow_provider_zeus.store.sql.sqlite_file import turn
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.unit.store.store_kit import report, request, run

LONG_S = 120.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "zeus.db"


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def queueing(file: Path) -> int:
    """How many wait for their turn, says the kernel."""
    inode = file.with_name("zeus.db.turn").stat().st_ino
    return sum(
        "->" in line and f":{inode} " in line
        for line in Path("/proc/locks").read_text().splitlines()
    )


def free(file: Path) -> bool:
    """Whether nobody has the turn."""
    with file.with_name("zeus.db.turn").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@contextmanager
def held_by_another(file: Path) -> Iterator[subprocess.Popen[bytes]]:
    code = (
        "import sys\nfrom pathlib import Path\nfrom airflow_provider_zeus.store.sql.sqlite_file"
        f" import turn\nwith turn(Path({str(file)!r}), 30):\n print(flush=True)\n"
        " sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == b"\n"
        try:
            yield other
        finally:
            other.kill()


def test_turns_come_in_the_order_of_arrival(file: Path) -> None:
    came: list[int] = []

    def wait(n: int) -> None:
        with turn(file, LONG_S):
            came.append(n)

    waiting = [threading.Thread(target=wait, args=(n,)) for n in range(8)]
    with turn(file, LONG_S):
        for n, thread in enumerate(waiting):
            thread.start()
            until(lambda n=n: queueing(file) == n + 1)  # type: ignore[misc]
        assert came == []
    for thread in waiting:
        thread.join(LONG_S)
    assert came == list(range(8))


def test_a_killed_process_gives_its_turn_back(file: Path) -> None:
    with held_by_another(file) as other:
        killed = threading.Event()

        def kill() -> None:
            until(lambda: queueing(file) == 1)
            killed.set()
            other.send_signal(signal.SIGKILL)

        threading.Thread(target=kill).start()
        with turn(file, LONG_S):
            assert killed.is_set()
            assert not free(file)


def test_a_turn_that_is_never_given_back_is_not_waited_for_for_ever(file: Path) -> None:
    """As of a process that was suspended.

    Who gave up leaves nothing behind that would hold up the next one.
    """
    with held_by_another(file) as other:
        for _ in range(2):
            with turn(file, 0.1):
                pass
        until(lambda: queueing(file) == 2)
        assert other.stdin
        other.stdin.close()
        other.wait(LONG_S)
    until(lambda: free(file))


def test_a_child_that_was_forked_meanwhile_keeps_no_turn(file: Path) -> None:
    read, write = os.pipe()
    with turn(file, LONG_S):
        pid = os.fork()
        if pid == 0:
            os.close(write)
            os.read(read, 1)  # lives on
            os._exit(0)
    assert free(file)
    os.close(write)
    os.close(read)
    os.waitpid(pid, 0)


def test_an_error_ends_the_turn(file: Path) -> None:
    with pytest.raises(KeyError), turn(file, LONG_S):
        raise KeyError
    assert free(file)
    with turn(file, LONG_S):
        assert not free(file)


def test_where_there_is_no_such_lock_nothing_fails(
    tmp_path: Path, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for nowhere in (tmp_path / "no folder" / "zeus.db", Path("zeus\0.db")):
        with turn(nowhere, LONG_S):
            pass

    def refused(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)  # as a network's file system
    assert run(store, 1).trial.number == 1


def test_a_lock_file_that_cannot_be_made_is_done_without(sqlite_url: str, file: Path) -> None:
    file.with_name("zeus.db.turn").symlink_to(file.parent / "no folder" / "lock")
    store = SqlStore(sqlite_url, create=True)
    assert run(store, 1).trial.number == 1


def test_writers_take_turns_and_readers_do_not(
    store: SqlStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "turn", lambda path, _: turn(path, LONG_S))  # a busy host
    with held_by_another(file):
        asking = threading.Thread(target=lambda: store.ask(request(1)))
        asking.start()
        until(lambda: queueing(file) == 1)
        assert store.trials("d.train") == []
        assert store.reap("d.train") == []
        assert asking.is_alive()
    asking.join(LONG_S)
    assert [t.number for t in store.trials("d.train")] == [1]


def test_no_turn_is_held_between_two_calls(store: SqlStore, file: Path) -> None:
    key = store.ask(request(1)).trial.key
    for call in (
        lambda: store.heartbeat(key, report()),
        lambda: store.reap("d.train"),
        lambda: store.ask(request(2)),
    ):
        call()
        assert free(file)


def test_a_database_that_stays_locked_is_an_error_with_a_remedy(
    sqlite_url: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    SqlStore(sqlite_url, create=True).close()
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.2)
    store = SqlStore(sqlite_url)
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"locked.* 0\.2 s.*PostgreSQL"):
        store.ask(request(1))
    holder.close()
    assert store.ask(request(1)).trial.number == 1


def test_a_question_is_answered_though_a_stopped_process_holds_the_turn(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has 20 s, of which costs that were kept may take 5."""
    waited_s: list[float] = []

    @contextmanager
    def held(_database: Path, most_s: float) -> Iterator[None]:
        waited_s.append(most_s)
        yield

    monkeypatch.setattr(engine, "turn", held)
    assert SqlStore(sqlite_url, create=True).ask(request(1)).trial.number == 1
    assert waited_s
    assert sum(waited_s) + 5.0 < 20.0


def test_a_turn_that_no_thread_can_wait_for_leaves_no_file_open(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the exit of a process, for example."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def opened() -> int:
        links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        lock = file.with_name("zeus.db.turn")
        return sum(link.exists() and link.samefile(lock) for link in links)

    with turn(file, LONG_S):
        monkeypatch.setattr(threading.Thread, "start", refused)
        with turn(file, LONG_S):
            assert opened() == 2
        assert opened() == 1
