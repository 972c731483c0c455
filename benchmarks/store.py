"""What the first question costs in the SQL store when the log is long: ``python -m benchmarks.store``.

``ask`` + ``tell`` of one more recurrence, with the real policy, against an SQLite file that holds ``--trials`` trials.
It folds nearly the whole log, since no checkpoint lies near its end; how long another process's heartbeats of the same
job wait meanwhile is told too. ``--url`` runs it on another database (empty, migrated). What later questions take:
``benchmarks.store_scale``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_zeus.model.trial import TrialKey
from airflow_provider_zeus.store.base import Report
from airflow_provider_zeus.store.sql.store import SqlStore
from benchmarks.command import command, option
from benchmarks.cost.store_log import ask, fill, seen, tell

JOB_ID = "bench.train"


@contextmanager
def _beating(url: str, key: TrialKey) -> Iterator[Any]:
    """Another process reports to an open trial, ten times a second; the longest that it waited [ms]."""
    spawn = multiprocessing.get_context("spawn")
    begun, over, longest_ms = spawn.Event(), spawn.Event(), spawn.Value("d", 0.0)
    process = spawn.Process(target=_beat, args=(url, key, begun, over, longest_ms))
    process.start()
    begun.wait(60)
    try:
        yield longest_ms
    finally:
        over.set()
        process.join()


def _beat(url: str, key: TrialKey, begun: Any, over: Any, longest_ms: Any) -> None:
    store, news = SqlStore(url), Report(observation=seen(64, 0))
    store.heartbeat(key, news)
    begun.set()
    while not over.wait(0.1):
        start = time.perf_counter()
        try:
            store.heartbeat(key, news)
        finally:  # an error comes after a wait too
            longest_ms.value = max(longest_ms.value, (time.perf_counter() - start) * 1e3)


@command(
    "",
    option("--trials", type=int, default=10_000),
    option("--url", help="database to run on; default a new SQLite file"),
)
def main(args: argparse.Namespace) -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        url = args.url or f"sqlite:///{Path(folder) / 'zeus.db'}"
        fill(url, [JOB_ID], args.trials)
        store = SqlStore(url)
        (newest,) = store.trials(JOB_ID, last=1)
        beside = store.adopt(replace(newest, key=TrialKey("ti-beside")), lease_s=86_400)
        with _beating(url, beside.key) as waited_ms:
            start = time.perf_counter()
            tell(store, ask(store, JOB_ID, args.trials + 1).trial, args.trials + 1)
            cold = (time.perf_counter() - start) * 1e3
        store.close()
    print(f"trials logged            {args.trials:>9,}")
    print(f"first ask + tell         {cold:9.2f} ms  (the log was never folded before)")
    print(f"  a heartbeat meanwhile  {waited_ms.value:9.2f} ms  (the longest)")
