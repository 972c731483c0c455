"""What all jobs spent and saved by calendar month (UTC), by kind of source. Pure; needs numpy, lazily.

Measured, estimated and simulated figures are never added. The savings of a job in a month are draws of its own fit
(``baseline.py``). Jobs are fitted apart, so their draws are independent and add up to draws of the sum.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import IMPORTED, Observation, ProfileSample
from airflow_provider_zeus.reports.baseline import Baseline
from airflow_provider_zeus.reports.dataset import Dataset
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from airflow_provider_zeus.reports.runs import ENERGY, TIME, RunTrials, recurrences
from airflow_provider_zeus.reports.slice_epochs import estimates
from airflow_provider_zeus.signals.prices import Prices

if TYPE_CHECKING:
    from airflow_provider_zeus.optimizer.knowledge_gradient.gp import Vector

MEASURED, ESTIMATED, SIMULATED, TIME_ALONE = "measured", "estimated", "simulated", "time alone"
_TOLD = "imported"  # as a file told it, of trainings from before Zeus


def kind_of(source: str | None) -> str:
    """The kind of an energy source: figures of different kinds are never added."""
    if source is None:
        return TIME_ALONE
    return {"estimate": ESTIMATED, "simulated": SIMULATED, IMPORTED: _TOLD}.get(source, MEASURED)


def month_of(time_s: float) -> str:
    """The month of a time [s since the epoch], as "2026-11"."""
    day = datetime.fromtimestamp(time_s, UTC)
    return f"{day.year:04d}-{day.month:02d}"


def month_bounds(last: str, count: int) -> list[float]:
    """Where ``count`` months up to ``last`` ("2026-11") begin, and where the last one ends [s since the epoch].

    Raises ValueError: ``last`` is no month.
    """
    day = date.fromisoformat(f"{last}-01")
    index = day.year * 12 + day.month - 1
    months = [divmod(i, 12) for i in range(index - count + 1, index + 2)]
    return [datetime(y, m + 1, 1, tzinfo=UTC).timestamp() for y, m in months]


@dataclass(frozen=True, slots=True)
class SavedDraws:
    """Draws of what runs saved: energy [J], time [s], and time of all their devices [s]. None: not known."""

    kind: str
    energy: Vector | None
    time: Vector
    gpu_time: Vector
    runs: int
    spent: tuple[float | None, float, float]  # by these runs: energy [J], time [s], time of all their devices [s]


def saved_between(
    log: Dataset, profiles: Sequence[ProfileSample], begin_s: float, end_s: float, rng: random.Random
) -> SavedDraws | str:
    """What the runs of one job that began in a span saved; where that is not known, the reason.

    :param log: all its newest runs: the default is estimated from them.
    :param rng: of this job alone: the draws of two jobs are independent.
    """
    log = log.of_target()
    base = Baseline.of(log, LimitProfiles.of(profiles), rng)
    runs = [run for run in recurrences(log)[0] if begin_s <= run.trials[0].opened_at < end_s]
    if not runs:
        return "no run that counts has ended"
    time = _saved(base, runs, TIME)
    if isinstance(time, str):
        return time
    energy, device = _saved(base, runs, ENERGY), base.device
    count, spent_s = device.count if device else 1, _spent(runs, TIME)
    return SavedDraws(
        kind=kind_of(device.energy_source if device else None),
        energy=None if isinstance(energy, str) else energy,
        time=time,
        gpu_time=time * count,
        runs=len(runs),
        spent=(None if isinstance(energy, str) else _spent(runs, ENERGY), spent_s, spent_s * count),
    )


def _spent(runs: Sequence[RunTrials], weights: Weights) -> float:
    return math.fsum(run.spent(weights) or 0.0 for run in runs)


def _saved(base: Baseline, runs: Sequence[RunTrials], weights: Weights) -> Vector | str:
    spent = [run.spent(weights) for run in runs]
    draws = base.draws(runs, weights)
    if draws is None:
        return base.why_not or "the size of a slice or its energy is not known"
    if None in spent:
        return "a figure of an attempt is not known"
    saved: Vector = draws.sum(1) - sum(s or 0.0 for s in spent)
    return saved


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSum:
    """What the jobs of one kind saved together, of those where it is known."""

    kind: str
    jobs: int
    runs: int
    energy_j: Estimate
    time_s: Estimate
    spent: tuple[float | None, float, float]  # by these runs: energy [J], time [s], time of all their devices [s]
    draws: tuple[Vector | None, Vector]  # energy [J], time of all devices [s]

    def priced(self, per_j: float, per_s: float) -> Estimate:
        """In money: a price of a joule, and of a second of one device."""
        energy, gpu_time = self.draws
        if energy is None and per_j:
            return Estimate.missing("nothing measures energy there")
        return _estimate((0.0 if energy is None else energy * per_j) + gpu_time * per_s)


def money_saved(found: SavedSum, prices: Prices, drawn: Sequence[Observation]) -> Estimate:
    """What was saved in money: at the prices of a start at once, and what waiting for another start saved besides.

    :param drawn: by the attempts of these runs. Missing where no price is set, or prices cannot be added.
    """
    at_once = prices.at_once(drawn)
    if not at_once.priced:
        return Estimate.missing(at_once.unpriced or "no price is set")
    return found.priced(*at_once.per_j_and_s(1)).plus(prices.start_saved(drawn)[0])


def co2e_g_saved(found: SavedSum, prices: Prices, drawn: Sequence[Observation]) -> Estimate:
    """The same in grams of CO2 equivalent; missing where no intensity is set."""
    at_once = prices.at_once(drawn)
    g_per_j = None if at_once.g_co2e_per_kwh is None else at_once.g_per_j
    return found.energy_j.times(g_per_j, "no intensity is set").plus(prices.start_saved(drawn)[1])


def added(found: Iterable[SavedDraws]) -> list[SavedSum]:
    """The sums over jobs, a sum for each kind of source."""
    by_kind: dict[str, list[SavedDraws]] = {}
    for each in found:
        by_kind.setdefault(each.kind, []).append(each)
    return [_sum(kind, each) for kind, each in by_kind.items()]


def _sum(kind: str, found: Sequence[SavedDraws]) -> SavedSum:
    time, gpu_time = _total([each.time for each in found]), _total([each.gpu_time for each in found])
    energies = [each.energy for each in found if each.energy is not None]
    energy = _total(energies) if len(energies) == len(found) and kind != TIME_ALONE else None
    return SavedSum(
        kind=kind,
        jobs=len(found),
        runs=sum(each.runs for each in found),
        energy_j=Estimate.missing("nothing measures energy there") if energy is None else _estimate(energy),
        time_s=_estimate(time),
        spent=(
            None if energy is None else math.fsum(each.spent[0] or 0.0 for each in found),
            math.fsum(each.spent[1] for each in found),
            math.fsum(each.spent[2] for each in found),
        ),
        draws=(energy, gpu_time),
    )


def _total(each: Sequence[Vector]) -> Vector:
    import numpy as np

    total: Vector = np.sum(each, axis=0)
    return total


def _estimate(draws: Vector) -> Estimate:
    return estimates(draws[:, None])[0]
