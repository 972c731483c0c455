"""Energy of a GPU without a counter: its power, read ten times a second and integrated."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from airflow_provider_zeus.power.nvml.library import NvmlAnswer
from airflow_provider_zeus.power.polling import Polling

EVERY_S = 0.1
STALLED_S = 3.0  # over a longer gap between two readings the energy is unknown


class PolledEnergy:
    """Trapezoidal integral of power readings. A thread starts at the first reading and ends with the object.

    :param power_mw: reads the power [mW].
    :param clock: monotonic [s].
    """

    def __init__(
        self,
        power_mw: Callable[[], NvmlAnswer],
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
        self._broken = ""  # why the sum is incomplete

    def read_j(self) -> NvmlAnswer:
        """Energy [J] from the first call until now."""
        if os.getpid() != self._pid:  # the thread runs in the parent only
            return NvmlAnswer(None, -1, "power is polled by the process that this one was forked from")
        self._polling.start()
        answer = self._sample()
        return NvmlAnswer(None, -1, self._broken) if self._broken else answer

    def close(self) -> None:
        """Stop polling."""
        self._polling.stop()

    def _sample(self) -> NvmlAnswer:
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
            return NvmlAnswer(self._energy_j)
