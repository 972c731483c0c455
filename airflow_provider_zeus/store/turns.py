"""Turns of the processes of one host that write to one SQLite file.

SQLite's own waiting writers sleep and try again, the longer the later they come, so that one of them may lose for a
minute. A writer therefore queues first for a lock of a file beside the database. The kernel hands it on in the order of
arrival, and takes it back from a process that dies. It brings order and nothing else: where there is no such lock (a
folder that cannot be written to, another user's lock, a file system without locks, a holder that is suspended) SQLite's
waiting remains.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from airflow_provider_zeus import private


@contextmanager
def turn(database: Path, most_s: float) -> Iterator[None]:
    """Wait for this process's turn, for ``most_s`` seconds at most, and keep it. Raises nothing."""
    lock = None
    with suppress(OSError, ValueError):
        lock = private.open_file(f"{database}.turn", os.O_RDONLY | os.O_CREAT)
    try:
        if lock is not None:
            _queue(lock, most_s)
        yield
    finally:
        if lock is not None:
            with suppress(OSError):  # closing is not enough: a process forked meanwhile has the file open too
                fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


def _queue(lock: int, most_s: float) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(RuntimeError):  # no thread can be started: the process ends
            waiting = threading.Thread(target=_wait, args=(lock,), daemon=True)  # flock() knows no time limit
            waiting.start()
            waiting.join(most_s)
    except OSError:
        pass  # a file system without locks


def _wait(lock: int) -> None:
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX)  # given up: it is lost again with the file, which is closed by then
