"""Whether the power limit binds: the share of a window in which the board was power-capped, and its clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean

from airflow_provider_zeus.power.device import IDLE, POWER_CAP, Clocks, Device

BOUND = 0.1  # share of the time from which on a limit binds
WORKING = 0.5  # share of the time in which a GPU that trains works, at least


def never_binds(draw_w: float, lowest_w: float) -> str:
    """The sentence about a training that no limit holds back."""
    return f"the training draws {draw_w:.0f} W, and the lowest limit is {lowest_w:g} W: no limit holds it back"


@dataclass
class Seen:
    """What was seen of the cap, at one limit or in one piece of a window."""

    capped_s: float = 0.0
    counted_s: float = 0.0  # of which the counter tells; 0: there is none
    seen: list[Clocks] = field(default_factory=list)

    def add(self, before: Clocks, clocks: Clocks, lasted_s: float) -> None:
        """A piece that has ended."""
        self.seen.append(clocks)
        if clocks.capped_s is not None and before.capped_s is not None:
            self.capped_s += clocks.capped_s - before.capped_s
            self.counted_s += lasted_s

    @property
    def share(self) -> float | None:
        """Of the time in which the limit bound."""
        if self.counted_s > 0:
            return min(max(self.capped_s / self.counted_s, 0.0), 1.0)
        told = [clocks.reasons for clocks in self.seen if clocks.reasons is not None]
        return fmean(bool(reasons & POWER_CAP) for reasons in told) if told else None

    @property
    def clock_mhz(self) -> float | None:
        """Mean clock of the multiprocessors."""
        clocks = [each.sm_mhz for each in self.seen if each.sm_mhz is not None]
        return fmean(clocks) if clocks else None


class CapWatch:
    """Reads the device at the edges of a window's pieces; sets nothing."""

    def __init__(self, device: Device) -> None:
        self._device, self._since = device, None if (now := device.clocks()) is None else (now, 0.0)
        self._tells = self._since is not None
        self._at: dict[float, Seen] = {}
        self._piece = Seen()

    def open(self, now_s: float) -> None:
        """A piece begins."""
        clocks = self._device.clocks() if self._tells else None
        self._since = None if clocks is None else (clocks, now_s)

    def close(self, limit_w: float | None, now_s: float) -> None:
        """A piece at a limit ends, or is interrupted."""
        since, clocks = self._since, self._device.clocks() if self._since else None
        self._since = None
        if since is None or clocks is None or limit_w is None:
            return
        for seen in (self._at.setdefault(limit_w, Seen()), self._piece):
            seen.add(since[0], clocks, now_s - since[1])

    def share(self, limit_w: float) -> float | None:
        """Share of the time at a limit in which it bound: by the counter, else by the reasons that were read."""
        return self._at.get(limit_w, Seen()).share

    def clock_mhz(self, limit_w: float) -> float | None:
        """Mean clock of the multiprocessors at a limit [MHz]."""
        return self._at.get(limit_w, Seen()).clock_mhz

    def take(self) -> Seen:
        """What was seen of the piece that is over, and begin another one."""
        piece, self._piece = self._piece, Seen()
        return piece

    def why_locked(self, limit_w: float, busy: float | None) -> str:
        """Why the clock seems to be locked, which may have a reason; empty where it does not.

        :param busy: share of the time in which the GPU works.
        """
        seen = self._at.get(limit_w, Seen()).seen
        known = [(each.sm_mhz, each.max_mhz) for each in seen if each.sm_mhz is not None and each.max_mhz is not None]
        enough, step_mhz = 2, 15.0  # pieces; between two clocks
        locked = 0.8  # of the highest clock: one that stays below it under load, without a reason, is locked
        if len(known) < enough or len(known) < len(seen) or (busy or 0.0) < WORKING or (self.share(limit_w) or 0) > 0:
            return ""
        clocks, highest_mhz = [clock for clock, _ in known], known[0][1]
        silent = all(each.reasons is not None and not each.reasons & ~IDLE for each in seen)
        if not silent or max(clocks) > locked * highest_mhz or max(clocks) - min(clocks) > step_mhz:
            return ""
        return (
            f"the clock stays at {max(clocks):g} of {highest_mhz:g} MHz under load, and the driver names no reason: "
            "it seems to be locked"
        )
