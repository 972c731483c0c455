"""Statements of the SQL store for pages and exports: newest runs, trials in pieces, the version of a log, sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from airflow_provider_zeus.model.size_bounds import MOST_TEXT
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.reports.months import PeriodSum
from airflow_provider_zeus.store.rows import read_row
from airflow_provider_zeus.store.sql import schema
from airflow_provider_zeus.store.sql.trials import MOST, Found, countable
from airflow_provider_zeus.units import J_PER_KWH

PIECE = 50  # trials in one piece

_T, _S = schema.trial, schema.profile
_short: dict[str, sa.ColumnElement[Any]] = {
    "reason": sa.func.substr(_T.c.reason, 1, MOST_TEXT + 1, type_=sa.Text).label("reason"),
    "returned": sa.null().label("returned"),
    "epoch_metrics": sa.null().label("epoch_metrics"),
}
_SHOWN = [_short.get(c.name, c) for c in _T.c]  # for pages: no more of a text than is shown
_in_dag = (_T.c.dag_id == sa.bindparam("dag"), _T.c.job_id == sa.bindparam("job"))
_newest_runs = (
    sa.select(_T.c.run_id)
    .where(*_in_dag)
    .group_by(_T.c.run_id)
    .order_by(sa.func.max(_T.c.number).desc())
    .limit(sa.bindparam("last"))
    .offset(sa.bindparam("skip"))
)
_IN_RUNS = (*_in_dag, _T.c.run_id.in_(_newest_runs))


def _sum(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """Sum of a column's numbers, or of the lengths of its texts."""
    if isinstance(column.type, sa.Integer | sa.Float):
        return sa.func.sum(sa.cast(column, sa.Double))
    return sa.func.sum(sa.func.length(sa.cast(column, sa.Text)))


def of_runs(connection: sa.Connection, dag_id: str, job_id: str, last: int, skip: int) -> list[Found]:
    """Trials that a job has in the newest ``last`` runs of one DAG behind ``skip`` newer ones, in order of number."""
    statement = sa.select(*_SHOWN).where(*_IN_RUNS).order_by(_T.c.number)
    rows = connection.execute(statement, {"dag": dag_id, "job": job_id, "last": last, "skip": skip})
    return [*map(read_row, rows.mappings())]


def latest(connection: sa.Connection, last: int) -> list[Found]:
    """Of every job in every DAG the trials whose numbers are among its ``last`` newest, by DAG, job, number."""
    newest = sa.select(_T.c.dag_id, _T.c.job_id, sa.func.max(_T.c.number).label("number"))
    end = newest.group_by(_T.c.dag_id, _T.c.job_id).subquery()  # needs only an index
    newest_of = _T.c.number.between(end.c.number - last + 1, end.c.number)
    near = sa.and_(_T.c.job_id == end.c.job_id, newest_of, _T.c.dag_id == end.c.dag_id)
    statement = sa.select(*_SHOWN).join(end, near).order_by(_T.c.dag_id, _T.c.job_id, _T.c.number)
    return [*map(read_row, connection.execute(statement).mappings())]


def numbers(connection: sa.Connection, dag_id: str, job_id: str, last: int) -> list[Sequence[int]]:
    """Numbers of the trials that :func:`of_runs` reads in order, in lists of :data:`PIECE`."""
    of_runs = sa.select(_T.c.number).where(*_IN_RUNS).order_by(_T.c.number)
    found = list(connection.scalars(of_runs, {"dag": dag_id, "job": job_id, "last": last, "skip": 0}))
    return [found[i : i + PIECE] for i in range(0, len(found), PIECE)]


def numbered(connection: sa.Connection, job_id: str, wanted: Sequence[int]) -> Iterator[Found]:
    """The trials of these numbers that still exist, in order of number."""
    of_job = sa.select(*_SHOWN).where(_T.c.job_id == job_id, _T.c.number.in_(wanted))
    return (read_row(row) for row in connection.execute(of_job.order_by(_T.c.number)).mappings())


def version(connection: sa.Connection, dag_id: str, job_id: str, last: int, now: float) -> tuple[object, ...]:
    """Sums over the rows that :func:`of_runs` reads, and over the job's profile.

    :param now: s since the epoch; a lease that expires changes the answer too.
    """
    expired = sa.case((sa.and_(_T.c.state == State.RUNNING.value, _T.c.lease_until <= now), 1), else_=0)
    of_trials = sa.select(sa.func.count(), sa.func.sum(expired), *map(_sum, _T.c)).where(*_IN_RUNS)
    of_profile = sa.select(sa.func.count(), *map(_sum, _S.c)).where(_S.c.job_id == job_id)
    of_runs = {"dag": dag_id, "job": job_id, "last": last, "skip": 0}
    return (*connection.execute(of_trials, of_runs).one(), *connection.execute(of_profile).one())


def sums(connection: sa.Connection, bounds: Sequence[float]) -> list[PeriodSum]:
    """Sums over all trials of the runs that began in a period, by period, DAG, job and source.

    A run begins with its first trial, and counts once among those whose source is known, with the first of them.
    """
    of_run, here = _T.alias("of_run"), (_T.c.dag_id, _T.c.job_id, _T.c.run_id, _T.c.task_id, _T.c.map_index)
    same_run = sa.and_(*(of_run.c[c.name] == c for c in here), sa.or_(_T.c.run_id != "", of_run.c.ti_id == _T.c.ti_id))
    alone = sa.and_(_T.c.attempt == 1, _T.c.try_number == 1)  # the first trial of its run: nothing is to be looked up
    first = sa.select(sa.func.min(of_run.c.opened_at)).where(same_run).scalar_subquery()
    began = sa.case((alone, _T.c.opened_at), else_=first)
    alike = of_run.c.energy_source.is_(None) == _T.c.energy_source.is_(None)
    of_first_try = sa.and_(of_run.c.attempt == 1, of_run.c.try_number == 1)  # it counts, also where it came late
    counted_before = sa.exists().where(same_run, alike, sa.or_(of_run.c.number < _T.c.number, of_first_try))
    period = sa.case(*((began < end, i) for i, end in enumerate(bounds[1:])), else_=len(bounds)).label("period")
    groups = (period, _T.c.dag_id, _T.c.job_id, _T.c.energy_source)
    factors = (_T.c.price_per_kwh, _T.c.price_at_once, _T.c.g_co2e_per_kwh, _T.c.g_co2e_at_once)
    told_alone = (_T.c.energy_source.is_not(None), _T.c.time_s.is_not(None), _T.c.energy_j.is_(None))
    without_energy = sa.and_(*told_alone, _T.c.state != State.NOT_NEEDED.value)
    found = connection.execute(
        sa.select(
            *groups,
            sa.func.sum(sa.case((alone, 1), (counted_before, 0), else_=1)),
            sa.func.sum(_T.c.energy_j),
            sa.func.sum(_T.c.time_s),
            sa.func.sum(_T.c.time_s * sa.func.coalesce(_T.c.device_count, 1)),
            sa.func.sum(sa.case((sa.and_(_T.c.time_s.is_(None), _T.c.state != State.NOT_NEEDED.value), 1), else_=0)),
            sa.func.sum(sa.case((without_energy, 1), else_=0)),
            sa.func.sum(_T.c.energy_j * _T.c.price_per_kwh) / J_PER_KWH,
            sa.func.sum(sa.case((_T.c.price_per_kwh.is_not(None), _T.c.energy_j))),
            sa.func.min(_T.c.price_currency),
            sa.func.max(_T.c.price_currency),
            sa.func.sum(_T.c.energy_j * _T.c.g_co2e_per_kwh) / J_PER_KWH,
            sa.func.sum(sa.case((_T.c.g_co2e_per_kwh.is_not(None), _T.c.energy_j))),
            sa.func.sum(_T.c.energy_j * (_T.c.price_at_once - _T.c.price_per_kwh)) / J_PER_KWH,
            sa.func.sum(_T.c.energy_j * (_T.c.g_co2e_at_once - _T.c.g_co2e_per_kwh)) / J_PER_KWH,
        )
        .where(_T.c.opened_at >= bounds[0], began >= bounds[0], began < bounds[-1])
        .where(countable(_T.c.energy_j, _T.c.time_s, _T.c.device_count))
        .where(countable(*factors, low=-MOST))
        .group_by(*groups)
        .order_by(*groups)
    )
    names = (
        *("period", "dag_id", "job_id", "source", "runs", "energy_j", "time_s", "gpu_s", "unknown", "without_energy"),
        *("paid", "paid_j"),
    )
    return [
        PeriodSum(
            **dict(zip(names, first, strict=True)),
            currencies=tuple(sorted({each for each in (low, high) if isinstance(each, str)})),
            g_co2e=g_co2e,
            g_co2e_j=g_co2e_j,
            start_saved=start_saved,
            start_saved_g=start_saved_g,
        )
        for *first, low, high, g_co2e, g_co2e_j, start_saved, start_saved_g in found
    ]
