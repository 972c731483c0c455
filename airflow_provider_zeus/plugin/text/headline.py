"""The first lines of a tab: cost, saving and next run; in kWh, hours and money.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import SURE, Estimate
from airflow_provider_zeus.model.trial import Phase, State
from airflow_provider_zeus.plugin.answer_parts import Answer, Figure, Sentence, Source, Tile
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.text.factors import Factors, grams_of
from airflow_provider_zeus.plugin.text.saved_text import (
    ShownSaving,
    Took,
    against,
    compared,
    how_sure,
    intervals,
    lost_by_tries,
    not_compared,
    outdated,
    saved_answer,
    trials_of,
)
from airflow_provider_zeus.reports.baseline import OURS
from airflow_provider_zeus.reports.dataset import ENERGY, TIME, RunTrials, often_below
from airflow_provider_zeus.reports.next_run import Upcoming
from airflow_provider_zeus.reports.run_figures import RunSaving
from airflow_provider_zeus.reports.savings import Savings
from airflow_provider_zeus.reports.schedule_shift import ScheduleShift
from airflow_provider_zeus.signals.forecast import WORTH
from airflow_provider_zeus.signals.series import PRICE, Series
from airflow_provider_zeus.signals.tariff import Tariff
from airflow_provider_zeus.units import (
    ESTIMATE,
    UNKNOWN,
    counted,
    energy_text,
    grams_text,
    share_text,
    time_text,
)

COST = "Cost"
NEXT = "Next run"
NO_RUN = "No run that counts here has ended yet; what each run cost is shown here then."


def sentence(
    savings: Savings, upcoming: Upcoming, source: Source, weights: Weights, *, all_of: bool = True
) -> Sentence:
    """Cost and saving of the runs of a job and the next run, in plain words.

    The intervals are on hover of the words that say how sure it is.

    :param all_of: there are no older runs.
    """
    if not savings.runs:
        return Sentence(text=NO_RUN, source=source)
    took = Took.in_all(savings).text or "what is not known"
    cost = f"{_counted_runs('The newest', savings.runs, all_of=all_of)} cost {took}"
    # A cheap run that misses its target is no saving, so it is told in the same breath.
    below = often_below([step.run.trials for step in savings.steps])
    if below:
        cost += f", and {below:,} of them ended below the target"
    saved = compared(savings, weights)
    text = f"{cost}. {saved}."
    tries = lost_by_tries(savings)
    if tries:
        text += f" {tries}"
    if savings.aside:
        text += f" {savings.aside.text}."
    return Sentence(
        text=f"{text}\n{NEXT}: {comes_next(upcoming)}.",
        sure=how_sure(saved),
        exact=intervals(savings),
        source=source,
    )


def _counted_runs(newest: str, runs: int, *, all_of: bool) -> str:
    """``newest``: how the count begins if there are older runs."""
    count = counted(runs, "run")
    if all_of:
        return count
    return f"{newest} {count}"


def comes_next(upcoming: Upcoming) -> str:
    """The next run, and its expected cost, in a sentence's middle."""
    first, *after = upcoming.attempts
    # A try that nothing follows is kept, as any other attempt.
    is_try = first.tried and bool(after)
    text = f"batch size {first.batch_size}"
    purpose = ""
    if first.phase is Phase.AUDIT:
        purpose = ", to measure the default"
    if is_try:
        text = f"tries {text}{purpose}; if it is given up, {upcoming.batch_size}"
    text += _at_limit(upcoming.limit_w)
    takes = Took(upcoming.energy_j.value, upcoming.time_s.value).text
    if not takes:
        text += ", whose cost is not known yet"
    elif is_try:
        text += f", which takes about {takes}"
    else:
        text += f", about {takes}"
    if not is_try:
        text += purpose
    return text


def _at_limit(limit_w: float | None) -> str:
    if limit_w is None:
        return ""
    return f" at {words.watts(limit_w).text}"


def odd_state(savings: Savings, upcoming: Upcoming, source: Source) -> str:
    """The reasons that keep the page from telling more, with remedies; empty if there are none."""
    remarks = _odd_default(savings, upcoming)
    if source.kind == "no-source":
        remarks = f"{remarks} {source.why}".strip()
    return remarks


def _odd_default(savings: Savings, upcoming: Upcoming) -> str:
    """Why runs are not compared with the default, or with an old one; empty if they are."""
    default = savings.default_batch_size
    first, *_ = upcoming.attempts
    measure = "“Measure the default in the next run”, below, runs it."
    if first.phase is Phase.AUDIT:
        measure = f"The next run trains {default} to measure it."
    # With a default that can be compared only its age can be odd.
    if not savings.runs or not savings.base.why_not:
        return _old_default(savings, measure)
    trials = trials_of(savings)
    states = {trial.state for trial in trials}
    if states == {State.NO_METRIC}:  # another part of the page tells how to report one
        return ""
    if State.CONVERGED not in states:
        return (
            "No run has reached the target yet, so nothing can be compared: allow more epochs "
            "(max_epochs), or lower the target."
        )
    missed = sum(t.batch_size == default and t.state is State.EXHAUSTED for t in trials)
    if not missed:
        return f"There is nothing to compare with: {savings.base.why_not}. {measure}"
    runs = "its run"
    if missed > 1:
        runs = f"each of its {missed:,} runs"
    other = "another one"
    if savings.best is not None:
        size = savings.best.batch_size
        other = f"{size} (default_batch_size={size})"
    return (
        f"There is nothing to compare with: the default, {default}, missed the target in {runs}. "
        f"Make {other} the default, or allow more epochs (max_epochs)."
    )


def _old_default(savings: Savings, measure: str) -> str:
    """That the default has not run for long; empty if it has. ``measure``: the remedy."""
    old = outdated(savings)
    if not old:
        return ""
    default = savings.default_batch_size
    runs = counted(old, "run")
    # The epochs of the default are of other data then: that is more than age.
    if savings.base.old_since == savings.base.belief.era:
        return f"The data changed {runs} ago; the default, {default}, has not run since. {measure}"
    return f"The default, {default}, ran in none of the newest {runs}. {measure}"


def of_job(
    savings: Savings,
    upcoming: Upcoming,
    shown: Sequence[ShownSaving],
    weights: Weights,
    source: Source,
    factors: Factors,
    *,
    all_of: bool = True,
) -> list[Answer]:
    """The three answers of a job: those of them that are known.

    :param shown: by :func:`shown_savings`.
    :param all_of: the log holds no older runs.
    """
    if not savings.runs:
        return []
    gpus = _gpus(savings)
    # Past runs keep the prices of their hours: a price of today would change history.
    then = factors.at_the_time([trial.observation for trial in trials_of(savings)])
    about = f"of {_counted_runs('the newest', savings.runs, all_of=all_of)}"
    cost = Answer(question=COST, about=about, note=f"not known: {OURS}")
    took = Took.in_all(savings)
    if took.time_s is not None:
        cost.note = ""
        cost.figures = spent_tiles(took, took.time_s * gpus, source, factors=then)
    answers = [cost]
    # What waiting for a cheaper start saved is exact, even if nothing else compares.
    compares = not_compared(savings) is None or any(saving.start for saving in shown)
    if compares:
        answers.append(_against_default(savings, shown, weights))
    # Without epochs nothing of the next run's cost can be told.
    if upcoming.epochs.value is not None:
        answers.append(_next_run(upcoming, source, then, gpus))
    return answers


def _gpus(savings: Savings | RunSaving) -> int:
    """How many GPUs its runs use together."""
    if not savings.where:
        return 1
    _, count, _ = savings.where
    return count


def of_run(saving: RunSaving, weights: Weights, source: Source, factors: Factors) -> list[Answer]:
    """The saving of a run; empty if it is not known, or it was the default's own run."""
    # The default's own run saved exactly nothing, and a card of zeros tells nothing.
    if not saving.kept or not saving.cost.saved.value:
        return []
    shown = shown_savings(saving, saving.runs, source, factors)
    return [_against_default(saving, shown, weights)]


def spent_tiles(took: Took, gpu_s: float | None, source: Source, factors: Factors) -> list[Tile]:
    """Energy, time, money and carbon, as far as they are set; no energy if nothing measures it.

    :param gpu_s: time of all GPUs.
    """
    energy_j = took.energy_j
    energy = words.missing(OURS)
    if energy_j is not None:
        energy = words.energy(energy_j)
    time = words.missing(OURS)
    if took.time_s is not None:
        time = words.duration(took.time_s)
    figures: dict[str, Figure | None] = {
        "Energy": energy,
        "Time": time,
        "Money": factors.money(energy_j, gpu_s),
        "CO₂e": factors.carbon(energy_j),
    }
    # Tiles of what nothing measures would be two times "not known".
    if energy_j is None and source.kind == "no-source":
        del figures["Energy"], figures["CO₂e"]
    tiles = [tile(name, figure) for name, figure in figures.items() if figure is not None]
    # The doubt of the energy is that of all figures made of it, and of no other.
    if ESTIMATE in source.text:
        of_energy = {"Energy", "CO₂e"}
        if factors.price_per_kwh is not None:
            of_energy.add("Money")
        for shown in tiles:
            if shown.name in of_energy and shown.figure.value is not None:
                shown.note = ESTIMATE
    return tiles


def tile(name: str, figure: Figure) -> Tile:
    """A tile whose note is, if the figure is missing, why."""
    if figure.text == UNKNOWN:
        return Tile(name=name, figure=figure, note=figure.exact)
    return Tile(name=name, figure=figure)


def shown_savings(
    savings: Savings | RunSaving, runs: Sequence[RunTrials], source: Source, factors: Factors
) -> list[ShownSaving]:
    """Savings of runs against the default: energy, time, and money and carbon if they are set."""
    energy = savings.energy
    beside_j = energy.spent
    if beside_j is None:
        beside_j = energy.saved.value
    shown = [
        ShownSaving(
            name="Energy",
            saved=energy.saved,
            figure=partial(words.energy, beside_j=beside_j),
            baseline=energy.baseline.value,
            weights=ENERGY,
        ),
        ShownSaving(
            name="Time",
            saved=savings.time.saved,
            figure=words.duration,
            baseline=savings.time.baseline.value,
            weights=TIME,
        ),
    ]
    # At the prices of a start at once, which the default would have paid; what waiting for a
    # cheaper one saved is exact, and is added.
    observations = [trial.observation for run in runs for trial in run.compared]
    at_once = factors.at_once(observations)
    money_by_start, grams_by_start = factors.start_saved(observations)
    per_j, per_s = at_once.per_j_and_s(_gpus(savings))
    per_both = per_j + per_s
    # Markets have negative prices of energy at times: Eq. 2 has no such weight.
    is_weight = per_j >= 0 and per_both > 0
    if at_once.priced and is_weight:
        # Money is a sum of energy and time, as a cost is (Eq. 2).
        weights = Weights(per_j / per_both, 1.0)
        money = savings.base.compare(runs, weights, "")
        shown.append(
            ShownSaving(
                name="Money",
                saved=money.saved.times(per_both).plus(money_by_start),
                figure=at_once.paid,
                baseline=money.baseline.times(per_both).value,
                weights=weights,
                factor=per_both,
                start=money_by_start,
            )
        )
    if at_once.g_co2e_per_kwh is not None:
        # Carbon is energy times a factor, so it shares its verdict and interval.
        shown.append(
            ShownSaving(
                name="CO₂e",
                saved=energy.saved.times(at_once.g_per_j).plus(grams_by_start),
                figure=grams_of,
                baseline=energy.baseline.times(at_once.g_per_j).value,
                weights=ENERGY,
                factor=at_once.g_per_j,
                start=grams_by_start,
            )
        )
    if source.kind == "no-source":
        return [saving for saving in shown if saving.name not in ("Energy", "CO₂e")]
    return shown


def _against_default(
    savings: Savings | RunSaving, shown: Sequence[ShownSaving], weights: Weights
) -> Answer:
    """The card of savings and losses against the default; that it is old is said above it."""
    return saved_answer(
        f"against {against(savings.default_batch_size)}",
        [saving for saving in shown if not saving.saved.low == saving.saved.high == 0],
        savings.cost,
        weights=weights,
        old=outdated(savings) > 0,
    )


def _next_run(upcoming: Upcoming, source: Source, factors: Factors, gpus: int) -> Answer:
    """The expected cost of a run of the size that is kept next."""
    first, *after = upcoming.attempts
    at_limit = _at_limit(upcoming.limit_w)
    about = f"batch size {upcoming.batch_size}{at_limit}"
    if after and first.tried:
        about = f"{upcoming.batch_size}{at_limit}, if {first.batch_size} is given up"
    elif first.phase is Phase.AUDIT:
        about += ", to measure the default"
    took = Took(upcoming.energy_j.value, upcoming.time_s.value)
    tiles = spent_tiles(took, upcoming.time_s.times(gpus).value, source, factors)
    for shown in tiles:
        if shown.name == "Energy":
            shown.figure.exact += _median_run(upcoming.energy_j, energy_text)
        elif shown.name == "Time":
            shown.figure.exact += _median_run(upcoming.time_s, time_text)
    return Answer(question=NEXT, about=about, figures=tiles)


def _median_run(estimate: Estimate, text: Callable[[float], str]) -> str:
    """The interval of the median run; empty if there is none."""
    if estimate.low is None or estimate.high is None:
        return ""
    # A single run has no spread to tell.
    if estimate.low >= estimate.high:
        return ""
    return f"; {SURE} of the median run: {text(estimate.low)} to {text(estimate.high)}"


def shift(best: ScheduleShift | None, by: Tariff | Series, name: str) -> str:
    """Cost or emission at another hour of the day, in a sentence; empty if it is not known.

    :param best: the cheapest hour.
    :param by: prices or carbon intensities. ``name``: of their source.
    """
    if best is None:
        return ""
    runs = counted(best.runs, "scheduled run")
    zone = "UTC"
    if isinstance(by, Tariff):
        zone = str(by.zone)
    else:
        first = datetime.fromtimestamp(best.first_s, UTC)
        last = datetime.fromtimestamp(best.last_s, UTC)
        runs += f" from {first:%Y-%m-%d} to {last:%Y-%m-%d}"
        name = f"{name} ({', '.join(filter(None, (by.source, by.zone)))})"
    cheaper = "cleaner"
    would = "emitted"
    amount: Callable[[float], str] = grams_text
    if by.unit.goal == PRICE:
        cheaper = "cheaper"
        would = "cost"
        currency, _, _ = by.unit.name.partition("/")
        amount = Factors(currency=currency).amount
    # A schedule is not moved for less: the next weeks differ by more than that.
    if best.saved < WORTH:
        return (
            f"By {name} no other hour of the day would have been {cheaper} by {100 * WORTH:g} % "
            f"for these {runs}."
        )
    when = f"{best.delay_h} h later"
    if best.start_hour is not None:
        hour = (best.start_hour + best.delay_h) % 24
        when = f"at {hour:02d}:00 instead of {best.start_hour:02d}:00 ({zone})"
    return (
        f"By {name} the energy of {runs} would have {would} {amount(best.cost_then)} instead of "
        f"{amount(best.cost_now)} ({share_text(best.saved)} less) {when}."
    )
