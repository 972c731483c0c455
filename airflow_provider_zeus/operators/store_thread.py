"""One thread that takes a run's lines to its store, so that a store that does not answer holds no training."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_provider_zeus.training.outbox import folded
from airflow_provider_zeus.training.plan import Line


@dataclass(slots=True)
class Handed:
    """A line that was handed over. ``error``: why it was not taken, once it is ``done``."""

    line: Line
    done: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


class StoreThread:
    """Calls ``take`` for one line after the other, in order.

    A beat that waits goes with the next line of its attempt, so at most one waits however long the store is away. The
    thread is a daemon and ends when nothing waits: it keeps no process alive. Where none can be started the lines are
    taken at once, by the caller.
    """

    def __init__(self, take: Callable[[Line], None]) -> None:
        self._take = take
        self._lock = threading.Lock()  # never held while a line is taken
        self._waiting: list[Handed] = []
        self._thread: threading.Thread | None = None

    def put(self, line: Line) -> Handed:
        """Hand a line over; returns at once."""
        handed = Handed(line)
        with self._lock:
            last = self._waiting[-1] if self._waiting else None
            together = folded([last.line, line]) if last else []
            if len(together) == 1:
                handed.line = together[0]
                self._waiting[-1] = handed
            else:
                self._waiting.append(handed)
            if self._thread is not None and self._thread.is_alive():
                return handed
            thread = self._thread = threading.Thread(target=self._run, name="zeus-store", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._run()
        return handed

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                handed = self._waiting.pop(0)
            try:
                self._take(handed.line)
            except Exception as error:
                handed.error = error.with_traceback(None)  # whose frames hold this one
            finally:
                handed.done.set()
