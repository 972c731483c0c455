"""What runs would have drawn at another power limit, by their profile; what those without a size saved. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

from airflow_provider_zeus.model.cost import HALF_WIDTH, Weights, best_limit
from airflow_provider_zeus.model.estimate import SURE, Estimate, Z
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import UNCAPPED, Observation, ProfileSample
from airflow_provider_zeus.units import energy_text

if TYPE_CHECKING:
    from numpy.random import Generator

    from airflow_provider_zeus.optimizer.knowledge_gradient.gp import Vector

SAME_W = 0.5  # limits that differ by at most this [W] are the same
RATE_SD = 0.01  # relative sd of the J and s of a sample at one limit: the profiler aims at a 95 % interval of 2 %
RATIO_SD = RATE_SD * 2**0.5  # of what a run at one limit is re-costed to at another
DOUBT = Z * math.sqrt(2.0) * HALF_WIDTH / 1.96  # of the ratio of two limits: what profiling aims at, 90 %


def same_limit(one_w: float | None, other_w: float | None) -> bool:
    """Whether two power limits [W] are one: both unknown, or as near as drivers round."""
    if one_w is None or other_w is None:
        return one_w is other_w
    return abs(one_w - other_w) <= SAME_W


@dataclass(frozen=True, slots=True)
class LimitProfiles:
    """Profile samples of one device, added up; windows too short to measure anything are left out."""

    sums: Mapping[int, Mapping[float, ProfileSample]]  # by batch size and limit [W]

    @classmethod
    def of(cls, samples: Iterable[ProfileSample], job: ZeusJob | None = None) -> LimitProfiles:
        """Add up the samples; with ``job``, only those of the limits that it may set (none unless it optimizes)."""
        sums: dict[int, dict[float, ProfileSample]] = {}
        for s in samples:
            if job and (job.mode != "optimize" or (job.power_limits_w and s.limit_w not in job.power_limits_w)):
                continue
            if s.samples <= 0 or not 0 < s.time_s < float("inf") or not 0 <= s.energy_j < float("inf"):
                continue
            at = sums.setdefault(s.batch_size, {})
            at[s.limit_w] = at[s.limit_w].plus(s) if s.limit_w in at else s
        return cls(sums)

    def at(self, batch_size: int, limit_w: float | None) -> ProfileSample | None:
        """The sum at this limit; None where nothing was measured."""
        found = self.sums.get(batch_size, {})
        near = [w for w in found if same_limit(w, limit_w)]
        return found[min(near, key=lambda w: abs(w - (limit_w or 0.0)))] if near else None

    def best_w(self, batch_size: int, weights: Weights) -> float | None:
        """The limit [W] of Eq. 7; None where this batch size was not profiled."""
        best = best_limit(self.sums.get(batch_size, {}).values(), weights)
        return best[0] if best else None

    def highest_w(self, batch_size: int) -> float | None:
        """The highest limit measured [W], which counts as full power; None where nothing was measured."""
        return max(self.sums.get(batch_size, ()), default=None)

    def recosted(self, batch_size: int, o: Observation, limit_w: float) -> Observation | None:
        """The run as it would have been at ``limit_w`` [W]: its training part scales as the profile does (Eq. 5).

        Validation, waiting and pauses stay as they were; what profiling cost is subtracted. None where the run's own
        limit or this one was not profiled, or the run was not timed.
        """
        old, new = self.at(batch_size, o.power_limit_w), self.at(batch_size, limit_w)
        if old is None or new is None or o.time_s is None:
            return None
        per_sample = old.samples / new.samples
        same_s = (o.rest_s or 0.0) + (o.paused_s or 0.0)
        time_s = _scaled(o.time_s, same_s, o.excess_s, new.time_s / old.time_s * per_sample)
        energy_j = None
        if o.energy_j is not None and old.energy_j > 0 and new.energy_j > 0:
            same_j = (o.rest_j or 0.0) + (o.paused_j or 0.0)
            energy_j = _scaled(o.energy_j, same_j, o.excess_j, new.energy_j / old.energy_j * per_sample)
        if time_s is None:
            return None
        return replace(o, time_s=time_s, energy_j=energy_j, excess_s=0.0, excess_j=0.0, power_limit_w=new.limit_w)


def _scaled(total: float, same: float, excess: float | None, factor: float) -> float | None:
    """``same``: the part that no limit changes."""
    training = total - same - (excess or 0.0)
    return training * factor + same if training > 0 else None


@dataclass(frozen=True, slots=True)
class LimitSaving:
    """Sums over runs. ``full_w``: the highest limit measured [W], at which they would have taken ``full_j, full_s``."""

    runs: int
    full_w: float
    full_j: float
    full_s: float
    energy_j: Estimate
    time_s: Estimate

    def draws(self, rng: Generator, count: int) -> tuple[Vector, Vector]:
        """``count`` draws of energy [J] and time [s], whose mean and interval are those of the two estimates.

        Quantiles of a normal distribution in random order, one for both: the error is that of one profile.
        """
        import numpy as np

        normal = np.array([NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)])
        off = rng.permutation(normal / normal[round(0.95 * (count - 1))])
        energy, time = (
            (e.value or 0.0) + ((e.high or 0.0) - (e.low or 0.0)) / 2 * off for e in (self.energy_j, self.time_s)
        )
        return energy, time

    @property
    def text(self) -> str:
        """In a line of the log; empty where the run was at full power."""
        energy = self.energy_j
        if energy.low == energy.high or energy.value is None:
            return ""
        ends = f"{SURE}: {energy_text(energy.low or 0.0)} to {energy_text(energy.high or 0.0)}"
        return f"energy saved by the power limit {energy_text(energy.value)} ({ends})"


def limit_saving(seen: Iterable[Observation], profile: Sequence[ProfileSample]) -> LimitSaving | None:
    """What runs on one device saved; None where the profile does not tell it for any of them.

    A run at the highest limit saved nothing and paid for profiling. Pauses between steps count as equal. Runs in which
    no limit could save anything, so that none was chosen, do not count.

    :param profile: of that device.
    """
    profiled = LimitProfiles.of(profile)
    parts, full_w, full = [], 0.0, [0.0, 0.0]
    for o in seen:
        used = profiled.at(o.step_kind or 0, o.power_limit_w)
        if used is None or not o.samples or UNCAPPED in o.reasons:
            continue
        most = max(profiled.sums[used.batch_size].values(), key=lambda s: s.limit_w)
        at_full, at_used = ((s.energy_j / s.samples, s.time_s / s.samples) for s in (most, used))
        full_w, spent = most.limit_w, (o.excess_j or 0.0, o.excess_s or 0.0)
        full = [sum_ + o.samples * each for sum_, each in zip(full, at_full, strict=True)]
        values = [o.samples * (f - u) - paid for f, u, paid in zip(at_full, at_used, spent, strict=True)]
        doubts = [0.0 if most is used else o.samples * each * DOUBT for each in at_full]
        parts.append([(v, v - doubt, v + doubt) for v, doubt in zip(values, doubts, strict=True)])
    if not parts:
        return None
    # one profile tells them all, so its error is shared: the ends add up
    sums = ([math.fsum(column) for column in zip(*each, strict=True)] for each in zip(*parts, strict=True))
    energy, time = (Estimate(value, low, high) for value, low, high in sums)
    return LimitSaving(len(parts), full_w, full[0], full[1], energy, time)
