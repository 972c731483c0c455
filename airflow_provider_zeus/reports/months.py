"""Costs and savings of all jobs by calendar month (UTC), by kind of source.

Pure; needs numpy, lazily.

Measured, estimated and simulated figures are never added. The savings of a job in a month are draws
of its own fit (``baseline.py``). Jobs are fitted apart, so their draws are independent and add up
to draws of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple, Self

from airflow_provider_zeus.model.energy_source import TIME_ALONE, kind_of
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.groups import grouped, known_sum, sum_of_known
from airflow_provider_zeus.model.period_sum import PeriodSum
from airflow_provider_zeus.model.trial import Observation, ProfileSample, State, newest_device
from airflow_provider_zeus.optimizer.posterior import own_arithmetic
from airflow_provider_zeus.reports.baseline import Baseline, own_rng
from airflow_provider_zeus.reports.dataset import ENERGY, TIME, Dataset, recurrences, total
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles, limit_saving
from airflow_provider_zeus.reports.set_aside import SetAside
from airflow_provider_zeus.reports.slice_epochs import DRAWS, estimate
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.units import counted

if TYPE_CHECKING:
    from airflow_provider_zeus.reports.slice_paths import Vector

_NO_ENERGY = "nothing measures energy there"


def month_of(time_s: float) -> str:
    """The month of a time [s since the epoch], as "2026-11"."""
    day = datetime.fromtimestamp(time_s, UTC)
    return f"{day.year:04d}-{day.month:02d}"


def month_title(month: str) -> str:
    """ "November 2026" of "2026-11"."""
    return f"{date.fromisoformat(f'{month}-01'):%B %Y}"


def month_bounds(last: str, count: int) -> list[float]:
    """Begins of ``count`` months up to ``last`` ("2026-11"), and the end of the last one [s since
    the epoch].

    Raises ValueError: ``last`` is no month.
    """
    day = date.fromisoformat(f"{last}-01")
    index = day.year * 12 + day.month - 1
    # Months differ in length, so they are counted and not added.
    months = [divmod(i, 12) for i in range(index - count + 1, index + 2)]
    return [datetime(y, m + 1, 1, tzinfo=UTC).timestamp() for y, m in months]


def silent_text(sums: Iterable[PeriodSum]) -> str:
    """How many attempts of how many jobs reported nothing, so that no figure holds them; empty:
    none.
    """
    silent = [s for s in sums if s.unknown]
    if not silent:
        return ""
    attempts = counted(sum(s.unknown for s in silent), "attempt")
    jobs = counted(len({s.job_id for s in silent}), "job")
    return f"{attempts} of {jobs} that reported nothing so far"


def by_kind(sums: Iterable[PeriodSum]) -> dict[str, list[PeriodSum]]:
    """Sums by kind of source; those of trials that reported nothing are left out."""
    reported = (s for s in sums if s.time_s is not None)
    return grouped(reported, lambda s: kind_of(s.source))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The cost of jobs in a period, of one kind of source."""

    jobs: int
    runs: int
    energy_j: float | None
    time_s: float
    gpu_s: float  # each device of a job is paid for
    # Their energy is missing, so the sum and its price are lower bounds.
    without_energy: int
    # Each hour has its own price, so a sum of joules is not enough: see
    # :meth:`.Prices.at_the_time`.
    drawn: tuple[Observation, ...]

    @classmethod
    def of(cls, sums: Sequence[PeriodSum]) -> Self:
        """Add up sums of one kind."""
        return cls(
            jobs=len({s.job_id for s in sums}),
            runs=sum(s.runs for s in sums),
            energy_j=known_sum(s.energy_j for s in sums),
            time_s=sum_of_known(s.time_s for s in sums),
            gpu_s=sum_of_known(s.gpu_s for s in sums),
            without_energy=sum(s.without_energy for s in sums),
            drawn=tuple(part for s in sums for part in s.drawn()),
        )

    @property
    def largest_first(self) -> tuple[float, float]:
        """To sort by: energy, and time if nothing measures energy."""
        return -(self.energy_j or 0.0), -self.time_s


class SpentBy(NamedTuple):
    """The cost of runs whose saving is known."""

    energy_j: float | None
    time_s: float
    gpu_s: float


@dataclass(frozen=True, slots=True)
class SavedDraws:
    """Draws of savings: energy [J], time [s], and time of all devices [s]. None: not known."""

    kind: str
    energy: Vector | None
    time: Vector
    gpu_time: Vector
    runs: int
    spent: SpentBy
    old: bool = False  # an old default may no longer cost what it did
    # nothing compares with failed and cleared tries, yet somebody paid for them
    aside: SetAside = field(default_factory=SetAside)


@own_arithmetic()
def saved_between(
    log: Dataset, profiles: Sequence[ProfileSample], begin_s: float, end_s: float
) -> SavedDraws | str:
    """The saving of the runs of one job that began in a span; or why it is not known.

    :param log: all its newest runs: the default is estimated from them.
    """
    # Without a batch size only the power limit can save.
    if not log.job.chooses_size:
        return _by_limit(log, profiles, begin_s, end_s)
    log = log.of_target()
    base = Baseline.of(log, LimitProfiles.of(profiles))
    ended, _ = recurrences(log)
    # A run belongs to the month in which it began, so that no month counts it twice.
    runs = [run for run in ended if begin_s <= run.trials[0].opened_at < end_s]
    if not runs:
        return "no run that counts has ended"
    doubt = base.doubt_of(runs)
    if doubt is not None:
        return doubt
    time_s = total(run.spent(TIME) for run in runs)
    # Time and energy come from the same draws of the epochs, so a price may add them.
    default_s = base.draws(runs, TIME)
    if default_s is None or log.where is None:
        return base.why_not or "the size of a slice or its energy is not known"
    if time_s is None:
        return "a figure of an attempt is not known"
    # Draws of sums: intervals of single runs do not add up.
    time = default_s.sum(1) - time_s
    energy = None
    energy_j = total(run.spent(ENERGY) for run in runs)
    default_j = base.draws(runs, ENERGY)
    if default_j is None:
        energy_j = None  # its saving is not known, so the cost is no base of a share
    elif energy_j is not None:
        energy = default_j.sum(1) - energy_j
    _, count, source = log.where
    since = base.old_since
    return SavedDraws(
        kind=kind_of(source),
        energy=energy,
        time=time,
        gpu_time=time * count,
        runs=len(runs),
        spent=SpentBy(energy_j, time_s, time_s * count),
        old=since is not None and runs[-1].trials[-1].number >= since,
        aside=SetAside.of(runs),
    )


def _by_limit(
    log: Dataset, profile: Sequence[ProfileSample], begin_s: float, end_s: float
) -> SavedDraws | str:
    """The saving of the power limit of runs without a batch size, on their newest device."""
    import numpy as np

    where = newest_device(log.lessons)
    began = [t for t in log.lessons if begin_s <= t.opened_at < end_s]
    ended = [t.observation for t in began if t.state is not State.RUNNING]
    timed = [o for o in ended if o.time_s is not None]
    here = [o for o in timed if o.where == where]
    compared = [o for o in here if limit_saving([o], profile) is not None]
    saving = limit_saving(compared, profile)
    if where is None or saving is None:
        if log.job.mode != "measure":
            return "no profile shows what its power limit saved"
        return 'its runs are measured as they are; mode="optimize" tunes the power limit'
    _, count, source = where
    energy, time = saving.draws(np.random.default_rng(own_rng(log).getrandbits(64)), DRAWS)
    time_s = sum_of_known(o.time_s for o in compared)
    return SavedDraws(
        kind=kind_of(source),
        energy=energy,
        time=time,
        gpu_time=time * count,
        runs=saving.runs,
        spent=SpentBy(total(o.energy_j for o in compared), time_s, time_s * count),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSum:
    """Savings of all jobs of one kind whose savings are known."""

    kind: str
    jobs: int
    runs: int
    energy_j: Estimate
    time_s: Estimate
    spent: SpentBy
    energy: Vector | None  # draws, since intervals do not add up
    gpu_time: Vector
    old: int  # an old default may no longer cost what it did
    aside: SetAside  # nothing compares with failed and cleared tries, yet somebody paid for them

    def priced(self, per_j: float, per_s: float) -> Estimate:
        """In money: a price of a joule, and of a second of one device."""
        # Money without its energy would look like all of it.
        if self.energy is None and per_j:
            return Estimate.missing(_NO_ENERGY)
        price = self.gpu_time * per_s
        if self.energy is not None:
            price = price + self.energy * per_j
        return estimate(price)

    @classmethod
    def of(cls, kind: str, jobs: Sequence[SavedDraws]) -> Self:
        """Add up the draws of jobs of one kind."""
        import numpy as np

        energy = None
        saved_j = Estimate.missing(_NO_ENERGY)
        spent_j = None
        energies = [job.energy for job in jobs if job.energy is not None]
        # a sum without one of the jobs would look like the whole
        if len(energies) == len(jobs) and kind != TIME_ALONE:
            energy = np.sum(energies, axis=0)
            saved_j = estimate(energy)
            spent_j = total(job.spent.energy_j for job in jobs)
        spent_s = math.fsum(job.spent.time_s for job in jobs)
        spent_gpu_s = math.fsum(job.spent.gpu_s for job in jobs)
        return cls(
            kind=kind,
            jobs=len(jobs),
            runs=sum(job.runs for job in jobs),
            energy_j=saved_j,
            time_s=estimate(np.sum([job.time for job in jobs], axis=0)),
            spent=SpentBy(spent_j, spent_s, spent_gpu_s),
            energy=energy,
            gpu_time=np.sum([job.gpu_time for job in jobs], axis=0),
            old=sum(job.old for job in jobs),
            aside=reduce(SetAside.plus, [job.aside for job in jobs]),
        )


def money_saved(saved: SavedSum, prices: Prices, drawn: Sequence[Observation]) -> Estimate:
    """The saving in money: at the prices of a start at once, plus the saving by waiting for another
    start.

    :param drawn: by the attempts of these runs. Missing if no price is set, or prices cannot be
        added.
    """
    at_once = prices.at_once(drawn)
    if not at_once.priced:
        return Estimate.missing(at_once.unpriced or "no price is set")
    per_j, per_s = at_once.per_j_and_s(1)
    by_start, _ = prices.start_saved(drawn)
    return saved.priced(per_j, per_s).plus(by_start)


def co2e_g_saved(saved: SavedSum, prices: Prices, drawn: Sequence[Observation]) -> Estimate:
    """The same in grams of CO2 equivalent; missing if no intensity is set."""
    at_once = prices.at_once(drawn)
    g_per_j = None
    if at_once.g_co2e_per_kwh is not None:
        g_per_j = at_once.g_per_j
    _, by_start_g = prices.start_saved(drawn)
    return saved.energy_j.times(g_per_j, "no intensity is set").plus(by_start_g)


def added(jobs: Iterable[SavedDraws]) -> list[SavedSum]:
    """The sums over jobs, a sum for each kind of source."""
    kinds = grouped(jobs, lambda job: job.kind)
    return [SavedSum.of(kind, of_kind) for kind, of_kind in kinds.items()]
