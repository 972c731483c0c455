"""``airflow zeus report``: a month by job, owner or tag, on standard output."""

from __future__ import annotations

import csv
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_zeus.cli.shell import command, opened, print_json, say, show
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.hooks.zeus import about_dags, month_saved
from airflow_provider_zeus.model.energy_source import kind_text
from airflow_provider_zeus.model.job_ids import names_in
from airflow_provider_zeus.model.period_sum import PeriodSum
from airflow_provider_zeus.printable import cell
from airflow_provider_zeus.reports import month_report
from airflow_provider_zeus.reports.month_spent import (
    GROUP_COLUMNS,
    SPENT,
    DagAbout,
    by_group,
    group_record,
    group_rows,
)
from airflow_provider_zeus.reports.months import SavedDraws, month_bounds, month_of, silent_text
from airflow_provider_zeus.signals.prices import Prices, in_force

OUTSIDE = "its tasks are measured from outside"


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthTable:
    """A month in the three forms in which it is printed."""

    columns: Sequence[str]
    records: Sequence[Mapping[str, Any]]
    rows: Sequence[Mapping[str, str]]
    empty: str  # an empty table would look like a failure
    note: str = ""


@command
def report(args: Namespace) -> None:
    """Print the cost of each job, owner or tag in a month; of each job also the saving."""
    month = args.month or month_of(time.time())
    try:
        begin_s, end_s = month_bounds(month, 1)
    except ValueError:
        raise JobSpecError.of("month", month, "no month", 'write it as "2026-11"') from None
    with opened(args) as store:
        sums = store.sums([begin_s, end_s])
        # Only a job has a default to compare with: owners and tags have sums alone.
        if args.by == "job":
            jobs = sorted({(s.dag_id, s.job_id) for s in sums if not s.outside})
            saved = {key: month_saved(store, *key, begin_s, end_s) for key in jobs}
            # What is measured from outside is never tuned, so there is no saving to tell.
            saved |= {(s.dag_id, s.job_id): OUTSIDE for s in sums if s.outside}
            table = by_job(month, sums, saved, prices=in_force())
        else:
            about = about_dags({s.dag_id for s in sums})
            table = by_owner_or_tag(month, args.by, sums, about, prices=in_force())
    _print(table, args.output)


def by_job(
    month: str,
    sums: Sequence[PeriodSum],
    saved: Mapping[month_report.DagJob, SavedDraws | str],
    prices: Prices,
) -> MonthTable:
    """The month by job. ``saved``: the saving of each job, or why it is not known."""
    rows = month_report.month_rows(sums, saved)
    note = ""
    silent = silent_text(sums)
    if silent:
        note = f"In no figure: {silent}."
    cells = [month_report.job_cells(row, prices) for row in rows]
    # The jobs' names tell the DAG, and a column more makes a terminal's lines break.
    if all(names_in(row.job_id)[0] == row.dag_id for row in rows):
        for row_cells in cells:
            del row_cells["dag"]
    return MonthTable(
        columns=month_report.COLUMNS,
        records=month_report.job_records(month, rows, month_report.silent_attempts(sums), prices),
        rows=cells,
        empty="No run that reported its figures began in this month.",
        note=note,
    )


def by_owner_or_tag(
    month: str, by: str, sums: Sequence[PeriodSum], about: Mapping[str, DagAbout], prices: Prices
) -> MonthTable:
    """The month by ``owner`` or by ``tag``. ``about``: owners and tags by DAG."""
    groups = [group for group in by_group(sums, about) if group.by == by]
    names = [name.lower() for name in ("jobs", *SPENT)]
    rows = []
    # Estimated joules would make a sum of measured ones an estimate, too.
    for kind in dict.fromkeys(group.kind for group in groups):
        rows += [
            {by: name, "source": kind_text(kind), **dict(zip(names, cells, strict=True))}
            for name, *cells in group_rows(groups, by, kind, prices)
        ]
    return MonthTable(
        columns=GROUP_COLUMNS,
        records=[{"month": month, **group_record(group, prices)} for group in groups],
        rows=rows,
        empty="No run of a DAG that Airflow knows began in this month.",
    )


def _print(table: MonthTable, output: str) -> None:
    if output == "json":
        print_json(table.records)
        return
    if output == "csv":
        writer = csv.DictWriter(sys.stdout, table.columns)
        writer.writeheader()
        for record in table.records:
            # A spreadsheet would compute a name that begins with "=".
            writer.writerow({name: cell(value) for name, value in record.items()})
        return
    show(table.rows, empty=table.empty)
    if table.note:
        say(table.note)
