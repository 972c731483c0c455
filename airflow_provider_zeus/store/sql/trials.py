"""Statements of the SQL store about jobs and trials.

Those of each question and answer are built once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from airflow_provider_zeus.errors import UnknownTrialError
from airflow_provider_zeus.model.event import Held
from airflow_provider_zeus.model.run_numbers import TryNumbers
from airflow_provider_zeus.model.trial import Origin, State, Trial, TrialKey
from airflow_provider_zeus.model.trial_fields import CHANGING, flat
from airflow_provider_zeus.model.wire import MOST_NUMBER, decode, encode, member
from airflow_provider_zeus.store.base import Unreadable
from airflow_provider_zeus.store.rows import DAMAGE, read_row
from airflow_provider_zeus.store.sql import schema
from airflow_provider_zeus.store.sql.watchdog import alive

Found = Trial | Unreadable

SEARCHED = 10_000  # a job that fails for months must not make each request slow
# A request must not search a log of years; the limit of a GPU unused for longer is read again.
RECENT = 256

_T = schema.trial
_t = _T.c
_job: sa.BindParameter[Any] = sa.bindparam("job")
_after: sa.BindParameter[Any] = sa.bindparam("after")
_by_key = (_t.ti_id == sa.bindparam("ti"), _t.attempt == sa.bindparam("nth"))

_LOCK_JOB = (
    sa.select(schema.job.c.told_seq, schema.job.c.last_number)
    .where(schema.job.c.job_id == _job)
    .with_for_update()
)
_COUNT = (
    sa.update(schema.job)
    .where(schema.job.c.job_id == _job)
    .values(told_seq=sa.bindparam("seq"), last_number=sa.bindparam("newest"))
)
_JOB_OF = sa.select(_t.job_id).where(*_by_key)
_ONE = sa.select(_T).where(*_by_key)
_LAST_OF_TI = sa.select(sa.func.max(sa.cast(_t.attempt, sa.Integer))).where(
    _t.ti_id == sa.bindparam("ti")
)
_OF_TI = sa.select(_T).where(_t.ti_id == sa.bindparam("ti")).order_by(_t.attempt)
_OF_START = _OF_TI.where(
    sa.or_(_t.attempt == sa.bindparam("nth"), _t.start_id == sa.bindparam("start"))
)
_OPEN = sa.select(_T).where(_t.job_id == _job, _t.state == State.RUNNING.value).order_by(_t.number)
_LOG = sa.select(_T).where(_t.job_id == _job, _t.number > _after).order_by(_t.number)
_STATE_BEFORE = (
    sa.select(_t.state)
    .where(
        _t.job_id == _job,
        _t.dag_id == sa.bindparam("dag"),
        _t.number.between(_after, sa.bindparam("last")),
    )
    .order_by(_t.number.desc())
    .limit(1)
)
_R = _T.alias("of_run")
# A run that is cleared keeps its place among the others: that of its first trial.
_BEGAN = sa.select(sa.func.min(_R.c.number)).where(_R.c.job_id == _job)
_RUN_BEGAN = _BEGAN.where(_R.c.dag_id == sa.bindparam("dag"), _R.c.run_id == sa.bindparam("run"))
_ITS_RUN_BEGAN = _BEGAN.where(_R.c.dag_id == _t.dag_id, _R.c.run_id == _t.run_id).scalar_subquery()
_LEFT_A_MODEL = (
    sa.select(_T, sa.case((_t.run_id == "", _t.number), else_=_ITS_RUN_BEGAN).label("began"))
    .where(
        _t.job_id == _job,
        _t.number > _after,
        _t.state.in_([state.value for state in State if state.left_model]),
        _t.map_index == sa.bindparam("index"),
        _t.run_type.in_(sa.bindparam("types", expanding=True)),
        _t.dag_id == sa.bindparam("dag"),  # what a run returned is for those who may read its DAG
        sa.not_(sa.and_(_t.run_id == sa.bindparam("run"), _t.run_id != "")),
    )
    .order_by(_t.number.desc())
)
_RUNS_BETWEEN = sa.select(
    sa.func.count(
        sa.distinct(sa.case((_t.run_id == "", _t.ti_id), else_=_t.dag_id + " " + _t.run_id))
    )
).where(
    _t.job_id == _job,
    _t.number > _after,
    sa.case((_t.run_id == "", _t.number), else_=_ITS_RUN_BEGAN).between(
        _after + 1, sa.bindparam("before") - 1
    ),
    _t.dag_id == sa.bindparam("dag"),
    _t.map_index == sa.bindparam("index"),
    _t.run_type.in_(sa.bindparam("types", expanding=True)),
)
_TRIES_OF_RUN = (
    sa.select(_t.ti_id, sa.func.min(_t.number).label("first"), sa.func.max(_t.attempt))
    .where(
        _t.job_id == _job,
        _t.dag_id == sa.bindparam("dag"),
        _t.run_id == sa.bindparam("run"),
        _t.task_id == sa.bindparam("task"),
        _t.map_index == sa.bindparam("index"),
        sa.or_(_t.run_id != "", _t.ti_id == sa.bindparam("ti")),
    )
    .group_by(_t.ti_id)
    .order_by("first")
)
MOST = 1e15  # of any figure: a row with a larger one is damaged, and would make a sum infinite


def countable(*columns: sa.Column[Any], low: float = 0.0) -> sa.ColumnElement[bool]:
    """Whether the figures of a row are missing or can be added."""
    return sa.and_(*(sa.or_(column.is_(None), column.between(low, MOST)) for column in columns))


_LIMITS = (
    sa.select(_t.gpu_uuid, _t.state, _t.limit_found_w, _t.power_limit_w)
    .where(
        _t.job_id == _job,
        _t.number > _after,
        _t.gpu_uuid.is_not(None),
        _t.limit_found_w.is_not(None),
    )
    .where(countable(_t.limit_found_w, _t.power_limit_w))
    .order_by(_t.number)
)
_UPDATE = sa.update(_T).where(*_by_key).values({name: sa.bindparam(name) for name in CHANGING})


def lock_job(connection: sa.Connection, job_id: str) -> tuple[int, int]:
    """Lock the row of a job, and insert it first if it is missing; return its ``told_seq`` and last
    number.
    """
    is_new = False
    while (row := connection.execute(_LOCK_JOB, {"job": job_id}).one_or_none()) is None:
        add = sa.text(
            "INSERT INTO zeus_job (job_id, told_seq, last_number) VALUES (:job, 0, 0) ON CONFLICT "
            "(job_id) DO NOTHING"
        )
        connection.execute(add, {"job": job_id})  # a rename may delete it again
        is_new = True  # or a person deleted its row: its trials still have numbers
    # SQLite stores any type in any column, and a person may have edited the file.
    is_damaged = not all(
        isinstance(count, int) and 0 <= count <= MOST_NUMBER
        for count in (row.told_seq, row.last_number)
    )
    if not (is_new or is_damaged):
        return row.told_seq, row.last_number
    highest = (
        sa.func.max(sa.case((column.between(0, MOST_NUMBER), sa.cast(column, sa.BigInteger))))
        for column in (_t.told_seq, _t.number)
    )
    counted = connection.execute(sa.select(*highest).where(_t.job_id == job_id)).one()
    seq, newest = (count or 0 for count in counted)
    if newest:
        count_job(connection, job_id, seq=seq, newest=newest)
    return seq, newest


def lock_known(connection: sa.Connection, job_id: str) -> bool:
    """Lock the row of a job; False if there is none, as after a rename."""
    return connection.execute(_LOCK_JOB, {"job": job_id}).one_or_none() is not None


def count_job(connection: sa.Connection, job_id: str, *, seq: int, newest: int) -> None:
    """Write the counts that :func:`lock_job` reads."""
    connection.execute(_COUNT, {"job": job_id, "seq": seq, "newest": newest})


def events_text(connection: sa.Connection, job_id: str) -> str | None:
    """Which events of a job hold, as they are stored; None if no run has looked yet."""
    text: str | None = connection.scalar(
        sa.select(schema.job.c.events).where(schema.job.c.job_id == job_id)
    )
    return text


def held_events(text: str | None) -> dict[str, Held]:
    """The events that hold, by DAG; none if the stored text cannot be read."""
    try:
        by_dag = json.loads(text or "{}")
        return {dag_id: decode(Held, events, newer=True) for dag_id, events in by_dag.items()}
    except DAMAGE:
        return {}


def hold_events(
    connection: sa.Connection, job_id: str, before: str | None, held: Mapping[str, Held]
) -> bool:
    """Write which events hold; False if something else than ``before`` is stored by now."""
    is_as_before = schema.job.c.events.is_not_distinct_from(before)
    change = sa.update(schema.job).where(schema.job.c.job_id == job_id, is_as_before)
    return connection.execute(change.values(events=json.dumps(encode(held)))).rowcount == 1


def job_ids(connection: sa.Connection, dag_id: str | None = None) -> list[str]:
    """Jobs in the log, sorted; with ``dag_id`` those with a trial of that DAG."""
    job = schema.job.c.job_id
    of_dag = sa.exists().where(_t.job_id == job, _t.dag_id == dag_id).correlate(schema.job)
    return list(
        connection.scalars(
            sa.select(job).where(sa.true() if dag_id is None else of_dag).order_by(job)
        )
    )


def outside_ids(connection: sa.Connection) -> list[str]:
    """Jobs for whose trials nothing was chosen, sorted."""
    job = schema.job.c.job_id
    chosen = sa.select(_t.job_id).where(_t.outside.is_(None))
    chosen = chosen.group_by(_t.dag_id, _t.job_id)  # in their index's order: no row is read
    return list(connection.scalars(sa.select(job).where(job.not_in(chosen)).order_by(job)))


def dag_ids(connection: sa.Connection, job_id: str) -> set[str]:
    """The DAGs with a trial of a job, damaged ones too."""
    return set(connection.scalars(sa.select(_t.dag_id).where(_t.job_id == job_id).distinct()))


def lock_job_of(connection: sa.Connection, key: TrialKey) -> tuple[str, tuple[int, int]]:
    """Lock the row of a trial's job: its name, and the result of :func:`lock_job`.

    Raises UnknownTrialError.
    """
    before = None
    while (job_id := connection.scalar(_JOB_OF, {"ti": key.ti_id, "nth": key.attempt})) is not None:
        # Under the lock the job can no longer be renamed, so the second look is true.
        if job_id == before:
            return job_id, lock_job(connection, job_id)
        # A rename may have come before the lock: hence the second look.
        connection.execute(_LOCK_JOB, {"job": job_id})
        before = job_id
    raise UnknownTrialError.of(key.ti_id, key.attempt)


def numbers(connection: sa.Connection, job_id: str) -> dict[TrialKey, int]:
    """Number of each trial of a job."""
    of_job = sa.select(_t.ti_id, _t.attempt, _t.number).where(_t.job_id == job_id)
    rows = connection.execute(of_job)
    return {TrialKey(row.ti_id, row.attempt): row.number for row in rows}


def row_id(connection: sa.Connection, job_id: str, number: int) -> int | None:
    """Identity of a trial's row, which a rename leaves as it is."""
    return connection.scalar(sa.select(_t.id).where(_t.job_id == job_id, _t.number == number))


def find(connection: sa.Connection, key: TrialKey) -> Found | None:
    """The trial of a key."""
    row = connection.execute(_ONE, {"ti": key.ti_id, "nth": key.attempt}).mappings().one_or_none()
    if row is None:
        return None
    return read_row(row)


def of_task_instance(connection: sa.Connection, ti_id: str) -> list[Trial]:
    """Each readable attempt of one try of a task, in order."""
    return only_trials(_found(connection.execute(_OF_TI, {"ti": ti_id})))


def of_start(connection: sa.Connection, key: TrialKey, start_id: str | None) -> list[Trial]:
    """The readable trial of a key, and those of the same try that a start has written to."""
    values = {"ti": key.ti_id, "nth": key.attempt, "start": start_id}
    return only_trials(_found(connection.execute(_OF_START, values)))


def next_key(connection: sa.Connection, ti_id: str) -> TrialKey:
    """The key after the highest attempt of one try of a task, of damaged rows too."""
    return TrialKey(ti_id, 1 + (connection.scalar(_LAST_OF_TI, {"ti": ti_id}) or 0))


def open_trials(connection: sa.Connection, job_id: str) -> list[Trial]:
    """Readable rows in state running, in order of number."""
    return only_trials(_found(connection.execute(_OPEN, {"job": job_id})))


def state_before(connection: sa.Connection, trial: Trial) -> str | None:
    """State of the newest trial of the same job and DAG before this one, as its row says; None if
    there is none.
    """
    last = trial.number - 1
    searched = {
        "job": trial.job_id,
        "dag": trial.origin.dag_id,
        "after": last - RECENT,
        "last": last,
    }
    state: str | None = connection.scalar(_STATE_BEFORE, searched)
    return state


def only_trials(found: Iterable[Found]) -> list[Trial]:
    """The readable trials."""
    return [trial for trial in found if isinstance(trial, Trial)]


def log(connection: sa.Connection, job_id: str, *, after: int = 0) -> Iterator[Found]:
    """Trials of a job with a higher number than ``after``, in order of number; read in portions."""
    for row in connection.execute(
        _LOG, {"job": job_id, "after": after}, execution_options={"yield_per": 500}
    ).mappings():
        alive(connection)  # the caller may compute for longer than the watchdog waits
        yield read_row(row)


def newest(connection: sa.Connection, job_id: str, last: int) -> list[Found]:
    """The ``last`` newest trials of a job, in order of number."""
    newest_first = sa.select(_T).where(_t.job_id == job_id).order_by(_t.number.desc())
    return _found(connection.execute(newest_first.limit(last)))[::-1]


def of_run(connection: sa.Connection, dag_id: str, run_id: str) -> list[Found]:
    """Trials of one DAG run, in order of job and number."""
    of_run = sa.select(_T).where(_t.dag_id == dag_id, _t.run_id == run_id)
    return _found(connection.execute(of_run.order_by(_t.job_id, _t.number)))


def try_numbers(connection: sa.Connection, trial: Trial) -> TryNumbers:
    """The numbers of the attempts of a trial's task instance; as :class:`.RunNumbers` has it of
    the whole run.
    """
    of = trial.origin
    run = {"dag": of.dag_id, "run": of.run_id, "task": of.task_id, "index": of.map_index}
    tries = connection.execute(
        _TRIES_OF_RUN, {"job": trial.job_id, "ti": trial.key.ti_id, **run}
    ).all()
    earlier = 0
    for ti_id, _, attempts in tries:
        if ti_id == trial.key.ti_id:
            break
        earlier += attempts
    first, *_ = tries
    return TryNumbers(first.first, earlier)


def map_indexes(connection: sa.Connection, job_id: str, origin: Origin) -> set[int]:
    """The map indexes of a task that have trials of a job in one run; none for a task that is not
    mapped.
    """
    if origin.map_index < 0:
        return set()
    of_task = sa.select(_t.map_index).where(_t.job_id == job_id, _t.task_id == origin.task_id)
    of_run = of_task.where(_t.dag_id == origin.dag_id, _t.run_id == origin.run_id)
    indexes = connection.scalars(of_run.distinct())
    return {index for index in indexes if isinstance(index, int)}  # SQLite takes a text, too


def _found(result: sa.CursorResult[tuple[object, ...]]) -> list[Found]:
    return list(map(read_row, result.mappings()))


def left_a_model(
    connection: sa.Connection,
    job_id: str,
    origin: Origin,
    *,
    run_types: Sequence[str],
    most: int,
    newest_number: int,
) -> list[Trial]:
    """The newest ``most`` trials that left a model, or kept an earlier one, newest first:
    ``run.previous`` reads them.

    Of the same DAG and map index, of one of these run types, and not of the run itself, which may
    have been cleared, nor of a later one, whose model has seen the data after its own. A run that
    was cleared keeps its place: that of its first trial. The newest :data:`SEARCHED` trials are
    searched.
    """
    run = {"job": job_id, "dag": origin.dag_id, "run": origin.run_id}
    before = _began(connection, run) or math.inf
    values = {
        "index": origin.map_index,
        "types": list(run_types),
        "after": newest_number - SEARCHED,
    }
    rows = connection.execute(
        _LEFT_A_MODEL, run | values, execution_options={"yield_per": most + 1}
    ).mappings()
    newest: list[_Began] = []
    for row in rows:
        began = row["began"]
        trial = read_row(row)
        if isinstance(trial, Unreadable) or not isinstance(began, int):
            continue
        if len(newest) == most and trial.number < newest[-1].began:
            break  # its run began before those, and so did all that follow
        if began < before:
            newest.append(_Began(began, trial.number, trial))
            newest.sort(key=attrgetter("began", "number"), reverse=True)
            newest = newest[:most]
    # The database would go on sending a long log.
    rows.close()
    return [run.trial for run in newest]


class _Began(NamedTuple):
    """A trial with the number of its run's first one."""

    began: int
    number: int
    trial: Trial


def _began(connection: sa.Connection, run: Mapping[str, str]) -> int | None:
    """The number of a run's first trial; None if it has none that can be read."""
    number = connection.scalar(_RUN_BEGAN, run) if run["run"] else None
    if isinstance(number, int):
        return number
    return None


def runs_between(
    connection: sa.Connection, origin: Origin, run_types: Sequence[str], trained: Trial
) -> int:
    """How many runs of a job, of these types and the same DAG and map index, began after a trial
    and before a run.
    """
    run = {"job": trained.job_id, "dag": origin.dag_id, "run": origin.run_id}
    before = _began(connection, run) or MOST_NUMBER
    values = {
        "after": trained.number,
        "before": before,
        "index": origin.map_index,
        "types": list(run_types),
    }
    of_dag = {"job": trained.job_id, "dag": origin.dag_id}
    return connection.scalar(_RUNS_BETWEEN, of_dag | values) or 0


def limits(
    connection: sa.Connection, job_id: str, newest_number: int
) -> dict[str, tuple[float, float]]:
    """GPU uuid -> (power limit found, last set) [W], if the newest trial has not restored it."""
    limits_w: dict[str, tuple[float, float]] = {}
    searched = {"job": job_id, "after": newest_number - RECENT}
    for uuid, state, found_w, left_w in connection.execute(_LIMITS, searched):
        if not isinstance(state, str):  # damaged, so that it says nothing of a limit
            continue
        limits_w.pop(uuid, None)
        if member(State, state).awaits_result and left_w not in (None, found_w):
            limits_w[uuid] = (found_w, left_w)
    return limits_w


def insert(connection: sa.Connection, trial: Trial) -> None:
    """Write a new row."""
    outside = trial.is_outside or None
    connection.execute(sa.insert(_T), flat(trial) | {"outside": outside})


def delete(connection: sa.Connection, key: TrialKey) -> None:
    """Delete a row and its power points."""
    connection.execute(sa.delete(_T).where(_t.ti_id == key.ti_id, _t.attempt == key.attempt))


def update(connection: sa.Connection, trial: Trial) -> None:
    """Write the columns of an existing row that may change."""
    row = flat(trial)
    key = {"ti": trial.key.ti_id, "nth": trial.key.attempt}
    connection.execute(_UPDATE, key | {name: row[name] for name in CHANGING})
