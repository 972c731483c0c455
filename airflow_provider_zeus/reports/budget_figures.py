"""How much of a job's budget is spent in the present period, what the rest is expected to take, what passed 80 %. Pure.

Figures of one energy source are added: that of the newest trial that measured anything.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from airflow_provider_zeus.model.budget import STOPS, WARN_AT, Allowance, BudgetUse, use
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.signals.prices import Prices

READ = (1_000, 3_000, 10_000)  # newest trials that are read until the periods are in them; the store adds up the last
USUAL = 8  # newest runs that say what a run takes, and how long after the one before it begins
Spent = tuple[float | None, float]  # energy [J], time of all devices [s]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """The trial with which the sum of the period passed a share of the budget."""

    share: float
    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetFigures:
    """``forecast``: what the whole period is expected to take, in the budget's unit; None: not known."""

    use: BudgetUse
    forecast: float | None
    passed: tuple[Passed, ...]


def trials_of_periods(read: Callable[[int], list[Trial]], job: ZeusJob, now_s: float) -> list[Trial]:
    """The newest trials of a job, by number, as far back as the present periods of its budgets begin.

    :param read: the newest trials of the job in all DAGs, so many at most.
    :param now_s: seconds since the epoch.
    """
    begin_s = min((budget.span(now_s)[0] for budget in job.budgets), default=now_s)
    trials = list[Trial]()
    for last in READ:
        trials = read(last)
        whole = 2 * len(trials) <= last or trials[0].number == 1  # damaged ones are left out of those that were read
        if whole or trials[0].opened_at < begin_s:
            break
    return trials


def budget_figures(trials: Sequence[Trial], allowance: Allowance, now_s: float) -> BudgetFigures | str:
    """The figures of one budget; where they are not known, the reason.

    :param trials: of the job, by number; those of the period, and some before them.
    :param now_s: seconds since the epoch, in the allowance's period.
    """
    measured = [t for t in trials if t.observation.time_s is not None]
    source = measured[-1].observation.energy_source if measured else None
    here = [t for t in measured if t.observation.energy_source == source]
    inside = [t for t in here if allowance.begin_s <= t.opened_at < allowance.end_s]
    takes = usual_run(trials, source)
    found = use(allowance, _sum(inside), spent_by_open_runs(trials, allowance), takes)
    if found is None:
        return "nothing measures energy there"
    passed, so_far = [], 0.0
    for trial in sorted(inside, key=lambda t: t.opened_at):
        before, so_far = so_far, so_far + (allowance.of(*trial.observation.spent) or 0.0)
        passed += [
            Passed(share=s, trial=trial) for s in (WARN_AT, 1.0) if before < s * allowance.budget.amount <= so_far
        ]
    begins = sorted({t.recurrence: t.opened_at for t in reversed(trials)}.values())[-USUAL - 1 :]
    gap_s = statistics.median(b - a for a, b in pairwise(begins)) if len(begins) >= 3 else 0.0  # between two runs
    each = allowance.of(*takes)
    more = None if each is None or not gap_s else each * max(allowance.end_s - now_s, 0.0) / gap_s
    forecast = None if more is None else found.spent + found.committed + more
    return BudgetFigures(use=found, forecast=forecast, passed=tuple(passed))


def budget_spent(read: Callable[[int], list[Trial]], job: ZeusJob, prices: Prices, now_s: float) -> dict[str, str]:
    """The setting of ``choose`` that says what a budget of the job that is used up does; else empty.

    :param read: as for :func:`trials_of_periods`; not called where no budget stops anything.
    """
    if not job.budgets or job.on_budget not in STOPS:
        return {}
    trials = trials_of_periods(read, job, now_s)
    for budget in job.budgets:
        allowance = prices.allowance(budget, now_s)
        found = allowance if isinstance(allowance, str) else budget_figures(trials, allowance, now_s)
        if isinstance(found, BudgetFigures) and found.use.share >= 1:
            refused = "" if job.on_budget == "incumbent" else f"; {STOPS[job.on_budget].lower()} until then"
            return {"budget_spent": f"{found.use.text}{refused}"}
    return {}


def _sum(trials: Sequence[Trial]) -> Spent:
    energies = [t.observation.energy_j for t in trials if t.observation.energy_j is not None]
    return sum(energies) if energies else None, sum(t.observation.spent[1] for t in trials)


def spent_by_open_runs(trials: Sequence[Trial], allowance: Allowance) -> list[Spent]:
    """What each open run has spent so far, with all its attempts; of those whose open trial began in the period.

    :param trials: of one job, those that are open and earlier attempts of their runs among them.
    """
    began = (t for t in trials if allowance.begin_s <= t.opened_at < allowance.end_s)
    runs: dict[tuple[str, ...], list[Trial]] = {t.recurrence: [] for t in began if t.state is State.RUNNING}
    for trial in trials:
        if trial.recurrence in runs:
            runs[trial.recurrence].append(trial)
    return [_sum(run) for run in runs.values()]


def usual_run(trials: Iterable[Trial], source: str | None) -> Spent:
    """What a run takes: the mean of the newest that have ended, all their attempts. None and 0 where none has.

    Runs without training (not needed, no data) are no measure of one that trains.

    :param trials: of all map indexes of a job, by number; those of the energy source that have a time count.
    """
    runs: dict[tuple[str, ...], list[Trial]] = {}
    still_open = set[tuple[str, ...]]()
    for trial in trials:
        if trial.state is State.RUNNING:
            still_open.add(trial.recurrence)
        elif trial.state.worked and trial.observation.time_s is not None and trial.observation.energy_source == source:
            runs.setdefault(trial.recurrence, []).append(trial)
    sums = [_sum(run) for name, run in runs.items() if name not in still_open][-USUAL:]
    energies = [energy_j for energy_j, _ in sums if energy_j is not None]
    return statistics.fmean(energies) if energies else None, statistics.fmean(s for _, s in sums) if sums else 0.0
