"""``airflow zeus export``: takes trials out of the trial log."""

from __future__ import annotations

import errno
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from airflow_provider_zeus.cli.export_lines import FORMAT, line_of, line_of_part
from airflow_provider_zeus.cli.shell import command, known, of_all_jobs, opened, say
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.reports.export_rows import csv_of
from airflow_provider_zeus.signals.prices import in_force
from airflow_provider_zeus.store.base import RunTrials, trial_label
from airflow_provider_zeus.units import counted

if TYPE_CHECKING:
    from airflow_provider_zeus.model.trial import Trial
    from airflow_provider_zeus.store.sql.store import Store


@command
def export(args: Namespace) -> int:
    """Write the trials of one job or of all; the status is 1 if one is left out, as its log is
    damaged.
    """
    is_json = args.format == "json"
    if args.format is None and args.output:
        # FILE.json with CSV in it would mislead whoever reads it.
        is_json = Path(args.output).suffix in (".json", ".jsonl")
    write = _write_json if is_json else _write_csv
    with opened(args) as store:
        if args.job is None:  # a damaged job must not end the file in the middle
            jobs, status = of_all_jobs(store, lambda job_id: next(store.history(job_id), None))
        else:
            jobs = {known(store, args.job): None}
            status = 0
        # opened last: a log that cannot be read leaves an older file as it was
        with _target(args.output) as file:
            count = write(file, store, sorted(jobs))
        left_out = [trial_label(damage) for damage in store.unreadable]
    if args.output:
        say(f"{counted(count, 'attempt')} written to {args.output}.")
    if left_out:
        say(
            f"Left out, since they cannot be read: {', '.join(left_out)}. "
            "See 'airflow zeus doctor'.",
            file=sys.stderr,
        )
    return status


def _write_json(file: TextIO, store: Store, jobs: Iterable[str]) -> int:
    """Write all that the log holds of the jobs, a line for each run; return how many trials
    that are.
    """
    count = 0
    file.write(line_of("format", FORMAT))
    for job_id in jobs:
        for part in store.history(job_id):
            file.write(line_of_part(part))
            if isinstance(part, RunTrials):
                count += len(part.trials)
    # An import tells by it whether the file is whole.
    file.write(line_of("end", {"trials": count}))
    return count


def _write_csv(file: TextIO, store: Store, jobs: Iterable[str]) -> int:
    """Write the columns for people of the jobs' trials; return how many trials there are."""
    count = 0

    def counted_runs() -> Iterator[Sequence[Trial]]:
        nonlocal count
        for trials in _runs(store, jobs):
            count += len(trials)
            yield trials

    for text in csv_of(counted_runs(), in_force()):
        file.write(text)
    return count


def _runs(store: Store, jobs: Iterable[str]) -> Iterator[Sequence[Trial]]:
    """The trials of each run, one job after the other."""
    for job_id in jobs:
        yield from (part.trials for part in store.history(job_id) if isinstance(part, RunTrials))


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
        why = error.strerror
        # The system's own words speak of too many links.
        if error.errno == errno.ELOOP:
            why = "it is a symbolic link"
        raise StoreError(
            f"{path!r} cannot be written ({why}): name another file with --output."
        ) from None
