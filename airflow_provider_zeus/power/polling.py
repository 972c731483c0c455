"""A call made again and again by a thread of its own, which ends with the object that it is made on."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

log = logging.getLogger(__name__)


class Polling:
    """Calls a method every so many seconds from :meth:`start` to :meth:`stop`.

    :param method: of an object that is not kept alive for this.
    """

    def __init__(self, method: Callable[[], object], every_s: float) -> None:
        self._method, self._every_s = weakref.WeakMethod(method), every_s
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.problem = ""  # why nothing is called in the background; empty where nothing speaks against it

    def start(self) -> None:
        """Begin, unless it was begun or stopped. Where no thread can be had now, the next call tries again."""
        if self._thread is not None or self._stopped.is_set():
            return
        arguments = (self._method, self._stopped, self._every_s)
        thread = threading.Thread(target=_poll, args=arguments, name="zeus-power", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self.problem:
                log.warning("Energy is read at the edges of training only: no thread can be started here (%s).", error)
            self.problem = f"no thread can be started ({error})"
        else:
            self._thread, self.problem = thread, ""

    def stop(self) -> None:
        """No further call is begun."""
        self._stopped.set()


def _poll(of: weakref.WeakMethod[Callable[[], object]], stopped: threading.Event, every_s: float) -> None:
    while not stopped.wait(every_s):
        method = of()
        if method is None:
            return
        method()
        del method  # or its object would live as long as this thread sleeps
