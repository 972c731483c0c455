"""A long trial log in no time, by the database itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import (
    DeviceInfo,
    Observation,
    Origin,
    ProfileSample,
    State,
    Trial,
)
from airflow_provider_zeus.optimizer.policy import prior
from airflow_provider_zeus.store.base import AskAnswer, AskRequest
from airflow_provider_zeus.store.sql import checkpoints, schema
from airflow_provider_zeus.store.sql.engine import engine_of, read_url, transaction
from airflow_provider_zeus.store.sql.store import SqlStore

SIZES = [8, 16, 32, 64, 128, 256, 512]
JOB = ZeusJob(batch_sizes=SIZES, default_batch_size=64, target="accuracy >= 0.84", max_epochs=30)
DEVICE = DeviceInfo(model="V100", count=1, max_power_w=300.0, energy_source="simulated")
MODEL = 40  # real recurrences that the rest is written like
ENDS = [*[State.CONVERGED] * 8, State.EXHAUSTED, State.FAILED]

_T = schema.trial


def ask(store: SqlStore, job_id: str, n: int) -> AskAnswer:
    """The question of recurrence ``n`` of a job, in a DAG of its own."""
    origin = Origin(dag_id=job_id, run_id=f"run{n}", task_id="train", run_type="scheduled")
    ti_id = f"{job_id}-{n}"
    return store.ask(
        AskRequest(job=JOB, job_id=job_id, ti_id=ti_id, origin=origin, device=DEVICE, lease_s=3600)
    )


def tell(store: SqlStore, trial: Trial, n: int, state: State = State.CONVERGED) -> Trial:
    """The result of recurrence ``n``; its samples are ``n``."""
    one = ProfileSample(
        batch_size=trial.batch_size, limit_w=200.0, samples=640, energy_j=90.0, time_s=0.5, steps=10
    )
    return store.tell(
        trial.key, state, Report(observation=seen(trial.batch_size, n), profile=[one])
    )


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
    """Write so many closed trials of each job,
    all but the first job's first 40 copied from those.
    """
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
    # as the database does by itself some time after so many rows came
    with patient(url) as connection:
        connection.exec_driver_sql("ANALYZE")


@contextmanager
def patient(url: str) -> Iterator[sa.Connection]:
    """A connection that waits for as long as a statement over all rows takes,
    which the store's own do not.
    """
    engine = sa.create_engine(engine_of(read_url(url)).url, poolclass=sa.NullPool)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        yield connection


def _copy(connection: sa.Connection, first: str, job_id: str, trials: int) -> None:
    if job_id != first:
        connection.execute(sa.insert(schema.job).values(job_id=job_id, told_seq=0, last_number=0))
        samples = {
            **{c.name: c for c in schema.profile.c if c.name != "id"},
            "job_id": sa.literal(job_id),
        }
        copied = sa.select(*samples.values()).where(schema.profile.c.job_id == first)
        connection.execute(sa.insert(schema.profile).from_select(list(samples), copied))
    begin = MODEL + 1 if job_id == first else 1
    if begin <= trials:
        numbers = sa.select(sa.literal(begin).label("n")).cte("numbers", recursive=True)
        numbers = numbers.union_all(sa.select(numbers.c.n + 1).where(numbers.c.n < trials))
        connection.execute(sa.insert(_T).from_select(*_rows(first, job_id, numbers)))
    connection.execute(
        sa.update(schema.job)
        .where(schema.job.c.job_id == job_id)
        .values(told_seq=trials, last_number=trials)
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
    """Fold a job's log once, as its next question would:
    leaves the checkpoints that its questions left on the way.
    """
    with transaction(engine_of(read_url(url)), write=True) as connection:
        checkpoints.belief_of(connection, job_id, prior(JOB), oldest_open=None)


def empty_commit(url: str, job_id: str) -> None:
    """The least that any durable answer costs: one number of the job's row changed."""
    with transaction(engine_of(read_url(url)), write=True) as connection:
        one = sa.update(schema.job).where(schema.job.c.job_id == job_id)
        connection.execute(one.values(told_seq=schema.job.c.told_seq))
