"""Sums of the trials measured from outside: of each task and day, and of all such tasks of a DAG
and month.

They are kept while trials are written, so that a page reads a few sums and not a million rows; and
they stay when the rows of old trials are deleted. A trial counts in the day and the month in which
it was opened itself, a retry, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from airflow_provider_zeus.model.period_sum import PeriodSum
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.model.wire import LATEST_S, MOST_NUMBER
from airflow_provider_zeus.store.base import DaySum
from airflow_provider_zeus.store.rows import read_row
from airflow_provider_zeus.store.sql import schema
from airflow_provider_zeus.store.sql.trials import MOST
from airflow_provider_zeus.units import J_PER_KWH

DAY_S = 86_400
KEPT_S = 90.0 * DAY_S  # a row tells more than a sum, for as long as anybody looks at it
FOLDED_AT_ONCE = 200  # a task waits for it; its next trial folds the next ones
ALL_TASKS = ""  # a key cannot be NULL, and no job has this name
Day = tuple[str, int]

_T = schema.trial
_t = _T.c
_N = _T.alias("newest")
_S = schema.outside_sum
_s = _S.c
_KEYS = tuple(column.name for column in _S.primary_key)
_DAY = tuple(column.name for column in _S.c if column.name != "job_id")
_SUMMED = tuple(column.name for column in _S.c if column.name not in _KEYS)
# As text, since SQLAlchemy has ON CONFLICT for each database apart.
_ADD = sa.text(
    """
    INSERT INTO zeus_outside_sum (
        job_id, dag_id, begin_s, energy_source, price_currency, trials, runs, unknown,
        without_energy, energy_j, time_s, gpu_s, paid, paid_j, start_saved, g_co2e, g_co2e_j,
        start_saved_g
    ) VALUES (
        :job_id, :dag_id, :begin_s, :energy_source, :price_currency, :trials, :runs, :unknown,
        :without_energy, :energy_j, :time_s, :gpu_s, :paid, :paid_j, :start_saved, :g_co2e,
        :g_co2e_j, :start_saved_g
    )
    ON CONFLICT (job_id, dag_id, begin_s, energy_source, price_currency) DO UPDATE SET
        trials = zeus_outside_sum.trials + excluded.trials,
        runs = zeus_outside_sum.runs + excluded.runs,
        unknown = zeus_outside_sum.unknown + excluded.unknown,
        without_energy = zeus_outside_sum.without_energy + excluded.without_energy,
        energy_j = zeus_outside_sum.energy_j + excluded.energy_j,
        time_s = zeus_outside_sum.time_s + excluded.time_s,
        gpu_s = zeus_outside_sum.gpu_s + excluded.gpu_s,
        paid = zeus_outside_sum.paid + excluded.paid,
        paid_j = zeus_outside_sum.paid_j + excluded.paid_j,
        start_saved = zeus_outside_sum.start_saved + excluded.start_saved,
        g_co2e = zeus_outside_sum.g_co2e + excluded.g_co2e,
        g_co2e_j = zeus_outside_sum.g_co2e_j + excluded.g_co2e_j,
        start_saved_g = zeus_outside_sum.start_saved_g + excluded.start_saved_g
    """
)
_OLDEST = sa.select(_t.opened_at).where(_t.job_id == sa.bindparam("job"))
_OLDEST = _OLDEST.order_by(_t.number).limit(1)


def day_of(trial: Trial) -> DaySum:
    """The part of a trial in the sum of its day."""
    observation = trial.observation
    is_first = trial.key.attempt == 1 and trial.origin.try_number == 1
    source = observation.energy_source or ""
    has_no_energy = _countable(observation.energy_j) is None and source != ""
    has_no_time = _countable(observation.time_s) is None
    energy_j = _countable(observation.energy_j) or 0.0
    time_s = _countable(observation.time_s) or 0.0
    price = _Priced.of(energy_j, observation.price_per_kwh, observation.price_at_once)
    grams = _Priced.of(energy_j, observation.g_co2e_per_kwh, observation.g_co2e_at_once)
    return DaySum(
        dag_id=trial.origin.dag_id,
        begin_s=int(trial.opened_at // DAY_S * DAY_S),
        energy_source=source,
        price_currency=observation.price_currency or "",
        trials=1,
        runs=int(is_first),
        unknown=int(has_no_time),
        without_energy=int(has_no_energy and not has_no_time),
        energy_j=energy_j,
        time_s=time_s,
        gpu_s=time_s * observation.devices,
        paid=price.paid,
        paid_j=price.energy_j,
        start_saved=price.start_saved,
        g_co2e=grams.paid,
        g_co2e_j=grams.energy_j,
        start_saved_g=grams.start_saved,
    )


class _Priced(NamedTuple):
    """The cost of the energy whose hours were priced, that energy [J], and the saving by a later
    start.
    """

    paid: float = 0.0
    energy_j: float = 0.0
    start_saved: float = 0.0

    @classmethod
    def of(cls, energy_j: float, per_kwh: float | None, at_once: float | None) -> _Priced:
        """By the factor of a kWh, and the one at the time of a start at once."""
        if per_kwh is None or not energy_j:
            return cls()
        kwh = energy_j / J_PER_KWH
        saved = 0.0 if at_once is None else kwh * (at_once - per_kwh)
        return cls(kwh * per_kwh, energy_j, saved)


def _countable(value: float | None) -> float | None:
    """A figure that can be added; None: it is missing, or cannot be true."""
    if value is None or not 0.0 <= value <= MOST:
        return None
    return value


def add(connection: sa.Connection, trial: Trial, before: Trial | None = None) -> None:
    """Count a trial. ``before``: as it was counted until now; None: not yet."""
    day = day_of(trial)
    rows = _rows(trial.job_id, day)
    if before is not None:
        # One statement takes the old figures out and puts the new ones in, so a crash counts
        # neither twice.
        rows += [_negative(row) for row in _rows(before.job_id, day_of(before))]
    connection.execute(_ADD, rows)


def _rows(job_id: str, day: DaySum) -> list[dict[str, Any]]:
    """The parts of a day in the sum of its task, and in that of its DAG and month."""
    month_s = _month_begin_s(day.begin_s)
    of_task = asdict(day) | {"job_id": job_id}
    return [of_task, of_task | {"job_id": ALL_TASKS, "begin_s": int(month_s)}]


def _negative(row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: -row[name] for name in _SUMMED}


def is_old(job_id: str, before_s: float) -> sa.ColumnElement[bool]:
    """Whether a row is deleted when a task is folded: opened before a time [s since the epoch], and
    not its newest.
    """
    newest = sa.select(sa.func.max(_N.c.number)).where(_N.c.job_id == job_id).scalar_subquery()
    return sa.and_(
        _t.job_id == job_id,
        _t.number < newest,
        _t.outside.is_(True),
        _t.state != State.RUNNING.value,
        _t.opened_at < before_s,
    )


def fold(connection: sa.Connection, job_id: str, before_s: float, *, most: int) -> int:
    """Delete the rows of the oldest trials of a task measured from outside; their sums stay.

    Return how many.
    """
    # One look at an index: most calls have nothing to fold.
    oldest_s = connection.scalar(_OLDEST, {"job": job_id})
    if not isinstance(oldest_s, float) or oldest_s >= before_s:
        return 0
    old = sa.select(_t.id).where(is_old(job_id, before_s)).order_by(_t.number).limit(most)
    return connection.execute(sa.delete(_T).where(_t.id.in_(old))).rowcount


def of_dags(connection: sa.Connection, bounds: Sequence[float]) -> list[PeriodSum]:
    """The costs of the tasks of each DAG measured from outside, by period, DAG and source.

    Period i begins at ``bounds[i]`` and ends before ``bounds[i + 1]`` [s since the epoch]. A month
    counts in the period in which it begins.
    """
    periods = [(bounds[i] <= _s.begin_s, i) for i in reversed(range(len(bounds) - 1))]
    period = sa.case(*periods, else_=-1)
    within = (_s.begin_s >= bounds[0], _s.begin_s < bounds[-1])
    groups = (period.label("period"), _s.dag_id, _s.energy_source)
    rows = connection.execute(_summed(groups, _s.job_id == ALL_TASKS, *within))
    return [
        _period_sum(row, job_id=f"{row['dag_id']}.*", period=row["period"])
        for row in rows.mappings()
    ]


def of_tasks(connection: sa.Connection, dag_id: str, since_s: float) -> list[PeriodSum]:
    """The cost of each task of a DAG from the day of ``since_s`` on, if measured from outside;
    by job and source.
    """
    groups = (_s.dag_id, _s.job_id, _s.energy_source)
    of_dag = (_s.dag_id == dag_id, _s.begin_s >= since_s, _s.job_id != ALL_TASKS)
    rows = connection.execute(_summed(groups, *of_dag))
    return [_period_sum(row, job_id=row["job_id"], period=0) for row in rows.mappings()]


def _summed(
    groups: Iterable[sa.ColumnElement[Any]], *where: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    keys = [*groups]
    has_currency = sa.func.nullif(_s.price_currency, "")
    sums = [sa.cast(sa.func.sum(_S.c[name]), sa.Double).label(name) for name in _SUMMED]
    low = sa.func.min(has_currency).label("low")
    high = sa.func.max(has_currency).label("high")
    statement = sa.select(*keys, *sums, low, high).where(*where)
    # A sum whose trials were all taken out again, by a rename for example, stays as a row of 0.
    return statement.group_by(*keys).having(sa.func.sum(_s.trials) > 0).order_by(*keys)


def _month_begin_s(time_s: float) -> float:
    """When the month of a time began [s since the epoch]."""
    day = datetime.fromtimestamp(time_s, UTC)
    return datetime(day.year, day.month, 1, tzinfo=UTC).timestamp()


def _period_sum(row: Any, *, job_id: str, period: int) -> PeriodSum:
    timed = round(row["trials"] - row["unknown"])
    with_energy = bool(row["energy_source"]) and timed > round(row["without_energy"])
    is_known = {
        "energy_j": with_energy,
        "time_s": timed > 0,
        "gpu_s": timed > 0,
        "paid": row["paid_j"] > 0,
        "paid_j": row["paid_j"] > 0,
        "g_co2e": row["g_co2e_j"] > 0,
        "g_co2e_j": row["g_co2e_j"] > 0,
        "start_saved": row["start_saved"] != 0,
        "start_saved_g": row["start_saved_g"] != 0,
    }
    return PeriodSum(
        dag_id=row["dag_id"],
        job_id=job_id,
        source=row["energy_source"] or None,
        period=period,
        runs=round(row["runs"]),
        unknown=round(row["unknown"]),
        without_energy=round(row["without_energy"]),
        currencies=tuple(sorted({row["low"], row["high"]} - {None})),
        outside=True,
        **{name: row[name] if is_given else None for name, is_given in is_known.items()},
    )


def recount(connection: sa.Connection) -> None:
    """Make the sums from the rows: of tables that hold rows and no sums."""
    connection.execute(sa.delete(_S))
    rows = connection.execute(sa.select(_T).where(_t.outside.is_(True))).mappings()
    for trial in [read_row(row) for row in rows]:
        if isinstance(trial, Trial):
            add(connection, trial)


def of_job(connection: sa.Connection, job_id: str) -> list[DaySum]:
    """The sums of one task by day, for another log."""
    rows = connection.execute(sa.select(_S).where(_s.job_id == job_id)).mappings()
    return [DaySum(**{name: row[name] for name in _DAY}) for row in rows]


def take_in(connection: sa.Connection, job_id: str, days: Iterable[DaySum]) -> set[Day]:
    """Write the days of a task of another log that this one does not have; return those days.

    A sum that cannot be true is left out.
    """
    statement = sa.select(_s.dag_id, _s.begin_s).where(_s.job_id == job_id)
    present = {(row.dag_id, row.begin_s) for row in connection.execute(statement)}
    new: set[Day] = set()
    for day in days:
        key = (day.dag_id, day.begin_s)
        # A day that is here was counted from rows, which the other log may have had too.
        if key not in present and _can_be(asdict(day)):
            connection.execute(_ADD, _rows(job_id, day))
            new.add(key)
    return new


def _can_be(values: dict[str, Any]) -> bool:
    """Whether the values of a sum from another log can be added."""
    begin_s = values["begin_s"]
    if begin_s % DAY_S or not 0 <= begin_s <= LATEST_S:
        return False
    counts = ("trials", "runs", "unknown", "without_energy")
    if any(not 0 <= values[name] <= MOST_NUMBER for name in counts):
        return False
    return all(abs(values[name]) <= MOST for name in _SUMMED)


def rename(connection: sa.Connection, old: str, new: str, dags: Mapping[str, str]) -> None:
    """Give the sums of a job to another name. ``dags``: old name of a DAG -> its new name."""
    days = of_job(connection, old)
    for day in days:
        moved = replace(day, dag_id=dags.get(day.dag_id, day.dag_id))
        # The month of the DAG is a sum over jobs: the old name's part leaves it first.
        connection.execute(_ADD, [_negative(row) for row in _rows(old, day)])
        connection.execute(_ADD, _rows(new, moved))
    connection.execute(sa.delete(_S).where(_s.job_id == old))
