"""The rows of the trial log as CSV or JSON. Pure."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from datetime import date

from airflow_provider_zeus.optimizer.trial import Trial
from airflow_provider_zeus.store.rows import to_row
from airflow_provider_zeus.visible import cell

MOST = 10_000  # runs in one file
TYPES = {"csv": "text/csv; charset=utf-8", "json": "application/json"}
_AT_ONCE = 200  # trials written between two pieces


def csv_of(trials: Sequence[Trial]) -> Iterator[str]:
    """A line per trial, in order of number; what is None is empty, a nested field is JSON in its cell.

    A text that a spreadsheet would take for a formula has an apostrophe before it; a text is in one line.
    """
    out = io.StringIO()
    writer = csv.writer(out)
    for i, trial in enumerate(trials):
        row = to_row(trial)
        if i == 0:
            writer.writerow(row)
        writer.writerow([cell(value) for value in row.values()])
        if i % _AT_ONCE == 0:
            yield _taken(out)
    yield _taken(out)


def _taken(out: io.StringIO) -> str:
    text = out.getvalue()
    out.seek(0)
    out.truncate()
    return text


def json_of(trials: Sequence[Trial], *, job_id: str, store: str, more: bool) -> Iterator[str]:
    """One document, its ``trials`` in order of number, as the store holds them."""
    head = {"job_id": job_id, "store": store, "more": more}
    yield f'{json.dumps(head)[:-1]}, "trials": ['
    for i, trial in enumerate(trials):
        yield f"{',' if i else ''}\n{json.dumps(to_row(trial))}"
    yield "\n]}\n"


def file_name(job_id: str, day: date, kind: str) -> str:
    """``zeus-<job>-<day>.csv``, of characters that every system takes."""
    return f"zeus-{re.sub(r'[^A-Za-z0-9._-]+', '_', job_id)[:100]}-{day:%Y-%m-%d}.{kind}"
