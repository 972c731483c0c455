"""What the best power limit would have saved in mode ``observe``, with the interval that the profile's noise leaves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from airflow_provider_zeus.model.cost import HALF_WIDTH
from airflow_provider_zeus.model.estimate import Estimate, Z
from airflow_provider_zeus.training.profiling.search import LimitMeasurement, Search

LEAST_FREE = 3  # degrees of freedom from which on the scatter of the pieces is known


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
    if free < LEAST_FREE:
        return least, least
    z = NormalDist().inv_cdf(1.0 - 0.05 / (len(measured) - 1))
    wide = z * (1.0 + 1.5 / free) * math.sqrt(sum(1.0 / measured[w].time_s for w in (found_w, best_w)))  # about Student
    sd_j, sd_s = search.noise(measured, ticks=True)
    return max(wide * sd_j, least), max(wide * sd_s, least)


def _saved(ratio: float, doubt: float) -> Estimate:
    return Estimate(1.0 - ratio, 1.0 - ratio * math.exp(doubt), 1.0 - ratio * math.exp(-doubt))


def _text(saved: Estimate, amount: str) -> str:
    value, low, high = (100 * (v or 0.0) for v in (saved.value, saved.low, saved.high))
    text = f"{amount} ({value:+.1f} %, 90 % interval {low:+.1f} to {high:+.1f} %)"
    return f"an undecided {text}" if low < 0 < high else text
