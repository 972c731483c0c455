"""``airflow zeus import``: takes trials of another log, or earlier trainings, into the trial log."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from airflow_provider_zeus.cli import read_earlier, read_export
from airflow_provider_zeus.cli.read_file import Entry, document_of, table_of, text_of
from airflow_provider_zeus.cli.shell import command, known, opened, os_user, say
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.trial import IMPORTED, Trial
from airflow_provider_zeus.store.base import History
from airflow_provider_zeus.store.moving import check_elsewhere, moved_to

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store


@command
def import_(args: Namespace) -> None:
    """Take the trials of a file into the log. Writes nothing unless the whole file is good."""
    path = args.file
    about = f"{PurePath(path).name[:100]}, by {os_user()} on {time.strftime('%Y-%m-%d', time.gmtime())}"
    text = text_of(path)
    with opened(args) as store:
        histories, still_open = _read(store, text, path, args.job, about)
        if not histories:
            say(f"No closed trial in {path}.")
            return
        new = _dry(store, histories) if args.dry_run else store.take_in(histories)
        verb = "would be imported" if args.dry_run else "imported"
        for history in histories:
            count = sum(t.job_id == history.job_id for t in new)
            there = len(history.trials) - count
            say(f"{history.job_id}: {_trials(count)} {verb}" + f", {there} in the log already" * bool(there))
        if still_open:
            say(f"{_trials(still_open)} of the file left out: not closed. Export again once closed.")
        say(f"{_trials(len(new))} {verb} into {store.identity}.")


def _trials(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'}"


def _read(store: Store, text: str, path: str, job: str | None, about: str) -> tuple[list[History], int]:
    """The histories of a file and how many open trials were left out. Raises JobSpecError."""
    if text.lstrip()[:1] in ("{", "["):
        trials, profiles = document_of(text, path)
        reads = ((place, read_export.of_json(place, entry)) for place, entry in trials)
        found, still_open = read_export.histories_of(reads, profiles)
    else:
        is_export, lines = table_of(text, path)
        if not is_export:
            return _earlier(store, lines, job, about), 0
        found, still_open = read_export.histories_of(
            (place, read_export.of_csv(place, cells)) for place, cells in lines
        )
    found = [_marked(history, about) for history in found]
    return (found if job is None else _as_job(found, job)), still_open


def _earlier(store: Store, lines: Sequence[Entry], job: str | None, about: str) -> list[History]:
    if job is None:
        raise JobSpecError.of("--job", job, "earlier trainings name no job", "Say whose they are with --job JOB")
    newest = store.trials(known(store, job))[-1:]
    if not newest:
        raise JobSpecError.of("--job", job, "has no trial that can be read", "See 'airflow zeus doctor'")
    return read_export.histories_of(read_earlier.trials_of(lines, newest[0], about))[0]


def _as_job(histories: list[History], job: str) -> list[History]:
    if len(histories) > 1:
        names = ", ".join(history.job_id for history in histories[:5])
        raise JobSpecError.of("--job", job, f"the file has {len(histories)} jobs ({names})", "Export one of them")
    if not 0 < len(job) <= 1000 or not job.isprintable():
        raise JobSpecError.of("--job", job, "no name of a job", "Give a text of printable characters")
    return [moved_to(history, job) for history in histories]


def _marked(history: History, about: str) -> History:
    """The history, its trials marked as imported; one that was imported before keeps its mark."""
    trials = [
        replace(t, observation=replace(t.observation, reasons={IMPORTED: about, **t.observation.reasons}))
        for t in history.trials
    ]
    return replace(history, trials=trials)


def _dry(store: Store, histories: Sequence[History]) -> list[Trial]:
    """The trials that an import would write. Raises StoreError where it would be refused."""
    there = {t.key: t for job in store.jobs() for t in store.trials(job)}
    new = []
    for history in histories:
        left = [t for t in history.trials if t.key not in there or there[t.key].job_id != history.job_id]
        check_elsewhere(replace(history, trials=left), there.get)
        new += left
    return new
