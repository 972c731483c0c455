"""Measures a window of training at one power limit in pieces. Their sum is the result, their
scatter its noise.

Beside them: whether the power limit binds, by the share of a window in which the board was
power-capped, and its clock.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from airflow_provider_zeus.model.cost import TICK_S
from airflow_provider_zeus.model.groups import known_values
from airflow_provider_zeus.model.trial import ProfileSample
from airflow_provider_zeus.power.device import POWER_CAP, Clocks, Device
from airflow_provider_zeus.power.meter import MOST_SHARE, Reading, Span

SETTLE_S = 1.0  # clocks take about a second to settle after a change of limit
PIECES = 5  # the scatter of several pieces tells how sure a window is
LEAST_PIECES = 2  # fewer than usual if a driver is slow, but one piece alone has no scatter
READ_IN_PIECE = ("energy_j", "clocks", "limit_w")  # the training waits while each of them is read
# A shorter window comes after some settling, so a training stays at each limit for so long.
LEAST_AT_LIMIT_S = 1.0
BOUND = 0.1  # single moments at the limit slow nothing
WORKING = 0.5  # a GPU that waits for its data says nothing of its limits


def never_binds(draw_w: float, lowest_w: float) -> str:
    """The sentence about a training that no limit holds back."""
    draws = f"the training draws {draw_w:.0f} W, and the lowest limit is {lowest_w:g} W"
    return f"{draws}: no limit holds it back"


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


@dataclass
class Seen:
    """Readings of the cap, at one limit or in one piece of a window."""

    capped_s: float = 0.0
    counted_s: float = 0.0  # beside the time of the pieces: old drivers have no such counter
    clocks: list[Clocks] = field(default_factory=list)

    @property
    def share(self) -> float | None:
        """Share of the time in which the limit bound: by the counter, else by the reasons read."""
        if self.counted_s > 0:
            return min(max(self.capped_s / self.counted_s, 0.0), 1.0)
        reasons = [clocks.reasons for clocks in self.clocks if clocks.reasons is not None]
        return _mean([bool(bits & POWER_CAP) for bits in reasons])

    @property
    def clock_mhz(self) -> float | None:
        """Mean clock of the multiprocessors [MHz]."""
        return _mean(self._clocks_mhz)

    @property
    def _clocks_mhz(self) -> list[float]:
        return [clocks.sm_mhz for clocks in self.clocks if clocks.sm_mhz is not None]

    def why_locked(self, busy: float | None) -> str:
        """Why the clock seems to be locked, which may have a reason; empty if it does not.

        :param busy: share of the time in which the GPU works.
        """
        clocks_mhz = self._clocks_mhz
        highest_mhz = [clocks.max_mhz for clocks in self.clocks if clocks.max_mhz is not None]
        enough = 2  # one piece alone may be chance
        if min(len(clocks_mhz), len(highest_mhz)) < max(enough, len(self.clocks)):
            return ""
        works = busy is not None and busy >= WORKING
        if self.share or not works:
            return ""
        if not all(clocks.is_free for clocks in self.clocks):
            return ""
        # Under load a board goes near its highest clock, unless it has a reason, or is locked.
        locked = 0.8
        step_mhz = 15.0  # boards step their clock by so much: less is no change
        top_mhz = max(clocks_mhz)
        if top_mhz > locked * highest_mhz[0] or top_mhz - min(clocks_mhz) > step_mhz:
            return ""
        return (
            f"the clock stays at {top_mhz:g} of {highest_mhz[0]:g} MHz under load, and the driver "
            "names no reason: it seems to be locked"
        )


class CapWatch:
    """Reads the device at the edges of a window's pieces; sets nothing."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._tells = True
        self._since: tuple[Clocks, float] | None = None
        self._newest: tuple[Clocks, float] | None = None
        # By limit: a lower one binds more, so a mean over all would say nothing.
        self.at: defaultdict[float, Seen] = defaultdict(Seen)

    def open(self, now_s: float) -> None:
        """A piece begins."""
        # A piece that has just ended was read a moment ago: each reading costs the training time.
        if self._newest is not None and self._newest[1] == now_s:
            self._since = self._newest
            return
        clocks = self._device.clocks() if self._tells else None
        self._tells = clocks is not None  # a driver that does not tell is not asked again
        self._since = None if clocks is None else (clocks, now_s)

    def close(self, limit_w: float | None, now_s: float, *seen_too: Seen) -> None:
        """A piece at a limit ends, or is interrupted; ``seen_too`` gets its readings, too."""
        since = self._since
        if since is None:
            return
        self._since = None
        clocks = self._device.clocks()
        if clocks is None or limit_w is None:
            return
        self._newest = (clocks, now_s)
        before, began_s = since
        for record in (self.at[limit_w], *seen_too):
            record.clocks.append(clocks)
            if clocks.capped_s is not None and before.capped_s is not None:
                record.capped_s += clocks.capped_s - before.capped_s
                record.counted_s += now_s - began_s


class MeasurementWindows:
    """Consecutive pieces, each between two edges. A piece that the end of an epoch cuts off goes on
    in the next epoch.

    :param window_s: least duration of a window [s].
    :param window_steps: least optimizer steps of a window.
    """

    def __init__(self, device: Device, batch_size: int, window_s: float, window_steps: int) -> None:
        self.cap = CapWatch(device)
        self.limit_w: float | None = None
        self.failures = 0  # a counter that fails again and again ends profiling
        self._device = device
        self._batch_size = batch_size
        self._window_s = window_s
        self._divide(PIECES)
        self._piece_steps = math.ceil(window_steps / PIECES)
        self.unsettle()
        self._new_piece()

    def fit(self) -> str:
        """Divide the window into so few pieces that reading them takes at most 2 % of it.

        Returns why that is not possible; empty: it is.
        """
        piece_cost_s = sum(map(self._device.takes_s, READ_IN_PIECE))
        spare_s = MOST_SHARE * max(self._window_s, LEAST_AT_LIMIT_S)
        if spare_s < LEAST_PIECES * piece_cost_s:
            return (
                f"power limits are not profiled: {LEAST_PIECES} readings of "
                f"{1000 * piece_cost_s:.0f} ms are over {100 * MOST_SHARE:g} % of a window of "
                f"{self._window_s:g} s, since the GPU's driver is slow"
            )
        pieces = PIECES
        if spare_s < PIECES * piece_cost_s:
            pieces = int(spare_s / piece_cost_s)
        self._divide(pieces)
        return ""

    def _divide(self, pieces: int) -> None:
        # Counters have ticks of 20 to 100 ms, which would blur the energy of a shorter piece.
        piece_s = 1.0
        self._piece_s = max(self._window_s / pieces, min(piece_s, self._window_s / 2))

    @property
    def is_open(self) -> bool:
        """Whether a piece is being measured."""
        return self._span.since is not None

    def unsettle(self) -> None:
        """Discard the training that follows until it is steady: the limit has changed, or training
        is new.
        """
        max_unsettled = 3  # a load that never settles would be discarded for ever
        self._settle_s = SETTLE_S
        self._unsettled = max_unsettled
        # One piece alone may be unsteady still: it counts once a second one agrees.
        self._first: ProfileSample | None = None

    def begin(self, reading: Reading, limit_w: float) -> None:
        """Begin training steps at a limit. An unfinished piece of this limit goes on."""
        if limit_w != self.limit_w:
            self.limit_w = limit_w
            self._new_piece()
        self._settle_until = reading.time_s + self._settle_s

    def pause(self, reading: Reading, samples: int) -> None:
        """Pause training steps.

        The unfinished piece, or the settling, goes on with the next :meth:`begin`.
        """
        if self.is_open:
            self.close(reading, samples)
        else:
            self._settle_s = max(0.0, self._settle_until - reading.time_s)

    def edge_due(self, now_s: float) -> bool:
        """Count a step; return whether an edge of a piece is due."""
        if not self.is_open:
            return now_s >= self._settle_until
        self._steps += 1
        return now_s >= self._due_s and self._steps >= self._piece_steps

    def open(self, reading: Reading, samples: int) -> None:
        """Begin a piece or continue it, when ``samples`` were trained in all."""
        self._settle_s = 0.0
        self._due_s = reading.time_s + self._piece_s - self._span.time_s
        self._span.since = reading
        self._samples -= samples  # a piece goes on over epochs: close() adds the count at its end
        self.cap.open(reading.time_s)

    def close(self, reading: Reading, samples: int) -> None:
        """End a piece, or interrupt it."""
        self._span.close(reading)
        self._samples += samples
        self.cap.close(self.limit_w, reading.time_s, self._seen)

    @property
    def counter_moved(self) -> bool:
        """Whether the energy counter has moved in this piece, or a whole window has passed."""
        return self._span.energy_j != 0 or self._span.time_s >= self._window_s

    def take(self, *, at_end: bool) -> list[ProfileSample]:
        """Return the piece that is over, and a first one that waited for it.

        After a change of limit no piece counts until two consecutive ones agree.

        :param at_end: the attempt ends: an unfinished or unsettled piece counts too.
        """
        piece = self._piece(at_end=at_end)
        self._new_piece()
        first = self._first
        if self._unsettled and not at_end:
            if piece is None:
                return []
            if first is None:
                self._first = piece
                return []
            if not _agree(first, piece):
                self._unsettled -= 1
                if self._unsettled:
                    self._first = piece
                    return []
                # After so many it does not settle: the newest piece counts.
                first = None
        self._first = None
        self._unsettled = 0
        return known_values((first, piece))

    def _piece(self, *, at_end: bool) -> ProfileSample | None:
        """The piece that is over; None if it has no samples, or its energy is not known."""
        span = self._span
        limit_w = self.limit_w
        has_length = self._samples > 0 and span.time_s > 0
        if limit_w is None or not has_length:
            return None
        if not span.energy_j:  # unknown, or the counter stands still: 0 J would make it the best
            self.failures += not at_end
            return None
        return ProfileSample(
            batch_size=self._batch_size,
            limit_w=limit_w,
            samples=self._samples,
            energy_j=span.energy_j,
            time_s=span.time_s,
            steps=self._steps,
            capped=self._seen.share,
            sm_clock_mhz=self._seen.clock_mhz,
        )

    def drop(self) -> None:
        """Discard the piece and the one that waits for it: another process has changed the limit at
        an unknown time.
        """
        self._first = None
        self._new_piece()

    def _new_piece(self) -> None:
        self._span = Span()
        self._seen = Seen()
        self._samples = 0
        self._steps = 0


def _agree(first: ProfileSample, second: ProfileSample) -> bool:
    """Whether two pieces have the same J and s per sample, within the resolution of the counter."""
    # A tick may count in one piece or in the other: that is no difference between them.
    resolution = TICK_S / min(first.time_s, second.time_s)
    share = second.samples / first.samples
    difference_s = abs(second.time_s / first.time_s / share - 1)
    difference_j = abs(second.energy_j / first.energy_j / share - 1)
    # Settled loads vary by some percent, too: with less, none of them would ever count as settled.
    max_difference = 0.05
    return difference_s <= max_difference and difference_j <= max_difference + resolution


MAX_DIFFERENCE = 0.1  # a smaller difference is that of slices and of the room's heat


@dataclass
class DriftDetector:
    """Compares stretches of steady training, each as long as a window, with the profile. They
    continue across epochs.

    :param min_s: least duration of a stretch [s].
    :param min_samples: least samples of a stretch.
    """

    min_s: float
    min_samples: int
    _strikes: int = 0
    _samples: int = 0
    _since: int = 0
    _span: Span = field(default_factory=Span)

    @property
    def is_open(self) -> bool:
        """Whether training that goes on now is part of a stretch."""
        return self._span.since is not None

    def drifted(self, reading: Reading, samples: int, j_per_sample: float, *, pauses: bool) -> bool:
        """Take training up to ``reading`` into account; return whether it has left its profile.

        :param samples: trained so far in all.
        :param j_per_sample: of the profile.
        :param pauses: training steps end here and go on after the next call.
        """
        if not self.is_open:
            if not pauses:
                self._span.since = reading
                self._since = samples
            return False
        self._span.advance(reading)
        self._samples = self._samples + samples - self._since
        self._since = samples
        if self._span.energy_j is None:
            self.restart(samples)
        elif self._span.time_s >= self.min_s and self._samples >= self.min_samples:
            difference = abs(self._span.energy_j / self._samples / j_per_sample - 1)
            self._strikes = self._strikes + 1 if difference > MAX_DIFFERENCE else 0
            self.restart(samples)
            if not pauses:
                self._span.since = reading
        if pauses:
            self._span.close(reading)
        # One stretch may differ by chance: only after two in a row the profile no longer holds.
        strikes = 2
        return self._strikes >= strikes

    def pause(self) -> None:
        """Leave out the training since the last call of :meth:`drifted` and until the next one."""
        self._span.since = None

    def restart(self, samples: int | None = None) -> None:
        """Forget the open stretch, as when the limit has changed, and with it the profile to
        compare with.
        """
        self._span = Span()
        self._samples = 0
        self._since = self._since if samples is None else samples
