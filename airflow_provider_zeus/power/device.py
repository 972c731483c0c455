"""What a device is to this package: an identity, a clock, an energy counter, a power limit."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.optimizer.trial import DeviceInfo


def default_state_dir() -> str:
    """Where limit records, GPU locks and simulated devices lie by default.

    ``ZEUS_STATE_DIR``, else ``~/.local/state/zeus``, else, for a user without a home to write to, ``zeus-<uid>`` in the
    folder for temporary files.
    """
    if named := os.environ.get("ZEUS_STATE_DIR"):
        return named
    folder = os.path.join(os.path.expanduser("~"), ".local", "state", "zeus")
    there = folder
    while not os.path.exists(there) and os.path.dirname(there):
        there = os.path.dirname(there)
    if os.path.isabs(folder) and os.access(there, os.W_OK | os.X_OK):
        return folder
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"zeus-{os.geteuid()}")  # noqa: S108  its owner is checked


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRange:
    """Power limits that a device accepts [W]; ``step_w`` is the grid that the profiler walks."""

    min_w: float
    max_w: float
    step_w: float = 25.0

    def grid_w(self) -> tuple[float, ...]:
        """Every limit of the grid, from the highest (where training starts) to the lowest."""
        count = int((self.max_w - self.min_w) / self.step_w + 1e-9) + 1
        return tuple(self.max_w - i * self.step_w for i in range(count))

    def check(self, limits_w: Iterable[float], model: str) -> None:
        """Raises JobSpecError where one of the user's limits is out of range on this device model."""
        for limit_w in limits_w:
            if not self.min_w <= limit_w <= self.max_w:
                raise JobSpecError.of(
                    "ZeusJob.power_limits_w",
                    limit_w,
                    f"out of range on {model}",
                    f"use limits from {self.min_w:g} to {self.max_w:g} W",
                )


class Device(Protocol):
    """One or several GPUs used as one, or a stand-in for them.

    A reading that cannot be had is ``None``; ``missing`` then says why, per reading. Calls never block for long.
    Setters raise :class:`~airflow_provider_zeus.errors.DeviceError` with the remedy when the device refuses.
    """

    @property
    def info(self) -> DeviceInfo:
        """Model, count, MAXPOWER [W], energy source."""

    @property
    def uuid(self) -> str | None:
        """Identity of the (first) device, None where there is none."""

    @property
    def missing(self) -> dict[str, str]:
        """Reading name (``energy_j``, ``limit_w``, ...) -> why it is None."""

    def now_s(self) -> float:
        """Clock of this device's durations [s]: monotonic; virtual on a simulated device."""

    def energy_j(self) -> float | None:
        """Energy counter [J] since an arbitrary start."""

    def limit_range(self) -> LimitRange | None:
        """Limits that may be set, None where there are none."""

    def limit_w(self) -> float | None:
        """The power limit now in force [W]."""

    def set_limit_w(self, limit_w: float) -> None:
        """Set the power limit [W]. Raises DeviceError: no permission, out of range."""

    def restore_record(self) -> dict[str, Any] | None:
        """Plain JSON with which the guardian restores the limit without this process; None: nothing to restore."""

    def on_step(self, samples: int) -> None:
        """Told after each optimizer step; a simulated device advances its clock, real ones ignore it."""

    def synchronize(self) -> None:
        """Wait until work handed to the device is done; called at window edges only."""

    def close(self) -> None:
        """The training is over: let go of what is held for it."""
