"""Energy and time from readings of a device: sums over a task, or over parts of a training."""

from __future__ import annotations

from dataclasses import replace
from operator import gt
from typing import Any, NamedTuple, Protocol

from airflow_provider_zeus.model.trial import Observation, PowerPoint
from airflow_provider_zeus.power.device import Device, DeviceGroup


class Reading(NamedTuple):
    """Energy counter [J] and clock [s] of a device at one moment."""

    energy_j: float | None  # None, never 0: a counter that cannot be read measured nothing
    time_s: float
    why: str | None = None  # else a missing figure could not be explained to its reader
    # One counter that went back must not hide in a sum.
    each_j: tuple[float, ...] | None = None
    left_out: bool = False  # the clock alone was read: no hole, as the next reading has the energy


def read(device: Device) -> Reading:
    """Read the device without waiting for its work: for sums while the training runs."""
    each_j = device.each_j() if isinstance(device, DeviceGroup) else None
    energy_j = device.energy_j() if each_j is None else sum(each_j)
    now_s = device.now_s()
    # A reason from earlier must not stay beside a figure.
    why = device.missing.get("energy_j") if energy_j is None else None
    return Reading(energy_j, now_s, why=why, each_j=each_j)


def edge(device: Device) -> Reading:
    """Read the device after its work is done: when a measurement begins or ends."""
    device.synchronize()
    return read(device)


MOST_SHARE = 0.02  # docs/power.md promises that readings slow no training by more
# A training is taken to last so long at least, else a short one has no time for any reading.
LEAST_TRAINED_S = 0.5
SPARE = 0.5  # readings each second must leave time for those that end a window or an attempt


class PacedReader:
    """Reads the device of a training so seldom that the training waits for it for at most 2 % of
    its time.

    In its first half second it may wait for as long as in a whole one, 10 ms: the readings of a
    fast driver. It counts from :meth:`begin` on. If no driver is asked, as on a simulated device,
    nothing is ever left out.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._newest: Reading | None = None
        self.saves_up = False  # readings leave time for a limit to be set, which is worth more
        self.begin()

    def begin(self) -> None:
        """Count from now on: earlier readings belong to the beginning of the training."""
        self._since_s = self._device.now_s()
        self._waited_before_s = self._device.waited_s

    def may(self, *methods: str, share: float = 1.0) -> bool:
        """Whether these methods of the device may be called now.

        :param share: of the time that there is for readings.
        """
        waited_s = self._device.waited_s - self._waited_before_s
        # What the call will take counts, too: else the last one would break the promise.
        waited_s += sum(map(self._device.takes_s, methods))
        trained_s = max(self._device.now_s() - self._since_s, LEAST_TRAINED_S)
        return waited_s <= share * MOST_SHARE * trained_s

    def read(self, *, must: bool = False, share: float = 1.0) -> Reading:
        """Read the device, without waiting for its work; or its clock alone, if a reading takes too
        long.

        :param must: read it in any case.
        """
        newest = self._newest
        now_s = self._device.now_s()
        takes_s = self._device.takes_s("energy_j")
        # A new one would take longer than this one is old, so it would be no nearer to now.
        if newest is not None and now_s - newest.time_s < takes_s:
            return newest._replace(time_s=now_s)
        if self.saves_up:
            share *= SPARE
        if not must and not self.may("energy_j", share=share):
            return Reading(None, now_s, why=too_slow(takes_s), left_out=True)
        self._newest = read(self._device)
        return self._newest

    def edge(self, *, must: bool = False) -> Reading:
        """Read the device after its work is done: when a measurement begins or ends.

        In between a training must not wait for its GPU.
        """
        self._device.synchronize()
        return self.read(must=must)


def too_slow(takes_s: float) -> str:
    """Why a reading that takes so long [s] is left out."""
    return (
        f"a reading of this device takes {1000 * takes_s:.3g} ms, and readings may take "
        f"{100 * MOST_SHARE:g} % of a training's time"
    )


class Span:
    """Sums of energy and time over one or several parts of a training.

    ``energy_j`` [J] is None after a reading was missing or the counter went back; ``reason`` says
    why. ``since``: from which reading on a part is measured and not added yet; set it to begin one
    there, or to None to leave it out. ``behind``: the newest reading was left out, so energy is
    known up to an earlier moment than time.
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
        """Mean power [W]; None if energy is unknown, or the counter did not move since the part was
        too short.
        """
        if self.behind:
            return None
        if self.energy_j and self.time_s > 0.0:
            return self.energy_j / self.time_s
        return None

    @property
    def still(self) -> str:
        """Why the sum is no measurement though every reading came: the counter never moved; else
        empty.
        """
        if self._is_unmoved and self.time_s >= 1.0:
            return f"the energy counter stood still for {self.time_s:.0f} s"
        return ""

    @property
    def short(self) -> str:
        """Why a sum of 0 J is no measurement: it ended before the counter moved; else empty."""
        if self._is_unmoved and 0.0 < self.time_s < 1.0:
            return "it was shorter than a tick of the energy counter"
        return ""

    @property
    def _is_unmoved(self) -> bool:
        return self.energy_j == 0.0 and not self.behind

    @property
    def each_j(self) -> tuple[float, ...] | None:
        """Energy of each of several GPUs [J]; None for one GPU, and if it is unknown."""
        if self.energy_j is None:
            return None
        return self._each_j or None

    def advance(self, now: Reading) -> None:
        """Add the open part, if any, up to ``now``; the part stays open from there."""
        since = self.since
        if since is None:
            return
        self.since = now
        # Time is known even when energy is not.
        self.time_s += now.time_s - since.time_s
        if self.energy_j is None:
            return
        self.behind = now.left_out
        if now.left_out:  # its energy comes with the next reading, so the part stays open
            self.since = since._replace(time_s=now.time_s)
            return
        if since.left_out:
            self.energy_j = None
            self.reason = since.why
            return
        # A hole in a sum is no zero: the sum is unknown from here on.
        if now.energy_j is None or since.energy_j is None:
            why = now.why or since.why
            self.energy_j = None
            self.reason = "the energy counter could not be read"
            if why:
                self.reason += f": {why}"
        elif now.energy_j < since.energy_j:
            # The part before it is lost: a sum without it would look like a measurement.
            back_j = since.energy_j - now.energy_j
            self.energy_j = None
            self.reason = (
                f"the energy counter went back by {back_j:g} J: driver reloaded or device reset"
            )
        else:
            self.energy_j += now.energy_j - since.energy_j
            self._each_j = _added(self._each_j, since.each_j, now.each_j)

    def close(self, now: Reading) -> None:
        """Add the open part, if any, up to ``now`` and end it."""
        self.advance(now)
        if self.behind:  # no later reading will tell the energy of this part alone
            self.energy_j = None
            self.reason = now.why
            self.behind = False
        self.since = None


def _added(
    sums: tuple[float, ...] | None,
    before: tuple[float, ...] | None,
    after: tuple[float, ...] | None,
) -> tuple[float, ...] | None:
    """The sums of several counters with the latest count of each; None if one is not known, or one
    went back.
    """
    if before is None or after is None:
        return None
    if sums is None or any(map(gt, before, after)):
        return None
    if not sums:  # the first part: only a reading tells how many GPUs there are
        sums = (0.0,) * len(after)
    return tuple(total + b - a for total, a, b in zip(sums, before, after, strict=True))


def difference(one: float | None, other: float | None) -> float | None:
    """``one - other``; None if one of them is not known."""
    if one is None or other is None:
        return None
    return one - other


class Meter(Protocol):
    """Measures a task from its construction on."""

    def look(self) -> None:
        """Read the counters."""

    def point(self) -> PowerPoint:
        """A power point: mean power [W] since the last one."""

    def observation(self) -> Observation:
        """The sums up to the last look; each figure that is not known is None with its reason."""

    def close(self) -> None:
        """Release the devices."""


class DeviceMeter:
    """The :class:`Meter` of one device, or of several GPUs used as one."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._reading = read(device)
        self.total = Span(self._reading)
        self._since_point = Span(self._reading)

    def look(self) -> None:
        """Add the energy and time since the last reading."""
        self._reading = read(self.device)
        self.total.advance(self._reading)
        self._since_point.advance(self._reading)

    def take_power_w(self) -> float | None:
        """Mean power from the reading at the last call until the newest one [W]."""
        # Each point has its own span, so that points add up to the sum.
        power_w = self._since_point.power_w
        self._since_point = Span(self._reading)
        return power_w

    def point(self) -> PowerPoint:
        """A power point: mean power [W] since the last one."""
        self.look()
        return PowerPoint(
            t_s=self.total.time_s,
            power_w=self.take_power_w(),
            limit_w=self.device.limit_w(),
            phase="train",
        )

    def observation(self) -> Observation:
        """The sums up to the last look, with the reason if energy is not known."""
        total = self.total
        observation = Observation(
            **device_figures(self.device),
            energy_j=total.energy_j,
            time_s=total.time_s or None,
            power_limit_w=self.device.limit_w(),
            gpu_energy_j=total.each_j,
        )
        why_not = self.why_not or total.short
        if not why_not:
            return observation
        return replace(observation, energy_j=None, gpu_energy_j=None, reasons={"energy_j": why_not})

    def close(self) -> None:
        """Release the device."""
        self.device.close()

    @property
    def why_not(self) -> str:
        """Why its energy is not known; empty if it is."""
        total = self.total
        missing = self.device.missing.get("energy_j", "")
        has_source = self.device.info.energy_source is not None
        # Without any time the counter says nothing, even if it can be read.
        if not total.time_s:
            still = "the clock of this device stands still: that of a simulated one goes with the "
            return missing or total.reason or f"{still}training's steps"
        if total.energy_j is None or total.still:
            return missing or total.reason or total.still
        if has_source:
            return ""
        return missing or "no source of energy"


def device_figures(device: Device) -> dict[str, Any]:
    """The fields of an observation that describe a device."""
    info = device.info
    return {
        "device_model": info.model,
        "device_count": info.count,
        "max_power_w": info.max_power_w,
        "energy_source": info.energy_source,
        "gpu_uuid": device.uuid,
    }
