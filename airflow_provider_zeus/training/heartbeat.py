"""A thread that calls a function from time to time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from airflow_provider_zeus.log_guard import guarded_log

log = guarded_log(__name__)


class Heartbeat:
    """Calls ``beat`` every ``every_s`` seconds until stopped; a daemon thread, so it never keeps a
    process alive.

    If no thread can be started there are no heartbeats: the log says so, and the training goes on.
    """

    def __init__(self, beat: Callable[[], None], every_s: float) -> None:
        self._beat = beat
        self._every_s = every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zeus-heartbeat", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            log.warning(
                "Zeus sends no heartbeats, since no thread can be started here (%s). The training "
                "goes on; once its lease is over it reads as abandoned until its end is written.",
                error,
            )

    def stop(self) -> None:
        """Stop. Waits for a beat that is under way, at most one period or one second."""
        self._stopped.set()
        end_s = 1.0  # a store that hangs must not hold up the end of a training
        if self._thread.is_alive():
            self._thread.join(min(self._every_s, end_s))

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                self._beat()
            except Exception:  # the next beat may succeed; without beats the lease expires
                log.exception("A heartbeat failed.")
