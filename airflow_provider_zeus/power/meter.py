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
    left_out: bool = False  # the clock alone was read: energy is known again with the next reading


def read(device: Device) -> Reading:
    """Read the device without waiting for its work: for sums while the training runs."""
    each_j = device.each_j() if isinstance(device, DeviceGroup) else None
    energy_j, now_s = device.energy_j() if each_j is None else sum(each_j), device.now_s()
    return Reading(energy_j, now_s, None if energy_j is not None else device.missing.get("energy_j"), each_j)


def edge(device: Device) -> Reading:
    """Read the device after its work is done: where a measurement begins or ends, never in between."""
    device.synchronize()
    return read(device)


MOST_SHARE = 0.02  # of a training's time: for so much of it, at most, it waits for readings
SHORTEST_S = 0.5  # a training is taken to last so long at least, else a short one has no time for any reading
SPARE = 0.5  # part of that time that readings each second leave to those where something ends


class PacedReader:
    """Reads the device of a training so seldom that the training waits for it for at most 2 % of its time.

    In its first half second it may wait for as long as in a whole one, 10 ms: the readings of a fast driver.
    It counts from :meth:`begin` on. Where no driver is asked, as on a simulated device, nothing is ever left out.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._newest: Reading | None = None
        self.saves_up = False  # half of the time is kept for a limit that is to be set
        self.begin()

    def begin(self) -> None:
        """Count from now on: what came before belongs to the beginning of the training."""
        self._since_s = self._device.now_s()
        self._waited_before_s = self._device.waited_s

    def may(self, *methods: str, share: float = 1.0) -> bool:
        """Whether these methods of the device may be called now.

        :param share: of the time that there is for readings.
        """
        waited_s = self._device.waited_s - self._waited_before_s + sum(map(self._device.takes_s, methods))
        trained_s = max(self._device.now_s() - self._since_s, SHORTEST_S)
        return waited_s <= share * MOST_SHARE * trained_s

    def read(self, *, must: bool = False, share: float = 1.0) -> Reading:
        """Read the device, without waiting for its work; or its clock alone, where a reading takes too long.

        :param must: read it in any case.
        """
        newest, now_s, takes_s = self._newest, self._device.now_s(), self._device.takes_s("energy_j")
        if newest is not None and now_s - newest.time_s < takes_s:  # it is as near to now as a new one would be
            return newest._replace(time_s=now_s)
        if self.saves_up:
            share *= SPARE
        if not must and not self.may("energy_j", share=share):
            return Reading(None, now_s, why=too_slow(takes_s), left_out=True)
        self._newest = read(self._device)
        return self._newest

    def edge(self, *, must: bool = False) -> Reading:
        """Read the device after its work is done: where a measurement begins or ends."""
        self._device.synchronize()
        return self.read(must=must)


def too_slow(takes_s: float) -> str:
    """Why a reading that takes so long [s] is left out."""
    return (
        f"a reading of this device takes {1000 * takes_s:.3g} ms, and readings may take {100 * MOST_SHARE:g} % of a "
        "training's time"
    )


class Span:
    """Sums of energy and time over one or several parts of a training.

    ``energy_j`` [J] is None after a reading was missing or the counter went back; ``reason`` says why. ``since``: from
    which reading on a part is measured and not added yet; set it to begin one there, or to None to leave it out.
    ``behind``: the newest reading was left out, so energy is known up to an earlier moment than time.
    """

    __slots__ = ("_each_j", "behind", "energy_j", "reason", "since", "time_s")

    def __init__(self, since: Reading | None = None) -> None:
        self.energy_j: float | None = 0.0
        self.time_s = 0.0
        self.behind = False
        self.reason: str | None = None
        self._each_j: tuple[float, ...] | None = ()
        self.since = since

    @property
    def power_w(self) -> float | None:
        """Mean power [W]; None where energy is unknown, or the counter did not move since the part was too short."""
        if self.behind:
            return None
        return self.energy_j / self.time_s if self.energy_j and self.time_s > 0.0 else None

    @property
    def still(self) -> str:
        """Why the sum is no measurement though every reading came: the counter never moved; else empty."""
        is_still = self.energy_j == 0.0 and self.time_s >= 1.0 and not self.behind
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
        self.behind = now.left_out
        if now.left_out:  # its energy comes with the next reading
            self.since = since._replace(time_s=now.time_s)
            return
        if since.left_out:
            self.energy_j = None
            self.reason = since.why
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
        if self.behind:
            self.energy_j = None
            self.reason = now.why
            self.behind = False
        self.since = None
