"""The report of a calendar month (UTC): what each job spent and saved, by kind of source, as rows and as HTML. Pure.

Figures of different kinds are never added. What jobs saved together is drawn (``months.py``). The page is made by
Jinja2, which comes with Airflow, and escapes all that it is given.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.printable import cell, visible
from airflow_provider_zeus.reports.baseline import OLD
from airflow_provider_zeus.reports.month_spent import (
    GROUPINGS,
    SPENT,
    DagAbout,
    GroupSum,
    by_group,
    group_record,
    group_rows,
    spent_cells,
    spent_record,
)
from airflow_provider_zeus.reports.months import (
    PeriodSum,
    SavedDraws,
    SavedSum,
    Spent,
    added,
    by_kind,
    co2e_g_saved,
    money_saved,
    silent_text,
)
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.units import (
    J_PER_KWH,
    S_PER_H,
    UNKNOWN,
    counted,
    energy_text,
    grams_text,
    money_text,
    time_text,
)

DagJob = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthRow:
    """What one job of a DAG spent and saved in the month, of one kind of source."""

    dag_id: str
    job_id: str
    kind: str  # measured | estimated | simulated | time alone
    spent: Spent
    unknown: int  # attempts that reported nothing
    saved: SavedSum | str  # or why that is not known

    def saved_estimates(self, prices: Prices) -> dict[str, Estimate]:
        """What its runs saved, by figure."""
        if isinstance(self.saved, str):
            return dict.fromkeys(("energy", "time", "money", "co2e"), Estimate.missing(self.saved))
        money, co2e_g = (of(self.saved, prices, self.spent.drawn) for of in (money_saved, co2e_g_saved))
        return {"energy": self.saved.energy_j, "time": self.saved.time_s, "money": money, "co2e": co2e_g}


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthReport:
    """A month: its rows, what each kind spent in it and in the month before, and what its jobs saved together."""

    month: str
    rows: Sequence[MonthRow]
    spent: Mapping[str, Spent]  # by kind
    before: Mapping[str, Spent]
    saved: Mapping[str, SavedSum]
    prices: Prices
    silent: Sequence[PeriodSum]  # attempts that reported nothing, by job
    groups: Sequence[GroupSum]  # by owner and by tag; empty: nothing is known of the DAGs
    bought: Mapping[DagJob, str]  # what the retrainings of a job bought, where that is known


def month_title(month: str) -> str:
    """ "November 2026" of "2026-11"."""
    return f"{date.fromisoformat(f'{month}-01'):%B %Y}"


def month_report(
    month: str,
    sums: Sequence[PeriodSum],
    saved: Mapping[DagJob, SavedDraws | str],
    prices: Prices,
    about: Mapping[str, DagAbout],
    bought: Mapping[DagJob, str] | None = None,
) -> MonthReport:
    """Put the report together.

    :param sums: of two months: period 0 is the month before, period 1 this one.
    :param saved: what each job of this month saved, or why that is not known.
    :param about: tags and owners by DAG; empty where they cannot be read.
    :param bought: what the retrainings of each job bought, in a sentence, where that is known.
    """
    now, before = (by_kind(s for s in sums if s.period == period) for period in (1, 0))
    silent = [s for s in sums if s.period == 1 and s.unknown]
    rows = []
    for kind, of_kind in now.items():
        for key in dict.fromkeys((s.dag_id, s.job_id) for s in of_kind):
            draws = saved.get(key) or "no run of it can be read here"
            if isinstance(draws, SavedDraws) and draws.kind != kind:
                draws = "the default is known by another kind of source"
            row = MonthRow(
                dag_id=key[0],
                job_id=key[1],
                kind=kind,
                spent=Spent.of([s for s in of_kind if (s.dag_id, s.job_id) == key]),
                unknown=sum(s.unknown for s in silent if (s.dag_id, s.job_id) == key),
                saved=draws if isinstance(draws, str) else SavedSum.of(kind, [draws]),
            )
            rows.append(row)
    return MonthReport(
        month=month,
        rows=sorted(rows, key=lambda r: (r.kind, -(r.spent.energy_j or 0.0), -r.spent.time_s, r.job_id)),
        spent={kind: Spent.of(of_kind) for kind, of_kind in now.items()},
        before={kind: Spent.of(of_kind) for kind, of_kind in before.items()},
        saved={each.kind: each for each in added(draws for draws in saved.values() if not isinstance(draws, str))},
        prices=prices,
        silent=silent,
        groups=by_group((s for s in sums if s.period == 1), about),
        bought=bought or {},
    )


_SAVED = {  # column -> figure of MonthRow.saved_estimates, end of its interval, size of the unit
    name.format(end): (figure, field, size)
    for figure, name, size in (
        ("energy", "saved_energy_{}kwh", J_PER_KWH),
        ("time", "saved_time_{}h", S_PER_H),
        ("money", "saved_{}money", 1.0),
        ("co2e", "saved_co2e_{}kg", 1000.0),
    )
    for end, field in (("", "value"), ("low_", "low"), ("high_", "high"))
}
_SPENT = ("runs", "energy_kwh", "time_h", "gpu_h", "money", "currency", "co2e_kg", "attempts_without_energy")
COLUMNS = (
    *("month", "dag_id", "job_id", "kind"),
    *_SPENT,
    *_SAVED,
    *("saved_not_known", "attempts_without_figures"),
)  # of the CSV file


def as_csv(report: MonthReport) -> str:
    """The CSV file of jobs."""
    return _csv(COLUMNS, as_records(report))


def groups_csv(report: MonthReport) -> str:
    """The CSV file of owners and tags."""
    records = ({"month": report.month, **group_record(group, report.prices)} for group in report.groups)
    return _csv(("month", "by", "name", "kind", "jobs", *_SPENT), records)


def _csv(columns: Sequence[str], records: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in record.items()} for record in records)
    return text.getvalue()


def as_records(report: MonthReport) -> list[dict[str, Any]]:
    """The lines of the CSV file: of each job and kind of source, and of jobs of which nothing is known but attempts."""
    unknown: dict[DagJob, int] = {}
    for s in report.silent:
        unknown[s.dag_id, s.job_id] = unknown.get((s.dag_id, s.job_id), 0) + s.unknown
    for row in report.rows:
        unknown.pop((row.dag_id, row.job_id), None)
    return [as_record(row, report) for row in report.rows] + [
        {"month": report.month, "dag_id": key[0], "job_id": key[1], "attempts_without_figures": count}
        for key, count in sorted(unknown.items())
    ]


def as_record(row: MonthRow, report: MonthReport) -> dict[str, Any]:
    """One line of the CSV file; None: not known."""
    saved = row.saved_estimates(report.prices)
    ends = {column: (getattr(saved[figure], field), size) for column, (figure, field, size) in _SAVED.items()}
    return {
        "month": report.month,
        "dag_id": row.dag_id,
        "job_id": row.job_id,
        "kind": row.kind,
        **spent_record(row.spent, report.prices),
        **{column: None if value is None else value / size for column, (value, size) in ends.items()},
        "saved_not_known": saved["energy"].reason if saved["energy"].value is None else None,
        "attempts_without_figures": row.unknown,
    }


def as_html(report: MonthReport) -> str:
    """One page without scripts and without anything from elsewhere, fit for a mail."""
    from jinja2 import Environment

    by_kinds = []
    for kind in dict.fromkeys([*(row.kind for row in report.rows), *report.spent, *report.before]):
        rows = [_cells(row, report.prices) for row in report.rows if row.kind == kind]
        groups = [(by.capitalize(), group_rows(report.groups, by, kind, report.prices)) for by in GROUPINGS]
        by_kinds.append((kind, _lines(kind, report), rows, [(by, lines) for by, lines in groups if lines]))
    template = Path(__file__).with_name("month.html.jinja").read_text(encoding="utf-8")
    return (
        Environment(autoescape=True, trim_blocks=True, keep_trailing_newline=True)
        .from_string(template)
        .render(
            title=month_title(report.month),
            kinds=by_kinds,
            names=("Job", "DAG", *SPENT, "Energy saved", "Time saved", "Money saved"),
            group_names=("Jobs", *SPENT),
            silent=silent_text(report.silent),
            bought=[(visible(job), visible(dag), visible(text)) for (dag, job), text in report.bought.items()],
        )
    )


def _lines(kind: str, report: MonthReport) -> list[str]:
    """What a kind spent and saved in the month, and what it spent in the month before."""
    spent, saved, before = report.spent.get(kind), report.saved.get(kind), report.before.get(kind)
    lines = [f"Spent: {_spent(spent, report.prices)}"] if spent else ["No run in this month."]
    if saved is not None:
        drawn = spent.drawn if spent else ()
        currency = report.prices.at_the_time(drawn).currency
        known = [f"{_amount(saved.energy_j, energy_text)} of energy", f"{_amount(saved.time_s, time_text)} of time"]
        for of, text in ((money_saved, lambda v: money_text(v, currency)), (co2e_g_saved, grams_text)):
            estimate = of(saved, report.prices, drawn)
            known += [] if estimate.value is None else [_amount(estimate, text)]
        old = f", {counted(saved.old, 'job')} {OLD} the default" if saved.old else ""
        lines.append(f"Saved by {counted(saved.jobs, 'job')}{old}: {', '.join(known)}")
        if saved.started is not None:
            energy_of, time_of = _amount(saved.started[0], energy_text), _amount(saved.started[1], time_text)
            lines.append(f"Of that by starts from earlier models: {energy_of} of energy, {time_of} of time")
    elif spent:
        lines.append("Saved: not known for any job")
    return lines + ([f"The month before: {_spent(before, report.prices)}"] if before else [])


def _spent(spent: Spent, prices: Prices) -> str:
    parts = [text for text in spent_cells(spent, prices)[1:] if text != UNKNOWN]
    return f"{', '.join(parts)}, in {counted(spent.runs, 'run')} of {counted(spent.jobs, 'job')}"


def _cells(row: MonthRow, prices: Prices) -> list[str]:
    """The cells of a job in the table."""
    saved, currency = row.saved_estimates(prices), prices.at_the_time(row.spent.drawn).currency
    return [
        visible(row.job_id),
        visible(row.dag_id),
        *spent_cells(row.spent, prices),
        _amount(saved["energy"], energy_text),
        _amount(saved["time"], time_text),
        UNKNOWN if saved["money"].value is None else _amount(saved["money"], lambda v: money_text(v, currency)),
    ]


def _amount(saved: Estimate, text: Callable[[float], str]) -> str:
    """A saving with its interval; a loss and what is undecided are said so."""
    if saved.value is None:
        return f"not known ({saved.reason or ''})"
    low, high = saved.low or 0.0, saved.high or 0.0
    if low < 0 < high or saved.value == 0:
        return f"not clear yet ({text(abs(low))} lost to {text(high)} saved)" if low < 0 else text(0.0)
    ends = sorted((abs(low), abs(high)))
    lost = " lost" if saved.value < 0 else ""
    return f"{text(abs(saved.value))}{lost} ({text(ends[0])} to {text(ends[1])})"
