"""``airflow zeus prune``: deletes power points and decisions of old trials. Their figures stay."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_zeus.cli.shell import command, known, opened, say
from airflow_provider_zeus.errors import JobSpecError

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.prune import Pruned
    from airflow_provider_zeus.store.sql.store import Store

_SECONDS = {"h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_SAY_EVERY = 2000  # trials between two lines of progress


@command
def prune(args: Namespace) -> None:
    """Delete power points and decisions of old trials; with ``--dry-run`` only report them."""
    from airflow_provider_zeus.store.open import store_url

    age_s, url = seconds_of(args.older_than), store_url(args.conn_id)
    with opened(args) as store:
        jobs = store.jobs() if args.job is None else [known(store, args.job)]
        if url is None:
            say(
                "Nothing to prune: Airflow Variables keep the newest 500 trials of a job and the power points of its "
                "newest 20 anyway."
            )
            return
        _prune(store, url, jobs, age_s, args)


def _prune(store: Store, url: str, jobs: Sequence[str], age_s: float, args: Namespace) -> None:
    from airflow_provider_zeus.store.sql.engine import clock, engine_of, read_url, transaction
    from airflow_provider_zeus.store.sql.prune import give_back, prune

    engine = engine_of(read_url(url))
    with transaction(engine) as connection:
        before_s = clock(connection) - age_s
    done = []
    for job_id in jobs:
        options = {"decisions": not args.keep_trials, "dry_run": args.dry_run}
        done.append(prune(engine, job_id, before_s, progress=_progress, **options))
        say(_summary(done[-1]))
    total = size_text(sum(pruned.bytes for pruned in done))
    if args.dry_run:
        say(f"{total} would be deleted from {store.identity}; nothing was changed.")
        return
    say(f"{total} deleted from {store.identity}.")
    free = give_back(engine)
    if free:
        say(
            f"{size_text(free)} of the file are free for new trials. To make the file smaller, stop all runs, then: "
            f"sqlite3 {engine.url.database} 'PRAGMA auto_vacuum = INCREMENTAL; VACUUM'"
        )


def seconds_of(text: str) -> float:
    """Seconds of an age such as 12h, 90d or 2w. Raises JobSpecError."""
    found = re.fullmatch(r"([0-9]{1,6})([hdw])", text.strip())
    if found is None or int(found[1]) == 0:
        raise JobSpecError.of("--older-than", text, "not an age", "Write hours, days or weeks: 12h, 90d, 2w")
    return int(found[1]) * _SECONDS[found[2]]


def size_text(size: int) -> str:
    """Bytes as text."""
    for unit, of in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= of:
            return f"{size / of:.3g} {unit}"
    return f"{size} bytes"


def _summary(pruned: Pruned) -> str:
    """What is deleted of one job."""
    parts = [f"power points of {pruned.points} trials ({size_text(pruned.point_bytes)})"]
    if pruned.decisions:
        parts.append(f"decisions of {pruned.decisions} ({size_text(pruned.decision_bytes)})")
    if pruned.checkpoints:
        parts.append(f"{pruned.checkpoints} checkpoints ({size_text(pruned.checkpoint_bytes)})")
    whole = f"; {pruned.whole} others of that age are kept (open, or in the policy's window)" if pruned.whole else ""
    return f"{pruned.job_id}: {', '.join(parts)}{whole}"


def _progress(pruned: Pruned) -> None:
    """Print a line of progress every :data:`_SAY_EVERY` trials."""
    from airflow_provider_zeus.store.sql.prune import TRIALS_A_STEP

    seen = max(pruned.points, pruned.decisions)
    if seen >= _SAY_EVERY and seen % _SAY_EVERY < TRIALS_A_STEP:
        say(f"{pruned.job_id}: {seen} trials so far", file=sys.stderr)
