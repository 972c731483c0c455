"""The first lines of a tab: what it cost, what it saved, what runs next; in kWh, hours and money. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import SURE, Estimate
from airflow_provider_zeus.model.trial import Phase, State
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.text.saved_text import (
    Told,
    against,
    compared,
    how_sure,
    intervals,
    not_compared,
    outdated,
    saved_answer,
)
from airflow_provider_zeus.plugin.views.factors import Factors, grams_of
from airflow_provider_zeus.plugin.views.models import Answer, Figure, Sentence, Source, Tile
from airflow_provider_zeus.reports.baseline import OURS
from airflow_provider_zeus.reports.dataset import ENERGY, TIME, RunTrials
from airflow_provider_zeus.reports.next_run import Upcoming
from airflow_provider_zeus.reports.run_figures import RunSaving
from airflow_provider_zeus.reports.savings import Savings
from airflow_provider_zeus.reports.schedule_shift import ScheduleShift
from airflow_provider_zeus.signals.forecast import WORTH
from airflow_provider_zeus.signals.series import PRICE, Series
from airflow_provider_zeus.signals.tariff import Tariff
from airflow_provider_zeus.units import UNKNOWN, counted, energy_text, grams_text, share_text, time_text

COST, NEXT = "Cost", "Next run"
NO_RUN = "No run that counts here has ended yet; what each run cost is shown here then."


def sentence(
    savings: Savings, upcoming: Upcoming, source: Source, weights: Weights, *, all_of: bool = True
) -> Sentence:
    """What the runs of a job cost and saved and what comes next, in plain words. ``all_of``: there are no older runs.

    The intervals are on hover of the words that say how sure it is.
    """
    if not savings.runs:
        return Sentence(text=NO_RUN, source=source)
    took = took_text(savings.energy.spent, savings.time.spent)
    count = f"{'' if all_of else 'The newest '}{counted(savings.runs, 'run')}"
    saved = compared(savings, weights)
    text = f"{count} cost {took or 'what is not known'}. {saved}.\n{NEXT}: {comes_next(upcoming)}."
    return Sentence(text=text, sure=how_sure(saved), exact=intervals(savings), source=source)


def comes_next(upcoming: Upcoming) -> str:
    """The next run, and what it is expected to take, in a sentence's middle."""
    first, *after = upcoming.attempts
    takes = took_text(upcoming.energy_j.value, upcoming.time_s.value)
    tries = bool(after) and first.tried
    text = (
        f"tries batch size {first.batch_size}; if it is given up, {upcoming.batch_size}"
        if tries
        else f"batch size {first.batch_size}"
    )
    text += "" if upcoming.limit_w is None else f" at {words.watts(upcoming.limit_w).text}"
    text += f"{', which takes' * tries or ','} about {takes}" if takes else ", whose cost is not known yet"
    return text + ", to measure the default" * (first.phase is Phase.AUDIT)


def took_text(energy_j: float | None, time_s: float | None) -> str:
    """Energy and time, as far as they are known."""
    known = ((energy_j, energy_text), (time_s, time_text))
    return " and ".join(text(value) for value, text in known if value is not None)


def odd_state(savings: Savings, upcoming: Upcoming, source: Source) -> str:
    """What keeps the page from telling more, each with its remedy; empty where nothing does."""
    found, default, best = [], savings.default_batch_size, savings.best
    trials, old = [t for step in savings.steps for t in step.run.trials], outdated(savings)
    states, missed = (
        {t.state for t in trials},
        sum(t.batch_size == default and t.state is State.EXHAUSTED for t in trials),
    )
    measure = "“Measure the default in the next run”, below, runs it."
    if upcoming.attempts[0].phase is Phase.AUDIT:
        measure = f"The next run trains {default} to measure it."
    if not savings.base.why_not or not savings.runs:
        if old:
            found.append(
                f"The data changed {counted(old, 'run')} ago; the default, {default}, has not run since. {measure}"
                if savings.base.old_since == savings.base.belief.era
                else f"The default, {default}, ran in none of the newest {counted(old, 'run')}. {measure}"
            )
    elif State.CONVERGED in states and missed:
        other = "another one" if best is None else f"{best.batch_size} (default_batch_size={best.batch_size})"
        found.append(
            f"There is nothing to compare with: the default, {default}, missed the target in "
            f"{'its run' if missed == 1 else f'each of its {missed:,} runs'}. Make {other} the default, or allow more "
            "epochs (max_epochs)."
        )
    elif State.CONVERGED in states:
        found.append(f"There is nothing to compare with: {savings.base.why_not}. {measure}")
    elif states != {State.NO_METRIC}:  # then the page says how to report one
        found.append(
            "No run has reached the target yet, so nothing can be compared: allow more epochs (max_epochs), or lower "
            "the target."
        )
    if source.kind == "no-source":
        found.append(source.why)
    return " ".join(found)


def of_job(
    savings: Savings,
    upcoming: Upcoming,
    told: Sequence[Told],
    weights: Weights,
    source: Source,
    factors: Factors,
    *,
    all_of: bool = True,
) -> list[Answer]:
    """The three answers of a job: those of them that are known.

    :param told: by :func:`told_of`. ``all_of``: the log holds no older runs.
    """
    if not savings.runs:
        return []
    gpus = savings.where[1] if savings.where else 1
    spent = factors.at_the_time([t.observation for step in savings.steps for t in step.run.trials])
    about = f"of {'' if all_of else 'the newest '}{counted(savings.runs, 'run')}"
    cost = Answer(question=COST, about=about, note=f"not known: {OURS}")
    if savings.time.spent is not None:
        cost.note = ""
        cost.figures = spent_tiles(savings.energy.spent, savings.time.spent, savings.time.spent * gpus, source, spent)
    compares = not not_compared(savings)[0] or any(of.start for of in told)
    saved = [_against_default(savings, told, weights)] if compares else []
    return [cost, *saved, *_next_run(upcoming, source, spent, gpus)]


def of_run(saving: RunSaving, weights: Weights, source: Source, factors: Factors) -> list[Answer]:
    """What a run saved; empty where it is not known, or it was the default's own run."""
    known = saving.cost.saved.value and saving.kept
    told = told_of(saving, saving.runs, source, factors) if known else []
    return [_against_default(saving, told, weights)] if known else []


def spent_tiles(
    energy_j: float | None,
    time_s: float | None,
    gpu_s: float | None,
    source: Source,
    factors: Factors,
) -> list[Tile]:
    """Energy, time, and what they are converted to where it is set; no energy where nothing measures it.

    :param gpu_s: time of all GPUs.
    """
    no_energy = energy_j is None and source.kind == "no-source"
    shown = (
        ("Energy", None if no_energy else words.missing(OURS) if energy_j is None else words.energy(energy_j)),
        ("Time", words.missing(OURS) if time_s is None else words.duration(time_s)),
        ("Money", factors.money(energy_j, gpu_s)),
        ("CO₂e", None if no_energy else factors.carbon(energy_j)),
    )
    return [tile(name, figure) for name, figure in shown if figure is not None]


def tile(name: str, figure: Figure) -> Tile:
    """A tile whose note is, where the figure is missing, why."""
    return Tile(name=name, figure=figure, note=figure.exact if figure.text == UNKNOWN else "")


def told_of(found: Savings | RunSaving, runs: Sequence[RunTrials], source: Source, factors: Factors) -> list[Told]:
    """What runs saved against the default: energy, time, and money and carbon where they are set.

    Money is a sum of energy and time, as a cost is (Eq. 2). Both count what waiting for a cheaper start saved besides.
    """
    seen, energy = [t.observation for run in runs for t in run.trials], found.energy
    at_once, (by_start, grams) = factors.at_once(seen), factors.start_saved(seen)
    per_j, per_s = at_once.per_j_and_s(found.where[1] if found.where else 1)

    in_unit = partial(words.energy, beside_j=energy.saved.value if energy.spent is None else energy.spent)
    told = [Told("Energy", energy.saved, in_unit, energy.baseline.value, ENERGY)]
    told += [Told("Time", found.time.saved, words.duration, found.time.baseline.value, TIME)]
    if at_once.priced and per_j >= 0 and per_j + per_s > 0:
        by, factor = Weights(per_j / (per_j + per_s), 1.0), per_j + per_s
        money = found.base.compare(runs, by, "").times(factor)
        told.append(Told("Money", money.saved.plus(by_start), at_once.paid, money.baseline.value, by, factor, by_start))
    if at_once.g_co2e_per_kwh is not None:
        carbon, factor = energy.times(at_once.g_per_j), at_once.g_per_j
        told.append(Told("CO₂e", carbon.saved.plus(grams), grams_of, carbon.baseline.value, ENERGY, factor, grams))
    hidden = ("Energy", "CO₂e") if source.kind == "no-source" else ()
    return [of for of in told if of.name not in hidden]


def _against_default(found: Savings | RunSaving, told: Sequence[Told], weights: Weights) -> Answer:
    """The card of savings and losses against the default; that it is old is said above it."""
    shown = [of for of in told if not of.saved.low == of.saved.high == 0]
    about = f"against {against(found.default_batch_size)}"
    return saved_answer(about, shown, found.cost, weights, old=bool(outdated(found)))


def _next_run(upcoming: Upcoming, source: Source, factors: Factors, gpus: int) -> list[Answer]:
    """What a run of the size that is kept next is expected to take; empty where that is not known."""
    first, *after = upcoming.attempts
    if upcoming.epochs.value is None:
        return []
    at = "" if upcoming.limit_w is None else f" at {words.watts(upcoming.limit_w).text}"
    about = f"batch size {upcoming.batch_size}{at}"
    if first.phase is Phase.AUDIT:
        about += ", to measure the default"
    elif after and first.tried:
        about = f"{upcoming.batch_size}{at}, if {first.batch_size} is given up"
    energy_j, time_s = upcoming.energy_j, upcoming.time_s
    tiles = spent_tiles(energy_j.value, time_s.value, time_s.times(gpus).value, source, factors)
    known: dict[str, tuple[Estimate, Callable[[float], str]]] = {
        "Energy": (upcoming.energy_j, energy_text),
        "Time": (upcoming.time_s, time_text),
    }
    for tile in tiles:
        of, text = known.get(tile.name, (Estimate.missing(""), time_text))
        if of.low is not None and of.high is not None and of.low < of.high:
            tile.figure.exact += f"; {SURE} of the median run: {text(of.low)} to {text(of.high)}"
    return [Answer(question=NEXT, about=about, figures=tiles)]


def shift(found: ScheduleShift | None, by: Tariff | Series, name: str) -> str:
    """What another hour of the day would have cost or emitted, in a sentence; empty where that is not known.

    :param by: prices or carbon intensities. ``name``: of what holds them.
    """
    if found is None:
        return ""
    is_price = by.unit.goal == PRICE
    runs, said_by = counted(found.runs, "scheduled run"), name
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
    less = share_text(found.saved)
    would = "cost" if is_price else "emitted"
    return f"By {said_by} the energy of {runs} would have {would} {then} instead of {now} ({less} less) {when}."
