"""Whether a question grows with the log: ``python -m benchmarks.store_scale``.

1,000,000 trials as 1,000 jobs with 1,000 each, and one job with 100,000, beside the same with 10,000 trials in all (10
jobs with 1,000 each; one job with 10,000), on SQLite and PostgreSQL. The median of ``ask`` may be at most 1.5 times
that at 10,000; questions to the large and to the small log take turns in one run, so that the machine's mood is shared.
No statement of a question, a report or a page may read the table of trials from end to end: the plans are looked at.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from airflow_provider_zeus.store.sql.store import SqlStore
from benchmarks.command import command, option, progress
from benchmarks.cost.store_log import ask, checkpoint, empty_commit, explained, fill, pages, scans, tell, use
from benchmarks.report import write_json
from benchmarks.store_load import databases, timed

MOST = 1.5
ROUNDS = 96  # several times the trials between two checkpoints
ASKED = 8  # jobs of many that are asked, spread over them


@dataclass(frozen=True)
class Scale:
    """A small log and a large one whose questions should take the same time: (jobs, trials of each)."""

    name: str
    small: tuple[int, int]
    large: tuple[int, int]

    def shrunk(self, by: int) -> Scale:
        """The same with fewer trials: a rehearsal."""
        sizes = (
            (jobs // by, trials) if jobs >= by else (jobs, trials // by) for jobs, trials in (self.small, self.large)
        )
        return Scale(self.name, *sizes)


SCALES = [
    Scale("1,000 jobs with 1,000 trials each", (10, 1_000), (1_000, 1_000)),
    Scale("one job with 100,000 trials", (1, 10_000), (1, 100_000)),
]


def run(small: str, large: str, scale: Scale, rounds: int = ROUNDS) -> dict[str, Any]:
    """Fill two empty databases and ask both in turn: figures [ms]."""
    figures: dict[str, Any] = {"scale": scale.name, "trials": scale.large[0] * scale.large[1]}
    sides = {"small": (small, *scale.small), "large": (large, *scale.large)}
    asks: dict[str, list[float]] = {name: [] for name in sides}
    with ExitStack() as stack:
        stores: dict[str, tuple[SqlStore, str, list[str], int]] = {}
        for name, (url, jobs, trials) in sides.items():
            start = time.monotonic()
            fill(url, (f"job{j:04d}" for j in range(jobs)), trials)
            figures[f"{name}_fill_s"] = time.monotonic() - start
            asked = [f"job{j:04d}" for j in range(0, jobs, max(jobs // ASKED, 1))][:ASKED]
            start = time.monotonic()
            for job_id in asked:
                checkpoint(url, job_id)
            figures[f"{name}_fold_ms"] = (time.monotonic() - start) * 1e3 / len(asked)
            store = SqlStore(url)
            stack.callback(store.close)
            stores[name] = (store, url, asked, trials)
        commits: list[float] = []
        for i in progress(range(rounds + len(asked)), rounds + len(asked)):
            for name, (store, url, asked, trials) in stores.items():
                job_id, n = asked[i % len(asked)], trials + 1 + i // len(asked)
                tell(store, timed(asks[name], ask, store, job_id, n).trial, n)
                timed(commits, empty_commit, url, job_id)
        store, url, asked, trials = stores["large"]
        figures |= _read(store, url, asked[0], trials)
    medians = {
        name: statistics.median(times[len(asked) :]) for name, times in asks.items()
    }  # the first warm the caches
    figures |= {f"{name}_ask_ms": ms for name, ms in medians.items()} | {"commit_ms": statistics.median(commits)}
    return figures | {"ratio": medians["large"] / medians["small"]}


def _read(store: SqlStore, url: str, job_id: str, trials: int) -> dict[str, Any]:
    """Times of what the pages read [ms], and statements that read the whole table."""
    times: dict[str, list[float]] = {}
    for what, read in pages(store, job_id, trials):
        read()
        timed(times.setdefault(what, []), read)
    with explained(url) as plans:
        use(store, job_id, trials + ROUNDS * 2)
    return {"pages_ms": {what: ms for what, (ms,) in times.items()}, "statements": len(plans), "scans": scans(plans)}


def _shown(one: dict[str, Any]) -> str:
    verdict = "met" if one["ratio"] <= MOST else "MISSED"
    lines = [
        f"{one['backend']}, {one['scale']}: {one['trials']:,} trials, filled in {one['large_fill_s']:.0f} s",
        f"  ask {one['large_ask_ms']:.2f} ms, at 10,000 trials {one['small_ask_ms']:.2f} ms: "
        f"ratio {one['ratio']:.2f} (at most {MOST}: {verdict}); empty commit {one['commit_ms']:.2f} ms",
        f"  first fold of a whole log, without a checkpoint: {one['large_fold_ms']:.0f} ms",
        *(f"  {what}: {ms:.1f} ms" for what, ms in one["pages_ms"].items()),
        f"  {one['statements']} statements, {len(one['scans'])} of them read the whole table",
        *(f"    {scan}" for scan in one["scans"]),
    ]
    return "\n".join(lines)


@command("--backends --out", option("--shrink", type=int, default=1, help="divide the trials by this: a rehearsal"))
def main(args: argparse.Namespace) -> int:
    """Print the figures; 1 when a target is missed."""
    results = []
    with databases(args.backends) as empty:
        for backend in args.backends:
            for scale in SCALES:
                with empty(backend) as small, empty(backend) as large:
                    results.append({"backend": backend} | run(small, large, scale.shrunk(args.shrink)))
                print(_shown(results[-1]), flush=True)
    write_json(args.out, results)
    slow = any(one["ratio"] > MOST for one in results)
    return int(slow or any(one["scans"] for one in results))
