"""Chart of what the jobs spent by month. Pure: plain data in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_zeus.plugin.charts.chart_parts import bars, base, number, plain, scale, value_axis
from airflow_provider_zeus.plugin.views.models import Chart, Table
from airflow_provider_zeus.store.base import PeriodSum
from airflow_provider_zeus.units import energy_text, time_text

JOBS = 7  # with a colour of their own; the others are one more
OTHERS = "other jobs"


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
    rows = _largest(of_job)
    totals = [sum(column) for column in zip(*rows.values(), strict=True)]
    if not any(totals):
        return Chart(title=title, note="Nothing was spent yet.")
    size, unit = scale(max(totals), "Wh" if energy else "s")
    option = base(
        grid={"left": 64, "right": 24, "top": 30, "bottom": 66},
        legend={"type": "scroll", "bottom": 0},
        xAxis={"type": "category", "data": list(months)},
        yAxis=value_axis(f"{what} [{unit}]", 44, min=0),
        series=[
            bars(
                plain(name),
                n,
                [
                    {"value": number(v / size), "tip": plain(f"{name}\n{month}: {text(v)}")}
                    for v, month in zip(row, months, strict=True)
                ],
            )
            for n, (name, row) in enumerate(rows.items())
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


def _largest(of_job: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """The jobs that spent most, and the sum of the others."""
    ordered = sorted(of_job, key=lambda job: (-sum(of_job[job]), job))
    if len(ordered) <= JOBS + 1:
        return {job: of_job[job] for job in ordered}
    rest = [sum(column) for column in zip(*(of_job[job] for job in ordered[JOBS:]), strict=True)]
    return {**{job: of_job[job] for job in ordered[:JOBS]}, OTHERS: rest}
