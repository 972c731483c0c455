"""Overlapping recurrences of many processes on one store.

Two loads, on SQLite and PostgreSQL: 50 recurrences of one job from each of 8 processes, and 200
jobs with 20 each, of which every process has a part. A process asks for its next recurrence before
it tells its last one, so that up to 16 are open at once. Nothing may be lost: a number of its own
for every trial, every observation in the log, no error at a caller, no deadlock. Questions and
answers a second, their median, 99th of 100 and longest; also as multiples of an empty commit that
the same processes make at once on one row of the same database.
PostgreSQL waits for the disk at a commit.
"""

from __future__ import annotations

import multiprocessing
import queue
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from airflow_provider_zeus.store.sql import schema
from airflow_provider_zeus.store.sql.engine import engine_of, read_url, transaction
from airflow_provider_zeus.store.sql.store import SqlStore
from benchmarks.command import progress
from benchmarks.cost.store_log import ask, empty_commit, tell

PROCESSES = 8
WAIT_S = 600.0
EMPTY = "empty commits"  # a job without a trial: its row is what they change


@dataclass(frozen=True)
class Load:
    """So many recurrences of each of so many jobs."""

    name: str
    jobs: int
    each: int

    def part(self, worker: int, workers: int) -> list[tuple[str, int]]:
        """(job, number of its recurrence) of one process; each job's are dealt out to all,
        one soon after the other.
        """
        every = [
            (j, i)
            for first in range(0, self.jobs, workers)
            for i in range(self.each)
            for j in range(first, min(first + workers, self.jobs))
        ]
        # each process begins with a trial of the same job
        every.sort(key=lambda one: one[0] > 0 or one[1] >= workers)
        return [(f"job{j}", i) for j, i in every if (i + j) % workers == worker]


LOADS = [Load("one job", 1, 50 * PROCESSES), Load("200 jobs", 200, 20)]


@dataclass
class Lived:
    """What one process lived through. Times of calls in milliseconds."""

    commit_ms: list[float] = field(default_factory=list)
    ask_ms: list[float] = field(default_factory=list)
    tell_ms: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    began_s: float = 0.0  # by the clock that all processes of a host share
    ended_s: float = 0.0


def run(url: str, load: Load, *, processes: int = PROCESSES, commits: int = 50) -> dict[str, Any]:
    """Put the load on an empty database: figures, and under ``errors`` whatever went wrong."""
    SqlStore(url, create=True).close()
    with transaction(engine_of(read_url(url)), write=True) as connection:
        connection.execute(sa.insert(schema.job).values(job_id=EMPTY, told_seq=0, last_number=0))
    deadlocks = _deadlocks(url)
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(processes)
    said = spawn.Queue()
    workers = [
        spawn.Process(target=_work, args=(url, load, w, processes, commits, start, said))
        for w in range(processes)
    ]
    for worker in workers:
        worker.start()
    lived = [
        one
        for one in progress(_heard(workers, said), load.jobs * load.each + processes)
        if one is not None
    ]
    for worker in workers:
        worker.join(WAIT_S)
    errors = [error for one in lived for error in one.errors] + lost(url, load)
    errors += [f"a process ended with status {w.exitcode}" for w in workers if w.exitcode != 0]
    if _deadlocks(url) != deadlocks:
        errors.append(f"{_deadlocks(url) - deadlocks} deadlocks, says the database")
    return {
        "load": load.name,
        "trials": load.jobs * load.each,
        "processes": processes,
        "errors": errors,
    } | _sums(lived)


def _heard(workers: list[Any], said: Any) -> Iterator[Lived | None]:
    """What the processes say until the last one has said it all, or none is left."""
    ended = 0
    while ended < len(workers):
        try:
            one = said.get(timeout=5)
        except queue.Empty:
            if not any(w.is_alive() for w in workers):
                return
            continue
        ended += one is not None
        yield one


def _work(
    url: str, load: Load, worker: int, workers: int, commits: int, start: Any, said: Any
) -> None:
    lived = Lived()
    store = SqlStore(url)
    try:
        start.wait(WAIT_S)
        for _ in range(commits):
            timed(lived.commit_ms, empty_commit, url, EMPTY)
        start.wait(WAIT_S)
        lived.began_s = time.monotonic()
        before: Callable[[], object] | None = None
        for job_id, i in load.part(worker, workers):
            trial = timed(lived.ask_ms, ask, store, job_id, i).trial
            if before:
                timed(lived.tell_ms, before)
            else:
                start.wait(WAIT_S)  # all have asked, none has told: these overlap for sure
            before = lambda trial=trial, i=i: tell(store, trial, i)  # noqa: E731
            said.put(None)
        if before:
            timed(lived.tell_ms, before)
    except Exception as error:  # whatever it is, it is one that a caller would have seen
        lived.errors.append(f"{type(error).__name__}: {error}")
        start.abort()
    lived.ended_s = time.monotonic()
    said.put(lived)


def timed(into: list[float], work: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """What a call returns; how long it took [ms] is added to ``into``."""
    start = time.perf_counter()
    result = work(*given, **named)
    into.append((time.perf_counter() - start) * 1e3)
    return result


def lost(url: str, load: Load) -> list[str]:
    """What is not in the log as it must be, in words."""
    store = SqlStore(url)
    wrong = []
    overlapped = False
    for job_id in (f"job{j}" for j in range(load.jobs)):
        log = store.trials(job_id)
        whole = list(range(1, load.each + 1))
        if [t.number for t in log] != whole:
            wrong.append(f"{job_id}: numbers {[t.number for t in log]}")
        if sorted(t.told_seq or 0 for t in log) != whole:
            wrong.append(f"{job_id}: not each trial was closed once")
        if sorted(t.observation.samples or -1 for t in log) != sorted(
            i or -1 for i in range(load.each)
        ):
            wrong.append(f"{job_id}: an observation is not there")
        overlapped = overlapped or any(t.asked_after_seq != t.number - 1 for t in log)
    return wrong if overlapped else [*wrong, "no two recurrences overlapped: this was no load"]


def _deadlocks(url: str) -> int:
    engine = engine_of(read_url(url))
    if engine.dialect.name != "postgresql":
        return 0  # one writer at a time: there can be none
    with transaction(engine) as connection:
        counted = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        return int(connection.exec_driver_sql(counted).scalar() or 0)


def _sums(lived: list[Lived]) -> dict[str, Any]:
    if any(one.errors for one in lived) or not lived:
        return {}
    wall_s = max(one.ended_s for one in lived) - min(one.began_s for one in lived)
    commit = statistics.median(ms for one in lived for ms in one.commit_ms)
    figures: dict[str, Any] = {"wall_s": wall_s, "commit_ms": commit}
    for what in ("ask", "tell"):
        times = [ms for one in lived for ms in getattr(one, f"{what}_ms")]
        p50 = statistics.median(times)
        p99 = statistics.quantiles(times, n=100)[-1]
        figures[what] = {
            "per_s": len(times) / wall_s,
            "p50_ms": p50,
            "p99_ms": p99,
            "longest_ms": max(times),
        }
        figures[what] |= {"p50_commits": p50 / commit, "p99_commits": p99 / commit}
    return figures


@contextmanager
def databases(backends: list[str]) -> Iterator[Callable[[str], Any]]:
    """Makes an empty database of a kind, as a context: SQLite files,
    PostgreSQL with a disk that is waited for.
    """
    from tests.postgres import empty_database, server

    with tempfile.TemporaryDirectory(prefix="zeus-store-") as folder:

        @contextmanager
        def file() -> Iterator[str]:
            with tempfile.TemporaryDirectory(dir=folder) as own:
                yield f"sqlite:///{Path(own) / 'zeus.db'}"

        if "postgresql" not in backends:
            yield lambda _: file()
            return
        with server(durable=True) as admin:
            yield lambda backend: empty_database(admin) if backend == "postgresql" else file()
