"""The first line of a tab: what it cost, what it saved, what runs next; in kWh, hours and money. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import Observation, Phase
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.text.saved_text import amount_tile
from airflow_provider_zeus.plugin.views.models import Answer, Figure, Source, Tile
from airflow_provider_zeus.plugin.views.prices import Factors, grams_of
from airflow_provider_zeus.reports.baseline import Baseline, Saved
from airflow_provider_zeus.reports.dataset import RunTrials
from airflow_provider_zeus.reports.next_run import Upcoming
from airflow_provider_zeus.reports.run_figures import RunSaving
from airflow_provider_zeus.reports.savings import Savings
from airflow_provider_zeus.reports.schedule_shift import ScheduleShift
from airflow_provider_zeus.signals.series import PRICE, Series
from airflow_provider_zeus.signals.start import WORTH
from airflow_provider_zeus.signals.tariff import Tariff
from airflow_provider_zeus.units import counted, energy_text, grams_text, time_text

COST, SAVED, NEXT = "Cost", "Saved", "Next run"
NO_ENERGY = "nothing measures energy there"
PART = "a figure of one of its attempts is not known"
NO_RUN = "no run that counts here has ended; what each run cost is in the table below"


def of_job(
    savings: Savings, upcoming: Upcoming, source: Source, factors: Factors, *, all_of: bool = True
) -> list[Answer]:
    """The three answers of a job. ``all_of``: the log holds no older runs."""
    count = counted(savings.runs, "run")
    runs, gpus = [step.run for step in savings.steps], savings.where[1] if savings.where else 1
    about = f"of {'' if all_of else 'the newest '}{count}"
    spent = factors.at_the_time(seen_in(runs))
    if not runs:
        return [Answer(question=COST, note=NO_RUN), _next_run(upcoming, source, factors, gpus)]
    energy_j, time_s = savings.energy.spent, savings.time.spent
    cost = Answer(question=COST, about=about, note=f"not known: {PART}")
    if time_s is not None:
        cost = Answer(question=COST, about=about, figures=spent_tiles(energy_j, time_s, source, spent, gpus))
    return [cost, _against_default(savings, runs, source, factors, gpus), _next_run(upcoming, source, spent, gpus)]


def of_run(saving: RunSaving, source: Source, factors: Factors) -> Answer:
    """What a run saved."""
    return _against_default(saving, saving.runs, source, factors, saving.where[1])


def seen_in(runs: Sequence[RunTrials]) -> list[Observation]:
    """What the attempts of runs observed."""
    return [t.observation for run in runs for t in run.trials]


def spent_tiles(
    energy_j: float | None, time_s: float | None, source: Source, factors: Factors, gpus: float
) -> list[Tile]:
    """Energy, time, and what they are converted to where it is set. ``gpus``: that the time was of."""
    why = NO_ENERGY if source.kind == "no-source" else PART
    shown = [
        ("Energy", words.missing(why) if energy_j is None else words.energy(energy_j)),
        ("Time", words.missing(PART) if time_s is None else words.duration(time_s)),
        ("Money", factors.money(energy_j, time_s, gpus)),
        ("CO₂e", factors.carbon(energy_j)),
    ]
    return [
        Tile(name=name, figure=figure, note="" if figure.value is not None else figure.exact, source=source)
        for name, figure in shown
        if figure is not None
    ]


def _against_default(
    found: Savings | RunSaving, runs: Sequence[RunTrials], source: Source, factors: Factors, gpus: int
) -> Answer:
    """Savings and losses of energy, time and money against the default, each with its own interval."""
    power = "full power" if found.full_power_w is None else f"full power ({found.full_power_w:,.0f} W)"
    about = f"against batch size {found.default_batch_size}, the default, at {power}"
    if found.cost.saved.value is None:
        return Answer(question=SAVED, about=about, note=f"not known: {found.cost.saved.reason}")
    at_once, (by_start, grams) = factors.at_once(seen_in(runs)), factors.start_saved(seen_in(runs))
    if found.cost.saved.low == found.cost.saved.high == by_start == grams == 0:
        why = "only the default ran, at full power: nothing compares"
        return Answer(question=SAVED, about=about, note=why)
    outcomes: list[tuple[str, Saved, Callable[[float], Figure]]] = [
        ("Energy", found.energy, words.energy),
        ("Time", found.time, words.duration),
    ]
    money = saved_money(found.base, runs, at_once, gpus)
    if money is not None:
        outcomes.append(("Money", more(money, by_start), at_once.paid))
    if at_once.g_co2e_per_kwh is not None:
        outcomes.append(("CO₂e", more(found.energy.times(at_once.g_per_j), grams), grams_of))
    tiles = []
    for name, saved, figure in outcomes:
        missing = saved.saved.value is None and source.kind == "no-source" and name != "Time"
        estimate = Estimate.missing(NO_ENERGY) if missing else saved.saved
        tiles.append(amount_tile(name, estimate, figure, source, baseline=saved.baseline.value))
    return Answer(question=SAVED, about=about, figures=tiles)


def more(saved: Saved, by_start: float) -> Saved:
    """What was saved with what waiting for a cheaper start saved besides."""
    if saved.spent is None:
        return saved
    return replace(saved, spent=saved.spent - by_start, saved=saved.saved.plus(by_start))


def saved_money(base: Baseline, runs: Sequence[RunTrials], factors: Factors, gpus: int) -> Saved | None:
    """What was saved in money: a sum of energy and time, as a cost is (Eq. 2). None: no price is set."""
    per_j, per_s = factors.per_j_and_s(gpus)
    if not factors.priced or per_j < 0 or per_j + per_s == 0:
        return None
    found = base.compare(runs, Weights(per_j / (per_j + per_s), 1.0), "")
    return found.times(per_j + per_s)


def _next_run(upcoming: Upcoming, source: Source, factors: Factors, gpus: int) -> Answer:
    """What the next run does, as the log stands, and what a run of the size that is kept is expected to take."""
    first, *after = upcoming.attempts
    if after and first.phase is not Phase.AUDIT:
        missed = "it is given up" if first.bounded else "it misses the target"
        about = f"tries batch size {first.batch_size}; {after[-1].batch_size} where {missed}"
    else:
        about = f"batch size {first.batch_size}{' to measure the default' * (first.phase is Phase.AUDIT)}"
    limit = "" if upcoming.limit_w is None else f" at {words.watts(upcoming.limit_w).text}"
    kept = f"{upcoming.batch_size}{limit}"
    if upcoming.epochs.value is None:
        return Answer(question=NEXT, about=about, note=f"What it takes is not known: {upcoming.epochs.reason}.")
    tiles = spent_tiles(upcoming.energy_j.value, upcoming.time_s.value, source, factors, gpus)
    for tile, of, text in zip(tiles, (upcoming.energy_j, upcoming.time_s), (energy_text, time_text), strict=False):
        if of.low is not None and of.high is not None and of.low < of.high:
            tile.note = f"{text(of.low)} to {text(of.high)}"
    return Answer(question=NEXT, about=about, figures=tiles, note=f"{first.why} Expected of a run of {kept}.")


def shift(found: ScheduleShift | None, by: Tariff | Series, name: str) -> str:
    """What another hour of the day would have cost or emitted, in a sentence; empty where that is not known.

    :param by: prices or carbon intensities. ``name``: of what holds them.
    """
    if found is None:
        return ""
    is_price = by.unit.goal == PRICE
    runs, said_by = "1 scheduled run" if found.runs == 1 else f"{found.runs:,} scheduled runs", name
    if isinstance(by, Series):
        said_by = f"{name} ({', '.join(filter(None, (by.source, by.zone)))})"
        first, last = (datetime.fromtimestamp(s, UTC) for s in (found.first_s, found.last_s))
        runs += f" from {first:%Y-%m-%d} to {last:%Y-%m-%d}"
    if found.saved < WORTH:
        best = "cheaper" if is_price else "cleaner"
        return f"By {said_by} no other hour of the day would have been {best} by {100 * WORTH:g} % for these {runs}."
    when = f"{found.delay_h} h later"
    if found.start_hour is not None:
        hours = (found.start_hour + found.delay_h) % 24, found.start_hour
        when = "at {:02d}:00 instead of {:02d}:00".format(*hours) + f" ({by.zone if isinstance(by, Tariff) else 'UTC'})"
    amount = Factors(currency=by.unit.name.partition("/")[0]).amount if is_price else grams_text
    now, then = (amount(value) for value in (found.cost_now, found.cost_then))
    less = f"{found.saved:.0%}".replace("%", " %")
    would = "cost" if is_price else "emitted"
    return f"By {said_by} the energy of {runs} would have {would} {then} instead of {now} ({less} less) {when}."
