"""Statements of the SQL store about jobs, trials, power points and profile samples. Built once, so compiled once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from airflow_provider_zeus.optimizer.baseline import COMPLETE
from airflow_provider_zeus.optimizer.bounds import MOST_SAMPLES, MOST_TEXT
from airflow_provider_zeus.optimizer.points import thinned
from airflow_provider_zeus.optimizer.trial import PowerPoint, ProfileSample, State, Trial, TrialKey, Where, summed
from airflow_provider_zeus.optimizer.typed import check_fields
from airflow_provider_zeus.store import schema
from airflow_provider_zeus.store.base import Unreadable
from airflow_provider_zeus.store.figures import usable
from airflow_provider_zeus.store.ledger import limits_left, version_of
from airflow_provider_zeus.store.rows import OBSERVED, read_row, state_of, to_row
from airflow_provider_zeus.store.sql_watch import alive

Found = Trial | Unreadable  # a row as it was read

RECENT = 256  # trials looked through for limits found: a GPU not seen for so long is found anew

_T, _P, _S = schema.trial, schema.power, schema.profile
SHOWN = [  # columns of lists for people; of a longer reason than is kept now no more is read than shows that it was
    sa.func.substr(c, 1, MOST_TEXT + 1, type_=sa.Text).label(c.name) if c.name == "reason" else c for c in _T.c
]
_job: sa.BindParameter[Any] = sa.bindparam("job")
_after: sa.BindParameter[Any] = sa.bindparam("after")
_last: sa.BindParameter[Any] = sa.bindparam("last")
_by_key = (_T.c.ti_id == sa.bindparam("ti"), _T.c.attempt == sa.bindparam("nth"))
_by_device = (
    _S.c.job_id == _job,
    _S.c.device_model == sa.bindparam("model"),
    _S.c.device_count == sa.bindparam("count"),
    _S.c.energy_source == sa.bindparam("source"),
    _S.c.job_version == sa.bindparam("version"),
)

_ADD_JOB = sa.text("INSERT INTO zeus_job VALUES (:job, 0, 0) ON CONFLICT (job_id) DO NOTHING")
_LOCK_JOB = sa.select(schema.job).where(schema.job.c.job_id == _job).with_for_update()
_COUNT = (
    sa.update(schema.job)
    .where(schema.job.c.job_id == _job)
    .values(told_seq=sa.bindparam("seq"), last_number=sa.bindparam("newest"))
)
_COUNTED = sa.select(
    sa.func.max(sa.cast(_T.c.told_seq, sa.BigInteger)).label("told_seq"),
    sa.func.max(sa.cast(_T.c.number, sa.BigInteger)).label("last_number"),
).where(_T.c.job_id == _job)
_JOBS = sa.select(schema.job.c.job_id).order_by(schema.job.c.job_id)
_JOBS_OF_DAG = _JOBS.where(
    sa.exists().where(_T.c.job_id == schema.job.c.job_id, _T.c.dag_id == sa.bindparam("dag")).correlate(schema.job)
)
_JOB_OF = sa.select(_T.c.job_id).where(*_by_key)
_ONE = sa.select(_T).where(*_by_key)
_LAST_OF_TI = sa.select(sa.func.max(sa.cast(_T.c.attempt, sa.Integer))).where(_T.c.ti_id == sa.bindparam("ti"))
_OF_TI = sa.select(_T).where(_T.c.ti_id == sa.bindparam("ti")).order_by(_T.c.attempt)
_OPEN = sa.select(_T).where(_T.c.job_id == _job, _T.c.state == State.RUNNING.value).order_by(_T.c.number)
_LOG = sa.select(_T).where(_T.c.job_id == _job, _T.c.number > _after).order_by(_T.c.number)
_NEWEST = sa.select(_T).where(_T.c.job_id == _job).order_by(_T.c.number.desc()).limit(_last)
_COMPLETE = (
    sa.select(_T)
    .where(_T.c.job_id == _job, _T.c.batch_size == sa.bindparam("size"), _T.c.state.in_([s.value for s in COMPLETE]))
    .order_by(_T.c.number.desc())
    .limit(_last)
)
_RUN = (
    sa.select(_T)
    .where(_T.c.dag_id == sa.bindparam("dag"), _T.c.run_id == sa.bindparam("run"))
    .order_by(_T.c.job_id, _T.c.number)
)
_in_dag = (_T.c.dag_id == sa.bindparam("dag"), _T.c.job_id == _job)
NEWEST_RUNS = (
    sa.select(_T.c.run_id)
    .where(*_in_dag)
    .group_by(_T.c.run_id)
    .order_by(sa.func.max(_T.c.number).desc())
    .limit(_last)
    .offset(sa.bindparam("skip"))
)
_RUNS = sa.select(*SHOWN).where(*_in_dag, _T.c.run_id.in_(NEWEST_RUNS)).order_by(_T.c.number)
_ENDS = sa.select(_T.c.dag_id, _T.c.job_id, sa.func.max(_T.c.number).label("number")).group_by(_T.c.dag_id, _T.c.job_id)
_end = _ENDS.subquery()  # from an index alone
_LATEST = (
    sa.select(*SHOWN)
    .join(
        _end, sa.and_(_T.c.job_id == _end.c.job_id, _T.c.number > _end.c.number - _last, _T.c.dag_id == _end.c.dag_id)
    )
    .order_by(_T.c.dag_id, _T.c.job_id, _T.c.number)
)
_LIMITS = (
    sa.select(_T.c.gpu_uuid, _T.c.state, _T.c.limit_found_w, _T.c.power_limit_w)
    .where(_T.c.job_id == _job, _T.c.number > _after, _T.c.gpu_uuid.is_not(None), _T.c.limit_found_w.is_not(None))
    .order_by(_T.c.number)
)
_INSERT = sa.insert(_T)
_DELETE = sa.delete(_T).where(*_by_key)
_CHANGING = (  # the rest is as asked
    *("state", "reason", "told_seq", "lease_until", "lease_s", "closed_at", "reasons"),
    *OBSERVED,
)
_UPDATE = sa.update(_T).where(*_by_key).values({name: sa.bindparam(name) for name in _CHANGING})
_POINTS = sa.select(_T.c.id, _P.c.trial_id, _P.c.points).select_from(_T.outerjoin(_P)).where(*_by_key)
_INSERT_POINTS = sa.insert(_P)
_UPDATE_POINTS = sa.update(_P).where(_P.c.trial_id == sa.bindparam("row")).values(points=sa.bindparam("points"))
_INSERT_SAMPLES = sa.insert(_S)
_SAMPLES = (  # cast: PostgreSQL sums whole numbers into decimals
    sa.select(
        _S.c.batch_size,
        _S.c.limit_w,
        sa.cast(sa.func.sum(_S.c.samples), sa.BigInteger).label("samples"),
        sa.func.sum(_S.c.energy_j).label("energy_j"),
        sa.func.sum(_S.c.time_s).label("time_s"),
        sa.cast(sa.func.sum(_S.c.steps), sa.BigInteger).label("steps"),
    )
    .where(*_by_device)
    .group_by(_S.c.batch_size, _S.c.limit_w)
    .order_by(_S.c.batch_size, _S.c.limit_w)
    .limit(MOST_SAMPLES)
)
_FORGET_SAMPLES = sa.delete(_S).where(
    *_by_device, _S.c.batch_size == sa.bindparam("size"), _S.c.limit_w == sa.bindparam("limit")
)


def lock_job(connection: sa.Connection, job_id: str) -> tuple[int, int]:
    """Lock the row of a job, made where there is none; its ``told_seq`` and last number. First in every writer."""
    connection.execute(_ADD_JOB, {"job": job_id})
    row = connection.execute(_LOCK_JOB, {"job": job_id}).one()
    if not (isinstance(row.told_seq, int) and isinstance(row.last_number, int)):  # a damaged row: counted again
        row = connection.execute(_COUNTED, {"job": job_id}).one()
    return row.told_seq or 0, row.last_number or 0


def count_job(connection: sa.Connection, job_id: str, *, seq: int, newest: int) -> None:
    """Write what :func:`lock_job` reads."""
    connection.execute(_COUNT, {"job": job_id, "seq": seq, "newest": newest})


def job_ids(connection: sa.Connection, dag_id: str | None = None) -> list[str]:
    """Jobs in the log, sorted; those with a trial of one DAG."""
    return list(connection.scalars(_JOBS) if dag_id is None else connection.scalars(_JOBS_OF_DAG, {"dag": dag_id}))


def job_of(connection: sa.Connection, key: TrialKey) -> str | None:
    """Job of a trial; None when the log does not hold it."""
    return connection.scalar(_JOB_OF, {"ti": key.ti_id, "nth": key.attempt})


def find(connection: sa.Connection, key: TrialKey) -> Found | None:
    """The trial of a key."""
    row = connection.execute(_ONE, {"ti": key.ti_id, "nth": key.attempt}).mappings().one_or_none()
    return None if row is None else read_row(row)


def of_task_instance(connection: sa.Connection, ti_id: str) -> list[Trial]:
    """Every attempt of a task instance's try that can be read, in order."""
    return only_trials(_found(connection.execute(_OF_TI, {"ti": ti_id})))


def last_attempt(connection: sa.Connection, ti_id: str) -> int:
    """The highest attempt of a task instance's try, of rows that cannot be read too; 0 where there is none."""
    return connection.scalar(_LAST_OF_TI, {"ti": ti_id}) or 0


def open_trials(connection: sa.Connection, job_id: str) -> list[Trial]:
    """Rows in state running that can be read, in order of number."""
    return only_trials(_found(connection.execute(_OPEN, {"job": job_id})))


def only_trials(found: Iterable[Found]) -> list[Trial]:
    """Those that can be read."""
    return [trial for trial in found if isinstance(trial, Trial)]


def log(connection: sa.Connection, job_id: str, *, after: int = 0) -> Iterator[Found]:
    """Trials of a job with a higher number than ``after``, in order; loaded in portions."""
    for row in connection.execute(
        _LOG, {"job": job_id, "after": after}, execution_options={"yield_per": 500}
    ).mappings():
        alive(connection)
        yield read_row(row)


def newest(connection: sa.Connection, job_id: str, last: int) -> list[Found]:
    """The ``last`` newest trials of a job, in order of number."""
    return _found(connection.execute(_NEWEST, {"job": job_id, "last": last}))[::-1]


def complete(connection: sa.Connection, job_id: str, batch_size: int, last: int) -> list[Found]:
    """The ``last`` newest trials of one batch size that ended with a model, in order of number."""
    return _found(connection.execute(_COMPLETE, {"job": job_id, "size": batch_size, "last": last}))[::-1]


def of_run(connection: sa.Connection, dag_id: str, run_id: str) -> list[Found]:
    """Trials of one DAG run, in order of job and number."""
    return _found(connection.execute(_RUN, {"dag": dag_id, "run": run_id}))


def of_runs(connection: sa.Connection, dag_id: str, job_id: str, last: int, skip: int) -> list[Found]:
    """Trials that a job has in the newest ``last`` runs of one DAG behind ``skip`` newer ones, in order of number."""
    return _found(connection.execute(_RUNS, {"dag": dag_id, "job": job_id, "last": last, "skip": skip}))


def latest(connection: sa.Connection, last: int) -> list[Found]:
    """Of every job in every DAG the trials whose numbers are among its ``last`` newest, by DAG, job, number."""
    return _found(connection.execute(_LATEST, {"last": last}))


def _found(result: sa.CursorResult[tuple[object, ...]]) -> list[Found]:
    return [read_row(row) for row in result.mappings()]


def limits(connection: sa.Connection, job_id: str, newest_number: int) -> dict[str, tuple[float, float]]:
    """GPU uuid -> (power limit found, left behind) [W], where the newest trial has not given it back."""
    rows = connection.execute(_LIMITS, {"job": job_id, "after": newest_number - RECENT})
    return limits_left((r.gpu_uuid, state_of(r.state), r.limit_found_w, r.power_limit_w) for r in rows)


def insert(connection: sa.Connection, trial: Trial) -> None:
    """Write a new row."""
    connection.execute(_INSERT, to_row(trial))


def delete(connection: sa.Connection, key: TrialKey) -> None:
    """Delete a row and its power points."""
    connection.execute(_DELETE, {"ti": key.ti_id, "nth": key.attempt})


def update(connection: sa.Connection, trial: Trial) -> None:
    """Write what may change of a row that is there."""
    row = to_row(trial)
    key = {"ti": trial.key.ti_id, "nth": trial.key.attempt}
    connection.execute(_UPDATE, key | {name: row[name] for name in _CHANGING})


def points(connection: sa.Connection, key: TrialKey) -> list[PowerPoint]:
    """Power points of a trial."""
    row = connection.execute(_POINTS, {"ti": key.ti_id, "nth": key.attempt}).one_or_none()
    return [] if row is None else _points(row.points)


def add_points(connection: sa.Connection, key: TrialKey, new: Sequence[PowerPoint]) -> None:
    """Append power points; at most 500 remain."""
    if not new:
        return
    row = connection.execute(_POINTS, {"ti": key.ti_id, "nth": key.attempt}).one()
    kept = [[p.t_s, p.power_w, p.limit_w, p.phase] for p in thinned([*_points(row.points), *new])]
    if row.trial_id is None:
        connection.execute(_INSERT_POINTS, {"trial_id": row.id, "points": kept})
    else:
        connection.execute(_UPDATE_POINTS, {"row": row.id, "points": kept})


def _points(stored: Any) -> list[PowerPoint]:
    """The points that can be read."""
    found = []
    for each in stored if isinstance(stored, list) else ():
        with suppress(TypeError, ValueError):
            t_s, power_w, limit_w, phase = each
            point = PowerPoint(t_s=t_s, power_w=power_w, limit_w=limit_w, phase=phase)
            check_fields(point)
            found.append(point)
    return found


def profile(
    connection: sa.Connection, job_id: str, device: Where | None, job_version: str
) -> tuple[ProfileSample, ...]:
    """Sums per (batch size, limit) of one version of the job on one device; nothing for an unknown one."""
    if device is None:
        return ()
    rows = connection.execute(_SAMPLES, _device(job_id, device, job_version)).mappings()
    return tuple(s for s in (ProfileSample(**row) for row in rows) if usable(s))


def add_samples(connection: sa.Connection, trial: Trial, new: Iterable[ProfileSample]) -> None:
    """Add profile samples measured on the trial's device to those there; a mark makes its batch size begin anew.

    A profile of 1000 limits and batch sizes takes no other.
    """
    device, new = trial.observation.where, list(new)
    if device is None or not new:
        return
    (model, count, source), version = device, version_of(trial.spec)
    anew, measured = {s.batch_size for s in new if s.is_mark}, {(s.batch_size, s.limit_w) for s in new}
    held = profile(connection, trial.job_id, device, version)
    changed = [s for s in held if s.batch_size in anew or (s.batch_size, s.limit_w) in measured]
    for s in changed:
        one = {"size": s.batch_size, "limit": s.limit_w}
        connection.execute(_FORGET_SAMPLES, _device(trial.job_id, device, version) | one)
    where = {"job_id": trial.job_id, "device_model": model, "device_count": count, "energy_source": source or ""}
    where["job_version"] = version
    room = MOST_SAMPLES - len(held) + len(changed)
    rows = [where | _sample(s) for s in summed([*changed, *new])[:room]]
    if rows:
        connection.execute(_INSERT_SAMPLES, rows)


def _sample(s: ProfileSample) -> dict[str, object]:
    return {name: getattr(s, name) for name in ("batch_size", "limit_w", "samples", "energy_j", "time_s", "steps")}


def _device(job_id: str, device: Where, version: str) -> dict[str, object]:
    return {"job": job_id, "model": device[0], "count": device[1], "source": device[2] or "", "version": version}
