"""What a run would have drawn at another power limit, by the profile of its batch size (Eq. 7). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from airflow_provider_zeus.model.cost import Weights, best_limit
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Observation, ProfileSample

SAME_W = 0.5  # limits that differ by at most this [W] are the same
RATE_SD = 0.01  # relative sd of the J and s of a sample at one limit: the profiler aims at a 95 % interval of 2 %
RATIO_SD = RATE_SD * 2**0.5  # of what a run at one limit is re-costed to at another


def same_limit(one_w: float | None, other_w: float | None) -> bool:
    """Whether two power limits [W] are one: both unknown, or as near as drivers round."""
    return one_w is other_w is None or (None not in (one_w, other_w) and abs((one_w or 0) - (other_w or 0)) <= SAME_W)


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

        Validation and waiting stay as they were; what profiling cost is subtracted. None where the run's own limit or
        this one was not profiled, or the run was not timed.
        """
        old, new = self.at(batch_size, o.power_limit_w), self.at(batch_size, limit_w)
        if old is None or new is None or o.time_s is None:
            return None
        per_sample = old.samples / new.samples
        time_s = _scaled(o.time_s, o.rest_s, o.excess_s, new.time_s / old.time_s * per_sample)
        energy_j = None
        if o.energy_j is not None and old.energy_j > 0 and new.energy_j > 0:
            energy_j = _scaled(o.energy_j, o.rest_j, o.excess_j, new.energy_j / old.energy_j * per_sample)
        if time_s is None:
            return None
        return replace(o, time_s=time_s, energy_j=energy_j, excess_s=0.0, excess_j=0.0, power_limit_w=new.limit_w)


def _scaled(total: float, rest: float | None, excess: float | None, factor: float) -> float | None:
    training = total - (rest or 0.0) - (excess or 0.0)
    return training * factor + (rest or 0.0) if training > 0 else None
