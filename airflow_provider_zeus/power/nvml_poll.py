"""Energy of a GPU that has no counter: its power, read ten times a second and added up."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from airflow_provider_zeus.power.nvml_library import Answer
from airflow_provider_zeus.power.polling import Polling

EVERY_S = 0.1
STALLED_S = 3.0  # a longer gap between two readings is not bridged: nobody knows what was drawn in it


class PolledEnergy:
    """Trapezoids over readings of power. Its thread begins with the first question and ends with the object.

    :param power_mw: reads the power [mW].
    :param clock: monotonic [s].
    """

    def __init__(
        self,
        power_mw: Callable[[], Answer],
        *,
        every_s: float = EVERY_S,
        stalled_s: float = STALLED_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._power_mw, self._stalled_s = power_mw, stalled_s
        self._lock = threading.Lock()
        self._polling = Polling(self._sample, every_s)
        self._pid = os.getpid()
        self._last: tuple[float, float] | None = None  # (time [s], power [W])
        self._energy_j = 0.0
        self._broken = ""  # why the sum is of no use any more: it would lack something

    def read_j(self) -> Answer:
        """Energy [J] since the first question, up to now."""
        if os.getpid() != self._pid:  # the thread did not come along
            return Answer(None, -1, "power is polled by the process that this one was forked from")
        self._polling.start()
        answer = self._sample()
        return Answer(None, -1, self._broken) if self._broken else answer

    def close(self) -> None:
        """Stop polling."""
        self._polling.stop()

    def _sample(self) -> Answer:
        with self._lock:
            power = self._power_mw()
            if power.problem:
                return power
            now_s, power_w = self._clock(), power.value / 1000
            if self._last is not None:
                before_s, before_w = self._last
                if now_s - before_s > self._stalled_s:
                    why = f": {self._polling.problem}" if self._polling.problem else ""
                    stalled = f"polling of the GPU's power stalled for {now_s - before_s:.1f} s{why}"
                    self._broken = self._broken or stalled
                self._energy_j += (before_w + power_w) / 2 * (now_s - before_s)
            self._last = now_s, power_w
            return Answer(self._energy_j)
