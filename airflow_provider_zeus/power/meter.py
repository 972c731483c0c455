"""Energy and time between moments of a training: the one way in which this package measures."""

from __future__ import annotations

from typing import NamedTuple

from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.group import DeviceGroup


class Mark(NamedTuple):
    """What a device shows at one moment: its energy counter [J], None where it cannot be read, and its clock [s]."""

    energy_j: float | None
    time_s: float
    why: str | None = None  # there is no energy
    each_j: tuple[float, ...] | None = None  # of several GPUs: the counters that make up ``energy_j``


def read(device: Device) -> Mark:
    """Read the device as it is, without waiting for the work handed to it: for sums while training goes on."""
    each_j = device.each_j() if isinstance(device, DeviceGroup) else None
    energy_j, now_s = device.energy_j() if each_j is None else sum(each_j), device.now_s()
    return Mark(energy_j, now_s, None if energy_j is not None else device.missing.get("energy_j"), each_j)


def edge(device: Device) -> Mark:
    """Read the device once the work handed to it is done: for the edges of what is measured, never in between."""
    device.synchronize()
    return read(device)


class Span:
    """Energy and time added up over one or several parts of a training.

    ``energy_j`` [J] is None once a reading was missing or the counter went back; ``reason`` then says why.
    """

    __slots__ = ("_each_j", "_since", "energy_j", "reason", "time_s")

    def __init__(self, since: Mark | None = None) -> None:
        self.energy_j: float | None = 0.0
        self.time_s = 0.0
        self.reason: str | None = None
        self._each_j: tuple[float, ...] | None = ()
        self._since = since

    @property
    def is_open(self) -> bool:
        """Whether a part is being measured."""
        return self._since is not None

    @property
    def power_w(self) -> float | None:
        """Mean power [W]; None where energy is unknown, or the counter did not move: too short for its ticks."""
        return self.energy_j / self.time_s if self.energy_j and self.time_s > 0.0 else None

    @property
    def each_j(self) -> tuple[float, ...] | None:
        """What each of several GPUs drew of ``energy_j`` [J]; None of one GPU, and where it is not known."""
        return None if self.energy_j is None else self._each_j or None

    def open(self, mark: Mark) -> None:
        """A part begins."""
        self._since = mark

    def advance(self, mark: Mark) -> None:
        """Count the open part, if any, up to ``mark``; it goes on from there."""
        since = self._since
        if since is None:
            return
        self._since = mark
        self.time_s += mark.time_s - since.time_s
        if self.energy_j is None:
            return
        if mark.energy_j is None or since.energy_j is None:
            why = mark.why or since.why
            self.energy_j = None
            self.reason = "the energy counter could not be read" + (f": {why}" if why else "")
        elif mark.energy_j < since.energy_j:
            back_j = since.energy_j - mark.energy_j
            self.energy_j = None
            self.reason = f"the energy counter went back by {back_j:g} J: driver reloaded or device reset"
        else:
            self.energy_j += mark.energy_j - since.energy_j
            self._each_j = _added(self._each_j, since.each_j, mark.each_j)

    def pause(self) -> None:
        """Leave the open part, if any, at the last mark that counted."""
        self._since = None

    def close(self, mark: Mark) -> None:
        """The open part, if any, ends."""
        self.advance(mark)
        self._since = None


def _added(
    sums: tuple[float, ...] | None, since: tuple[float, ...] | None, now: tuple[float, ...] | None
) -> tuple[float, ...] | None:
    """``sums`` and what was drawn since then; None where one of the counters is missing or went back."""
    if sums is None or since is None or now is None or any(b < a for a, b in zip(since, now, strict=True)):
        return None
    return tuple(had + b - a for had, a, b in zip(sums or (0.0,) * len(now), since, now, strict=True))
