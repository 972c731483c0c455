"""A method called periodically by a background thread, which ends when the method's object is
deleted.

A method that takes long is called less often, so that its calls take at most 2 % of the time.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.power.meter import MOST_SHARE
from airflow_provider_zeus.power.nvml.library import NvmlAnswer

log = guarded_log(__name__)


STALLED_S = 3.0  # in a longer gap the power may have changed: a trapezoid would be a guess


class Polling:
    """Calls a method every ``every_s`` seconds, or less often, from :meth:`start` to :meth:`stop`.

    :param method: a bound method; only a weak reference to its object is kept.
    """

    def __init__(self, method: Callable[[], object], every_s: float) -> None:
        self._method = weakref.WeakMethod(method)
        self._every_s = every_s
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.problem = ""

    def start(self) -> None:
        """Start the thread unless it was started or stopped before; after a failure the next call
        tries again.
        """
        if self._thread is not None or self._stopped.is_set():
            return
        arguments = (self._method, self._stopped, self._every_s)
        thread = threading.Thread(target=_poll, args=arguments, name="zeus-power", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self.problem:  # said once: each reading tries again
                log.warning(
                    "Energy is read only where training begins and ends: no thread can be started "
                    "here (%s).",
                    error,
                )
            self.problem = f"no thread can be started ({error})"
        else:
            self._thread = thread
            self.problem = ""

    def stop(self) -> None:
        """Make no further call."""
        self._stopped.set()


def _poll(
    reference: weakref.WeakMethod[Callable[[], object]], stopped: threading.Event, every_s: float
) -> None:
    pause_s = every_s
    while not stopped.wait(pause_s):
        method = reference()
        if method is None:
            return
        began_s = time.perf_counter()
        method()
        del method  # else this thread would keep its object alive while it sleeps
        pause_s = max(every_s, spaced_s(time.perf_counter() - began_s))


def spaced_s(took_s: float) -> float:
    """How long to wait [s] after a call that took ``took_s``, so that such calls take at most 2 %
    of the time.
    """
    return took_s * (1.0 / MOST_SHARE - 1.0)


def moves(read: Callable[[], float | None], *, within_s: float = 1.0) -> bool:
    """Whether a counter, or the draw that is added up, moves: real ones do within 0.1 s, on an idle
    device too.
    """
    first = read()
    until_s = time.monotonic() + within_s
    is_over = False
    while read() == first:
        if is_over:
            return False
        time.sleep(0.02)
        # The last look comes after the time: the host itself may have stood still.
        is_over = time.monotonic() > until_s
    return True


class PolledEnergy:
    """Trapezoidal integral of power readings. A thread starts at the first reading and ends with
    the object.

    :param power_mw: reads the power [mW].
    :param clock: monotonic [s].
    """

    def __init__(
        self,
        power_mw: Callable[[], NvmlAnswer],
        *,
        every_s: float = 0.1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._power_mw = power_mw
        self._lock = threading.Lock()
        self._polling = Polling(self.read_j, every_s)
        self._pid = os.getpid()
        self._last: tuple[float, float] | None = None
        self._energy_j = 0.0
        self._broken = ""  # a sum with a hole would look like a measurement

    def read_j(self) -> NvmlAnswer:
        """Energy [J] from the first call until now."""
        if os.getpid() != self._pid:  # the thread runs in the parent: a sum here would have holes
            forked = "power is polled by the process that this one was forked from"
            return NvmlAnswer(None, -1, forked)
        self._polling.start()
        with self._lock:
            began_s = self._clock()
            power = self._power_mw()
            if power.problem:
                if self._broken:
                    return NvmlAnswer(None, -1, self._broken)
                return power
            now_s = self._clock()
            power_w = power.value / 1000
            if self._last is not None:
                before_s, before_w = self._last
                gap_s = now_s - before_s
                if gap_s > STALLED_S:
                    self._broken = self._broken or self._why_broken(gap_s, now_s - began_s)
                self._energy_j += (before_w + power_w) / 2 * gap_s
            self._last = now_s, power_w
            if self._broken:
                return NvmlAnswer(None, -1, self._broken)
            return NvmlAnswer(self._energy_j)

    def _why_broken(self, gap_s: float, took_s: float) -> str:
        if spaced_s(took_s) > STALLED_S:
            return (
                "the GPU's power is read too rarely to add it up: a reading takes "
                f"{1000 * took_s:.0f} ms, and readings may take {100 * MOST_SHARE:g} % of the time"
            )
        stalled = f"polling of the GPU's power stalled for {gap_s:.1f} s"
        if self._polling.problem:
            stalled += f": {self._polling.problem}"
        return stalled

    def close(self) -> None:
        """Stop polling."""
        self._polling.stop()
