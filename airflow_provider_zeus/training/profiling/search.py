"""Which power limit to measure next, and when a profile is complete (section 4.2). Pure: no clock,
no device.

Coarse to fine: every second limit of a grid (of a long grid, six), from the highest down, then
limits beside the best one until its neighbours are measured. Cost against limit is unimodal in less
than half of all measured trainings, so the walk does not stop at the first limit that is worse.
Then the best limit is confirmed: limits that measurement noise does not tell apart are measured
again, until they differ by more than that noise, or by too little to matter.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_zeus.model.cost import HALF_WIDTH, TICK_S, Rate, Weights, permitted
from airflow_provider_zeus.model.trial import ProfileSample

DOUBT = 1.65  # one-sided 95 % of a normal: in one of 20 cases a limit is better than even that
ENOUGH = 0.003  # it would take longer to measure than it can save
MOST = 30  # a load that scatters so much never gets a narrow interval
NOISE = 0.003  # relative: a few pieces may agree by chance, and no window is surer than this
UNBOUND = 0.9  # boards average their draw: peaks above the lowest limit may hide in a mean below it


class NextLimit(NamedTuple):
    """The limit to train at now [W].

    ``confirming``: every limit needed is measured, but the best one is in doubt.
    """

    limit_w: float
    confirming: bool = False


@dataclass(slots=True)
class LimitMeasurement:
    """All samples of one limit. They may be added in any order."""

    samples: int = 0
    energy_j: float = 0.0
    time_s: float = 0.0
    steps: int = 0
    pieces: int = 0
    # Sums are kept, not windows: each new window changes mean and scatter at once.
    inverse_s: float = 0.0
    j: float = 0.0
    jj: float = 0.0
    s: float = 0.0
    ss: float = 0.0

    def add(self, piece: ProfileSample) -> None:
        """Add one piece; one without samples or time is left out."""
        if piece.samples <= 0 or piece.time_s <= 0:
            return
        t = piece.time_s
        rate_j = piece.energy_j / piece.samples
        rate_s = piece.time_s / piece.samples
        self.samples += piece.samples
        self.steps += piece.steps
        self.pieces += 1
        self.energy_j += piece.energy_j
        self.time_s += t
        self.inverse_s += 1 / t
        self.j += t * rate_j
        self.jj += t * rate_j**2
        self.s += t * rate_s
        self.ss += t * rate_s**2

    @property
    def rate(self) -> Rate:
        """(J, s) per sample."""
        return Rate(self.energy_j / self.samples, self.time_s / self.samples)

    def squares(self, *, ticks: bool = False) -> tuple[float, float]:
        """Relative squared deviations [s] of the pieces' J and s per sample from their means; 0 of
        one piece.

        A GPU's energy counter advances in ticks, so a tick may fall into one window or the next.
        That spread says nothing about the training and cancels out over windows: an upper bound of
        it is subtracted.

        :param ticks: leave it in: the squares are then never too small.
        """
        if self.pieces < 2:
            return 0.0, 0.0
        free = self.pieces - 1
        # So few squares scatter themselves: by two standard deviations of chi-square / n.
        most = 1 + 2 * math.sqrt(2 / free)
        # Each edge of a window is off by a uniform part of a tick, of variance TICK_S**2 / 12.
        tick_squares = 0.0 if ticks else most * TICK_S**2 / 6 * self.inverse_s * free / self.pieces
        squares_j = self.jj * self.time_s / self.j**2 - 1 if self.j > 0 else 0.0
        squares_s = self.ss * self.time_s / self.s**2 - 1
        return max(squares_j * self.time_s - tick_squares, 0.0), max(squares_s * self.time_s, 0.0)


@dataclass(frozen=True)
class Search:
    """Decisions about one profile. They depend only on the samples measured so far.

    :param limits_w: limits that may be measured [W].
    :param window_s: least steady training of one window [s].
    :param window_steps: least optimizer steps of one window.
    """

    limits_w: tuple[float, ...]
    weights: Weights
    window_s: float
    window_steps: int

    def next_limit(self, measured: Mapping[float, LimitMeasurement]) -> NextLimit | None:
        """The limit to measure now; None once the profile is complete."""
        limits_w = sorted(set(self.limits_w), reverse=True)
        whole = self.whole(measured)
        rivals = self._rivals(whole)
        # From the top: the training is slowed down by no limit that is no use.
        for limit_w in (*coarse(limits_w), *whole):
            if limit_w not in whole or self._too_wide(whole, limit_w):
                return NextLimit(limit_w)
        in_doubt = 8  # neighbours that cannot be told apart would be measured for ever
        needed_w = self._least_measured(whole, rivals, in_doubt)
        if needed_w is None:
            needed_w = self._beside_best(limits_w, whole)
        if needed_w is not None:
            return NextLimit(needed_w)
        again_w = self._least_measured(whole, rivals, MOST)
        if again_w is None:
            return None
        return NextLimit(again_w, confirming=True)

    def unbound_w(self, measured: Mapping[float, LimitMeasurement]) -> float | None:
        """Mean draw [W] of a training that no limit holds back, by its first window; None if one
        may.

        Only the highest limit is measured then: differences below it would be noise.
        """
        if len(self.limits_w) < 2:
            return None
        whole = self.whole(measured)
        if list(whole) != [max(self.limits_w)]:
            return None
        (one,) = whole.values()
        draw_w = one.energy_j / one.time_s
        if draw_w < UNBOUND * min(self.limits_w):
            return draw_w
        return None

    def whole(self, measured: Mapping[float, LimitMeasurement]) -> dict[float, LimitMeasurement]:
        """Limits with at least one whole window, highest first."""
        limits_w = sorted(set(self.limits_w).intersection(measured), reverse=True)
        return {w: measured[w] for w in limits_w if self._is_whole(measured[w])}

    def best_w(self, measured: Mapping[float, LimitMeasurement]) -> float | None:
        """The best limit of those with a whole window, else of those with any sample [W]; None
        before the first.
        """
        whole = self.whole(measured)
        if whole:
            return self._best(whole)
        return self._best({w: one for w, one in measured.items() if one.samples})

    def surely_better(
        self, measured: Mapping[float, LimitMeasurement], limit_w: float, than_w: float
    ) -> bool:
        """Whether a limit is better than another one by more than noise and than matters."""
        whole = self.whole(measured)
        if limit_w not in whole or than_w not in whole:
            return False
        least = max(DOUBT * self._error(whole, limit_w, than_w), ENOUGH)
        return self._excess(whole, than_w, limit_w) > least

    def noise(
        self, whole: Mapping[float, LimitMeasurement], *, ticks: bool = False
    ) -> tuple[float, float]:
        """Relative standard deviations of J and s per sample over 1 s, pooled over all limits.

        :param ticks: count those of the energy counter as noise (:meth:`LimitMeasurement.squares`).
        """
        free = sum(one.pieces - 1 for one in whole.values())
        least = NOISE * math.sqrt(self.window_s)
        if free < 1:
            return least, least
        squares = [one.squares(ticks=ticks) for one in whole.values()]
        sd_j, sd_s = (math.sqrt(math.fsum(column) / free) for column in zip(*squares, strict=True))
        return max(sd_j, least), max(sd_s, least)

    def _windows(self, one: LimitMeasurement) -> float:
        # Rounding must not leave a whole window unfinished for ever.
        return min(one.time_s / self.window_s, one.steps / self.window_steps) + 1e-9

    def _is_whole(self, one: LimitMeasurement) -> bool:
        has_cost = one.energy_j > 0 or self.weights.fastest
        return has_cost and self._windows(one) >= 1

    def _best(self, measured: Mapping[float, LimitMeasurement]) -> float | None:
        return self.weights.best_w({w: one.rate for w, one in measured.items()})

    def _too_wide(self, whole: Mapping[float, LimitMeasurement], limit_w: float) -> bool:
        """Whether to go on at this limit: its confidence interval is too wide, and it is not
        clearly worse.
        """
        one = whole[limit_w]
        free = one.pieces - 1
        half_width = 0.0
        if free >= 2:
            # 1.96 is 95 % of a normal; the factor makes it about Student's t, as few pieces
            # understate their own scatter.
            half_width = 1.96 * (1 + 1.5 / free) * math.sqrt(max(one.squares()) / free / one.time_s)
        longest = 3  # a profile has to be done within a run
        if half_width <= HALF_WIDTH or self._windows(one) >= longest:
            return False
        best_w = self._best(whole)
        # Chance hardly ever gives three standard deviations: any closer limit may be the best.
        clearly = 3.0
        return best_w is None or self._excess(whole, limit_w, best_w) <= clearly * self._error(
            whole, limit_w, best_w
        )

    def _rivals(self, whole: Mapping[float, LimitMeasurement]) -> set[float]:
        """The best limit, and those that may be better by more than matters, given the noise."""
        best_w = self._best(whole)
        if best_w is None:
            return set()
        top_w = max(whole)
        _, sd_s = self.noise(whole)
        doubt: dict[float, float] = {}
        # Whether a limit is fast enough is measured too: noise may permit or forbid it wrongly.
        for w, one in whole.items():
            off = DOUBT * sd_s * math.sqrt(1 / one.time_s + 1 / whole[top_w].time_s)
            doubt[w] = off if off > ENOUGH else 0.0
        rates = {w: one.rate for w, one in whole.items()}
        most = permitted(rates, self.weights.slowdown, doubt)
        least = permitted(rates, self.weights.slowdown, {w: -d for w, d in doubt.items()})
        rivals = {best_w} & set(most)
        # Noise may hide that a limit is better by so much: measured again, it may win.
        better = {w: DOUBT * self._error(whole, w, best_w) for w in most}
        rivals |= {w for w in most if better[w] - self._excess(whole, w, best_w) > ENOUGH}
        # The time of the highest limit decides what is permitted, so it is measured again, too.
        if rivals <= set(least):
            return rivals
        return rivals | {top_w}

    def _excess(
        self, whole: Mapping[float, LimitMeasurement], limit_w: float, best_w: float
    ) -> float:
        """By how much a limit is worse than the best one [relative]."""
        cost = self.weights.cost
        return cost(*whole[limit_w].rate) / cost(*whole[best_w].rate) - 1

    def _error(self, whole: Mapping[float, LimitMeasurement], *limits_w: float) -> float:
        """Standard deviation of the difference between limits [relative]."""
        weights = self.weights
        sd_j, sd_s = self.noise(whole)
        variance = 0.0
        for one in (whole[w] for w in limits_w):
            share = 0.0
            if not weights.fastest:
                share = weights.eta * one.rate.energy_j / weights.cost(*one.rate)
            variance += ((share * sd_j) ** 2 + ((1 - share) * sd_s) ** 2) / one.time_s
        return math.sqrt(variance)

    def _least_measured(
        self, whole: Mapping[float, LimitMeasurement], rivals: set[float], windows: int
    ) -> float | None:
        """The rival with the fewest whole windows, below ``windows``; one with an unfinished window
        comes first.
        """
        if len(rivals) < 2:
            return None
        done = {w: self._windows(whole[w]) for w in rivals}
        waiting = [w for w in rivals if done[w] < windows]
        return min(waiting, key=lambda w: (int(done[w]), int(done[w]) - done[w], -w), default=None)

    def _beside_best(
        self, limits_w: Sequence[float], whole: Mapping[float, LimitMeasurement]
    ) -> float | None:
        """A limit half way between the best and the next one measured, on the better side first."""
        best_w = self._best(whole)
        if best_w is None:
            return None
        at = limits_w.index(best_w)
        gaps: list[tuple[float, float]] = []
        for step in (-1, 1):
            end = at + step
            while 0 <= end < len(limits_w) and limits_w[end] not in whole:
                end += step
            if abs(end - at) > 1:
                inside = 0 <= end < len(limits_w)
                far = self.weights.cost(*whole[limits_w[end]].rate) if inside else math.inf
                gaps.append((far, limits_w[at + step * (abs(end - at) // 2)]))
        if gaps:
            return min(gaps)[1]
        return None


def by_limit(samples: Iterable[ProfileSample]) -> dict[float, LimitMeasurement]:
    """Add up samples by limit [W]."""
    measured: dict[float, LimitMeasurement] = defaultdict(LimitMeasurement)
    for sample in samples:
        measured[sample.limit_w].add(sample)
    return measured


def coarse(limits_w: Sequence[float]) -> list[float]:
    """Limits of the coarse walk, highest first: every second one, about six of a long grid, and
    mostly the lowest.
    """
    parts = 5  # each limit costs a window; those beside the best one are measured later anyway
    stride = max(2, round((len(limits_w) - 1) / parts))
    chosen = list(limits_w[::stride])
    if limits_w and 2 * ((len(limits_w) - 1) % stride) >= stride:
        chosen.append(limits_w[-1])
    return chosen
