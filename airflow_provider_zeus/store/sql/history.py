"""Statements that read the whole history of a job, for another log: exact, and in pieces that fit
into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from airflow_provider_zeus.model.trial import PowerPoint, TrialKey
from airflow_provider_zeus.store.base import JobHead, JobProfile
from airflow_provider_zeus.store.rows import points_from_lists, read_row
from airflow_provider_zeus.store.sql import measurements, outside_sums, schema
from airflow_provider_zeus.store.sql.trials import Found, events_text, held_events

RUNS = 50  # a log of years must not be in memory at once
BEFORE_ALL = -(2**62)  # a damaged row may have a number below 0, and has to be named

_T = schema.trial
_t = _T.c
_P = schema.power
_E = _T.alias("earlier")
_RUN = ("dag_id", "run_id", "task_id", "map_index")
_earlier = _E.c.number < _t.number
_of_run = (_E.c.job_id == _t.job_id, *(_E.c[name] == _T.c[name] for name in _RUN))
_in_run = sa.exists().where(_t.run_id != "", _earlier, *_of_run)
# The empty text keeps a database from its index of jobs, by which it would read all earlier trials:
# by the other index it reads a few.
_of_instance = (_E.c.ti_id == _t.ti_id, _E.c.run_id == "", _E.c.job_id + "" == _t.job_id)
_in_instance = sa.exists().where(_t.run_id == "", _earlier, *_of_instance)
_FIRSTS = (
    sa.select(_t.job_id, _t.number, _t.ti_id, *(_T.c[name] for name in _RUN))
    .where(_t.job_id == sa.bindparam("job"), _t.number > sa.bindparam("after"))
    .where(sa.not_(_in_run), sa.not_(_in_instance))
    .order_by(_t.number)
    .limit(RUNS)
)


def measured(connection: sa.Connection, job_id: str) -> Iterator[JobHead | JobProfile]:
    """How far the log of a job has got, and the job's profile of each device; nothing if
    there is no job.
    """
    job = schema.job
    counts = sa.select(job.c.told_seq, job.c.last_number).where(job.c.job_id == job_id)
    row = connection.execute(counts).one_or_none()
    if row is None:
        return
    events = held_events(events_text(connection, job_id))
    yield JobHead(
        job_id=job_id,
        told_seq=row.told_seq,
        last_number=row.last_number,
        events=events,
        days=tuple(outside_sums.of_job(connection, job_id)),
    )
    yield from measurements.profiles(connection, job_id)


def first_trials(connection: sa.Connection, job_id: str, after: int) -> Sequence[sa.Row[Any]]:
    """The first trials of the next runs of a job, by number; ``after``: number of the last one
    before them.
    """
    return connection.execute(_FIRSTS, {"job": job_id, "after": after}).all()


def trials_of_run(
    connection: sa.Connection, first: sa.Row[Any]
) -> Iterator[tuple[TrialKey, Found, list[PowerPoint]]]:
    """Key, trial and power points of each trial of the run that a first trial belongs to, by
    number.
    """
    same = _RUN if first.run_id else ("run_id", "ti_id")
    of_run = [_T.c[name] == getattr(first, name) for name in ("job_id", *same)]
    statement = (
        sa.select(_T, _P.c.points).select_from(_T.outerjoin(_P)).where(*of_run).order_by(_t.number)
    )
    for row in connection.execute(statement).mappings():
        key = TrialKey(row["ti_id"], row["attempt"])
        yield key, read_row(row), points_from_lists(row["points"])
