"""Measures a window of training at one power limit in pieces. Their sum is the result, their scatter its noise."""

from __future__ import annotations

import math

from airflow_provider_zeus.model.trial import ProfileSample
from airflow_provider_zeus.power.meter import Reading, Span
from airflow_provider_zeus.training.profiling.cap import Seen
from airflow_provider_zeus.training.profiling.search import TICK_S

SETTLE_S = 1.0  # training discarded at first and after a change of limit, until clocks are steady
PIECES = 5  # of a window


class MeasurementWindows:
    """Consecutive pieces, each between two edges. A piece that the end of an epoch cuts off goes on in the next epoch.

    :param window_s: least duration of a window [s].
    :param window_steps: least optimizer steps of a window.
    """

    def __init__(self, batch_size: int, window_s: float, window_steps: int) -> None:
        self.limit_w: float | None = None  # that is being measured
        self.failures = 0  # pieces whose energy could not be read
        self._batch_size, self._window_s = batch_size, window_s
        piece_s = 1.0  # least length where the window is long enough: counters have ticks of 20 to 100 ms
        self._piece_s = max(window_s / PIECES, min(piece_s, window_s / 2))
        self._piece_steps = math.ceil(window_steps / PIECES)
        self.unsettle()
        self._new_piece()

    # ------------------------------------------------------------------ edges
    @property
    def is_open(self) -> bool:
        """Whether a piece is being measured."""
        return self._span.is_open

    def unsettle(self) -> None:
        """Discard the training that follows until it is steady: the limit has changed, or training is new."""
        max_unsettled = 3  # pieces discarded in a row, at most
        self._settle_s, self._unsettled = SETTLE_S, max_unsettled
        self._first: ProfileSample | None = None  # the first piece since then, until a second one agrees

    def begin(self, reading: Reading, limit_w: float) -> None:
        """Begin training steps at a limit. An unfinished piece of this limit goes on."""
        if limit_w != self.limit_w:
            self.limit_w = limit_w
            self._new_piece()
        self._settle_until = reading.time_s + self._settle_s

    def pause(self, reading: Reading, samples: int) -> None:
        """Pause training steps. The unfinished piece, or the settling, goes on with the next :meth:`begin`."""
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
        self._span.open(reading)
        self._samples -= samples  # so that adding the count at the end gives the difference

    def close(self, reading: Reading, samples: int) -> None:
        """End a piece, or interrupt it."""
        self._span.close(reading)
        self._samples += samples

    @property
    def counter_moved(self) -> bool:
        """Whether the energy counter has moved since the piece began, or a whole window has passed."""
        return self._span.energy_j != 0 or self._span.time_s >= self._window_s

    # ------------------------------------------------------------------ results
    def take(self, seen: Seen, *, at_end: bool) -> list[ProfileSample]:
        """Return the piece that is over, and a first one that waited for it.

        After a change of limit no piece counts until two consecutive ones agree.

        :param seen: of the cap in this piece.
        :param at_end: the attempt ends: an unfinished or unsettled piece counts too.
        """
        span, limit_w, piece = self._span, self.limit_w, None
        if self._samples > 0 and span.time_s > 0 and limit_w is not None:
            if span.energy_j:
                piece = ProfileSample(
                    batch_size=self._batch_size,
                    limit_w=limit_w,
                    samples=self._samples,
                    energy_j=span.energy_j,
                    time_s=span.time_s,
                    steps=self._steps,
                    capped=seen.share,
                    sm_clock_mhz=seen.clock_mhz,
                )
            else:  # unknown, or the counter stands still
                self.failures += not at_end
        self._new_piece()
        pieces = [self._first, piece]
        if self._unsettled and not at_end:
            if piece is None or self._first is None:
                self._first = piece or self._first
                return []
            if not _agree(self._first, piece):
                self._first, self._unsettled = piece, self._unsettled - 1
                if self._unsettled:
                    return []
                pieces = [piece]
        self._first, self._unsettled = None, 0
        return [each for each in pieces if each is not None]

    def drop(self) -> None:
        """Discard the piece and the one that waits for it: another process has changed the limit at an unknown time."""
        self._first = None
        self._new_piece()

    def _new_piece(self) -> None:
        self._span = Span()
        self._samples = self._steps = 0


def _agree(first: ProfileSample, second: ProfileSample) -> bool:
    """Whether two pieces have the same J and s per sample, within the resolution of the counter."""
    resolution = TICK_S / min(first.time_s, second.time_s)
    share = second.samples / first.samples
    difference_s = abs(second.time_s / first.time_s / share - 1)
    difference_j = abs(second.energy_j / first.energy_j / share - 1)
    max_difference = 0.05  # relative difference of two pieces up to which training counts as settled
    return difference_s <= max_difference and difference_j <= max_difference + resolution


MAX_DIFFERENCE = 0.1  # relative difference of J per sample from the profile that counts as a strike


class DriftDetector:
    """Compares stretches of steady training, each as long as a window, with the profile. They continue across epochs.

    :param min_s: least duration of a stretch [s].
    :param min_samples: least samples of a stretch.
    """

    def __init__(self, min_s: float, min_samples: int) -> None:
        self._min_s, self._min_samples = min_s, min_samples
        self._strikes = self._samples = self._since = 0
        self._span = Span()

    @property
    def is_open(self) -> bool:
        """Whether training that goes on now is part of a stretch."""
        return self._span.is_open

    def drifted(self, reading: Reading, samples: int, j_per_sample: float, *, pauses: bool) -> bool:
        """Take training up to ``reading`` into account; return whether it has left its profile.

        :param samples: trained so far in all.
        :param j_per_sample: of the profile.
        :param pauses: training steps end here and go on after the next call.
        """
        if not self.is_open:
            if not pauses:
                self._span.open(reading)
                self._since = samples
            return False
        self._span.advance(reading)
        self._samples, self._since = self._samples + samples - self._since, samples
        if self._span.energy_j is None:
            self._start_stretch(samples)
        elif self._span.time_s >= self._min_s and self._samples >= self._min_samples:
            difference = abs(self._span.energy_j / self._samples / j_per_sample - 1)
            self._strikes = self._strikes + 1 if difference > MAX_DIFFERENCE else 0
            self._start_stretch(samples)
            if not pauses:
                self._span.open(reading)
        if pauses:
            self._span.close(reading)
        strikes = 2  # consecutive stretches with such a difference after which the profile no longer holds
        return self._strikes >= strikes

    def pause(self) -> None:
        """Leave out what came since the last call of :meth:`drifted`, and what comes until the next one."""
        self._span.pause()

    def restart(self) -> None:
        """Forget the open stretch: the limit has changed, and with it the profile to compare with."""
        self._start_stretch(self._since)

    def _start_stretch(self, samples: int) -> None:
        self._span = Span()
        self._samples = 0  # of the stretch, up to the last call
        self._since = samples  # trained in all at the last call
