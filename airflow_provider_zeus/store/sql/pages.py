"""Statements of the SQL store for pages and exports: newest runs, trials in pieces, the version of
a log, sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from airflow_provider_zeus.model.period_sum import PeriodSum
from airflow_provider_zeus.model.size_bounds import MOST_TEXT
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.rows import read_row
from airflow_provider_zeus.store.sql import schema
from airflow_provider_zeus.store.sql.trials import MOST, Found, countable
from airflow_provider_zeus.units import J_PER_KWH

PIECE = 50  # a log of years must not be in memory at once

_T = schema.trial
_t = _T.c
_S = schema.profile
_short: dict[str, sa.ColumnElement[Any]] = {
    "reason": sa.func.substr(_t.reason, 1, MOST_TEXT + 1, type_=sa.Text).label("reason"),
    "returned": sa.null().label("returned"),
    "epoch_metrics": sa.null().label("epoch_metrics"),
}
_SHOWN = [_short.get(c.name, c) for c in _T.c]  # pages show no more of a text, which may be long
_in_dag = (_t.dag_id == sa.bindparam("dag"), _t.job_id == sa.bindparam("job"))
_newest_runs = (
    sa.select(_t.run_id)
    .where(*_in_dag)
    .group_by(_t.run_id)
    .order_by(sa.func.max(_t.number).desc())
    .limit(sa.bindparam("last"))
    .offset(sa.bindparam("skip"))
)
_is_chosen = _t.outside.is_(None)
_IN_RUNS = (*_in_dag, _t.run_id.in_(_newest_runs))


_FACTORS = (_t.price_per_kwh, _t.price_at_once, _t.g_co2e_per_kwh, _t.g_co2e_at_once)
_was_needed = _t.state != State.NOT_NEEDED.value
_told_no_time = sa.and_(_t.time_s.is_(None), _was_needed)
_told_time_alone = sa.and_(
    _t.energy_source.is_not(None),
    _t.time_s.is_not(None),
    _t.energy_j.is_(None),
    _was_needed,
)
_by_waiting = _t.price_at_once - _t.price_per_kwh
_grams_by_waiting = _t.g_co2e_at_once - _t.g_co2e_per_kwh
# Without the runs: to count one, other rows of the same run have to be looked at.
_SUMS: dict[str, sa.ColumnElement[Any]] = {
    "energy_j": sa.func.sum(_t.energy_j),
    "time_s": sa.func.sum(_t.time_s),
    "gpu_s": sa.func.sum(_t.time_s * sa.func.coalesce(_t.device_count, 1)),
    "unknown": sa.func.sum(sa.case((_told_no_time, 1), else_=0)),
    "without_energy": sa.func.sum(sa.case((_told_time_alone, 1), else_=0)),
    "paid": sa.func.sum(_t.energy_j * _t.price_per_kwh) / J_PER_KWH,
    "paid_j": sa.func.sum(sa.case((_t.price_per_kwh.is_not(None), _t.energy_j))),
    "low": sa.func.min(_t.price_currency),
    "high": sa.func.max(_t.price_currency),
    "g_co2e": sa.func.sum(_t.energy_j * _t.g_co2e_per_kwh) / J_PER_KWH,
    "g_co2e_j": sa.func.sum(sa.case((_t.g_co2e_per_kwh.is_not(None), _t.energy_j))),
    "start_saved": sa.func.sum(_t.energy_j * _by_waiting) / J_PER_KWH,
    "start_saved_g": sa.func.sum(_t.energy_j * _grams_by_waiting) / J_PER_KWH,
}


def _sum(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """Sum of a column's numbers, or of the lengths of its texts."""
    if isinstance(column.type, sa.Integer | sa.Float):
        return sa.func.sum(sa.cast(column, sa.Double))
    return sa.func.sum(sa.func.length(sa.cast(column, sa.Text)))


def of_runs(
    connection: sa.Connection, dag_id: str, job_id: str, last: int, skip: int
) -> list[Found]:
    """Trials that a job has in the newest ``last`` runs of one DAG behind ``skip`` newer ones, in
    order of number.
    """
    statement = sa.select(*_SHOWN).where(*_IN_RUNS).order_by(_t.number)
    rows = connection.execute(statement, {"dag": dag_id, "job": job_id, "last": last, "skip": skip})
    return [*map(read_row, rows.mappings())]


def latest(connection: sa.Connection, last: int) -> list[Found]:
    """Of every job in every DAG the trials whose numbers are among its ``last`` newest, by DAG,
    job, number.

    Without the trials measured from outside.
    """
    newest = sa.select(_t.dag_id, _t.job_id, sa.func.max(_t.number).label("number"))
    newest = newest.where(_is_chosen)
    end = newest.group_by(_t.dag_id, _t.job_id).subquery()  # by an index, not by long rows
    newest_of = _t.number.between(end.c.number - last + 1, end.c.number)
    near = sa.and_(_t.job_id == end.c.job_id, newest_of, _t.dag_id == end.c.dag_id, _is_chosen)
    statement = sa.select(*_SHOWN).join(end, near).order_by(_t.dag_id, _t.job_id, _t.number)
    return [*map(read_row, connection.execute(statement).mappings())]


def numbers(connection: sa.Connection, dag_id: str, job_id: str, last: int) -> list[Sequence[int]]:
    """Numbers of the trials that :func:`of_runs` reads in order, in lists of :data:`PIECE`."""
    of_runs = sa.select(_t.number).where(*_IN_RUNS).order_by(_t.number)
    parameters = {"dag": dag_id, "job": job_id, "last": last, "skip": 0}
    numbers = list(connection.scalars(of_runs, parameters))
    return [numbers[i : i + PIECE] for i in range(0, len(numbers), PIECE)]


def numbered(connection: sa.Connection, job_id: str, wanted: Sequence[int]) -> Iterator[Found]:
    """The trials of these numbers that still exist, in order of number."""
    of_job = sa.select(*_SHOWN).where(_t.job_id == job_id, _t.number.in_(wanted))
    return (read_row(row) for row in connection.execute(of_job.order_by(_t.number)).mappings())


def version(
    connection: sa.Connection, dag_id: str, job_id: str, last: int, now: float
) -> tuple[object, ...]:
    """Sums over the rows that :func:`of_runs` reads, and over the job's profile.

    :param now: s since the epoch; a lease that expires changes the answer too.
    """
    expired = sa.case((sa.and_(_t.state == State.RUNNING.value, _t.lease_until <= now), 1), else_=0)
    of_trials = sa.select(sa.func.count(), sa.func.sum(expired), *map(_sum, _T.c)).where(*_IN_RUNS)
    of_profile = sa.select(sa.func.count(), *map(_sum, _S.c)).where(_S.c.job_id == job_id)
    of_runs = {"dag": dag_id, "job": job_id, "last": last, "skip": 0}
    return (*connection.execute(of_trials, of_runs).one(), *connection.execute(of_profile).one())


def sums(
    connection: sa.Connection, bounds: Sequence[float], dag_id: str | None = None
) -> list[PeriodSum]:
    """Sums over the trials of the runs that began in a period, by period, DAG, job and source.

    Without the trials measured from outside: :mod:`.outside_sums` has those.

    :param dag_id: of this DAG alone.

    A run begins with its first trial, and counts once among those whose source is known, with the
    first of them.
    """
    of_run = _T.alias("of_run")
    here = (_t.dag_id, _t.job_id, _t.run_id, _t.task_id, _t.map_index)
    same_run = sa.and_(
        *(of_run.c[c.name] == c for c in here),
        sa.or_(_t.run_id != "", of_run.c.ti_id == _t.ti_id),
    )
    # Most trials are the first of their run, for which no other row has to be looked up.
    alone = sa.and_(_t.attempt == 1, _t.try_number == 1)
    first = sa.select(sa.func.min(of_run.c.opened_at)).where(same_run).scalar_subquery()
    began = sa.case((alone, _t.opened_at), else_=first)
    alike = of_run.c.energy_source.is_(None) == _t.energy_source.is_(None)
    # The first try counts its run even if its row came late: else the run would count twice.
    of_first_try = sa.and_(of_run.c.attempt == 1, of_run.c.try_number == 1)
    counted_before = sa.exists().where(
        same_run, alike, sa.or_(of_run.c.number < _t.number, of_first_try)
    )
    period = sa.case(
        *((began < end, i) for i, end in enumerate(bounds[1:])), else_=len(bounds)
    ).label("period")
    groups = (period, _t.dag_id, _t.job_id, _t.energy_source.label("source"))
    statement = (
        sa.select(
            *groups, sa.func.sum(sa.case((alone, 1), (counted_before, 0), else_=1)).label("runs")
        )
        .add_columns(*(column.label(name) for name, column in _SUMS.items()))
        .where(sa.true() if dag_id is None else _t.dag_id == dag_id)
        .where(_is_chosen, _t.opened_at >= bounds[0], began >= bounds[0], began < bounds[-1])
        .where(countable(_t.energy_j, _t.time_s, _t.device_count))
        .where(countable(*_FACTORS, low=-MOST))  # prices fall below 0 at times
        .group_by(*groups)
        .order_by(*groups)
    )
    return [_period_sum(row) for row in connection.execute(statement).mappings()]


def _period_sum(row: Mapping[Any, Any]) -> PeriodSum:
    figures = dict(row)
    names = {figures.pop("low"), figures.pop("high")}
    currencies = sorted(name for name in names if isinstance(name, str))
    return PeriodSum(**figures, currencies=tuple(currencies))
