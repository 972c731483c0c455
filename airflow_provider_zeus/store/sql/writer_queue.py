"""A queue for the processes of one host that write to one SQLite file.

Writers that wait for SQLite's lock sleep and retry with growing pauses, so one of them may wait for a minute. A writer
therefore first locks a file beside the database. The kernel grants this lock in the order of arrival, and releases it
when a process dies. It only orders writers. Where it cannot be had (a read-only folder, another user's lock file, a
file system without locks, a suspended holder), SQLite's waiting remains.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from airflow_provider_zeus import private_files


@contextmanager
def turn(database: Path, most_s: float) -> Iterator[None]:
    """Hold this process's turn; wait for it for at most ``most_s`` seconds. Raises nothing."""
    lock = None
    with suppress(OSError, ValueError):
        lock = private_files.open_file(f"{database}.turn", os.O_RDONLY | os.O_CREAT)
    try:
        if lock is not None:
            _queue(lock, most_s)
        yield
    finally:
        if lock is not None:
            with suppress(OSError):  # a process that was forked meanwhile still has the file open
                fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


def _queue(lock: int, most_s: float) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(RuntimeError):  # no thread can be started at the exit of the process
            waiting = threading.Thread(target=_wait, args=(lock,), daemon=True)  # flock() has no time limit
            waiting.start()
            waiting.join(most_s)
    except OSError:
        pass  # a file system without locks


def _wait(lock: int) -> None:
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX)  # after a timeout the file is closed, which releases the lock
