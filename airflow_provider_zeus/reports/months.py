"""What all jobs spent and saved by calendar month (UTC), by kind of source. Pure; needs numpy, lazily.

Measured, estimated and simulated figures are never added. The savings of a job in a month are draws of its own fit
(``baseline.py``). Jobs are fitted apart, so their draws are independent and add up to draws of the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Self

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import Observation, ProfileSample, State, newest_device
from airflow_provider_zeus.optimizer.posterior import own_arithmetic
from airflow_provider_zeus.reports.baseline import Baseline, own_rng
from airflow_provider_zeus.reports.dataset import ENERGY, TIME, Dataset, recurrences, total
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles, limit_saving
from airflow_provider_zeus.reports.next_run import next_rung
from airflow_provider_zeus.reports.slice_epochs import DRAWS, estimate
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.units import J_PER_KWH, counted

if TYPE_CHECKING:
    from airflow_provider_zeus.optimizer.knowledge_gradient.gp import Vector

MEASURED, ESTIMATED, SIMULATED, TIME_ALONE = "measured", "estimated", "simulated", "time alone"


def kind_of(source: str | None) -> str:
    """The kind of an energy source: figures of different kinds are never added."""
    if source is None:
        return TIME_ALONE
    return {"estimate": ESTIMATED, "rapl_share": ESTIMATED, "simulated": SIMULATED}.get(source, MEASURED)


def month_of(time_s: float) -> str:
    """The month of a time [s since the epoch], as "2026-11"."""
    day = datetime.fromtimestamp(time_s, UTC)
    return f"{day.year:04d}-{day.month:02d}"


def month_title(month: str) -> str:
    """ "November 2026" of "2026-11"."""
    return f"{date.fromisoformat(f'{month}-01'):%B %Y}"


def month_bounds(last: str, count: int) -> list[float]:
    """Where ``count`` months up to ``last`` ("2026-11") begin, and where the last one ends [s since the epoch].

    Raises ValueError: ``last`` is no month.
    """
    day = date.fromisoformat(f"{last}-01")
    index = day.year * 12 + day.month - 1
    months = [divmod(i, 12) for i in range(index - count + 1, index + 2)]
    return [datetime(y, m + 1, 1, tzinfo=UTC).timestamp() for y, m in months]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodSum:
    """Sums over the trials of one job in one DAG and of one energy source that began in one period."""

    dag_id: str
    job_id: str
    source: str | None  # None: nothing measured energy
    period: int
    runs: int  # scheduled runs; one of several tries or attempts counts once
    energy_j: float | None  # of the trials that measured it; None: none did
    time_s: float | None
    gpu_s: float | None  # time of each of its devices, added up
    unknown: int  # trials that reported no time
    without_energy: int  # trials that reported a time, and no energy though they have a source: it is in no sum
    paid: float | None  # what the energy cost whose hours were priced, without PUE; None: none was
    paid_j: float | None  # that energy
    currencies: tuple[str, ...]  # of that, at most two named
    g_co2e: float | None  # the same in grams of CO2e
    g_co2e_j: float | None
    start_saved: float | None  # of ``paid``, by waiting for a cheaper start; below 0: lost; None: no run waited
    start_saved_g: float | None  # the same of ``g_co2e``

    def drawn(self) -> list[Observation]:
        """The energy as attempts: that whose hours were priced, and the rest."""
        paid_j, g_j, all_j = self.paid_j or 0.0, self.g_co2e_j or 0.0, self.energy_j or 0.0
        both_j = min(paid_j, g_j)
        price = None if not paid_j else (self.paid or 0.0) / paid_j * J_PER_KWH
        grams = None if not g_j else (self.g_co2e or 0.0) / g_j * J_PER_KWH
        currencies = self.currencies or (None,)
        parts = [
            Observation(
                energy_j=j / len(currencies),
                price_per_kwh=p,
                price_at_once=None if p is None else p + (self.start_saved or 0.0) / paid_j * J_PER_KWH,
                price_currency=currency if p is not None else None,
                g_co2e_per_kwh=g,
                g_co2e_at_once=None if g is None else g + (self.start_saved_g or 0.0) / g_j * J_PER_KWH,
            )
            for j, p, g in (
                (both_j, price, grams),
                (paid_j - both_j, price, None),
                (g_j - both_j, None, grams),
                (max(all_j - paid_j - g_j + both_j, 0.0), None, None),
            )
            for currency in currencies
        ]
        return [part for part in parts if part.energy_j]


def silent_text(sums: Iterable[PeriodSum]) -> str:
    """How many attempts of how many jobs reported nothing, so that no figure holds them; empty: none."""
    silent = [s for s in sums if s.unknown]
    if not silent:
        return ""
    attempts = counted(sum(s.unknown for s in silent), "attempt")
    return f"{attempts} of {counted(len({s.job_id for s in silent}), 'job')} that reported nothing"


def by_kind(sums: Iterable[PeriodSum]) -> dict[str, list[PeriodSum]]:
    """Sums by kind of source; those of trials that reported nothing are left out."""
    found: dict[str, list[PeriodSum]] = {}
    for s in sums:
        if s.time_s is not None:
            found.setdefault(kind_of(s.source), []).append(s)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What jobs spent in a period, of one kind of source."""

    jobs: int
    runs: int
    energy_j: float | None  # None: nothing measured it
    time_s: float
    gpu_s: float  # time of all devices
    without_energy: int  # attempts whose energy is missing: what is known of energy, and its price, is a part
    drawn: tuple[Observation, ...]  # the energy, by what its hours cost: see :meth:`.Prices.at_the_time`

    @classmethod
    def of(cls, sums: Sequence[PeriodSum]) -> Self:
        """Add up sums of one kind."""
        energies = [s.energy_j for s in sums if s.energy_j is not None]
        return cls(
            jobs=len({s.job_id for s in sums}),
            runs=sum(s.runs for s in sums),
            energy_j=sum(energies) if energies else None,
            time_s=sum(s.time_s or 0.0 for s in sums),
            gpu_s=sum(s.gpu_s or 0.0 for s in sums),
            without_energy=sum(s.without_energy for s in sums),
            drawn=tuple(part for s in sums for part in s.drawn()),
        )


@dataclass(frozen=True, slots=True)
class SavedDraws:
    """Draws of what runs saved: energy [J], time [s], and time of all their devices [s]. None: not known."""

    kind: str
    energy: Vector | None
    time: Vector
    gpu_time: Vector
    runs: int
    spent: tuple[float | None, float, float]  # by these runs: energy [J], time [s], time of all their devices [s]
    old: bool = False  # some of them are measured against an old default


@own_arithmetic()
def saved_between(log: Dataset, profiles: Sequence[ProfileSample], begin_s: float, end_s: float) -> SavedDraws | str:
    """What the runs of one job that began in a span saved; where that is not known, the reason.

    :param log: all its newest runs: the default is estimated from them.
    """
    if not log.job.chooses_size:
        return _by_limit(log, profiles, begin_s, end_s)
    log = log.of_target()
    base = Baseline.of(log, LimitProfiles.of(profiles))
    runs = [run for run in recurrences(log)[0] if begin_s <= run.trials[0].opened_at < end_s]
    if not runs:
        return "no run that counts has ended"

    def saved(weights: Weights) -> tuple[Vector, float] | str:
        """(Draws of what they saved, what they spent), or why that is not known."""
        draws, spent = base.draws(runs, weights), total(run.spent(weights) for run in runs)
        if draws is None:
            return base.why_not or "the size of a slice or its energy is not known"
        return "a figure of an attempt is not known" if spent is None else (draws.sum(1) - spent, spent)

    time, energy, device = saved(TIME), saved(ENERGY), base.device
    if isinstance(time, str):
        return time
    count, since = device.count if device else 1, base.old_since
    return SavedDraws(
        kind=kind_of(device.energy_source if device else None),
        energy=None if isinstance(energy, str) else energy[0],
        time=time[0],
        gpu_time=time[0] * count,
        runs=len(runs),
        spent=(None if isinstance(energy, str) else energy[1], time[1], time[1] * count),
        old=since is not None and runs[-1].trials[-1].number >= since,
    )


def _by_limit(log: Dataset, profile: Sequence[ProfileSample], begin_s: float, end_s: float) -> SavedDraws | str:
    """What the power limit saved of runs without a batch size, on their newest device."""
    import numpy as np

    where = newest_device(log.lessons)
    began = [t for t in log.lessons if begin_s <= t.opened_at < end_s and t.state is not State.RUNNING]
    here = [t.observation for t in began if t.observation.where == where and t.observation.time_s is not None]
    seen = [o for o in here if limit_saving([o], profile) is not None]
    found = limit_saving(seen, profile)
    if where is None or found is None:
        tuned = log.job.mode != "measure"
        alone = f"its runs are measured as they are: {next_rung(log.job)}"
        return "no profile shows what its power limit saved" if tuned else alone
    _, count, source = where
    energy, time = found.draws(np.random.default_rng(own_rng(log).getrandbits(64)), DRAWS)
    spent_j, spent_s = total(o.energy_j for o in seen), sum(o.time_s or 0.0 for o in seen)
    return SavedDraws(kind_of(source), energy, time, time * count, found.runs, (spent_j, spent_s, spent_s * count))


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
    old: int  # jobs of them that are measured against an old default

    def priced(self, per_j: float, per_s: float) -> Estimate:
        """In money: a price of a joule, and of a second of one device."""
        energy, gpu_time = self.draws
        if energy is None and per_j:
            return Estimate.missing("nothing measures energy there")
        return estimate((0.0 if energy is None else energy * per_j) + gpu_time * per_s)

    @classmethod
    def of(cls, kind: str, found: Sequence[SavedDraws]) -> Self:
        """Add up the draws of jobs of one kind."""
        import numpy as np

        time = np.sum([each.time for each in found], axis=0)
        energies = [each.energy for each in found if each.energy is not None]
        energy = np.sum(energies, axis=0) if len(energies) == len(found) and kind != TIME_ALONE else None
        spent_j, spent_s, spent_gpu_s = (total(column) for column in zip(*(each.spent for each in found), strict=True))
        return cls(
            kind=kind,
            jobs=len(found),
            runs=sum(each.runs for each in found),
            energy_j=Estimate.missing("nothing measures energy there") if energy is None else estimate(energy),
            time_s=estimate(time),
            spent=(None if energy is None else spent_j, spent_s or 0.0, spent_gpu_s or 0.0),
            draws=(energy, np.sum([each.gpu_time for each in found], axis=0)),
            old=sum(each.old for each in found),
        )


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
    kinds: dict[str, list[SavedDraws]] = {}
    for each in found:
        kinds.setdefault(each.kind, []).append(each)
    return [SavedSum.of(kind, each) for kind, each in kinds.items()]
