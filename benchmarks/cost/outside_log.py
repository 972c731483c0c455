"""A log of many tasks that are measured from outside, in no time, by the database itself."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import sqlalchemy as sa

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import OUTSIDE, Observation, Origin, State, Trial, TrialKey
from airflow_provider_zeus.optimizer.policy import measured
from airflow_provider_zeus.reports.months import month_bounds, month_of
from airflow_provider_zeus.store.sql import schema
from airflow_provider_zeus.store.sql.engine import engine_of, read_url, transaction
from airflow_provider_zeus.store.sql.outside_sums import ALL_TASKS, DAY_S
from airflow_provider_zeus.store.sql.store import SqlStore
from benchmarks.cost.store_log import patient

TASKS_OF_A_DAG = 50
MODEL = "outside_0000.task00"  # the job whose one row the others are copies of
SPREAD_S = 80.0 * DAY_S  # over which the rows of a task lie: all are kept

_T = schema.trial
_S = schema.outside_sum


def row(dag_id: str, task_id: str, ti_id: str) -> Trial:
    """What the listener writes of a task, without a number yet."""
    job = ZeusJob(mode="measure")
    decision = measured(job, why="Named by [zeus] measure.", policy=OUTSIDE)
    return Trial(
        job_id=f"{dag_id}.{task_id}",
        number=0,
        key=TrialKey(ti_id),
        origin=Origin(dag_id=dag_id, run_id="run", task_id=task_id, run_type="scheduled"),
        spec=job.to_dict(),
        decision=decision,
        planned=decision.attempts[0],
        state=State.RUNNING,
        opened_at=time.time(),
    )


def write(store: SqlStore, dag_id: str, task_id: str, ti_id: str) -> None:
    """One run of a task, from its row to its result."""
    trial = store.adopt(row(dag_id, task_id, ti_id))
    seen = Observation(energy_j=420.0, time_s=60.0, energy_source="estimate", start_id=ti_id)
    store.tell(trial.key, State.DONE, Report(observation=seen))


def fill_outside(url: str, tasks: int, rows: int) -> None:
    """Write so many tasks with so many rows each, 50 tasks a DAG, and the sums of all."""
    store = SqlStore(url)
    write(store, "outside_0000", "task00", "model")
    store.close()
    engine = engine_of(read_url(url))
    step_s = SPREAD_S / rows
    for at in range(0, tasks, TASKS_OF_A_DAG):
        with transaction(engine, write=True) as connection:
            for n in range(at, at + TASKS_OF_A_DAG):
                dag_id = f"outside_{at // TASKS_OF_A_DAG:04d}"
                task_id = f"task{n - at:02d}"
                if f"{dag_id}.{task_id}" != MODEL:
                    _copy(connection, dag_id, task_id, rows, step_s)
    with patient(url) as connection:
        _sum(connection)
        connection.exec_driver_sql("ANALYZE")


def _copy(connection: sa.Connection, dag_id: str, task_id: str, rows: int, step_s: float) -> None:
    job_id = f"{dag_id}.{task_id}"
    job = {"job_id": job_id, "told_seq": rows, "last_number": rows}
    connection.execute(sa.insert(schema.job).values(job))
    numbers = sa.select(sa.literal(1).label("n")).cte("numbers", recursive=True)
    numbers = numbers.union_all(sa.select(numbers.c.n + 1).where(numbers.c.n < rows))
    n = numbers.c.n
    values: dict[str, Any] = {c.name: c for c in _T.c if c.name != "id"}
    values |= {
        "job_id": sa.literal(job_id),
        "dag_id": sa.literal(dag_id),
        "task_id": sa.literal(task_id),
        "number": n,
        "ti_id": sa.literal(f"{job_id}-") + sa.cast(n, sa.Text),
        "run_id": sa.literal("run") + sa.cast(n, sa.Text),
        "told_seq": n,
        "opened_at": _T.c.opened_at - (rows - n) * step_s,
    }
    copied = sa.select(*values.values()).select_from(numbers).join(_T, sa.true())
    statement = copied.where(_T.c.job_id == MODEL).order_by(n)
    connection.execute(sa.insert(_T).from_select(list(values), statement))


def _sum(connection: sa.Connection) -> None:
    """The sums that the rows would have made one by one."""
    connection.execute(sa.delete(_S))
    day_s = sa.cast(_T.c.opened_at, sa.BigInteger) // DAY_S * DAY_S
    bounds = month_bounds(month_of(time.time()), 6)
    months = [(_T.c.opened_at < end, int(begin)) for begin, end in pairwise(bounds)]
    month_s = sa.case(*months, else_=int(bounds[-2]))
    for job_id, begin_s in ((_T.c.job_id, day_s), (sa.literal(ALL_TASKS), month_s)):
        values: dict[str, Any] = {c.name: sa.literal(0) for c in _S.c}
        values |= {
            "job_id": job_id,
            "dag_id": _T.c.dag_id,
            "begin_s": begin_s,
            "energy_source": _T.c.energy_source,
            "price_currency": sa.literal(""),
            "trials": sa.func.count(),
            "runs": sa.func.count(),
            "energy_j": sa.func.sum(_T.c.energy_j),
            "time_s": sa.func.sum(_T.c.time_s),
            "gpu_s": sa.func.sum(_T.c.time_s),
        }
        groups = (values["job_id"], _T.c.dag_id, begin_s, _T.c.energy_source)
        keys = groups if job_id is _T.c.job_id else groups[1:]
        summed = sa.select(*values.values()).where(_T.c.outside.is_(True)).group_by(*keys)
        connection.execute(sa.insert(_S).from_select(list(values), summed))
