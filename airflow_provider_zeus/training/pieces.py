"""Measures a window of training at one power limit in pieces: their sum is what it tells, their scatter its noise."""

from __future__ import annotations

import math

from airflow_provider_zeus.optimizer.trial import ProfileSample
from airflow_provider_zeus.power.meter import Mark, Span
from airflow_provider_zeus.training.search import TICK_S

SETTLE_S = 1.0  # training discarded at first and after a change of limit, until clocks are steady (power-profiling)
PIECES = 5  # of a window
PIECE_S = 1.0  # at least, where the window is long enough: counters have ticks of 20 to 100 ms
_AGREE = 0.05  # relative difference of two pieces up to which the first is taken for settled
_MOST_UNSETTLED = 3  # pieces discarded at most, one after the other


class Pieces:
    """Pieces one after the other, each between two edges. One that an epoch's end cuts off goes on in the next epoch.

    :param window_s: and ``window_steps``: what a window has at least.
    """

    def __init__(self, batch_size: int, window_s: float, window_steps: int) -> None:
        self.limit_w: float | None = None  # that is being measured
        self.failures = 0  # pieces whose energy could not be had
        self._batch_size, self._window_s = batch_size, window_s
        self._piece_s = max(window_s / PIECES, min(PIECE_S, window_s / 2))
        self._piece_steps = math.ceil(window_steps / PIECES)
        self.unsettle()
        self._renew()

    # ------------------------------------------------------------------ edges
    @property
    def is_open(self) -> bool:
        """Whether a piece is being measured."""
        return self._span.is_open

    def unsettle(self) -> None:
        """The limit has changed, or training is new: some of it is discarded."""
        self._settle_s, self._unsettled = SETTLE_S, _MOST_UNSETTLED
        self._first: ProfileSample | None = None  # since then, until a second one agrees

    def begin(self, mark: Mark, limit_w: float) -> None:
        """Training steps begin at a limit. What was measured of a piece there goes on."""
        if limit_w != self.limit_w:
            self.limit_w = limit_w
            self._renew()
        self._settle_until = mark.time_s + self._settle_s

    def pause(self, mark: Mark, samples: int) -> None:
        """Training steps pause. What the piece and its settling have had is kept."""
        if self.is_open:
            self.close(mark, samples)
        else:
            self._settle_s = max(0.0, self._settle_until - mark.time_s)

    def due(self, now_s: float) -> bool:
        """A step was made; whether an edge of a piece is due now."""
        if not self.is_open:
            return now_s >= self._settle_until
        self._steps += 1
        return now_s >= self._due_s and self._steps >= self._piece_steps

    def open(self, mark: Mark, samples: int) -> None:
        """A piece begins or goes on, when ``samples`` were trained in all."""
        self._settle_s = 0.0
        self._due_s = mark.time_s + self._piece_s - self._span.time_s
        self._span.open(mark)
        self._samples -= samples  # so that adding the count at the end gives the difference

    def close(self, mark: Mark, samples: int) -> None:
        """The piece is over, or a part of it."""
        self._span.close(mark)
        self._samples += samples

    @property
    def ticked(self) -> bool:
        """Whether the counter has moved since the piece began, or had a window's time to."""
        return self._span.energy_j != 0 or self._span.time_s >= self._window_s

    # ------------------------------------------------------------------ what was measured
    def take(self, *, at_end: bool) -> list[ProfileSample]:
        """The piece that is over, and one that waited for it; ``at_end`` of the attempt it may be a part.

        After a change of limit none counts until two one after the other agree.
        """
        piece = self._piece(at_end=at_end)
        self._renew()
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
        """Forget the piece and what waits for it: somebody else changed the limit meanwhile, nobody knows when."""
        self._first = None
        self._renew()

    def _piece(self, *, at_end: bool) -> ProfileSample | None:
        span, limit_w = self._span, self.limit_w
        if self._samples <= 0 or span.time_s <= 0 or limit_w is None:
            return None
        if not span.energy_j:  # unknown, or a counter that stands still
            self.failures += not at_end
            return None
        return ProfileSample(
            batch_size=self._batch_size,
            limit_w=limit_w,
            samples=self._samples,
            energy_j=span.energy_j,
            time_s=span.time_s,
            steps=self._steps,
        )

    def _renew(self) -> None:
        self._span = Span()
        self._samples = self._steps = 0


def _agree(first: ProfileSample, second: ProfileSample) -> bool:
    """Whether two pieces show one J and s per sample, as far as pieces so short can."""
    ticks = TICK_S / min(first.time_s, second.time_s)
    share = second.samples / first.samples
    off_s = abs(second.time_s / first.time_s / share - 1)
    off_j = abs(second.energy_j / first.energy_j / share - 1)
    return off_s <= _AGREE and off_j <= _AGREE + ticks
