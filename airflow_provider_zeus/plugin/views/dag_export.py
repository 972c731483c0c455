"""The trials of a DAG's job as a CSV or JSON file, in the form of ``airflow zeus export``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date

from airflow_provider_zeus.cli import export_rows
from airflow_provider_zeus.model.trial import Trial

MOST = 10_000  # runs in one file
TYPES = {"csv": "text/csv; charset=utf-8", "json": "application/json"}


def csv_of(pieces: Iterable[Sequence[Trial]]) -> Iterator[str]:
    """The lines of an export, in order of number."""
    return export_rows.csv_of(export_rows.rows_of(pieces))


def json_of(pieces: Iterable[Sequence[Trial]], *, job_id: str, store: str, more: bool) -> Iterator[str]:
    """A document that ``airflow zeus import`` reads, without what a run returned, power over time, and profiles.

    :param more: whether there are older runs that it does not hold.
    """
    entries = ([{**row, **export_rows.exact(trial)} for row, trial in rows] for rows in export_rows.rows_of(pieces))
    return export_rows.json_of(entries, head={"job_id": job_id, "store": store, "more": more})


def file_name(job_id: str, day: date, kind: str) -> str:
    """``zeus-<job>-<day>.csv``, of characters that are valid on every system."""
    return f"zeus-{re.sub(r'[^A-Za-z0-9._-]+', '_', job_id)[:100]}-{day:%Y-%m-%d}.{kind}"
