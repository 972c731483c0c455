"""The device without a source of energy: only time is measured."""

from __future__ import annotations

import platform

from airflow_provider_zeus.model.trial import DeviceInfo
from airflow_provider_zeus.power.device import LimitlessDevice

NO_SOURCE = (
    "no source of energy on this host: train on an NVIDIA GPU, or use device='simulated:<gpu>/<load>' to try things out"
)


class NoneDevice(LimitlessDevice):
    """No energy and no limit; the batch size can still be tuned, on time alone.

    :param max_power_w: MAXPOWER of Eq. 2 [W], as given by the user.
    :param why: why energy is not measured, for the logs and the page.
    """

    def __init__(self, max_power_w: float | None = None, *, why: str = NO_SOURCE) -> None:
        super().__init__(DeviceInfo(model=cpu_model(), max_power_w=max_power_w), "this device has no power limit")
        self.missing["energy_j"] = why

    def energy_j(self) -> None:
        """Return None: energy is never known."""


def cpu_model() -> str:
    """Model name of this host's processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(filter(None, names), platform.machine())
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
