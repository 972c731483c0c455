"""What a fixed shift of the schedule would have saved by a tariff or a series: the same runs, later each. Pure.

No forecast and no wait are needed for it: for evening schedules a fixed shift gets most of what any forecast gets
(docs/signals.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.reports.dataset import runs_of
from airflow_provider_zeus.signals.series import Series
from airflow_provider_zeus.signals.tariff import Tariff
from airflow_provider_zeus.units import J_PER_KWH, S_PER_H

HOURS = 24  # shifts that are compared: within a day


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleShift:
    """The cheapest shift. Costs are in the currency of the prices, or in grams of CO2e."""

    runs: int
    delay_h: int  # 0: the present schedule is the cheapest
    cost_now: float
    cost_then: float
    start_hour: int | None  # hour at which most runs start, local by a tariff, else UTC; None: they start at many
    first_s: float  # starts of the first and of the last run [s since the epoch]
    last_s: float

    @property
    def saved(self) -> float:
        """Share of the present cost; 0 where that is not above 0."""
        return 1 - self.cost_then / self.cost_now if self.cost_now > 0 else 0.0


def schedule_shift(trials: Iterable[Trial], by: Tariff | Series, pue: float = 1.0) -> ScheduleShift | None:
    """Compare all shifts of whole hours within a day; None without a scheduled run of known energy and time.

    :param trials: of one job, on one device; all attempts of a run count, from its first on.
    :param by: prices or carbon intensities; a run that they do not cover under every shift is left out.
    """
    starts_s, costs = list[float](), [0.0] * HOURS
    for start_s, duration_s, energy_j in _runs(trials)[-200:]:
        at = by.series(start_s, start_s + (HOURS - 1) * S_PER_H + duration_s) if isinstance(by, Tariff) else by
        means = [at.mean(start_s + h * S_PER_H, start_s + h * S_PER_H + duration_s) for h in range(HOURS)]
        known = [mean for mean in means if mean is not None]
        if len(known) == HOURS:
            starts_s.append(start_s)
            costs = [cost + energy_j / J_PER_KWH * pue * mean for cost, mean in zip(costs, known, strict=True)]
    if not starts_s:
        return None
    best = min(range(HOURS), key=lambda h: (costs[h], h))
    zone = by.zone if isinstance(by, Tariff) else UTC
    hour, count = Counter(datetime.fromtimestamp(s, zone).hour for s in starts_s).most_common(1)[0]
    return ScheduleShift(
        runs=len(starts_s),
        delay_h=best,
        cost_now=costs[0],
        cost_then=costs[best],
        start_hour=hour if count >= 0.8 * len(starts_s) else None,
        first_s=min(starts_s),
        last_s=max(starts_s),
    )


def _runs(trials: Iterable[Trial]) -> Sequence[tuple[float, float, float]]:
    """(start, duration [s], energy [J]) of each scheduled run whose attempts are all known, oldest first."""
    found = []
    for run in runs_of(t for t in trials if t.origin.run_type == "scheduled"):
        times = [t.observation.time_s for t in run]
        energies = [t.observation.energy_j for t in run]
        known_s, known_j = ([v for v in values if v is not None] for values in (times, energies))
        duration_s = math.fsum(known_s)
        if len(known_s) == len(known_j) == len(run) and 0 < duration_s <= 7 * 24 * S_PER_H:  # else it has no hour
            found.append((min(t.opened_at for t in run), duration_s, math.fsum(known_j)))
    return found
