"""What all jobs spent and saved in a calendar month (UTC), beside the month before. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import BaseModel

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import Observation
from airflow_provider_zeus.plugin.charts.chart_parts import COLOURS, bars, base, number, plain, scale, value_axis
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.text.headline import spent_tiles
from airflow_provider_zeus.plugin.text.saved_text import Told, saved_answer
from airflow_provider_zeus.plugin.views.factors import Factors, grams_of
from airflow_provider_zeus.plugin.views.models import Answer, Chart, Figure, Source, Table
from airflow_provider_zeus.reports.baseline import OLD
from airflow_provider_zeus.reports.month_spent import GROUPINGS, SPENT, DagAbout, by_group, group_rows
from airflow_provider_zeus.reports.months import (
    TIME_ALONE,
    PeriodSum,
    SavedDraws,
    SavedSum,
    Spent,
    added,
    by_kind,
    co2e_g_saved,
    kind_of,
    money_saved,
    month_title,
    silent_text,
)
from airflow_provider_zeus.units import at_least, counted, energy_text, time_text

JOBS = 7  # of the chart with a colour of their own; the others are one more
NO_RUN = "No run began in this month or the one before."
NOTHING = "Not known: no job's default has run and can be compared."


class MonthKind(BaseModel):
    """The sums of one kind of source: measured, estimated, simulated, or time alone. They are never added."""

    kind: str
    source: Source
    answers: list[Answer]  # what was spent, and the month before
    groups: list[Table]  # by owner and by tag


def month_answer(
    sums: Sequence[PeriodSum], months: Sequence[str], factors: Factors, about: Mapping[str, DagAbout]
) -> dict[str, Any]:
    """The newest of ``months``, the one before, and the chart of all.

    :param sums: of the jobs that the reader may see; ``period`` is an index of ``months``.
    :param about: tags and owners of their DAGs; empty where they cannot be read.
    """
    last = len(months) - 1
    now = by_kind([s for s in sums if s.period == last])
    before = by_kind([s for s in sums if s.period == last - 1])
    kinds = sorted({*now, *before}, key=lambda kind: -sum(s.energy_j or 0.0 for s in now.get(kind, ())))
    charted = kinds[0] if kinds else None
    groups = by_group((s for s in sums if s.period == last), about)
    shown = []
    for kind in kinds:
        source = words.badge(sorted({s.source for s in (*now.get(kind, ()), *before.get(kind, ()))}, key=str))
        answers = []
        if kind in now:
            answers.append(_spent_of_kind("Spent", now[kind], source, factors))
            answers.append(Answer(question="Saved", note="is being worked out …"))
        if kind in before:
            answers.append(_spent_of_kind("The month before", before[kind], source, factors))
        tables = [
            Table(
                caption=f"By {by}, {kind}; a DAG with several counts for each",
                columns=[by.capitalize(), "Jobs", *SPENT],
                numeric=[False, True, *(True for _ in SPENT)],
                rows=lines,
            )
            for by in GROUPINGS
            if (lines := group_rows(groups, by, kind, factors))
        ]
        shown.append(MonthKind(kind=kind, source=source, answers=answers, groups=tables))
    silent = [silent_text(s for s in sums if s.period == period) for period in (last, last - 1)]
    which = ("In no figure", "In no figure of the month before")
    note = " ".join(f"{where}: {text}." for where, text in zip(which, silent, strict=True) if text)
    note = note if any(s.period >= last - 1 for s in sums) else NO_RUN
    return {
        "month": months[-1],
        "title": month_title(months[-1]),
        "months": [months[i] for i in sorted({s.period for s in sums}, reverse=True)],  # that have runs
        "kinds": shown,
        "note": note,
        "chart": months_chart([s for s in sums if kind_of(s.source) == charted], months, charted) if charted else None,
    }


def _spent_of_kind(question: str, sums: Sequence[PeriodSum], source: Source, factors: Factors) -> Answer:
    spent = Spent.of(sums)
    factors = factors.at_the_time(spent.drawn)
    tiles = spent_tiles(spent.energy_j, spent.time_s, spent.gpu_s, source, factors)
    known = [tile for tile in tiles if tile.figure.value is not None or (tile.name == "Money" and factors.unpriced)]
    for tile in (each for each in known if spent.without_energy and each.figure.value is not None):
        if tile.name in ("Energy", "CO₂e") or (tile.name == "Money" and factors.price_per_kwh is not None):
            more = f"and more that is not known (the energy of {counted(spent.without_energy, 'attempt')})"
            tile.figure = Figure(text=at_least(tile.figure.text), exact=f"{tile.figure.exact}, {more}")
    about = f"{counted(spent.runs, 'run')} of {counted(spent.jobs, 'job')}"
    return Answer(question=question, about=about, figures=known)


def month_saved(
    found: Sequence[SavedDraws | str], sums: Sequence[PeriodSum], jobs: int, factors: Factors
) -> dict[str, Any]:
    """What the jobs saved, by kind; of those that were fitted so far.

    :param sums: of the month, for the badges.
    :param jobs: in all.
    """
    kinds = by_kind(sums)
    known = [each for each in found if not isinstance(each, str)]
    answers = {
        total.kind: _saved_of_kind(
            total,
            factors,
            [attempt for s in kinds.get(total.kind, ()) for attempt in s.drawn()],
        )
        for total in (added(known) if len(found) == jobs else ())  # a part of the sum may be of the other sign
    }
    unknown = len(found) - len(known)
    done = len(found) == jobs
    for kind in kinds if done else ():
        answers.setdefault(kind, Answer(question="Saved", note=NOTHING))
    why = "measured alone, its default has not run, or a figure is missing"
    left = f"Not known for {counted(unknown, 'job')}: {why}." if unknown else ""
    progress = left if done else f"{len(found):,} of {jobs:,} jobs are added up so far."
    return {"answers": answers, "done": done, "progress": progress}


def _saved_of_kind(found: SavedSum, factors: Factors, drawn: Sequence[Observation]) -> Answer:
    """What the jobs of a kind saved at the prices of a start at once, and what waiting for another saved besides.

    :param drawn: by all their attempts in the month.
    """
    by = f"{counted(found.runs, 'run')} of {counted(found.jobs, 'job')}"
    old = f", {counted(found.old, 'job')} {OLD} the default" if found.old else ""
    about = f"by {by}{old}"
    energy, time = found.energy_j, found.time_s
    told = [
        Told("Energy", energy, partial(words.energy, beside_j=found.spent[0]), _without(energy, found.spent[0])),
        Told("Time", time, words.duration, _without(time, found.spent[1])),
    ]
    at_once, by_start = factors.at_once(drawn), factors.start_saved(drawn)
    spent_j, _, spent_gpu_s = found.spent
    if at_once.priced:
        per_j, per_s = at_once.per_j_and_s(1)
        money, paid = money_saved(found, factors, drawn), (spent_j or 0.0) * per_j + spent_gpu_s * per_s
        told.append(Told("Money", money, at_once.paid, _without(money, paid - by_start[0])))
    if at_once.g_co2e_per_kwh is not None:
        carbon, grams = co2e_g_saved(found, factors, drawn), None if spent_j is None else spent_j * at_once.g_per_j
        baseline = _without(carbon, None if grams is None else grams - by_start[1])
        told.append(Told("CO₂e", carbon, grams_of, baseline))
    if found.kind == TIME_ALONE:
        told = [of for of in told if of.saved.value is not None]
    return saved_answer(about, told, old=found.old > 0)


def _without(saved: Estimate, spent: float | None) -> float | None:
    """What the runs would have spent with their defaults."""
    return None if saved.value is None or spent is None else saved.value + spent


def months_chart(sums: Sequence[PeriodSum], months: Sequence[str], kind: str) -> Chart:
    """Energy by month and job, stacked; time where nothing measures energy.

    :param sums: of one kind of source; ``period`` is an index of ``months``.
    """
    energy = any(s.energy_j for s in sums)
    what, text = ("energy", energy_text) if energy else ("time", time_text)
    title = f"{what.capitalize()} by month, {kind}"
    of_job: dict[str, list[float]] = {}
    for s in sums:
        months_of = of_job.setdefault(s.job_id, [0.0] * len(months))
        months_of[s.period] += (s.energy_j if energy else s.time_s) or 0.0
    ordered = sorted(of_job, key=lambda job: (-sum(of_job[job]), job))
    most = len(ordered) if len(ordered) <= JOBS + 1 else JOBS
    rows = {job: of_job[job] for job in ordered[:most]}
    if most < len(ordered):
        rows["other jobs"] = [sum(column) for column in zip(*(of_job[job] for job in ordered[most:]), strict=True)]
    totals = [sum(column) for column in zip(*rows.values(), strict=True)]
    if not any(totals):
        return Chart(title=title, note="Nothing was spent yet.")
    size, unit = scale(max(totals), "J" if energy else "s")
    option = base(
        grid={"left": 64, "right": 24, "top": 30, "bottom": 66},
        legend={"type": "scroll", "bottom": 0},
        xAxis={"type": "category", "data": list(months)},
        yAxis=value_axis(f"{what} [{unit}]", 44, min=0),
        series=[
            bars(
                plain(name),
                colour,
                [
                    {"value": number(v / size), "tip": plain(f"{name}\n{month}: {text(v)}")}
                    for v, month in zip(row, months, strict=True)
                ],
            )
            for (name, row), colour in zip(rows.items(), COLOURS, strict=False)
        ],
    )
    lines = [
        [month, text(totals[i]), *(text(row[i]) if row[i] else "–" for row in rows.values())]
        for i, month in reversed(list(enumerate(months)))
    ]
    return Chart(
        title=title,
        option=option,
        text=f"{months[-1]}: {text(totals[-1])} in all.",
        table=Table(
            caption=title,
            columns=["Month", "All jobs", *rows],
            numeric=[False, True, *(True for _ in rows)],
            rows=lines,
        ),
    )
