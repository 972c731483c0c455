"""A thread that takes a run's result lines to its store, so that a store that hangs does not hang the training."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.protocol.sender import folded


@dataclass(slots=True)
class QueuedLine:
    """A line in the queue. Once it is ``done``, ``error`` says why the store did not take it."""

    line: ResultLine
    done: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


class StoreThread:
    """Calls ``take`` for one line after the other, in order.

    A heartbeat that waits is merged into the next line of its attempt, so at most one waits per attempt, however long
    the store is away. The thread is a daemon and ends when the queue is empty: it keeps no process alive. Where no
    thread can be started, the caller's thread calls ``take``.
    """

    def __init__(self, take: Callable[[ResultLine], None]) -> None:
        self._take = take
        self._lock = threading.Lock()  # never held during a call of ``take``
        self._queue: list[QueuedLine] = []
        self._thread: threading.Thread | None = None

    def put(self, line: ResultLine) -> QueuedLine:
        """Queue a line; returns at once."""
        queued = QueuedLine(line)
        with self._lock:
            last = self._queue[-1] if self._queue else None
            merged = folded([last.line, line]) if last else []
            if len(merged) == 1:
                queued.line = merged[0]
                self._queue[-1] = queued
            else:
                self._queue.append(queued)
            if self._thread is not None and self._thread.is_alive():
                return queued
            thread = self._thread = threading.Thread(target=self._run, name="zeus-store", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._run()
        return queued

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._thread = None
                    return
                queued = self._queue.pop(0)
            try:
                self._take(queued.line)
            except Exception as error:
                queued.error = error.with_traceback(None)  # its frames hold the line, a cycle
            finally:
                queued.done.set()
