"""The power profile of one batch size. :mod:`.search` decides which limit to measure next,
:mod:`.sweep` measures it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from airflow_provider_zeus.model.cost import HALF_WIDTH, Rate, Weights
from airflow_provider_zeus.model.estimate import SURE, Estimate, Z
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.partial_sums import since_mark
from airflow_provider_zeus.model.trial import ProfileSample
from airflow_provider_zeus.model.wire import without_none
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.signals.forecast import weighed
from airflow_provider_zeus.training.profiling.measurement_windows import BOUND, never_binds
from airflow_provider_zeus.training.profiling.search import LimitMeasurement, Search, by_limit

WINDOW_STEPS = 10  # least optimizer steps of one window, so that no single step decides: judgement


class MissedSaving(NamedTuple):
    """Shares of energy and time at the limit found, with 90 % intervals; below 0: lost."""

    found_w: float
    best_w: float
    energy: Estimate
    time: Estimate
    energy_j: float
    time_s: float

    @classmethod
    def of(
        cls, search: Search, measured: Mapping[float, LimitMeasurement], found_w: float | None
    ) -> MissedSaving | None:
        """Compare the best limit with the one found; None if one of them was not measured."""
        best_w = search.best_w(measured)
        used = {w: one for w, one in measured.items() if one.samples}
        if best_w is None or found_w not in used:
            return None
        found_j, found_s = used[found_w].rate
        best_j, best_s = used[best_w].rate
        if not (found_j and found_s):
            return None
        off_j = 0.0
        off_s = 0.0
        if best_w != found_w:
            off_j, off_s = _doubts(search, used, found_w, best_w)
        return cls(
            found_w=found_w,
            best_w=best_w,
            energy=_saved(best_j / found_j, off_j),
            time=_saved(best_s / found_s, off_s),
            energy_j=found_j - best_j,
            time_s=found_s - best_s,
        )

    def notes(self, samples: int) -> dict[str, float]:
        """The figures for these samples, by name."""
        notes = {
            "optimum_w": self.best_w,
            "optimum_saves_j": samples * self.energy_j,
            "optimum_saves_s": samples * self.time_s,
        }
        for name, share in (("energy", self.energy), ("time", self.time)):
            ends = {"": share.value, "_low": share.low, "_high": share.high}
            for end, value in without_none(ends).items():
                notes[f"optimum_saves_{name}{end}"] = value
        return notes

    def text(self, samples: int) -> str:
        """The saving over these samples, in a sentence."""
        if self.best_w == self.found_w:
            best = f"the limit found, {self.found_w:g} W, is the best of those measured"
            return f"{best}: there was nothing to save."
        energy = _text(self.energy, f"{samples * self.energy_j:+.4g} J of energy")
        time = _text(self.time, f"{samples * self.time_s:+.4g} s of time")
        limits = f"at {self.best_w:g} W instead of {self.found_w:g} W"
        return f"{limits} these {samples} samples would have saved {energy} and {time}."


def _doubts(
    search: Search, measured: Mapping[float, LimitMeasurement], found_w: float, best_w: float
) -> tuple[float, float]:
    """Half of the 90 % intervals of ln of the two ratios: of J and of s per sample.

    The best limit was picked for its readings, so its interval is that of as many comparisons as
    there are other limits (Bonferroni). No interval is narrower than the one that profiling aims
    at, since a small scatter shows no error that all pieces share; and it is that one if the
    profile came from the store, as sums without a scatter.
    """
    from statistics import NormalDist

    # Both rates of a ratio err (sqrt 2); HALF_WIDTH is of 95 %, and this interval of 90 %.
    least = Z * math.sqrt(2.0) * HALF_WIDTH / 1.96
    free = sum(one.pieces - 1 for one in measured.values())
    least_free = 3  # a scatter of so few pieces is chance, and so would be its interval
    if free < least_free:
        return least, least
    z = NormalDist().inv_cdf(1.0 - 0.05 / (len(measured) - 1))
    wide = z * (1.0 + 1.5 / free)  # about Student's t: few pieces understate their own scatter
    wide *= math.sqrt(1.0 / measured[found_w].time_s + 1.0 / measured[best_w].time_s)
    sd_j, sd_s = search.noise(measured, ticks=True)
    return max(wide * sd_j, least), max(wide * sd_s, least)


def _saved(ratio: float, doubt: float) -> Estimate:
    return Estimate(1.0 - ratio, 1.0 - ratio * math.exp(doubt), 1.0 - ratio * math.exp(-doubt))


def _text(saved: Estimate, amount: str) -> str:
    value, low, high = (100 * (v or 0.0) for v in (saved.value, saved.low, saved.high))
    text = f"{amount} ({value:+.1f} %, {SURE}: {low:+.1f} to {high:+.1f} %)"
    if low < 0 < high:
        return f"about {text}, not clear yet"
    return text


class Conditions(NamedTuple):
    """The conditions of the best limit now, besides the profile.

    ``ratio``: of a followed signal's present value to its mean, on the energy term of Eq. 7.
    ``slowdown``: how many times as long as at the highest limit the rest of the attempt may take.
    """

    ratio: float = 1.0
    slowdown: float | None = None


class Profiler:
    """The profile of one batch size on one device. Samples of one limit add up, from all runs that
    measured it.

    :param limits_w: limits that may be measured [W]; empty: nothing is measured.
    :param known: samples of earlier runs on this device; those of other batch sizes and limits are
        left out.
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
        self.batch_size = batch_size
        self.weights = weights
        self.unit = "sample"
        self.of = f"at batch size {batch_size}"
        self.window_samples = min_steps * batch_size
        if of_steps:
            self.unit = "step"
            self.of = "of these steps"
            self.window_samples = min_steps
        self.min_s = min_s
        self.min_steps = min_steps
        self.limits_w = tuple(limits_w)
        self.top_w = max(self.limits_w, default=0.0)
        self.capped: float | None = None  # a limit that does not bind saves nothing
        self.locked = ""  # with a locked clock no limit changes anything
        self.slow = ""  # readings of a slow driver would cost more than a limit saves
        self.waits = ""  # an idle GPU says nothing of its limits
        self.why_none = ""
        self.search = Search(self.limits_w, weights, min_s, window_steps=min_steps)
        own = [sample for sample in since_mark(known) if sample.batch_size == batch_size]
        self.measured = by_limit(sample for sample in own if sample.limit_w in self.limits_w)
        self._decide()

    def add(self, sample: ProfileSample) -> None:
        """Add a measured sample."""
        self.measured.setdefault(sample.limit_w, LimitMeasurement()).add(sample)
        self._decide()

    def know_waits(self, why: str) -> None:
        """Windows tell nothing about limits, so that none is chosen by them; empty: they do."""
        self.waits = why
        self._decide()

    def know_slow(self, why: str) -> None:
        """A window that is needed is not measured; empty: it is."""
        self.slow = why
        self._decide()

    def know_cap(self, share: float | None, locked: str) -> None:
        """The hold on the clock at the highest limit: the cap for a share of the time, or a
        lock.
        """
        self.capped = share
        self.locked = locked
        self._decide()

    def reset(self) -> ProfileSample:
        """Forget all samples, and the cap.

        Returns the mark that says so to readers of the stored samples.
        """
        self.measured = {}
        self.capped = None
        self.locked = ""
        self._decide()
        return ProfileSample.mark(self.batch_size)

    @property
    def walked(self) -> bool:
        """Whether every limit that had to be is measured, and at most the best one is still being
        confirmed.
        """
        return self._next is None or self._next.confirming

    @property
    def why_uncapped(self) -> str:
        """Why no limit can save anything; empty also if that is only not known, since the driver is
        slow.
        """
        if self.slow:
            return ""
        return self.why_none

    @property
    def best_w(self) -> float | None:
        """The best limit of those measured so far [W]; None before the first sample."""
        if self.why_none:
            return max(self.measured, default=None)
        return self.search.best_w(self.measured)

    def best_w_at(self, now: Conditions, before_w: float | None = None) -> float | None:
        """The best limit now [W]; None before the first sample.

        :param before_w: the limit until now. It stays if it is still fast enough and a lower one
            only just is.
        """
        weights = weighed(self.weights, now.ratio)
        slowdown = now.slowdown
        if slowdown is None:
            return replace(self.search, weights=weights).best_w(self.measured)
        # Without spare the limit would go down and up again with each small change of conditions.
        spare = 1.05
        lowest_w = self._best_within(weights, slowdown)
        safe_w = self._best_within(weights, slowdown / spare)
        if lowest_w is None or safe_w is None:
            return safe_w
        if before_w is not None and lowest_w <= before_w <= safe_w:
            return before_w
        return safe_w

    def _best_within(self, weights: Weights, slowdown: float) -> float | None:
        """The best limit that takes at most so many times as long as the highest one."""
        # Late already, below 1, not even the highest limit would be permitted.
        weights = weights._replace(slowdown=max(slowdown, 1.0))
        return replace(self.search, weights=weights).best_w(self.measured)

    @property
    def surely_best(self) -> bool:
        """Whether the best limit is the highest one, or better than it by more than noise."""
        best_w = self.best_w
        if best_w is None:
            return False
        if best_w == self.top_w:
            return True
        return self.search.surely_better(self.measured, best_w, self.top_w)

    def rate_at(self, limit_w: float | None) -> Rate | None:
        """(J per sample, s per sample) at a limit; None if it was not measured."""
        if limit_w is None or limit_w not in self.measured:
            return None
        measurement = self.measured[limit_w]
        return measurement.rate if measurement.samples else None

    def _decide(self) -> None:
        self.why_none = self._why_none()
        self._next = None
        self.next_limit_w: float | None = None
        if self.limits_w and not self.why_none:
            self._next = self.search.next_limit(self.measured)
        if self._next is not None:
            self.next_limit_w = self._next.limit_w

    def _why_none(self) -> str:
        """Why no limit is chosen; empty if one is, or will be."""
        draw_w = self.search.unbound_w(self.measured)
        if draw_w is not None and (self.capped or 0.0) <= BOUND:
            return never_binds(draw_w, min(self.limits_w))
        if not self.search.whole(self.measured):
            return self.slow
        return self.waits or self.locked or self.slow


def profiler_of(
    job: ZeusJob,
    limits: LimitControl,
    weights: Weights,
    known: Iterable[ProfileSample],
    batch_size: int,
    *,
    of_steps: bool = False,
) -> Profiler:
    """The profiler of a job's training. If only time counts it measures the highest limit: no lower
    one is faster.

    Raises JobSpecError: one of the job's limits is out of the device's range.
    """
    limits_w: Sequence[float] = ()
    if job.tries_limits and not weights.time_alone:
        limits_w = limits.grid_w(job.power_limits_w)
        # No lower limit may be chosen then, so its windows would only slow the training.
        if weights.fastest or weights.slowdown == 1:
            limits_w = limits_w[:1]
        elif job.mode == "observe" and limits.found_w is not None:
            # Training goes on at it, so the saving is counted from its rates.
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
