"""Which power limit to measure next, and when a profile is complete (section 4.2). Pure: no clock, no device.

Coarse to fine: every second limit of a grid (of a long one, six), from the highest down, then what lies beside the best
until its neighbours are measured. Cost against limit is unimodal in less than half of all measured trainings, so no
walk stops at the first worse limit. Then the winner is confirmed: limits that the noise of measuring leaves in question
are measured again, until they differ by more than that noise, or by too little to matter.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_zeus.optimizer.cost import Weights
from airflow_provider_zeus.optimizer.objective import Rate, permitted
from airflow_provider_zeus.optimizer.trial import ProfileSample

COARSE = 5  # parts that the coarse walk cuts a long grid into
HALF_WIDTH = 0.02  # of J and s per sample at one limit, 95 %: aimed at,
LONGEST = 3  # in so many windows at most
CLEARLY = 3.0  # standard deviations: so much dearer than the best needs no second look
DOUBT = 1.65  # standard deviations that a limit may be cheaper than it looks, one-sided 95 %
IN_DOUBT = 8  # windows that a limit in doubt has before the grid around the best is refined
ENOUGH = 0.003  # relative difference that is too little to matter
MOST = 30  # windows of one limit in all
NOISE = 0.003  # of a window at least [relative standard deviation], whatever its scatter says
TICK_S = 0.1  # a counter of energy is refreshed at least so often (NVML: every 20 to 100 ms)


class Step(NamedTuple):
    """The limit to train at now [W]. ``confirming``: the walk has all that it needs, the winner is in doubt."""

    limit_w: float
    confirming: bool = False


@dataclass(slots=True)
class Seen:
    """All that was measured at one limit. Pieces may be added in any order."""

    samples: int = 0
    energy_j: float = 0.0
    time_s: float = 0.0
    steps: int = 0
    pieces: int = 0
    inverse_s: float = 0.0  # sum of 1 / s
    j: float = 0.0  # sum of s x J/sample,
    jj: float = 0.0  # of s x (J/sample)^2,
    s: float = 0.0  # of s x s/sample,
    ss: float = 0.0  # of s x (s/sample)^2

    def add(self, piece: ProfileSample) -> None:
        """One more piece; one without samples or time is left out."""
        if piece.samples <= 0 or piece.time_s <= 0:
            return
        t, rate_j, rate_s = piece.time_s, piece.energy_j / piece.samples, piece.time_s / piece.samples
        self.samples, self.steps, self.pieces = self.samples + piece.samples, self.steps + piece.steps, self.pieces + 1
        self.energy_j, self.time_s, self.inverse_s = (
            self.energy_j + piece.energy_j,
            self.time_s + t,
            self.inverse_s + 1 / t,
        )
        self.j, self.jj = self.j + t * rate_j, self.jj + t * rate_j**2
        self.s, self.ss = self.s + t * rate_s, self.ss + t * rate_s**2

    @property
    def rate(self) -> Rate:
        """(J, s) per sample."""
        return self.energy_j / self.samples, self.time_s / self.samples

    def squares(self) -> tuple[float, float]:
        """Relative squares [s] of the pieces' J and s per sample around their means; 0 of one piece.

        What the counter's ticks can explain is no noise: they shift energy from a piece to the next and add up to none.
        """
        if self.pieces < 2:
            return 0.0, 0.0
        free = self.pieces - 1
        most = 1 + 2 * math.sqrt(2 / free)  # how far the squares of so few pieces scatter themselves
        ticks = most * TICK_S**2 / 6 * self.inverse_s * free / self.pieces
        squares_j = self.jj * self.time_s / self.j**2 - 1 if self.j > 0 else 0.0
        squares_s = self.ss * self.time_s / self.s**2 - 1
        return max(squares_j * self.time_s - ticks, 0.0), max(squares_s * self.time_s, 0.0)

    def half_width(self) -> float:
        """Of J or s per sample, whichever is worse [relative, 95 %]; 0 where fewer than three pieces tell nothing."""
        if self.pieces < 3:
            return 0.0
        free = self.pieces - 1
        return 1.96 * (1 + 1.5 / free) * math.sqrt(max(self.squares()) / free / self.time_s)  # about Student's t


@dataclass(frozen=True)
class Search:
    """Decisions about one profile over the samples known of it: the same samples, the same decision.

    :param limits_w: limits that may be measured [W].
    :param window_s: and ``window_steps``: least steady training of one window.
    """

    limits_w: tuple[float, ...]
    weights: Weights
    window_s: float
    window_steps: int

    def next_step(self, seen: Mapping[float, Seen]) -> Step | None:
        """What to measure now; None once the profile is complete."""
        limits_w = sorted(set(self.limits_w), reverse=True)
        whole = self.whole(seen)
        rivals = self._rivals(whole)
        for limit_w in coarse(limits_w):
            if limit_w not in whole or self._too_wide(whole, limit_w):
                return Step(limit_w)
        if not rivals:
            return None
        for limit_w in whole:
            if self._too_wide(whole, limit_w):
                return Step(limit_w)
        again = self._again(whole, rivals, IN_DOUBT)
        if again is not None:
            return Step(again)
        beside = self._beside(limits_w, whole)
        if beside is not None:
            return Step(beside)
        again = self._again(whole, rivals, MOST)
        return None if again is None else Step(again, confirming=True)

    def whole(self, seen: Mapping[float, Seen]) -> dict[float, Seen]:
        """What has at least one window, by limit, highest first."""
        return {
            w: seen[w]
            for w in sorted(seen, reverse=True)
            if w in self.limits_w and self._windows(seen[w]) >= 1 and (seen[w].energy_j > 0 or self.weights.fastest)
        }

    def best_w(self, seen: Mapping[float, Seen]) -> float | None:
        """The best limit of those that have a window, else of all that have anything [W]; None before the first."""
        return self._best(self.whole(seen) or {w: one for w, one in seen.items() if one.samples})

    # ------------------------------------------------------------------ inside
    def _windows(self, one: Seen) -> float:
        return min(one.time_s / self.window_s, one.steps / self.window_steps) + 1e-9

    def _best(self, seen: Mapping[float, Seen]) -> float | None:
        rates = permitted({w: one.rate for w, one in seen.items()}, self.weights.objective)
        return min(rates, key=lambda w: (self.weights.value(*rates[w]), w), default=None)

    def _too_wide(self, whole: Mapping[float, Seen], limit_w: float) -> bool:
        """Whether the window at this limit goes on: it tells too little, and the limit is not clearly out already."""
        one = whole[limit_w]
        if one.half_width() <= HALF_WIDTH or self._windows(one) >= LONGEST:
            return False
        best_w = self._best(whole)
        return best_w is None or self._dearer(whole, limit_w, best_w) <= CLEARLY * self._error(whole, limit_w, best_w)

    def _rivals(self, whole: Mapping[float, Seen]) -> set[float]:
        """The best limit, and those of which the noise does not tell whether they are better by what matters."""
        best_w = self._best(whole)
        if best_w is None:
            return set()
        top_w, doubt = max(whole), {w: self._doubt(whole, w) for w in whole}
        rates = {w: one.rate for w, one in whole.items()}
        most = permitted(rates, self.weights.objective, doubt)
        least = permitted(rates, self.weights.objective, {w: -d for w, d in doubt.items()})
        rivals = {
            w
            for w in most
            if w == best_w or DOUBT * self._error(whole, w, best_w) - self._dearer(whole, w, best_w) > ENOUGH
        }
        return rivals if rivals <= set(least) else rivals | {top_w}  # whose time says what is permitted

    def _doubt(self, whole: Mapping[float, Seen], limit_w: float) -> float:
        """How much longer or shorter a sample may take against one at the highest limit [relative]; 0 where little."""
        _, sd_s = self._noise(whole)
        doubt = DOUBT * sd_s * math.sqrt(1 / whole[limit_w].time_s + 1 / whole[max(whole)].time_s)
        return doubt if doubt > ENOUGH else 0.0

    def _dearer(self, whole: Mapping[float, Seen], limit_w: float, best_w: float) -> float:
        value = self.weights.value
        return value(*whole[limit_w].rate) / value(*whole[best_w].rate) - 1

    def _error(self, whole: Mapping[float, Seen], *limits_w: float) -> float:
        """Standard deviation of the difference between limits [relative]."""
        sd_j, sd_s = self._noise(whole)
        variance = 0.0
        for one in (whole[w] for w in limits_w):
            share = self._share(one)
            variance += ((share * sd_j) ** 2 + ((1 - share) * sd_s) ** 2) / one.time_s
        return math.sqrt(variance)

    def _share(self, one: Seen) -> float:
        """Of energy in what is minimised."""
        weights = self.weights
        if weights.fastest:
            return 0.0
        return weights.eta * one.rate[0] / weights.cost(*one.rate) if weights.objective == "cost" else 1.0

    def _noise(self, whole: Mapping[float, Seen]) -> tuple[float, float]:
        """Relative standard deviations of J and s per sample over 1 s, all limits together."""
        free = sum(one.pieces - 1 for one in whole.values())
        least = NOISE * math.sqrt(self.window_s)
        if free < 1:
            return least, least
        squares = [one.squares() for one in whole.values()]
        sd_j, sd_s = (math.sqrt(math.fsum(each) / free) for each in zip(*squares, strict=True))
        return max(sd_j, least), max(sd_s, least)

    def _again(self, whole: Mapping[float, Seen], rivals: set[float], windows: int) -> float | None:
        """The rival measured least, where it has fewer whole windows than that; a window begun is finished first."""
        if len(rivals) < 2:
            return None
        done = {w: self._windows(whole[w]) for w in rivals}
        waiting = [w for w in rivals if done[w] < windows]
        return min(waiting, key=lambda w: (int(done[w]), int(done[w]) - done[w], -w), default=None)

    def _beside(self, limits_w: Sequence[float], whole: Mapping[float, Seen]) -> float | None:
        """A limit half way between the best and the next one measured, on the more promising side first."""
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
                far = self.weights.value(*whole[limits_w[end]].rate) if inside else math.inf
                gaps.append((far, limits_w[at + step * (abs(end - at) // 2)]))
        return min(gaps)[1] if gaps else None


def seen_in(samples: Iterable[ProfileSample]) -> dict[float, Seen]:
    """All that was measured, by limit [W]."""
    seen: dict[float, Seen] = defaultdict(Seen)
    for sample in samples:
        seen[sample.limit_w].add(sample)
    return seen


def coarse(limits_w: Sequence[float]) -> list[float]:
    """Limits to begin with, highest first: every second one, or about six of a long grid; the lowest unless near."""
    stride = max(2, round((len(limits_w) - 1) / COARSE))
    chosen = list(limits_w[::stride])
    if limits_w and 2 * ((len(limits_w) - 1) % stride) >= stride:
        chosen.append(limits_w[-1])
    return chosen
