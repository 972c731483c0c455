"""Energy and time of parts of a training, from readings of a device."""

from __future__ import annotations

from operator import gt
from typing import NamedTuple

from airflow_provider_zeus.power.device import Device, DeviceGroup


class Reading(NamedTuple):
    """Energy counter [J] and clock [s] of a device at one moment."""

    energy_j: float | None  # None: it could not be read
    time_s: float
    why: str | None = None  # why energy_j is None
    each_j: tuple[float, ...] | None = None  # of several GPUs: the counters that add up to ``energy_j``


def read(device: Device) -> Reading:
    """Read the device without waiting for its work: for sums while the training runs."""
    each_j = device.each_j() if isinstance(device, DeviceGroup) else None
    energy_j, now_s = device.energy_j() if each_j is None else sum(each_j), device.now_s()
    return Reading(energy_j, now_s, None if energy_j is not None else device.missing.get("energy_j"), each_j)


def edge(device: Device) -> Reading:
    """Read the device after its work is done: where a measurement begins or ends, never in between."""
    device.synchronize()
    return read(device)


class Span:
    """Sums of energy and time over one or several parts of a training.

    ``energy_j`` [J] is None after a reading was missing or the counter went back; ``reason`` says why. ``since``: from
    which reading on a part is measured and not added yet; set it to begin one there, or to None to leave it out.
    """

    __slots__ = ("_each_j", "energy_j", "reason", "since", "time_s")

    def __init__(self, since: Reading | None = None) -> None:
        self.energy_j: float | None = 0.0
        self.time_s = 0.0
        self.reason: str | None = None
        self._each_j: tuple[float, ...] | None = ()
        self.since = since

    @property
    def power_w(self) -> float | None:
        """Mean power [W]; None where energy is unknown, or the counter did not move since the part was too short."""
        return self.energy_j / self.time_s if self.energy_j and self.time_s > 0.0 else None

    @property
    def still(self) -> str:
        """Why the sum is no measurement though every reading came: the counter never moved; else empty."""
        is_still = self.energy_j == 0.0 and self.time_s >= 1.0
        return f"the energy counter stood still for {self.time_s:.0f} s" if is_still else ""

    @property
    def each_j(self) -> tuple[float, ...] | None:
        """Energy of each of several GPUs [J]; None for one GPU, and where it is unknown."""
        return None if self.energy_j is None else self._each_j or None

    def advance(self, now: Reading) -> None:
        """Add the open part, if any, up to ``now``; the part stays open from there."""
        since = self.since
        if since is None:
            return
        self.since = now
        self.time_s += now.time_s - since.time_s
        if self.energy_j is None:
            return
        if now.energy_j is None or since.energy_j is None:
            why = now.why or since.why
            self.energy_j = None
            self.reason = "the energy counter could not be read" + (f": {why}" if why else "")
        elif now.energy_j < since.energy_j:
            back_j = since.energy_j - now.energy_j
            self.energy_j = None
            self.reason = f"the energy counter went back by {back_j:g} J: driver reloaded or device reset"
        else:
            self.energy_j += now.energy_j - since.energy_j
            sums, before, after = self._each_j, since.each_j, now.each_j
            if sums is None or before is None or after is None or any(map(gt, before, after)):  # gt: one went back
                self._each_j = None
            else:
                sums = sums or (0.0,) * len(after)
                self._each_j = tuple(had + b - a for had, a, b in zip(sums, before, after, strict=True))

    def close(self, now: Reading) -> None:
        """Add the open part, if any, up to ``now`` and end it."""
        self.advance(now)
        self.since = None
