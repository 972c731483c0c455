"""The trial log as columns, for pandas, polars or anything else that takes a dict of lists."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_zeus.cli.export import rows_of_jobs
from airflow_provider_zeus.reports.export_rows import COLUMNS, flat
from airflow_provider_zeus.store.open import DEFAULT_CONN_ID, open_store


def read_log(job_id: str | None = None, *, zeus_conn_id: str = DEFAULT_CONN_ID) -> dict[str, list[Any]]:
    """Return all trials as columns of equal length, oldest first: ``pandas.DataFrame(read_log("my_dag.train"))``.

    The names are those of ``airflow zeus export``, units included. A figure that is not known is None; its reason is in
    ``reasons``. ``decision`` and ``reasons`` are JSON texts. A trial that cannot be read is left out.

    :param job_id: one job; default: all of them, one after the other.
    :param zeus_conn_id: Connection of the trial log.

    Raises StoreError: the log cannot be read.
    """
    store = open_store(zeus_conn_id, create=False)
    try:
        rows = [flat(row) for row, _ in rows_of_jobs(store, store.jobs() if job_id is None else [job_id])]
    finally:
        store.close()
    nested = ("decision", "reasons")
    return {name: [json.dumps(row[name]) if name in nested else row[name] for row in rows] for name in COLUMNS}
