"""A call made again and again by a thread of its own, which ends with the object that it is made on."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable


class Polling:
    """Calls a method every so many seconds from :meth:`start` to :meth:`stop`.

    :param method: of an object that is not kept alive for this.
    """

    def __init__(self, method: Callable[[], object], every_s: float) -> None:
        self._method, self._every_s = weakref.WeakMethod(method), every_s
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, unless it was begun or stopped."""
        if self._thread is None and not self._stopped.is_set():
            arguments = (self._method, self._stopped, self._every_s)
            self._thread = threading.Thread(target=_poll, args=arguments, name="zeus-power", daemon=True)
            self._thread.start()

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
