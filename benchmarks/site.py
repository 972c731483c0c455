"""What a large site's trial log takes: ``python -m benchmarks.site``.

So many jobs with so many trials each in one PostgreSQL, written like real runs and spread over 13
months: rows and bytes of a trial, the month's and the jobs' answers as the page *Zeus* asks for
them (each in a process of its own: time, and memory beyond an empty answer), and what processes
that ask and report at once hold: connections, locks, statements that wait for one. docs/store.md
has figures of two sizes, and what they say of larger ones.
"""

from __future__ import annotations

import argparse
import multiprocessing
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from airflow_provider_zeus.model.wire import LATEST_S
from airflow_provider_zeus.plugin.text.factors import Factors
from airflow_provider_zeus.plugin.views import overview_state, overview_view
from airflow_provider_zeus.plugin.views.months_view import month_answer
from airflow_provider_zeus.reports.month_spent import DagAbout
from airflow_provider_zeus.reports.months import month_bounds, month_of
from airflow_provider_zeus.store.sql.engine import engine_of, read_url
from airflow_provider_zeus.store.sql.store import SqlStore
from benchmarks.command import command, option
from benchmarks.cost import store_load
from benchmarks.cost.store_log import fill, patient
from benchmarks.report import write_json

MONTHS = 13  # of the page's chart
SAMPLE_S = 0.02  # between two looks at what the database holds


def page_of_a_month(url: str) -> None:
    """What the month's route does, for who may read all."""
    months = [month_of(at_s) for at_s in month_bounds(month_of(time.time()), MONTHS)[:-1]]
    sums = SqlStore(url).sums(month_bounds(months[-1], MONTHS))
    about = {s.dag_id: DagAbout([f"team{i % 9}"], [f"owner{i % 50}"]) for i, s in enumerate(sums)}
    month_answer(sums, months, Factors(), about)


def page_of_jobs(url: str) -> None:
    """What the jobs' route does."""
    store = SqlStore(url)
    trials = store.latest(last=overview_state.NEWEST)
    overview_view.rows(trials, {t.origin.dag_id for t in trials}, {}, time.time())
    since_s = month_bounds(month_of(time.time()), 2)[0]
    outside = store.outside_sums([since_s, LATEST_S])
    overview_view.dag_table(outside, {}, Factors(), "")


def _alone(answer: Callable[[str], None], url: str, said: Any) -> None:
    store = SqlStore(url)
    store.jobs("none")
    Path("/proc/self/clear_refs").write_text("5")  # the most so far is forgotten
    before_mib = _most_mib()
    wall_s = time.perf_counter()
    cpu_s = time.process_time()
    answer(url)
    took = {"wall_s": time.perf_counter() - wall_s, "cpu_s": time.process_time() - cpu_s}
    said.put({**took, "mib": _most_mib() - before_mib})


def _most_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def answered(answer: Callable[[str], None], url: str) -> dict[str, float]:
    """Seconds, those of this process's processor, and MiB beyond a process with a store,
    of one answer.
    """
    spawn = multiprocessing.get_context("spawn")
    said = spawn.Queue()
    process = spawn.Process(target=_alone, args=(answer, url, said))
    process.start()
    found: dict[str, float] = said.get(timeout=3600)
    process.join()
    return found


def sizes(url: str, trials: int) -> dict[str, float]:
    """Bytes of a trial in each table, indexes included."""
    with engine_of(read_url(url)).connect() as connection:
        tables = connection.execute(
            sa.text("SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relkind = 'r'")
        )
        return {
            name: size / trials for name, size in tables if name.startswith("zeus_") and size > 8192
        }


def spread(url: str) -> None:
    """Let the trials have begun one after the other, over the months up to now."""
    begun = "UPDATE zeus_trial SET opened_at = :now - :span * random()"
    with patient(url) as connection:
        connection.execute(sa.text(begun), {"now": time.time(), "span": MONTHS * 30 * 86400})
        # as the database does by itself some time after that
        connection.exec_driver_sql("VACUUM ANALYZE zeus_trial")


class Watch(threading.Thread):
    """Looks at what the sessions of a database hold: the most of each."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.most = {"connections": 0, "locks": 0, "waiting": 0}
        self._over = threading.Event()
        self._url = url

    def run(self) -> None:
        others = (
            "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        looks = {
            "connections": f"SELECT count(*) {others}",
            "locks": f"SELECT count(*) FROM pg_locks WHERE pid IN (SELECT pid {others})",
            "waiting": f"SELECT count(*) {others} AND wait_event_type = 'Lock'",
        }
        with patient(self._url) as connection:
            while not self._over.wait(SAMPLE_S):
                for name, query in looks.items():
                    self.most[name] = max(
                        self.most[name], int(connection.scalar(sa.text(query)) or 0)
                    )

    def stop(self) -> dict[str, int]:
        self._over.set()
        self.join()
        return self.most


@command(
    "--out",
    option("--jobs", type=int, default=2000),
    option("--trials", type=int, default=500, help="of each job"),
    option("--processes", type=int, default=8, help="that ask and report at once; 0: none"),
)
def main(args: argparse.Namespace) -> int:
    """Print the figures."""
    figures: dict[str, Any] = {}

    def found(name: str, value: Any) -> None:
        figures[name] = value
        print(name, value, flush=True)

    found("trials", trials := args.jobs * args.trials)
    with store_load.databases(["postgresql"]) as empty:
        with empty("postgresql") as url:
            start_s = time.monotonic()
            fill(url, (f"job{j:05d}" for j in range(args.jobs)), args.trials)
            found("fill_s", time.monotonic() - start_s)
            found("bytes_of_a_trial", sizes(url, trials))
            spread(url)
            found("month", answered(page_of_a_month, url))
            found("jobs", answered(page_of_jobs, url))
        if args.processes:
            with empty("postgresql") as url:
                watch = Watch(url)
                watch.start()
                load = store_load.Load("site", 20, 5)
                found("load", store_load.run(url, load, processes=args.processes, commits=5))
                found("held", watch.stop())
    write_json(args.out, figures)
    return 1 if figures.get("load", {}).get("errors") else 0
