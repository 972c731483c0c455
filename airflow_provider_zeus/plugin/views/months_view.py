"""Costs and savings of all jobs in a calendar month (UTC), beside the month before. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import BaseModel

from airflow_provider_zeus.model.energy_source import TIME_ALONE, kind_of, kind_text
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.groups import sum_of_known
from airflow_provider_zeus.model.period_sum import PeriodSum
from airflow_provider_zeus.model.trial import Observation
from airflow_provider_zeus.plugin.answer_parts import Answer, Chart, Figure, Source, Table, Tile
from airflow_provider_zeus.plugin.charts.chart_parts import (
    COLOURS,
    LEGEND,
    Option,
    bars,
    base,
    grid,
    number,
    plain,
    scale,
    value_axis,
)
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.text.factors import Factors, grams_of
from airflow_provider_zeus.plugin.text.headline import spent_tiles
from airflow_provider_zeus.plugin.text.saved_text import ShownSaving, Took, saved_answer
from airflow_provider_zeus.reports.baseline import OLD
from airflow_provider_zeus.reports.month_spent import (
    GROUPINGS,
    SPENT,
    DagAbout,
    GroupSum,
    by_group,
    group_rows,
)
from airflow_provider_zeus.reports.months import (
    SavedDraws,
    SavedSum,
    Spent,
    added,
    by_kind,
    co2e_g_saved,
    money_saved,
    month_title,
    silent_text,
)
from airflow_provider_zeus.units import UNKNOWN, at_least, counted, energy_text, time_text

JOBS = 7  # more colours cannot be told apart; the other jobs are one more
NO_RUN = "No run began in this month or the one before."
NOTHING = "Not known: no job's default has run and can be compared."


class MonthKind(BaseModel):
    """The sums of one kind of source, which are never added to those of another one.

    Kinds are measured, estimated, simulated, or time alone.
    """

    kind: str
    source: Source
    answers: list[Answer]
    groups: list[Table]


def month_answer(
    sums: Sequence[PeriodSum],
    months: Sequence[str],
    factors: Factors,
    about: Mapping[str, DagAbout],
) -> dict[str, Any]:
    """The newest of ``months``, the one before, and the chart of all.

    :param sums: of the jobs that the reader may see; ``period`` is an index of ``months``.
    :param about: tags and owners of their DAGs; empty if they cannot be read.
    """
    last = len(months) - 1
    of_month = [part for part in sums if part.period == last]
    of_month_before = [part for part in sums if part.period == last - 1]
    now = by_kind(of_month)
    before = by_kind(of_month_before)

    def energy_first(kind: str) -> float:
        return -sum_of_known(part.energy_j for part in now.get(kind, ()))

    groups = by_group(of_month, about)
    kinds = []
    for kind in sorted({*now, *before}, key=energy_first):
        # A kind that only the month before has is shown, or that month would lack its cost.
        shown = _month_kind(kind, now.get(kind, []), before.get(kind, []), factors=factors)
        shown.groups = _group_tables(groups, kind, factors)
        kinds.append(shown)
    notes = []
    # Runs that told nothing are in no sum: the reader must know that there are some.
    silent = silent_text(of_month)
    if silent:
        notes.append(f"In no figure: {silent}.")
    silent_before = silent_text(of_month_before)
    if silent_before:
        notes.append(f"In no figure of the month before: {silent_before}.")
    if not of_month and not of_month_before:
        notes = [NO_RUN]
    chart = None
    # Without any run a chart would be an empty frame.
    if kinds:
        # Kinds are never added, so the chart shows the one that took most energy.
        first, *_ = kinds
        of_kind = [part for part in sums if kind_of(part.source) == first.kind]
        chart = months_chart(of_kind, months, first.kind)
    return {
        "month": months[-1],
        "title": month_title(months[-1]),
        # Those with runs: any other would open an empty page.
        "months": [months[i] for i in sorted({part.period for part in sums}, reverse=True)],
        "kinds": kinds,
        "note": " ".join(notes),
        "chart": chart,
    }


def _month_kind(
    kind: str, now: Sequence[PeriodSum], before: Sequence[PeriodSum], *, factors: Factors
) -> MonthKind:
    source = words.badge(sorted({part.source for part in (*now, *before)}, key=str))
    answers = []
    if now:
        answers.append(_spent_of_kind("Spent", now, source, factors=factors))
        # Tasks measured from outside choose nothing, so they can save nothing.
        if not all(part.outside for part in now):
            answers.append(Answer(question="Saved", note="is being worked out …"))
    if before:
        answers.append(_spent_of_kind("The month before", before, source, factors=factors))
    return MonthKind(kind=kind, source=source, answers=answers, groups=[])


def _group_tables(groups: Sequence[GroupSum], kind: str, factors: Factors) -> list[Table]:
    """A table by owner and one by tag; none if no DAG has any."""
    rows_by = {by: group_rows(groups, by, kind, prices=factors) for by in GROUPINGS}
    return [
        Table(
            caption=f"By {by}, {kind_text(kind)}; a DAG with several counts for each",
            columns=[by.capitalize(), "Jobs", *SPENT],
            numeric=[False, True, *(True for _ in SPENT)],
            rows=rows,
        )
        for by, rows in rows_by.items()
        if rows
    ]


def _spent_of_kind(
    question: str, sums: Sequence[PeriodSum], source: Source, *, factors: Factors
) -> Answer:
    spent = Spent.of(sums)
    factors = factors.at_the_time(spent.drawn)
    took = Took(spent.energy_j, spent.time_s)
    tiles = []
    for tile in spent_tiles(took, spent.gpu_s, source, factors=factors):
        is_unpriced = tile.name == "Money" and bool(factors.unpriced)
        # A tile without a figure would ask the reader to wonder which runs lack it.
        if tile.figure.value is not None:
            # The sum is too low by an amount that nobody knows, and says so.
            if spent.without_energy and _is_of_energy(tile, factors):
                tile.figure = _in_part(tile.figure, spent.without_energy)
            tiles.append(tile)
        elif is_unpriced:
            tiles.append(tile)
    return Answer(question=question, about=_of_what(sums), figures=tiles)


def _of_what(sums: Sequence[PeriodSum]) -> str:
    """How many runs of how many jobs were added up, and of the tasks of how many DAGs."""
    of_jobs = [part for part in sums if not part.outside]
    of_tasks = [part for part in sums if part.outside]
    parts = []
    if of_jobs:
        jobs = {part.job_id for part in of_jobs}
        parts.append(f"{_runs(of_jobs)} of {counted(len(jobs), 'job')}")
    if of_tasks:
        dags = {part.dag_id for part in of_tasks}
        parts.append(f"{_runs(of_tasks)} of the tasks of {counted(len(dags), 'DAG')}")
    return ", ".join(parts)


def _runs(sums: Sequence[PeriodSum]) -> str:
    return counted(sum(part.runs for part in sums), "run")


def _is_of_energy(tile: Tile, factors: Factors) -> bool:
    if tile.name == "Money":
        return factors.price_per_kwh is not None
    return tile.name in ("Energy", "CO₂e")


def _in_part(figure: Figure, without_energy: int) -> Figure:
    """A figure that lacks the energy of so many attempts."""
    attempts = counted(without_energy, "attempt")
    more = f"and more that is not known (the energy of {attempts})"
    return Figure(text=at_least(figure.text), exact=f"{figure.exact}, {more}")


def month_saved(
    draws: Sequence[SavedDraws | str], sums: Sequence[PeriodSum], jobs: int, factors: Factors
) -> dict[str, Any]:
    """Savings of the jobs by kind; of those that were fitted so far.

    :param draws: of a job whose saving is not known the reason.
    :param sums: of the month, for the badges.
    :param jobs: in all.
    """
    savings = [of_job for of_job in draws if not isinstance(of_job, str)]
    if len(draws) < jobs:  # a part of the sum may be of the other sign
        progress = f"{len(draws):,} of {counted(jobs, 'job')} added up so far."
        return {"answers": {}, "done": False, "progress": progress}
    kinds = by_kind(sums)
    answers = {}
    for total in added(savings):
        drawn = list[Observation]()
        for part in kinds.get(total.kind, ()):
            # Money by the hours of this month's attempts, not by the prices of today.
            drawn += part.drawn()
        answers[total.kind] = _saved_of_kind(total, factors, drawn)
    for kind in kinds:
        answers.setdefault(kind, Answer(question="Saved", note=NOTHING))
    left_out = ""
    unknown = len(draws) - len(savings)
    if unknown:
        why = "measured alone, its default has not run, or a figure is missing"
        left_out = f"What was saved is not known for {counted(unknown, 'job')}: {why}."
    return {"answers": answers, "done": True, "progress": left_out}


def _saved_of_kind(total: SavedSum, factors: Factors, drawn: Sequence[Observation]) -> Answer:
    """Savings of the jobs of a kind at the prices of a start at once, and by waiting besides.

    :param drawn: by all their attempts in the month.
    """
    about = f"by {counted(total.runs, 'run')} of {counted(total.jobs, 'job')}"
    if total.old:
        about += f", {counted(total.old, 'job')} {OLD} the default"
    if total.aside:
        about += f"; besides, {total.aside.text}"
    spent_j, spent_s, spent_gpu_s = total.spent
    time = _shown("Time", total.time_s, words.duration, spent=spent_s)
    in_unit = partial(words.energy, beside_j=spent_j)
    shown = [_shown("Energy", total.energy_j, in_unit, spent=spent_j), time]
    at_once = factors.at_once(drawn)
    money_by_start, grams_by_start = factors.start_saved(drawn)
    if at_once.priced:
        per_j, per_s = at_once.per_j_and_s(1)
        # What was paid is lower by the saving of the start; the share is of what the default would
        # pay.
        paid = (spent_j or 0.0) * per_j + spent_gpu_s * per_s
        money = money_saved(total, factors, drawn)
        shown.append(_shown("Money", money, at_once.paid, spent=paid - money_by_start))
    if at_once.g_co2e_per_kwh is not None:
        emitted_g = None
        if spent_j is not None:
            emitted_g = spent_j * at_once.g_per_j - grams_by_start
        carbon = co2e_g_saved(total, factors, drawn)
        shown.append(_shown("CO₂e", carbon, grams_of, spent=emitted_g))
    # Without a meter energy and carbon have no figures at all.
    if total.kind == TIME_ALONE:
        shown = [saving for saving in shown if saving.saved.value is not None]
    return saved_answer(about, shown, old=total.old > 0)


def _shown(
    name: str, saved: Estimate, figure: Callable[[float], Figure], *, spent: float | None
) -> ShownSaving:
    """``spent``: by the runs; with the saving it is the cost of the defaults."""
    baseline = None
    if spent is not None and saved.value is not None:
        baseline = saved.value + spent
    return ShownSaving(name, saved, figure=figure, baseline=baseline)


def months_chart(sums: Sequence[PeriodSum], months: Sequence[str], kind: str) -> Chart:
    """Energy by month and job, stacked; time if nothing measures energy.

    :param sums: of one kind of source; ``period`` is an index of ``months``.
    """
    what = "time"
    unit = "s"
    text: Callable[[float], str] = time_text
    if any(part.energy_j for part in sums):
        what = "energy"
        unit = "J"
        text = energy_text
    title = f"{what.capitalize()} by month, {kind_text(kind)}"
    of_job: dict[str, list[float]] = {}
    for part in sums:
        amounts = of_job.setdefault(part.job_id, [0.0] * len(months))
        amount = part.energy_j if unit == "J" else part.time_s
        amounts[part.period] += amount or 0.0
    rows = _with_others(of_job)
    totals = _added(list(rows.values()))
    if not any(totals):
        return Chart(title=title, note="Nothing was spent yet.")
    scale_unit = scale(max(totals), unit)
    series = [
        bars(plain(name), colour, _bar_points(name, row, months, scale_unit.size, text))
        for (name, row), colour in zip(rows.items(), COLOURS, strict=False)
    ]
    option = base(
        grid=grid(),
        legend=LEGEND,
        xAxis={"type": "category", "data": list(months)},
        yAxis=value_axis(f"{what} [{scale_unit.name}]", 44, min=0),
        series=series,
    )
    lines = [
        [month, text(amount), *(text(own) if own else UNKNOWN for own in of_month)]
        for month, amount, *of_month in zip(months, totals, *rows.values(), strict=True)
    ]
    return Chart(
        title=title,
        option=option,
        text=f"{months[-1]}: {text(totals[-1])} in all.",
        table=Table(
            caption=title,
            columns=["Month", "All jobs", *rows],
            numeric=[False, True, *(True for _ in rows)],
            rows=lines[::-1],
        ),
    )


def _with_others(of_job: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """The amounts of the jobs that took most, and of all others together."""
    ordered = sorted(of_job, key=lambda job: (-sum(of_job[job]), job))
    # "Other jobs" with one job in it would hide its name for nothing.
    if len(ordered) <= JOBS + 1:
        return {job: of_job[job] for job in ordered}
    rows = {job: of_job[job] for job in ordered[:JOBS]}
    rows["other jobs"] = _added([of_job[job] for job in ordered[JOBS:]])
    return rows


def _added(rows: Sequence[Sequence[float]]) -> list[float]:
    """The sum of each column."""
    return [sum(column) for column in zip(*rows, strict=True)]


def _bar_points(
    name: str,
    row: Sequence[float],
    months: Sequence[str],
    size: float,
    text: Callable[[float], str],
) -> list[Option]:
    return [
        {"value": number(amount / size), "tip": plain(f"{name}\n{month}: {text(amount)}")}
        for amount, month in zip(row, months, strict=True)
    ]
