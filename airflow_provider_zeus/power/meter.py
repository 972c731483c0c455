"""Energy and time between two moments of a training."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_zeus.power.device import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one window measured. ``energy_j`` None: ``reason`` says why; energies of two sources are never added."""

    time_s: float
    energy_j: float | None
    source: str | None
    reason: str | None = None

    @property
    def power_w(self) -> float | None:
        """Mean power [W]; None where energy is unknown or no time has passed."""
        return self.energy_j / self.time_s if self.energy_j is not None and self.time_s > 0.0 else None


class Window:
    """A measurement that starts now. Windows are independent of one another: they may nest and overlap.

    The device is synchronised at both edges and never in between, where waiting would change what is measured.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        device.synchronize()
        self._start_s, self._start_j = device.now_s(), device.energy_j()

    def stop(self) -> Reading:
        """The reading from the start of the window to now; a later call reads up to then."""
        device = self._device
        device.synchronize()
        time_s, end_j = device.now_s() - self._start_s, device.energy_j()
        source = device.info.energy_source
        if self._start_j is None or end_j is None:
            reason = device.missing.get("energy_j", "the energy counter could not be read at both edges of the window")
            return Reading(time_s=time_s, energy_j=None, source=source, reason=reason)
        energy_j = end_j - self._start_j
        if energy_j < 0.0:
            reason = f"the energy counter went back by {-energy_j:g} J: driver reloaded or device reset"
            return Reading(time_s=time_s, energy_j=None, source=source, reason=reason)
        if energy_j == 0.0 and time_s > 0.0:  # a device that is on draws something: the window fell between two ticks
            reason = f"the energy counter did not move within {time_s:.3g} s: measure for longer"
            return Reading(time_s=time_s, energy_j=None, source=source, reason=reason)
        return Reading(time_s=time_s, energy_j=energy_j, source=source)
