"""What runs without a batch size saved by their power limit, against full power on the same steps. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_zeus.model.cost import HALF_WIDTH, Rate
from airflow_provider_zeus.model.estimate import SURE, Estimate, Z
from airflow_provider_zeus.model.trial import UNCAPPED, Observation, ProfileSample, summed
from airflow_provider_zeus.units import energy_text

DOUBT = Z * math.sqrt(2.0) * HALF_WIDTH / 1.96  # of ln of the ratio of two limits: what profiling aims at, 90 %


@dataclass(frozen=True, slots=True)
class LimitSaving:
    """Sums over runs. ``full_w``: the highest limit measured [W], at which they would have taken ``full_j, full_s``."""

    runs: int
    full_w: float
    full_j: float
    full_s: float
    energy_j: Estimate
    time_s: Estimate

    def as_event(self) -> dict[str, Any]:
        """The saving with its 90 % interval, as :meth:`.RunFigures.as_event` has it."""
        found: dict[str, Any] = {"saved_verdict": self.energy_j.verdict, "saved_source": "estimated"}
        for unit, saved in (("j", self.energy_j), ("s", self.time_s)):
            found |= {f"saved_{unit}": saved.value, f"saved_low_{unit}": saved.low, f"saved_high_{unit}": saved.high}
        return found

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
    rates: dict[int, dict[float, Rate]] = {}
    for sample in summed(profile):
        at = sample.energy_j / sample.samples, sample.time_s / sample.samples
        rates.setdefault(sample.batch_size, {})[sample.limit_w] = at
    parts, full_w, full = [], 0.0, [0.0, 0.0]
    for o in seen:
        known = rates.get(o.step_kind or 0, {})
        used = next((at for w, at in known.items() if o.power_limit_w and abs(w - o.power_limit_w) < 1.0), None)
        if used is None or not o.samples or UNCAPPED in o.reasons:
            continue
        full_w = max(known)
        spent = o.excess_j or 0.0, o.excess_s or 0.0
        full = [sum_ + o.samples * each for sum_, each in zip(full, known[full_w], strict=True)]
        parts.append([_saved(o.samples, known[full_w][i], used[i], spent[i], known[full_w] is used) for i in (0, 1)])
    if not parts:
        return None
    energy, time = zip(*parts, strict=True)
    full_j, full_s = full
    return LimitSaving(len(parts), full_w, full_j, full_s, _sum(energy), _sum(time))


def _saved(steps: int, full: float, used: float, excess: float, same: bool) -> tuple[float, float, float]:
    doubt = 0.0 if same else DOUBT
    low, value, high = (steps * (full * math.exp(d) - used) - excess for d in (-doubt, 0.0, doubt))
    return value, low, high


def _sum(parts: Iterable[tuple[float, float, float]]) -> Estimate:
    """One profile tells them all, so its error is shared: the ends add up."""
    value, low, high = (math.fsum(column) for column in zip(*parts, strict=True))
    return Estimate(value, low, high)
