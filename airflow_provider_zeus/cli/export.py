"""``airflow zeus export``: writes every field of every trial as CSV or JSON."""

from __future__ import annotations

import errno
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from airflow_provider_zeus.cli.shell import command, known, opened, say
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.model.wire import encode
from airflow_provider_zeus.reports.export_rows import Row, csv_of, exact, json_of, rows_of
from airflow_provider_zeus.store.base import trial_label
from airflow_provider_zeus.store.rows import points_to_lists

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store


@command
def export(args: Namespace) -> None:
    """Write the trials of one job or of all."""
    form = args.format or ("json" if (args.output or "").lower().endswith(".json") else "csv")
    with opened(args) as store:
        jobs = store.jobs() if args.job is None else [known(store, args.job)]
        rows = rows_of_jobs(store, jobs)  # read them all before the file is opened
        left_out = [trial_label(damage) for damage in store.unreadable]
        profiles = [] if form == "csv" else [*_profiles_of(store, jobs)]
        with _target(args.output) as file:
            entries = ([{**each, **_more(store, trial)}] for each, trial in rows)
            for text in csv_of([rows]) if form == "csv" else json_of(entries, profiles):
                file.write(text)
    if args.output:
        say(f"{len(rows)} trial{'' if len(rows) == 1 else 's'} written to {args.output}.")
    if left_out:
        say(f"Left out, since they cannot be read: {', '.join(left_out)}. See 'airflow zeus doctor'.", file=sys.stderr)


@contextmanager
def _target(path: str | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    try:
        with open(path, "w", encoding="utf-8", newline="", opener=_private) as file:
            yield file
    except OSError as error:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise StoreError(f"{path!r} cannot be written ({why}): name another file with --output.") from None


def _private(path: str, flags: int) -> int:
    """Open a file that only this user may read where it is new. A link is refused: it could lead to another file."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def rows_of_jobs(store: Store, jobs: Iterable[str]) -> list[Row]:
    """Every trial of the jobs, one job after the other."""
    return [each for job_id in jobs for rows in rows_of([store.trials(job_id)]) for each in rows]


def _more(store: Store, trial: Trial) -> dict[str, Any]:
    """What an import needs and no column has, what a run returned and power over time among it."""
    points = points_to_lists(store.points(trial.key))  # read trial by trial
    return {**exact(trial), "returned": trial.observation.returned, "points": points}


def _profiles_of(store: Store, jobs: Iterable[str]) -> Iterator[dict[str, Any]]:
    for job_id in jobs:
        for (model, count, source), version, samples in store.profiles(job_id):
            where = {"device_model": model, "device_count": count, "energy_source": source}
            yield {"job_id": job_id, **where, "job_version": version, "samples": encode(list(samples))}
