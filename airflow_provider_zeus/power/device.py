"""A device: an identity, a clock, an energy counter and a power limit; and the device that has a clock alone."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from airflow_provider_zeus.errors import DeviceError, JobSpecError
from airflow_provider_zeus.model.trial import DeviceInfo


def default_state_dir() -> str:
    """Default folder of limit records, GPU locks and simulated devices.

    ``ZEUS_STATE_DIR``, else ``~/.local/state/zeus``, else, for a user without a writable home, ``zeus-<uid>`` in the
    folder for temporary files.
    """
    if chosen := os.environ.get("ZEUS_STATE_DIR"):
        return chosen
    folder = os.path.join(os.path.expanduser("~"), ".local", "state", "zeus")
    existing = folder
    while not os.path.exists(existing) and os.path.dirname(existing):
        existing = os.path.dirname(existing)
    if os.path.isabs(folder) and os.access(existing, os.W_OK | os.X_OK):
        return folder
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"zeus-{os.geteuid()}")  # noqa: S108  its owner is checked


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRange:
    """Power limits that a device accepts [W]; ``step_w`` is the distance of the limits that are profiled."""

    min_w: float
    max_w: float
    step_w: float = 25.0

    def grid_w(self) -> tuple[float, ...]:
        """Limits of the grid [W], from the highest to the lowest."""
        count = int((self.max_w - self.min_w) / self.step_w + 1e-9) + 1
        return tuple(self.max_w - i * self.step_w for i in range(count))

    def check(self, limits_w: Iterable[float], model: str) -> None:
        """Raise JobSpecError where one of the user's limits [W] is out of range on this device model."""
        for limit_w in limits_w:
            if not self.min_w <= limit_w <= self.max_w:
                raise JobSpecError.of(
                    "ZeusJob.power_limits_w",
                    limit_w,
                    f"out of range on {model}",
                    f"use limits from {self.min_w:g} to {self.max_w:g} W",
                )


IDLE, POWER_CAP = 0x1, 0x4  # bits of ``Clocks.reasons``, as NVML has them


class Clocks(NamedTuple):
    """The clock of the multiprocessors, and what holds it back, at one moment; None: the driver does not tell."""

    sm_mhz: float | None
    max_mhz: float | None
    reasons: int | None  # why the clock is not higher: bits
    capped_s: float | None  # time for which the power limit held it back, since an arbitrary start


class Device:
    """One GPU, several GPUs used as one, or a substitute for them. By itself: a host's clock, no energy and no limit.

    A reading that is not available is ``None``, and ``missing`` has the reason. Calls never block for long. Setters
    raise :class:`~airflow_provider_zeus.errors.DeviceError` with the remedy when the device refuses.

    ``info``: model, count, MAXPOWER [W], energy source. ``uuid``: identifier of the device, those of several GPUs
    joined by commas; None where it has none. ``missing``: name of a reading (``energy_j``, ``limit_w``, ...) -> why it
    is None.

    :param no_limit: why there is no limit, for ``missing`` and errors.
    """

    uuid: str | None = None

    def __init__(self, info: DeviceInfo, no_limit: str = "") -> None:
        self.info = info
        self.missing: dict[str, str] = {"limit_w": no_limit} if no_limit else {}

    def now_s(self) -> float:
        """Clock for durations [s]: monotonic; virtual on a simulated device."""
        return time.perf_counter()

    def energy_j(self) -> float | None:
        """Energy counter [J] since an arbitrary start."""
        return None

    def limit_range(self) -> LimitRange | None:
        """Limits that may be set; None where none may."""
        return None

    def limit_w(self) -> float | None:
        """The power limit in force [W]."""
        return None

    def busy(self) -> float | None:
        """Share of the last moments in which the GPU worked, 0 to 1."""
        return None

    def clocks(self) -> Clocks | None:
        """The clock and what holds it back; None where it is not known."""
        return None

    def set_limit_w(self, limit_w: float) -> None:
        """Set the power limit [W]. Raises DeviceError: no permission, out of range."""
        raise DeviceError(f"power limit = {limit_w:g} W: {self.missing['limit_w']}. Use mode='measure'.")

    def restore_record(self) -> list[dict[str, Any]] | None:
        """Plain JSON, of each GPU, from which the guardian restores the limit without this process; None: it cannot."""
        return None

    def on_step(self, samples: int) -> None:
        """Advance the clock of a simulated device by one optimizer step; real devices ignore it."""

    def synchronize(self) -> None:
        """Wait until all work given to the device is done. Called only where a measurement begins or ends."""

    def close(self) -> None:
        """Release what the device holds, at the end of the training."""


class NoneDevice(Device):
    """No source of energy: no energy and no limit; the batch size can still be tuned, on time alone.

    :param max_power_w: MAXPOWER of Eq. 2 [W], as given by the user.
    :param why: why energy is not measured, for the logs and the page.
    """

    def __init__(self, max_power_w: float | None = None, *, why: str = "") -> None:
        super().__init__(DeviceInfo(model=cpu_model(), max_power_w=max_power_w), "this device has no power limit")
        self.missing["energy_j"] = why or (
            "no source of energy on this host: train on an NVIDIA GPU, or use device='simulated:<gpu>/<load>' to try "
            "things out"
        )


def cpu_model() -> str:
    """Model name of this host's processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(filter(None, names), platform.machine())
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
