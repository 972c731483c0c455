"""``airflow zeus db`` and ``prune``: migrate, back up and restore the trial log, and delete old
rows.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from airflow_provider_zeus import patterns
from airflow_provider_zeus.cli.shell import command, confirmed, known, opened, say
from airflow_provider_zeus.errors import JobSpecError, StoreError
from airflow_provider_zeus.store.open import DEFAULT_CONN_ID, store_url
from airflow_provider_zeus.store.sql import backup as sqlite_backup
from airflow_provider_zeus.store.sql.engine import (
    clock,
    engine_of,
    file_of,
    forget,
    read_url,
    shown,
    transaction,
)
from airflow_provider_zeus.store.sql.migrate import check, present_version
from airflow_provider_zeus.store.sql.prune import TRIALS_A_STEP, Pruned, give_back
from airflow_provider_zeus.store.sql.prune import prune as prune_job
from airflow_provider_zeus.store.sql.schema import HEAD
from airflow_provider_zeus.units import counted


@command
def upgrade(args: Namespace) -> None:
    """Create or migrate the tables of the trial log."""
    say(upgrade_tables(args.conn_id))


def upgrade_tables(conn_id: str = DEFAULT_CONN_ID) -> str:
    """Bring the database of a Connection (by default ``zeus.db``) to this version's schema.

    Returns a sentence for people. Raises StoreError.
    """
    url = store_url(conn_id)
    if url is None:
        return (
            f"Connection {conn_id!r} keeps the run log in Airflow Variables: there is nothing to "
            "upgrade."
        )
    parsed = read_url(url)
    engine = engine_of(parsed)
    try:
        # Asked before: afterwards nobody can tell whether anything was changed.
        before = present_version(engine)
        check(engine, create=True)
    finally:
        forget(engine)
    if before == HEAD:
        return f"The run log at {shown(parsed)} is up to date: schema {HEAD}."
    # An administrator wants to know whether tables were changed or made.
    origin = f"was {before}" if before else "new"
    return f"The run log at {shown(parsed)} now has schema {HEAD} ({origin})."


@command
def backup(args: Namespace) -> None:
    """Copy the trial log to a file, while tasks run."""
    log = _sqlite_log(args.conn_id, f"pg_dump --table='zeus_*' --format=custom --file={args.file}")
    trials = sqlite_backup.backup(log, Path(args.file))
    say(f"{args.file} holds the run log at {log}: {counted(trials, 'attempt')}.")


@command
def restore(args: Namespace) -> int:
    """Replace the trial log by a backup; exit status 1 if the user says no."""
    log = _sqlite_log(args.conn_id, f"pg_restore --clean --if-exists {args.file}")
    # Read before the question: a file that is no backup must not replace a log.
    trials = sqlite_backup.trials_in(Path(args.file))
    question = (
        f"Replace the run log at {log} by {args.file} with {counted(trials, 'attempt')}? (y/N) "
    )
    # there is nothing to lose without a log
    if log.exists() and not confirmed(question, yes=args.yes):
        return 1
    restored = sqlite_backup.restore(Path(args.file), log)
    say(f"The run log at {log} holds {counted(restored, 'attempt')} now, as {args.file} does.")
    return 0


def _sqlite_log(conn_id: str, postgres_command: str) -> Path:
    """The file of the trial log. Raises StoreError with the remedy if the log is elsewhere."""
    url = store_url(conn_id)
    if url is None:
        raise StoreError(
            f"Connection {conn_id!r} keeps the run log in Airflow's Variables: a backup of "
            "Airflow's own database holds it."
        )
    parsed = read_url(url)
    # PostgreSQL has tools that copy a database while it is used
    path = file_of(parsed)
    if path is None:
        raise StoreError(
            f"The run log at {shown(parsed)} is in PostgreSQL, which has a command: "
            f"{postgres_command}"
        )
    return path


_SAY_EVERY = 2000  # a silent copy of a large log looks like a hang


@command
def prune(args: Namespace) -> None:
    """Delete power over time and decisions of old trials; with ``--dry-run`` only report them."""
    age_s = seconds_of(args.older_than)
    url = store_url(args.conn_id)
    with opened(args) as store:
        jobs = store.jobs() if args.job is None else [known(store, args.job)]
        if url is None:
            say(
                "Nothing to prune: Airflow Variables keep the newest 500 attempts of a job and "
                "power over time of its newest 20 anyway."
            )
            return
        engine = engine_of(read_url(url))
        # the store's clock, since hosts may differ
        with transaction(engine) as connection:
            before_s = clock(connection) - age_s
        size = 0
        for job_id in jobs:
            pruned = prune_job(
                engine,
                job_id,
                before_s,
                decisions=not args.keep_decisions,
                dry_run=args.dry_run,
                progress=_progress,
            )
            size += pruned.bytes
            say(_summary(pruned))
        total = size_text(size)
        if args.dry_run:
            say(f"{total} would be deleted from {store.identity}; nothing was changed.")
            return
        say(f"{total} deleted from {store.identity}.")
        # SQLite keeps freed pages in the file
        free = give_back(engine)
    if free:
        say(
            f"{size_text(free)} of the file are free for new runs. To make the file smaller, stop "
            f"all runs, then: sqlite3 {engine.url.database} 'PRAGMA auto_vacuum = INCREMENTAL; "
            "VACUUM'"
        )


def seconds_of(text: str) -> float:
    """Seconds of an age such as 12h, 90d or 2w. Raises JobSpecError."""
    age = patterns.fullmatch(r"([0-9]{1,6})([hdw])", text.strip())
    if age is None or int(age[1]) == 0:
        raise JobSpecError.of(
            "--older-than", text, "not an age", "Write hours, days or weeks: 12h, 90d, 2w"
        )
    seconds = {"h": 3600.0, "d": 86_400.0, "w": 604_800.0}
    return int(age[1]) * seconds[age[2]]


def size_text(size: int) -> str:
    """Bytes as text."""
    for unit, of in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= of:
            return f"{size / of:.3g} {unit}"
    return f"{size} bytes"


def _summary(pruned: Pruned) -> str:
    """A sentence of the rows of one job that are deleted."""
    parts = [
        f"power over time of {counted(pruned.points, 'attempt')} ({size_text(pruned.point_bytes)})"
    ]
    if pruned.decisions:
        parts.append(f"decisions of {pruned.decisions} ({size_text(pruned.decision_bytes)})")
    if pruned.folded:
        rows = counted(pruned.folded, "row")
        parts.append(f"{rows} folded into a sum a day ({size_text(pruned.folded_bytes)})")
    if pruned.checkpoints:
        parts.append(
            f"{counted(pruned.checkpoints, 'checkpoint')} ({size_text(pruned.checkpoint_bytes)})"
        )
    text = f"{pruned.job_id}: {', '.join(parts)}"
    # Else a reader would wonder why old rows stay.
    if pruned.whole:
        text += f"; of that age {pruned.whole:,} more kept (open, or in the policy's window)"
    return text


def _progress(pruned: Pruned) -> None:
    """Print a line of progress every :data:`_SAY_EVERY` trials."""
    # Both steps go through the same trials: a sum would count each twice.
    done = max(pruned.points, pruned.decisions)
    if done >= _SAY_EVERY and done % _SAY_EVERY < TRIALS_A_STEP:
        say(f"{pruned.job_id}: {counted(done, 'attempt')} so far", file=sys.stderr)
