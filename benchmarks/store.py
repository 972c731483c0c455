"""How fast the trial log answers, on SQLite and PostgreSQL: ``python -m benchmarks.store``.

``--only`` runs a part.

- ``load``: overlapping recurrences of many processes (``cost.store_load``). Nothing may be lost.
- ``scale``: whether a question grows with the log. 1,000,000 trials as 1,000 jobs with 1,000 each,
  and one job with 100,000, beside 10,000 trials in all. The median of ``ask`` may be at most 1.5
  times that at 10,000; questions to the large and to the small log take turns,
  so that the machine's mood is shared.
- ``first``: the first question of a log that was never folded, and how long another process's
  heartbeats of the same job wait meanwhile.
- ``outside``: what tasks that are measured from outside cost the others. 40,000 trials of 200 jobs,
  without and with 1,000,000 rows of 5,000 such tasks (``--outside``): a question, the two answers
  of the page of all jobs, and the row of one such task, in turns.
  The median may be at most 1.5 times that without them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import TrialKey
from airflow_provider_zeus.store.sql.store import SqlStore
from benchmarks.command import command, option, progress
from benchmarks.cost import store_load
from benchmarks.cost.outside_log import fill_outside, write
from benchmarks.cost.store_load import LOADS, PROCESSES, databases, timed
from benchmarks.cost.store_log import ask, checkpoint, empty_commit, fill, seen, tell
from benchmarks.site import page_of_a_month, page_of_jobs

MOST = 1.5
ROUNDS = 96  # several times the trials between two checkpoints
ASKED = 8  # jobs of many that are asked, spread over them
JOB_ID = "bench.train"

Empty = Callable[[str], Any]  # of a kind of database, as a context: the URL of an empty one


# ---------------------------------------------------------------------- many processes
def load(backend: str, empty: Empty, args: argparse.Namespace) -> bool:
    """Whether nothing was lost."""
    fine = True
    for one in LOADS:
        with empty(backend) as url:
            found = store_load.run(url, one, processes=args.processes)
        print(f"{backend}, {one.name}: {found['trials']:,} trials from {args.processes} processes")
        if "ask" in found:
            print(f"  {found['wall_s']:.1f} s in all; empty commit {found['commit_ms']:.1f} ms")
            for what in ("ask", "tell"):
                print(f"  {what:4}  {_of_calls(found[what])}")
        print(
            f"  {'; '.join(found['errors'][:5]) or 'nothing lost, no error, no deadlock'}",
            flush=True,
        )
        fine = fine and not found["errors"]
    return fine


def _of_calls(figures: Mapping[str, float]) -> str:
    return (
        f"{figures['per_s']:7.1f}/s   p50 {figures['p50_ms']:7.1f} ms ="
        f" {figures['p50_commits']:5.1f} commits   p99 {figures['p99_ms']:7.1f} ms ="
        f" {figures['p99_commits']:5.1f} commits   longest {figures['longest_ms']:7.1f} ms"
    )


# ---------------------------------------------------------------------- long logs
class Size(NamedTuple):
    """So many jobs with so many trials each."""

    jobs: int
    trials: int


SCALES = {
    "1,000 jobs with 1,000 trials each": (Size(10, 1_000), Size(1_000, 1_000)),
    "one job with 100,000 trials": (Size(1, 10_000), Size(1, 100_000)),
}


class Filled:
    """A store with a log of that size, and how long its questions took."""

    def __init__(self, url: str, size: Size) -> None:
        self.url = url
        self.size = size
        self.ask_ms: list[float] = []
        self.commit_ms: list[float] = []
        fill(url, (f"job{j:04d}" for j in range(size.jobs)), size.trials)
        self.asked = [f"job{j:04d}" for j in range(0, size.jobs, max(size.jobs // ASKED, 1))][
            :ASKED
        ]
        start_s = time.monotonic()
        for job_id in self.asked:
            checkpoint(url, job_id)
        self.fold_ms = (time.monotonic() - start_s) * 1e3 / len(self.asked)
        self.store = SqlStore(url)

    def question(self, n: int) -> None:
        """Ask and tell one recurrence of one of the jobs, in turn."""
        job_id = self.asked[n % len(self.asked)]
        number = self.size.trials + 1 + n // len(self.asked)
        trial = timed(self.ask_ms, ask, self.store, job_id, number).trial
        tell(self.store, trial, number)
        timed(self.commit_ms, empty_commit, self.url, job_id)

    def median_ms(self) -> float:
        """Of the questions, without the first one of each job, which warms the caches."""
        return statistics.median(self.ask_ms[len(self.asked) :])


def scale(backend: str, empty: Empty, args: argparse.Namespace) -> bool:
    """Whether a question of a long log takes as long as one of a short log."""
    fine = True
    for name, sizes in SCALES.items():
        with ExitStack() as stack:
            small, large = (Filled(stack.enter_context(empty(backend)), size) for size in sizes)
            for filled in (small, large):
                stack.callback(filled.store.close)
            rounds = ROUNDS + ASKED
            for n in progress(range(rounds), rounds):
                small.question(n)
                large.question(n)
        ratio = large.median_ms() / small.median_ms()
        met = ratio <= MOST
        fine = fine and met
        print(f"{backend}, {name}")
        print(
            f"  ask {large.median_ms():.2f} ms, at 10,000 trials {small.median_ms():.2f} ms: ratio"
            f" {ratio:.2f}"
        )
        print(f"  at most {MOST}: {'met' if met else 'MISSED'}")
        print(f"  empty commit {statistics.median(large.commit_ms):.2f} ms")
        print(
            f"  first fold of a whole log, without a checkpoint: {large.fold_ms:.0f} ms", flush=True
        )
    return fine


# ---------------------------------------------------------------------- a log that was never folded
def first(backend: str, empty: Empty, args: argparse.Namespace) -> bool:
    """Always true: these figures have no target."""
    with empty(backend) as url:
        fill(url, [JOB_ID], args.trials)
        store = SqlStore(url)
        (newest,) = store.trials(JOB_ID, last=1)
        beside = store.adopt(replace(newest, key=TrialKey("ti-beside")), lease_s=86_400)
        took_ms: list[float] = []
        with _beating(url, beside.key) as waited_ms:
            answer = timed(took_ms, ask, store, JOB_ID, args.trials + 1)
            timed(took_ms, tell, store, answer.trial, args.trials + 1)
        store.close()
    print(f"{backend}, {args.trials:,} trials that were never folded")
    print(f"  first ask + tell         {sum(took_ms):9.2f} ms")
    print(f"  a heartbeat meanwhile    {waited_ms.value:9.2f} ms  (the longest)", flush=True)
    return True


@contextmanager
def _beating(url: str, key: TrialKey) -> Iterator[Any]:
    """Another process reports to an open trial, ten times a second;
    the longest that it waited [ms].
    """
    spawn = multiprocessing.get_context("spawn")
    begun = spawn.Event()
    over = spawn.Event()
    longest_ms = spawn.Value("d", 0.0)
    process = spawn.Process(target=_beat, args=(url, key, begun, over, longest_ms))
    process.start()
    begun.wait(60)
    try:
        yield longest_ms
    finally:
        over.set()
        process.join()


def _beat(url: str, key: TrialKey, begun: Any, over: Any, longest_ms: Any) -> None:
    store = SqlStore(url)
    news = Report(observation=seen(64, 0))
    store.heartbeat(key, news)
    begun.set()
    while not over.wait(0.1):
        start = time.perf_counter()
        try:
            store.heartbeat(key, news)
        finally:  # an error comes after a wait too
            longest_ms.value = max(longest_ms.value, (time.perf_counter() - start) * 1e3)


# ---------------------------------------------------------------------- tasks measured from outside
CHOSEN = Size(200, 200)
OUTSIDE_TASKS = 5_000
PAGES = 15


def outside(backend: str, empty: Empty, args: argparse.Namespace) -> bool:
    """Whether a question and a page take as long with the rows of such tasks as without them."""
    took: dict[str, tuple[list[float], list[float]]] = {
        name: ([], []) for name in ("ask", "the jobs' answer", "the month's answer", "a row")
    }
    with ExitStack() as stack:
        logs = [Filled(stack.enter_context(empty(backend)), CHOSEN) for _ in range(2)]
        for filled in logs:
            stack.callback(filled.store.close)
        fill_outside(logs[1].url, OUTSIDE_TASKS, max(args.outside // OUTSIDE_TASKS, 1))
        rounds = ROUNDS + ASKED
        for n in progress(range(rounds), rounds):
            for filled in logs:
                filled.question(n)
        for n in range(PAGES):
            for i, filled in enumerate(logs):
                timed(took["the jobs' answer"][i], page_of_jobs, filled.url)
                timed(took["the month's answer"][i], page_of_a_month, filled.url)
                timed(took["a row"][i], write, filled.store, "outside_0001", "task01", f"new-{n}")
        for i, filled in enumerate(logs):
            took["ask"][i].append(filled.median_ms())
    print(f"{backend}, {args.outside:,} rows of {OUTSIDE_TASKS:,} tasks measured from outside")
    fine = True
    for name, (without, beside) in took.items():
        before_ms = statistics.median(without)
        with_ms = statistics.median(beside)
        ratio = with_ms / before_ms
        fine = fine and ratio <= MOST
        print(f"  {name:18} {with_ms:8.1f} ms, without {before_ms:8.1f} ms: ratio {ratio:.2f}")
    print(f"  at most {MOST}: {'met' if fine else 'MISSED'}", flush=True)
    return fine


PARTS: Mapping[str, Callable[[str, Empty, argparse.Namespace], bool]] = {
    "load": load,
    "scale": scale,
    "first": first,
    "outside": outside,
}


@command(
    "--backends",
    option("--only", choices=list(PARTS), help="one part; default: all"),
    option("--processes", type=int, default=PROCESSES, help="of the load"),
    option("--outside", type=int, default=1_000_000, help="rows of tasks measured from outside"),
    option("--trials", type=int, default=10_000, help="of the log that was never folded"),
)
def main(args: argparse.Namespace) -> int:
    """Print the figures; 1 where anything was lost, or a long log takes too long."""
    parts = [PARTS[args.only]] if args.only else list(PARTS.values())
    with databases(args.backends) as empty:
        fine = [part(backend, empty, args) for part in parts for backend in args.backends]
    return int(not all(fine))
