"""A long trial log in no time, by the database itself, and the plans by which a database reads it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import DeviceInfo, Observation, Origin, ProfileSample, State, Trial, TrialKey
from airflow_provider_zeus.store.base import AskAnswer, AskRequest, Report
from airflow_provider_zeus.store.sql import checkpoints, schema
from airflow_provider_zeus.store.sql.engine import engine_of, read_url, transaction
from airflow_provider_zeus.store.sql.store import SqlStore

SIZES = [8, 16, 32, 64, 128, 256, 512]
JOB = ZeusJob(batch_sizes=SIZES, default_batch_size=64, target="accuracy >= 0.84", max_epochs=30)
DEVICE = DeviceInfo(model="V100", count=1, max_power_w=300.0, energy_source="simulated")
MODEL = 40  # real recurrences that the rest is written like
ENDS = [*[State.CONVERGED] * 8, State.EXHAUSTED, State.FAILED]

_T = schema.trial


def ask(store: SqlStore, job_id: str, n: int, who: str = "") -> AskAnswer:
    """The question of recurrence ``n`` of a job, in a DAG of its own."""
    origin = Origin(dag_id=job_id, run_id=f"run{who}{n}", task_id="train", run_type="scheduled")
    ti_id = f"{job_id}-{who}{n}"
    return store.ask(AskRequest(job=JOB, job_id=job_id, ti_id=ti_id, origin=origin, device=DEVICE, lease_s=3600))


def tell(store: SqlStore, trial: Trial, n: int, state: State = State.CONVERGED) -> Trial:
    """The result of recurrence ``n``; its samples are ``n``."""
    one = ProfileSample(batch_size=trial.batch_size, limit_w=200.0, samples=640, energy_j=90.0, time_s=0.5, steps=10)
    return store.tell(trial.key, state, Report(observation=seen(trial.batch_size, n), profile=[one]))


def seen(batch_size: int, n: int) -> Observation:
    """A run that needs more epochs with larger batches and spends less on each."""
    epochs = 6.0 + batch_size / 64 + n % 3
    return Observation(
        epochs=epochs,
        samples=n,
        samples_per_epoch=10_000.0,
        energy_j=epochs * (4000.0 + 64_000 / batch_size),
        time_s=epochs * (30.0 + 900 / batch_size),
        rest_j=epochs * 100.0,
        rest_s=epochs * 2.0,
        metric=0.85,
        power_limit_w=200.0,
        device_model=DEVICE.model,
        device_count=1,
        max_power_w=300.0,
        energy_source="simulated",
        gpu_uuid="GPU-0",
        limit_found_w=250.0,
    )


def fill(url: str, jobs: Iterable[str], trials: int) -> None:
    """Write so many closed trials of each job, all but the first job's first 40 copied from those."""
    store = SqlStore(url, create=True)
    jobs = list(jobs)
    first = jobs[0]
    for n in range(1, MODEL + 1):
        tell(store, ask(store, first, n).trial, n, ENDS[n % len(ENDS)])
    store.close()
    engine = engine_of(read_url(url))
    for at in range(0, len(jobs), 50):
        with transaction(engine, write=True) as connection:
            for job_id in jobs[at : at + 50]:
                _copy(connection, first, job_id, trials)
    with patient(url) as connection:  # as the database does by itself some time after so many rows came
        connection.exec_driver_sql("ANALYZE")


@contextmanager
def patient(url: str) -> Iterator[sa.Connection]:
    """A connection that waits for as long as a statement over all rows takes, which the store's own do not."""
    engine = sa.create_engine(engine_of(read_url(url)).url, poolclass=sa.NullPool)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        yield connection


def _copy(connection: sa.Connection, first: str, job_id: str, trials: int) -> None:
    if job_id != first:
        connection.execute(sa.insert(schema.job).values(job_id=job_id, told_seq=0, last_number=0))
        samples = {**{c.name: c for c in schema.profile.c if c.name != "id"}, "job_id": sa.literal(job_id)}
        copied = sa.select(*samples.values()).where(schema.profile.c.job_id == first)
        connection.execute(sa.insert(schema.profile).from_select(list(samples), copied))
    begin = MODEL + 1 if job_id == first else 1
    if begin <= trials:
        numbers = sa.select(sa.literal(begin).label("n")).cte("numbers", recursive=True)
        numbers = numbers.union_all(sa.select(numbers.c.n + 1).where(numbers.c.n < trials))
        connection.execute(sa.insert(_T).from_select(*_rows(first, job_id, numbers)))
    connection.execute(
        sa.update(schema.job).where(schema.job.c.job_id == job_id).values(told_seq=trials, last_number=trials)
    )


def _rows(first: str, job_id: str, numbers: sa.CTE) -> tuple[list[str], sa.Select[Any]]:
    n = numbers.c.n
    values: dict[str, Any] = {c.name: c for c in _T.c if c.name != "id"}
    values |= {
        "job_id": sa.literal(job_id),
        "dag_id": sa.literal(job_id),
        "number": n,
        "ti_id": sa.literal(f"{job_id}-") + sa.cast(n, sa.Text),
        "run_id": sa.literal("run") + sa.cast(n, sa.Text),
        "told_seq": n,
        "asked_after_seq": n - 1,
        "samples": n,
    }
    like = sa.select(*values.values()).select_from(numbers).join(_T, _T.c.number == n % MODEL + 1)
    return list(values), like.where(_T.c.job_id == first).order_by(n)


def checkpoint(url: str, job_id: str) -> None:
    """Fold a job's log once, as its next question would: leaves the checkpoints that its questions left on the way."""
    with transaction(engine_of(read_url(url)), write=True) as connection:
        checkpoints.belief_of(connection, job_id, JOB, oldest_open=None)


def empty_commit(url: str, job_id: str) -> None:
    """The least that any durable answer costs: one number of the job's row changed."""
    with transaction(engine_of(read_url(url)), write=True) as connection:
        one = sa.update(schema.job).where(schema.job.c.job_id == job_id)
        connection.execute(one.values(told_seq=schema.job.c.told_seq))


_SCAN = re.compile(r"Seq Scan on zeus_trial\b|SCAN zeus_trial(?! USING)\b")  # PostgreSQL's words, SQLite's words


@contextmanager
def explained(url: str) -> Iterator[dict[str, str]]:
    """Statement -> plan of whatever is sent meanwhile that names a table of trials."""
    engine, plans = engine_of(read_url(url)), dict[str, str]()
    explain = "EXPLAIN " if engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN "

    def look(connection: sa.Connection, _cursor: object, statement: str, given: Any, *_: object) -> None:
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
    """Whatever a recurrence and the pages of a job send; ``n`` trials are in the log, the last one of run ``n``."""
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
        ("profile of a device", lambda: store.profile(job_id, where, JOB.job_version)),
        ("power over time", lambda: store.points(TrialKey(f"{job_id}-{n}"))),
        ("jobs of a DAG", lambda: store.jobs(job_id)),
    ]


def scans(plans: dict[str, str]) -> list[str]:
    """The statements that read the table of trials from end to end, each with its plan."""
    return [f"{statement}\n{plan}" for statement, plan in plans.items() if _SCAN.search(plan)]
