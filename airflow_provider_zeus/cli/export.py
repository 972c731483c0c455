"""What is taken out of the trial log: ``airflow zeus export``, and ``read_log()``."""

from __future__ import annotations

import errno
import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from airflow_provider_zeus.cli.shell import command, known, of_all_jobs, opened, say
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.wire import encode
from airflow_provider_zeus.reports.export_rows import COLUMNS, Row, csv_of, exact, flat, json_of, rows_of
from airflow_provider_zeus.store.base import trial_label
from airflow_provider_zeus.store.open import DEFAULT_CONN_ID, open_store
from airflow_provider_zeus.store.rows import points_to_lists

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store


@command
def export(args: Namespace) -> int:
    """Write the trials of one job or of all; the status is 1 where one is left out, as its log is damaged."""
    form = args.format or ("json" if (args.output or "").lower().endswith(".json") else "csv")
    with opened(args) as store:
        if args.job is None:  # read them all before the file is opened
            jobs, status = of_all_jobs(store, lambda job_id: rows_of_jobs(store, [job_id]))
        else:
            jobs, status = {args.job: rows_of_jobs(store, [known(store, args.job)])}, 0
        rows = [row for of_job in jobs.values() for row in of_job]
        left_out = [trial_label(damage) for damage in store.unreadable]
        profiles = [
            {"job_id": job_id, "device_model": model, "device_count": count, "energy_source": source}
            | {"job_version": job_version, "samples": encode(list(samples))}
            for job_id in (jobs if form == "json" else ())
            for (model, count, source), job_version, samples in store.profiles(job_id)
        ]
        with _target(args.output) as file:
            entries = (  # what an import needs and no column has, power over time too, is read trial by trial
                [each | exact(t) | {"returned": t.observation.returned, "points": points_to_lists(store.points(t.key))}]
                for each, t in rows
            )
            for text in csv_of([rows]) if form == "csv" else json_of(entries, profiles):
                file.write(text)
    if args.output:
        say(f"{len(rows)} trial{'' if len(rows) == 1 else 's'} written to {args.output}.")
    if left_out:
        say(f"Left out, since they cannot be read: {', '.join(left_out)}. See 'airflow zeus doctor'.", file=sys.stderr)
    return status


@contextmanager
def _target(path: str | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return

    def private(path: str, flags: int) -> int:  # a link is refused: it could lead to another file
        return os.open(path, flags | os.O_NOFOLLOW, 0o600)

    try:
        with open(path, "w", encoding="utf-8", newline="", opener=private) as file:
            yield file
    except OSError as error:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise StoreError(f"{path!r} cannot be written ({why}): name another file with --output.") from None


def rows_of_jobs(store: Store, jobs: Iterable[str]) -> list[Row]:
    """Every trial of the jobs, one job after the other."""
    return [each for job_id in jobs for rows in rows_of([store.trials(job_id)]) for each in rows]


def read_log(job_id: str | None = None, *, zeus_conn_id: str = DEFAULT_CONN_ID) -> dict[str, list[Any]]:
    """Return all trials as columns of equal length, oldest first: ``pandas.DataFrame(read_log("my_dag.train"))``.

    The names are those of ``airflow zeus export``, units included. A figure that is not known is None; its reason is in
    ``reasons``. ``decision`` and ``reasons`` are JSON texts. A trial that cannot be read is left out.

    :param job_id: one job; default: all of them, one after the other.
    :param zeus_conn_id: Connection of the trial log.

    Raises StoreError: the log cannot be read.
    """
    with closing(open_store(zeus_conn_id, create=False)) as store:
        rows = [flat(row) for row, _ in rows_of_jobs(store, store.jobs() if job_id is None else [job_id])]
    nested = ("decision", "reasons")
    return {name: [json.dumps(row[name]) if name in nested else row[name] for row in rows] for name in COLUMNS}
