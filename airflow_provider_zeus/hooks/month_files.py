"""The report of a month as files: from the trial log to an HTML page and a CSV file."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.hooks.month_report import COLUMNS, DagJob, MonthReport, as_html, as_records, month_report
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.printable import cell
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.months import SavedDraws, month_bounds, saved_between
from airflow_provider_zeus.signals.prices import Prices, of_airflow, read

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

NEWEST = 1000  # runs of a job that its savings are estimated from: those of the pages


def write_month(store: Store, month: str, folder: Path) -> list[Path]:
    """Write ``zeus-<month>.html`` and ``zeus-<month>.csv``; returns both paths.

    :param month: in UTC, such as "2026-11".

    Raises JobSpecError: no month, or a folder that cannot be written to; StoreError.
    """
    try:
        bounds = month_bounds(month, 2)
    except ValueError:
        raise JobSpecError.of("month", month, "no month", 'write it as "2026-11"') from None
    found = _report(store, month, bounds)
    files = [folder / f"zeus-{month}.{ending}" for ending in ("html", "csv")]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in zip(files, (as_html(found), _csv(found)), strict=True):
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        remedy = "name a folder that you may write to"
        raise JobSpecError.of("folder", str(folder), str(error.strerror), remedy) from None
    return files


def _report(store: Store, month: str, bounds: Sequence[float]) -> MonthReport:
    sums = store.sums(bounds)
    jobs = sorted({(s.dag_id, s.job_id) for s in sums if s.period == 1})
    saved = {key: _saved(store, key, bounds) for key in jobs}
    return month_report(month, sums, saved, Prices(**read(of_airflow)))


def _saved(store: Store, key: DagJob, bounds: Sequence[float]) -> SavedDraws | str:
    """What a job saved in the month, or why that is not known."""
    trials: Sequence[Trial] = store.runs(*key, last=NEWEST)
    try:
        job = trials[-1].job.with_settings(store.settings(key[1]))
    except (JobSpecError, IndexError):
        return "no run of it can be read here"
    log = as_dataset(trials, job)
    profiles = [] if log.where is None else store.profile(key[1], log.where, job.job_version)
    return saved_between(log, profiles, bounds[1], bounds[2], random.Random(f"{key[0]} {key[1]}"))


def _csv(found: MonthReport) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in record.items()} for record in as_records(found))
    return text.getvalue()
