"""Runs as they would have been at another power limit, by their profile; savings without a batch
size. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_zeus.model.cost import HALF_WIDTH, TICK_S, Weights, best_limit
from airflow_provider_zeus.model.estimate import SURE, Estimate, Z
from airflow_provider_zeus.model.groups import sum_of_known
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.partial_sums import summed
from airflow_provider_zeus.model.trial import UNCAPPED, Observation, ProfileSample
from airflow_provider_zeus.units import energy_text

if TYPE_CHECKING:
    from numpy.random import Generator

    from airflow_provider_zeus.reports.slice_paths import Vector

SAME_W = 0.5  # drivers round limits
# The profiler measures J and s until half of their 95 % interval, 1.96 sd, is HALF_WIDTH.
RATE_SD = HALF_WIDTH / 1.96


def same_limit(one_w: float | None, other_w: float | None) -> bool:
    """Whether two power limits [W] are one: both unknown, or as near as drivers round."""
    # A device without limits has one limit, whatever its name.
    if one_w is None or other_w is None:
        return one_w is other_w
    return abs(one_w - other_w) <= SAME_W


def ratio_sd(one: ProfileSample, other: ProfileSample) -> float:
    """Relative sd of the ratio of two samples' J or s: a short one also has the ticks of its
    counter.
    """
    # Both ends of a window are off by up to a tick, evenly: a variance of TICK_S^2 / 12 each.
    variances = [RATE_SD**2 + (TICK_S / sample.time_s) ** 2 / 6 for sample in (one, other)]
    return math.sqrt(math.fsum(variances))


@dataclass(frozen=True, slots=True)
class LimitProfiles:
    """Profile samples of one device, added up; windows too short to measure anything are left
    out.
    """

    sums: Mapping[int, Mapping[float, ProfileSample]]

    @classmethod
    def of(cls, samples: Iterable[ProfileSample], job: ZeusJob | None = None) -> LimitProfiles:
        """Add up the samples; with ``job``, only those of the limits that it may set (none unless
        it optimizes).
        """
        allowed = [s for s in samples if _may_be_set(s.limit_w, job)]
        sums = defaultdict[int, dict[float, ProfileSample]](dict)
        for total in summed(filter(_is_long_enough, allowed)):
            sums[total.batch_size][total.limit_w] = total
        return cls(dict(sums))

    def at(self, batch_size: int, limit_w: float | None) -> ProfileSample | None:
        """The sum at this limit; None if nothing was measured."""
        sums = self.sums.get(batch_size, {})
        near = [w for w in sums if same_limit(w, limit_w)]
        if not near:
            return None
        # drivers round a limit, so the profile may have a near one
        nearest_w = min(near, key=lambda w: abs(w - (limit_w or 0.0)))
        return sums[nearest_w]

    def ratio_sd(self, batch_size: int, one_w: float | None, other_w: float | None) -> float:
        """Relative sd of a run at one limit [W] that is re-costed to another; 0 if nothing was
        measured.
        """
        one = self.at(batch_size, one_w)
        other = self.at(batch_size, other_w)
        if one is None or other is None:
            return 0.0
        return ratio_sd(one, other)

    def best_w(self, batch_size: int, weights: Weights) -> float | None:
        """The limit [W] of Eq. 7; None if this batch size was not profiled."""
        best = best_limit(self.sums.get(batch_size, {}).values(), weights)
        if best is None:
            return None
        limit_w, _ = best
        return limit_w

    def highest_w(self, batch_size: int) -> float | None:
        """The highest limit measured [W], which counts as full power; None if nothing was
        measured.
        """
        return max(self.sums.get(batch_size, ()), default=None)

    def recosted(self, batch_size: int, o: Observation, limit_w: float) -> Observation | None:
        """The run as it would have been at ``limit_w`` [W]: its training part scales as the profile
        does (Eq. 5).

        Validation, waiting and pauses stay as they were; the excess of profiling is subtracted.
        None if the run's own limit or this one was not profiled, or the run was not timed.
        """
        old = self.at(batch_size, o.power_limit_w)
        new = self.at(batch_size, limit_w)
        # A limit that was not profiled could cost anything.
        if old is None or new is None or o.time_s is None:
            return None
        per_sample = old.samples / new.samples
        factor = new.time_s / old.time_s * per_sample
        time_s = _scaled(o.time_s, (o.rest_s, o.paused_s), o.excess_s, factor)
        if time_s is None:
            return None
        energy_j = None
        # 0 J: the window was too short for the counter
        is_measured = min(old.energy_j, new.energy_j) > 0
        if is_measured and o.energy_j is not None:
            factor = new.energy_j / old.energy_j * per_sample
            energy_j = _scaled(o.energy_j, (o.rest_j, o.paused_j), o.excess_j, factor)
        return replace(
            o,
            time_s=time_s,
            energy_j=energy_j,
            excess_s=0.0,
            excess_j=0.0,
            power_limit_w=new.limit_w,
        )


def _may_be_set(limit_w: float, job: ZeusJob | None) -> bool:
    """Whether a job may set a limit; any may be asked about without a job."""
    if job is None:
        return True
    # Only such a job sets limits that stay.
    if job.mode != "optimize":
        return False
    return not job.power_limits_w or limit_w in job.power_limits_w


def _is_long_enough(sample: ProfileSample) -> bool:
    """Whether a window measured anything."""
    is_timed = 0 < sample.time_s < math.inf
    return sample.samples > 0 and is_timed and 0 <= sample.energy_j < math.inf


def _scaled(
    whole: float, unchanged: Iterable[float | None], excess: float | None, factor: float
) -> float | None:
    """``unchanged``: the parts that no limit changes; None if nothing else is left."""
    same = sum_of_known(unchanged)
    training = whole - same - (excess or 0.0)
    # More was waited than trained: a factor of the rest would be noise.
    if training <= 0:
        return None
    return training * factor + same


@dataclass(frozen=True, slots=True)
class LimitSaving:
    """Sums over runs.

    ``full_w``: the highest limit measured [W], at which they would have taken ``full_j, full_s``.
    """

    runs: int
    full_w: float
    full_j: float
    full_s: float
    energy_j: Estimate
    time_s: Estimate

    def draws(self, rng: Generator, count: int) -> tuple[Vector, Vector]:
        """``count`` draws of energy [J] and time [s], whose mean and interval are those of the two
        estimates.

        Quantiles of a normal distribution in random order, one for both: the error is that of one
        profile.
        """
        import numpy as np

        normal = np.array([NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)])
        # the 95 % quantile is 1, so half an interval is the factor
        off = rng.permutation(normal / normal[round(0.95 * (count - 1))])

        def around(saved: Estimate) -> Vector:
            low, high = saved.ends
            half = (high - low) / 2
            drawn: Vector = (saved.value or 0.0) + half * off
            return drawn

        return around(self.energy_j), around(self.time_s)

    @property
    def text(self) -> str:
        """In a line of the log; empty if the run was at full power."""
        energy = self.energy_j
        # At full power there is nothing to tell.
        if energy.low == energy.high or energy.value is None:
            return ""
        low, high = map(energy_text, energy.ends)
        ends = f"{SURE}: {low} to {high}"
        return f"energy saved by the power limit {energy_text(energy.value)} ({ends})"


def limit_saving(
    observations: Iterable[Observation], profile: Sequence[ProfileSample]
) -> LimitSaving | None:
    """The saving of runs on one device by their limit; None if the profile tells it for none of
    them.

    A run at the highest limit saved nothing and paid for profiling. Pauses between steps count as
    equal. Runs in which no limit could save anything, so that none was chosen, do not count.

    :param profile: of that device.
    """
    profiled = LimitProfiles.of(profile)
    energy = list[_LimitPart]()
    time = list[_LimitPart]()
    full_w = 0.0
    for o in observations:
        used = profiled.at(o.step_kind or 0, o.power_limit_w)
        if used is None or UNCAPPED in o.reasons:
            continue
        if not o.samples:
            continue
        # Nothing is known of a higher limit, so the highest one measured stands for full power.
        most = max(profiled.sums[used.batch_size].values(), key=lambda s: s.limit_w)
        full_w = max(full_w, most.limit_w)
        doubt = 0.0  # at one limit nothing is scaled
        if most is not used:
            doubt = Z * ratio_sd(most, used)
        full_j = o.samples * (most.energy_j / most.samples)
        full_s = o.samples * (most.time_s / most.samples)
        excess_j, excess_s = o.excess
        saved_j = full_j - o.samples * (used.energy_j / used.samples) - excess_j
        saved_s = full_s - o.samples * (used.time_s / used.samples) - excess_s
        energy.append(_LimitPart(full_j, saved_j, full_j * doubt))
        time.append(_LimitPart(full_s, saved_s, full_s * doubt))
    if not energy:
        return None
    return LimitSaving(
        runs=len(energy),
        full_w=full_w,
        full_j=math.fsum(part.at_full for part in energy),
        full_s=math.fsum(part.at_full for part in time),
        energy_j=_sum_of(energy),
        time_s=_sum_of(time),
    )


class _LimitPart(NamedTuple):
    """Energy [J] or time [s] of one run: at the highest limit, saved, and half the 90 % interval of
    that.
    """

    at_full: float
    saved: float
    doubt: float


def _sum_of(parts: Sequence[_LimitPart]) -> Estimate:
    """The sum over runs. One profile tells them all, so its error is shared: the ends add up."""
    saved = math.fsum(part.saved for part in parts)
    low = math.fsum(part.saved - part.doubt for part in parts)
    high = math.fsum(part.saved + part.doubt for part in parts)
    return Estimate(saved, low, high)
