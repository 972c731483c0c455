"""The power profile of one batch size. :mod:`.search` decides what to measure next, :mod:`.sweep` measures it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from airflow_provider_zeus.model.cost import HALF_WIDTH, Rate, Weights
from airflow_provider_zeus.model.estimate import SURE, Estimate, Z
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import ProfileSample, since_mark
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.signals.forecast import weighed
from airflow_provider_zeus.training.profiling.measurement_windows import BOUND, never_binds
from airflow_provider_zeus.training.profiling.search import LimitMeasurement, Search, by_limit

WINDOW_STEPS = 10  # least optimizer steps of one window, so that no single step decides: judgement


class MissedSaving(NamedTuple):
    """Shares of what was drawn and of the time at the limit found, with 90 % intervals; below 0: lost."""

    found_w: float
    best_w: float
    energy: Estimate
    time: Estimate
    energy_j: float  # of one sample
    time_s: float

    @classmethod
    def of(
        cls, search: Search, measured: Mapping[float, LimitMeasurement], found_w: float | None
    ) -> MissedSaving | None:
        """Compare the best limit with the one found; None where one of them was not measured."""
        best_w, used = search.best_w(measured), {w: one for w, one in measured.items() if one.samples}
        if found_w is None or best_w is None or found_w not in used or best_w not in used:
            return None
        (found_j, found_s), (best_j, best_s) = used[found_w].rate, used[best_w].rate
        if not (found_j and found_s):
            return None
        off_j, off_s = (0.0, 0.0) if best_w == found_w else _doubts(search, used, found_w, best_w)
        energy, time = _saved(best_j / found_j, off_j), _saved(best_s / found_s, off_s)
        return cls(found_w, best_w, energy, time, found_j - best_j, found_s - best_s)

    def notes(self, samples: int) -> dict[str, float]:
        """The figures for these samples, by name."""
        shares = {"energy": self.energy, "time": self.time}
        ends = {"": "value", "_low": "low", "_high": "high"}
        return {
            "optimum_w": self.best_w,
            "optimum_saves_j": samples * self.energy_j,
            "optimum_saves_s": samples * self.time_s,
            **{f"optimum_saves_{of}{end}": getattr(s, name) for of, s in shares.items() for end, name in ends.items()},
        }

    def text(self, samples: int) -> str:
        """What these samples would have saved, in a sentence."""
        if self.best_w == self.found_w:
            return f"the limit found, {self.found_w:g} W, is the best of those measured: there was nothing to save."
        energy = _text(self.energy, f"{samples * self.energy_j:+.4g} J of energy")
        time = _text(self.time, f"{samples * self.time_s:+.4g} s of time")
        limits = f"at {self.best_w:g} W instead of {self.found_w:g} W"
        return f"{limits} these {samples} samples would have saved {energy} and {time}."


def _doubts(
    search: Search, measured: Mapping[float, LimitMeasurement], found_w: float, best_w: float
) -> tuple[float, float]:
    """Half of the 90 % intervals of ln of the two ratios: of J and of s per sample.

    The best limit was picked for its readings, so its interval is that of as many comparisons as there are other
    limits (Bonferroni). No interval is narrower than the one that profiling aims at, since a small scatter shows no
    error that all pieces share; and it is that one where the profile came from the store, as sums without a scatter.
    """
    from statistics import NormalDist

    least, free = Z * math.sqrt(2.0) * HALF_WIDTH / 1.96, sum(one.pieces - 1 for one in measured.values())
    least_free = 3  # degrees of freedom from which on the scatter of the pieces is known
    if free < least_free:
        return least, least
    z = NormalDist().inv_cdf(1.0 - 0.05 / (len(measured) - 1))
    wide = z * (1.0 + 1.5 / free) * math.sqrt(sum(1.0 / measured[w].time_s for w in (found_w, best_w)))  # about Student
    sd_j, sd_s = search.noise(measured, ticks=True)
    return max(wide * sd_j, least), max(wide * sd_s, least)


def _saved(ratio: float, doubt: float) -> Estimate:
    return Estimate(1.0 - ratio, 1.0 - ratio * math.exp(doubt), 1.0 - ratio * math.exp(-doubt))


def _text(saved: Estimate, amount: str) -> str:
    value, low, high = (100 * (v or 0.0) for v in (saved.value, saved.low, saved.high))
    text = f"{amount} ({value:+.1f} %, {SURE}: {low:+.1f} to {high:+.1f} %)"
    return f"about {text}, not clear yet" if low < 0 < high else text


class Conditions(NamedTuple):
    """What the best limit depends on besides the profile, now."""

    ratio: float = 1.0  # on the energy term of Eq. 7: of a followed signal's present value to its mean
    slowdown: float | None = None  # times as long as at the highest limit that the rest of the attempt may take


class Profiler:
    """The profile of one batch size on one device. Samples of one limit add up, from all runs that measured it.

    :param limits_w: limits that may be measured [W]; empty: nothing is measured.
    :param known: samples of earlier runs on this device; those of other batch sizes and limits are left out.
    :param min_s: least steady training of one window [s].
    :param min_steps: least optimizer steps of one window.
    :param of_steps: its samples are optimizer steps, and ``batch_size`` is their kind.
    """

    def __init__(
        self,
        limits_w: Sequence[float],
        known: Iterable[ProfileSample],
        *,
        batch_size: int,
        weights: Weights,
        min_s: float,
        min_steps: int,
        of_steps: bool = False,
    ) -> None:
        self.batch_size, self.weights = batch_size, weights
        self.unit, self.of = ("step", "of these steps") if of_steps else ("sample", f"at batch size {batch_size}")
        self.window_samples = min_steps * (1 if of_steps else batch_size)  # of one window, at least
        self.min_s, self.min_steps = min_s, min_steps
        self.limits_w = tuple(limits_w)
        self.capped: float | None = None  # share of the time at the highest limit in which it bound
        self.locked = ""  # why the clock seems to be locked
        self.slow = ""  # why no window is measured: the driver is too slow
        self.waits = ""  # why windows tell nothing: the training waits for its batches
        self.why_none = ""  # why no limit can save anything, or none is known that does, so that none is set
        self.search = Search(self.limits_w, weights, min_s, min_steps)
        self.measured = by_limit(
            s for s in since_mark(known) if s.batch_size == batch_size and s.limit_w in self.limits_w
        )
        self._decide()

    def add(self, sample: ProfileSample) -> None:
        """Add a measured sample."""
        self.measured.setdefault(sample.limit_w, LimitMeasurement()).add(sample)
        self._decide()

    def know(
        self, *, waits: str | None = None, cap: tuple[float | None, str] | None = None, slow: str | None = None
    ) -> None:
        """Take what is known besides samples.

        :param waits: why windows tell nothing about limits, so that none is chosen by them; empty: they do.
        :param slow: why a window that is needed is not measured.
        :param cap: what holds the clock back at the highest limit: the cap for a share of the time, or a lock.
        """
        self.waits = self.waits if waits is None else waits
        self.slow = self.slow if slow is None else slow
        self.capped, self.locked = cap or (self.capped, self.locked)
        self._decide()

    def reset(self) -> ProfileSample:
        """Forget all samples, and the cap. Returns the mark that says so to readers of the stored samples."""
        self.measured, self.capped, self.locked = {}, None, ""
        self._decide()
        return ProfileSample.mark(self.batch_size)

    @property
    def walked(self) -> bool:
        """Whether every limit that had to be is measured, and at most the best one is still being confirmed."""
        return self._next is None or self._next.confirming

    @property
    def why_uncapped(self) -> str:
        """Why no limit can save anything; empty also where that is only not known, since the driver is slow."""
        return "" if self.slow else self.why_none

    @property
    def best_w(self) -> float | None:
        """The best limit of those measured so far [W]; None before the first sample."""
        if self.why_none:
            return max(self.measured, default=None)
        return self.search.best_w(self.measured)

    def best_w_at(self, now: Conditions, before_w: float | None = None) -> float | None:
        """The best limit now [W]; None before the first sample.

        :param before_w: the limit until now. It stays where it is still fast enough and a lower one only just is.
        """
        weights, slowdown = weighed(self.weights, now.ratio), now.slowdown
        if slowdown is None:
            return replace(self.search, weights=weights).best_w(self.measured)
        spare = 1.05  # by how much more a lower limit must be fast enough before it replaces a higher one
        lowest_w, safe_w = (
            replace(self.search, weights=weights._replace(slowdown=max(most, 1.0))).best_w(self.measured)
            for most in (slowdown, slowdown / spare)
        )
        if before_w is not None and lowest_w is not None and safe_w is not None and lowest_w <= before_w <= safe_w:
            return before_w
        return safe_w

    @property
    def surely_best(self) -> bool:
        """Whether the best limit is the highest one, or better than it by more than noise."""
        best_w, top_w = self.best_w, max(self.limits_w, default=None)
        if best_w is None or top_w is None:
            return False
        return best_w == top_w or self.search.surely_better(self.measured, best_w, top_w)

    def rates_at(self, limit_w: float | None) -> Rate | None:
        """(J per sample, s per sample) at a limit; None where it was not measured."""
        measurement = self.measured.get(limit_w) if limit_w is not None else None
        return measurement.rate if measurement and measurement.samples else None

    def _decide(self) -> None:
        draw_w = self.search.unbound_w(self.measured) if (self.capped or 0.0) <= BOUND else None
        self.why_none = self.waits or self.locked if self.search.whole(self.measured) else ""
        if draw_w is not None:
            self.why_none = never_binds(draw_w, min(self.limits_w))
        self.why_none = self.why_none or self.slow
        decides = self.limits_w and not self.why_none
        self._next = self.search.next_limit(self.measured) if decides else None
        self.next_limit_w = self._next.limit_w if self._next else None  # to measure now; None: the profile is complete


def profiler_of(
    job: ZeusJob,
    limits: LimitControl | None,
    weights: Weights,
    known: Iterable[ProfileSample],
    batch_size: int,
    *,
    of_steps: bool = False,
) -> Profiler:
    """The profiler of a job's training. Where only time counts it measures the highest limit: no lower one is faster.

    Raises JobSpecError: one of the job's limits is out of the device's range.
    """
    limits_w: Sequence[float] = ()
    if limits is not None and not weights.time_alone and job.tries_limits:
        limits_w = limits.grid_w(job.power_limits_w)
        if weights.fastest or weights.slowdown == 1:
            limits_w = limits_w[:1]
        elif job.mode == "observe" and limits.found_w is not None:  # training goes on at it: its rates are needed
            limits_w = sorted({*limits_w, limits.found_w}, reverse=True)
    return Profiler(
        limits_w,
        known,
        batch_size=batch_size,
        weights=weights,
        min_s=job.profile_s,
        min_steps=WINDOW_STEPS,
        of_steps=of_steps,
    )
