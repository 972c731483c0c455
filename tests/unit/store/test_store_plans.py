"""A log of thousands of trials is not read through: the plans of both databases,
after their own statistics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.model.trial import TrialKey
from airflow_provider_zeus.store.sql.engine import engine_of, read_url
from airflow_provider_zeus.store.sql.store import SqlStore
from benchmarks.cost.outside_log import fill_outside
from benchmarks.cost.store_log import DEVICE, JOB, ask, checkpoint, fill, tell

JOBS = 40
TRIALS = 150
# PostgreSQL's words, SQLite's words
_SCAN = re.compile(r"Seq Scan on zeus_trial\b|SCAN zeus_trial(?! USING)\b")


@contextmanager
def explained(url: str) -> Iterator[dict[str, str]]:
    """Statement -> plan of whatever is sent meanwhile that names a table of trials."""
    engine = engine_of(read_url(url))
    plans = dict[str, str]()
    explain = "EXPLAIN " if engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN "

    def look(
        connection: sa.Connection, _cursor: object, statement: str, given: Any, *_: object
    ) -> None:
        if "zeus_trial" in statement and statement.startswith(("SELECT", "UPDATE", "DELETE")):
            raw = connection.connection.cursor()
            raw.execute(explain + statement, given)
            plans[statement] = "\n".join(str(row[-1]) for row in raw.fetchall())
            raw.close()

    sa.event.listen(engine, "before_cursor_execute", look)
    try:
        yield plans
    finally:
        sa.event.remove(engine, "before_cursor_execute", look)


def use(store: SqlStore, job_id: str, n: int) -> None:
    """Whatever a recurrence and the pages of a job send; ``n`` trials are in the log,
    the last one of run ``n``.
    """
    trial = ask(store, job_id, n + 1).trial
    tell(store, trial, n + 1)
    store.reap(job_id)
    for _, read in pages(store, job_id, n):
        read()


def pages(store: SqlStore, job_id: str, n: int) -> list[tuple[str, Callable[[], object]]]:
    """What the pages of the UI ask of the log."""
    where = DEVICE.where
    assert where is not None
    return [
        ("newest 1,000 runs of a DAG", lambda: store.runs(job_id, job_id, last=1000)),
        ("50 runs, 500 newer passed over", lambda: store.runs(job_id, job_id, last=50, skip=500)),
        ("one run", lambda: store.recurrence(job_id, f"run{n}")),
        ("newest 20 trials", lambda: store.trials(job_id, last=20)),
        ("all of it, for another log", lambda: list(store.history(job_id))),
        ("profile of a device", lambda: store.profile(job_id, where, JOB.job_version)),
        ("power over time", lambda: store.points(TrialKey(f"{job_id}-{n}"))),
        ("jobs of a DAG", lambda: store.jobs(job_id)),
    ]


def scans(plans: dict[str, str]) -> list[str]:
    """The statements that read the table of trials from end to end, each with its plan."""
    return [f"{statement}\n{plan}" for statement, plan in plans.items() if _SCAN.search(plan)]


@pytest.fixture(params=["sqlite_url", "database"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def test_no_question_and_no_page_reads_the_whole_table_of_trials(url: str) -> None:
    fill(url, (f"job{j:02d}" for j in range(JOBS)), TRIALS)
    checkpoint(url, "job07")
    store = SqlStore(url)
    log = store.trials("job07")
    assert [(t.number, t.told_seq, t.key.ti_id) for t in log] == [
        (n, n, f"job07-{n}") for n in range(1, TRIALS + 1)
    ]
    with explained(url) as plans:
        use(store, "job07", TRIALS)
        scans_of_questions_and_pages = scans(plans)
        seen = " ".join(plans)
        with store._engine.connect() as connection:
            connection.exec_driver_sql("SELECT count(*) FROM zeus_trial WHERE metric > 2").all()
        assert scans_of_questions_and_pages == []
        assert len(scans(plans)) == 1, "a scan is recognised"
    assert len(plans) >= 15
    for words in (
        "UPDATE zeus_trial",
        "GROUP BY zeus_trial.run_id",
        "batch_size",
        "zeus_trial_power",
        "zeus_checkpoint",
    ):
        assert words in seen
    assert len(store.trials("job07")) == TRIALS + 1
    store.close()


def test_where_jobs_are_listed_no_row_from_outside_is_read(sqlite_url: str) -> None:
    fill(sqlite_url, [f"job{j}" for j in range(5)], 60)
    fill_outside(sqlite_url, 50, 20)
    store = SqlStore(sqlite_url)
    with explained(sqlite_url) as plans:
        assert {t.job_id for t in store.latest(last=3)} == {f"job{j}" for j in range(5)}
        assert len(store.outside_jobs()) == 50
        store.sums([0.0, 4e9])
    read = [plan for plan in plans.values() if "ix_zeus_trial_" in plan]
    assert len(read) == 3
    for plan in read:
        first = next(line for line in plan.splitlines() if "zeus_trial " in line)
        assert "ix_zeus_trial_chosen" in first or "ix_zeus_trial_opened" in first, plan
    store.close()
