"""The device where nothing measures energy: only time passes."""

from __future__ import annotations

import platform
import time

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.optimizer.trial import DeviceInfo

NO_SOURCE = (
    "no source of energy on this host: train on an NVIDIA GPU, or use device='simulated:<gpu>/<load>' to try things out"
)


class NoneDevice:
    """No energy and no limit; the batch size can still be tuned, on time alone.

    :param max_power_w: MAXPOWER of Eq. 2 [W] as the user states it.
    :param why: why energy is not measured, for the logs and the page.
    """

    uuid = None

    def __init__(self, max_power_w: float | None = None, *, why: str = NO_SOURCE) -> None:
        self.info = DeviceInfo(model=cpu_model(), max_power_w=max_power_w)
        self.missing = {"energy_j": why, "limit_w": "this device has no power limit"}

    def now_s(self) -> float:
        """Monotonic clock of this host [s]."""
        return time.perf_counter()

    def energy_j(self) -> None:
        """Never known."""

    def limit_range(self) -> None:
        """There are no limits."""

    def limit_w(self) -> None:
        """There is no limit."""

    def set_limit_w(self, limit_w: float) -> None:
        """Raises DeviceError: there is nothing to set."""
        raise DeviceError(f"power limit = {limit_w:g} W: {self.missing['limit_w']}. Use mode='measure'.")

    def restore_record(self) -> None:
        """Nothing to restore."""

    def on_step(self, samples: int) -> None:
        """Ignored: the clock is the host's."""

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def close(self) -> None:
        """Nothing is held."""


def cpu_model() -> str:
    """What this host calls its processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(filter(None, names), platform.machine())
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
