"""A method called periodically by a background thread, which ends when the method's object is deleted."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

log = logging.getLogger(__name__)


class Polling:
    """Calls a method every ``every_s`` seconds from :meth:`start` to :meth:`stop`.

    :param method: a bound method; only a weak reference to its object is kept.
    """

    def __init__(self, method: Callable[[], object], every_s: float) -> None:
        self._method, self._every_s = weakref.WeakMethod(method), every_s
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.problem = ""  # why no thread runs; empty where one can

    def start(self) -> None:
        """Start the thread unless it was started or stopped before; after a failure the next call tries again."""
        if self._thread is not None or self._stopped.is_set():
            return
        arguments = (self._method, self._stopped, self._every_s)
        thread = threading.Thread(target=_poll, args=arguments, name="zeus-power", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self.problem:
                log.warning(
                    "Energy is read only where training begins and ends: no thread can be started here (%s).", error
                )
            self.problem = f"no thread can be started ({error})"
        else:
            self._thread, self.problem = thread, ""

    def stop(self) -> None:
        """Make no further call."""
        self._stopped.set()


def _poll(reference: weakref.WeakMethod[Callable[[], object]], stopped: threading.Event, every_s: float) -> None:
    while not stopped.wait(every_s):
        method = reference()
        if method is None:
            return
        method()
        del method  # else this thread would keep its object alive while it sleeps
