"""The saving of a fixed shift of the schedule by a tariff or a series: the same runs, each later.
Pure.

No forecast and no wait are needed for it: for evening schedules a fixed shift gets most of what any
forecast gets (docs/levers/signals.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple

from airflow_provider_zeus.model.groups import whole
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.reports.dataset import runs_of, total
from airflow_provider_zeus.signals.series import Series
from airflow_provider_zeus.signals.tariff import Tariff
from airflow_provider_zeus.units import J_PER_KWH, S_PER_H

HOURS = 24  # a daily job can move within its day


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleShift:
    """The cheapest shift. Costs are in the currency of the prices, or in grams of CO2e.

    ``start_hour``: at which most runs start, local by a tariff, else UTC.
    """

    runs: int
    delay_h: int
    cost_now: float
    cost_then: float
    start_hour: int | None  # None: runs that start at many hours have none to name
    first_s: float  # a season's best hour is not that of a year
    last_s: float

    @property
    def saved(self) -> float:
        """Share of the present cost; 0 if that is not above 0."""
        if self.cost_now <= 0:
            return 0.0
        return 1 - self.cost_then / self.cost_now


def schedule_shift(
    trials: Iterable[Trial], by: Tariff | Series, pue: float = 1.0
) -> ScheduleShift | None:
    """Compare all shifts of whole hours within a day; None without a scheduled run of known energy
    and time.

    :param trials: of one job, on one device; all attempts of a run count, from its first on.
    :param by: prices or carbon intensities; a run that they do not cover under every shift is left
        out.
    """
    starts_s = list[float]()
    costs = [0.0] * HOURS
    for run in _runs(trials)[-200:]:
        means = _means(by, run)
        if means is None:
            continue
        starts_s.append(run.start_s)
        kwh = run.energy_j / J_PER_KWH * pue
        costs = [cost + kwh * mean for cost, mean in zip(costs, means, strict=True)]
    if not starts_s:
        return None
    # Of equal hours the nearest one: it changes least.
    best = min(range(HOURS), key=lambda h: (costs[h], h))
    zone: tzinfo = UTC
    if isinstance(by, Tariff):
        zone = by.zone
    hours = Counter(datetime.fromtimestamp(s, zone).hour for s in starts_s)
    ((hour, count),) = hours.most_common(1)
    start_hour = None
    # an hour that few runs share names no schedule
    if count >= 0.8 * len(starts_s):
        start_hour = hour
    return ScheduleShift(
        runs=len(starts_s),
        delay_h=best,
        cost_now=costs[0],
        cost_then=costs[best],
        start_hour=start_hour,
        first_s=min(starts_s),
        last_s=max(starts_s),
    )


class _Run(NamedTuple):
    """A run that has ended; times are seconds since the epoch."""

    start_s: float
    duration_s: float
    energy_j: float


def _means(by: Tariff | Series, run: _Run) -> list[float] | None:
    """The mean price or intensity over a run at each shift; None if one of them is not covered."""
    series = by
    if isinstance(series, Tariff):
        last_s = run.start_s + (HOURS - 1) * S_PER_H
        series = series.series(run.start_s, last_s + run.duration_s)
    starts_s = [run.start_s + shift * S_PER_H for shift in range(HOURS)]
    return whole([series.mean(start_s, start_s + run.duration_s) for start_s in starts_s])


def _runs(trials: Iterable[Trial]) -> Sequence[_Run]:
    """Each scheduled run whose attempts are all known, oldest first."""
    longest_s = 7 * 24 * S_PER_H  # a run of over a week costs alike at all hours
    runs = []
    scheduled = [t for t in trials if t.origin.run_type == "scheduled"]
    for attempts in runs_of(scheduled):
        duration_s = total(t.observation.time_s for t in attempts)
        energy_j = total(t.observation.energy_j for t in attempts)
        if duration_s is None or energy_j is None:
            continue
        # A run that reports years would have a price made for each of their hours.
        if 0 < duration_s <= longest_s:
            start_s = min(t.opened_at for t in attempts)
            runs.append(_Run(start_s, duration_s, energy_j))
    return runs
