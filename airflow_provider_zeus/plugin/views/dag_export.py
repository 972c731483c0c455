"""The rows of the trial log as CSV or JSON. Pure."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import Any

from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.printable import cell
from airflow_provider_zeus.store.rows import to_row

MOST = 10_000  # runs in one file
TYPES = {"csv": "text/csv; charset=utf-8", "json": "application/json"}


def csv_of(pieces: Iterable[Sequence[Trial]]) -> Iterator[str]:
    """A line per trial, in order of number; None is an empty cell, a nested field is JSON in its cell.

    A text is in one line; one that a spreadsheet would take for a formula has an apostrophe before it.
    """
    out, head = io.StringIO(), True
    writer = csv.writer(out)
    for trials in pieces:
        for row in map(shown_row, trials):
            if head:
                writer.writerow(row)
                head = False
            writer.writerow([cell(value) for value in row.values()])
        yield out.getvalue()
        out.seek(0)
        out.truncate()
    if head:
        yield ""


def json_of(pieces: Iterable[Sequence[Trial]], *, job_id: str, store: str, more: bool) -> Iterator[str]:
    """One document, its ``trials`` in order of number, as the store holds them."""
    head = {"job_id": job_id, "store": store, "more": more}
    before = f'{json.dumps(head)[:-1]}, "trials": [\n'
    for trials in filter(None, pieces):
        yield before + ",\n".join(json.dumps(shown_row(trial)) for trial in trials)
        before = ",\n"
    yield "\n]}\n" if before == ",\n" else f"{before}]}}\n"


def shown_row(trial: Trial) -> dict[str, Any]:
    """The row of a trial without what a list of runs does not read: what it returned, and the metric by epoch."""
    return {name: value for name, value in to_row(trial).items() if name not in ("returned", "epoch_metrics")}


def file_name(job_id: str, day: date, kind: str) -> str:
    """``zeus-<job>-<day>.csv``, of characters that are valid on every system."""
    return f"zeus-{re.sub(r'[^A-Za-z0-9._-]+', '_', job_id)[:100]}-{day:%Y-%m-%d}.{kind}"
