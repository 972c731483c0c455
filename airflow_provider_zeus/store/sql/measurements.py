"""Statements of the SQL store about measurements: power points, profile samples, and the series of services."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from airflow_provider_zeus.model.size_bounds import MOST_SAMPLES, thinned
from airflow_provider_zeus.model.trial import Phase, PowerPoint, ProfileSample, Trial, TrialKey, Where, summed
from airflow_provider_zeus.model.wire import encode
from airflow_provider_zeus.store.base import FRESH_S, RETRY_S, Profile, Report
from airflow_provider_zeus.store.rows import points_from_lists, points_to_lists
from airflow_provider_zeus.store.rules import finite, usable, version_of
from airflow_provider_zeus.store.sql import schema

MOST_DEVICES = 50  # models, counts and energy sources, of which a version of a job has profiles
MEASURED_KEPT_S = 90 * 86400.0  # of the power points of runs without a batch size: nothing is learnt from them

_T, _P, _S = schema.trial, schema.power, schema.profile
_by_key = (_T.c.ti_id == sa.bindparam("ti"), _T.c.attempt == sa.bindparam("nth"))
_by_device = (
    _S.c.job_id == sa.bindparam("job"),
    _S.c.device_model == sa.bindparam("model"),
    _S.c.device_count == sa.bindparam("count"),
    _S.c.energy_source == sa.bindparam("source"),
    _S.c.job_version == sa.bindparam("version"),
)
_of_name = schema.signal.c.name == sa.bindparam("of")
_SERIES = sa.select(schema.signal.c.series, schema.signal.c.asked_at).where(_of_name)
_TAKE = sa.update(schema.signal).where(_of_name).values(asked_at=sa.bindparam("at"))
_POINTS = sa.select(_T.c.id, _P.c.trial_id, _P.c.points).select_from(_T.outerjoin(_P)).where(*_by_key)


def _mean(column: sa.Column[float]) -> sa.Label[float]:
    """Mean by time of what may not be known of a part of it."""
    known_s = sa.func.sum(sa.case((column.is_not(None), _S.c.time_s), else_=0.0))
    return (sa.func.sum(column * _S.c.time_s) / sa.func.nullif(known_s, 0.0)).label(column.name)


_SAMPLES = (  # cast: PostgreSQL sums whole numbers into decimals
    sa.select(
        _S.c.batch_size,
        _S.c.limit_w,
        sa.cast(sa.func.sum(_S.c.samples), sa.BigInteger).label("samples"),
        sa.func.sum(_S.c.energy_j).label("energy_j"),
        sa.func.sum(_S.c.time_s).label("time_s"),
        sa.cast(sa.func.sum(_S.c.steps), sa.BigInteger).label("steps"),
        _mean(_S.c.capped),
        _mean(_S.c.sm_clock_mhz),
    )
    .where(*_by_device)
    .group_by(_S.c.batch_size, _S.c.limit_w)
    .order_by(_S.c.batch_size, _S.c.limit_w)
    .limit(MOST_SAMPLES)
)


def points(connection: sa.Connection, key: TrialKey) -> list[PowerPoint]:
    """Power points of a trial."""
    row = connection.execute(_POINTS, {"ti": key.ti_id, "nth": key.attempt}).one_or_none()
    return [] if row is None else points_from_lists(row.points)


def add_points(connection: sa.Connection, key: TrialKey, new: Sequence[PowerPoint]) -> None:
    """Append power points; at most 500 remain."""
    if not new:
        return
    row = connection.execute(_POINTS, {"ti": key.ti_id, "nth": key.attempt}).one()
    values = points_to_lists(thinned([*points_from_lists(row.points), *new]))
    if row.trial_id is None:
        connection.execute(sa.insert(_P), {"trial_id": row.id, "points": values})
    else:
        connection.execute(sa.update(_P).where(_P.c.trial_id == row.id).values(points=values))


def forget_measured(connection: sa.Connection, job_id: str, now_s: float) -> None:
    """Delete the power points of runs without a batch size that are older than 90 days; their figures stay."""
    measured = sa.select(_T.c.id).where(_T.c.job_id == job_id, _T.c.phase == Phase.MEASURED.value)
    old = measured.where(_T.c.opened_at < now_s - MEASURED_KEPT_S)
    connection.execute(sa.delete(_P).where(_P.c.trial_id.in_(old)))


def profile(
    connection: sa.Connection, job_id: str, device: Where | None, job_version: str
) -> tuple[ProfileSample, ...]:
    """One sum per (batch size, limit) of one version of the job on one device; empty for an unknown device."""
    if device is None:
        return ()
    rows = connection.execute(_SAMPLES, _device(job_id, device, job_version)).mappings()
    return tuple(s for s in (ProfileSample(**row) for row in rows) if usable(s))


def profiles(connection: sa.Connection, job_id: str) -> list[Profile]:
    """The profiles of a job: one for each device and version."""
    of_profile = (_S.c.device_model, _S.c.device_count, _S.c.energy_source, _S.c.job_version)
    rows = connection.execute(sa.select(*of_profile).where(_S.c.job_id == job_id).distinct().order_by(*of_profile))
    found = [((r[0], r[1], r[2] or None), r[3]) for r in rows]
    return [(where, version, profile(connection, job_id, where, version)) for where, version in found]


def add(connection: sa.Connection, trial: Trial, report: Report) -> None:
    """Write what a report says of a trial: its power points, and its samples to the profile of the trial's device."""
    report, device = finite(report), trial.observation.where
    if device is not None:
        add_profile(connection, trial.job_id, device, version_of(trial.spec), report.profile)
    add_points(connection, trial.key, report.points)


def add_profile(
    connection: sa.Connection, job_id: str, device: Where, version: str, new: Iterable[ProfileSample]
) -> None:
    """Add profile samples of one version of a job on one device; a mark first deletes those of its batch size.

    A profile has at most 1000 pairs of batch size and limit. A version of a job has profiles of at most
    :data:`MOST_DEVICES` devices: a training names its device itself, and could name another one in each heartbeat.
    """
    new = list(new)
    if not new:
        return
    model, count, source = device
    restarted, measured = {s.batch_size for s in new if s.is_mark}, {(s.batch_size, s.limit_w) for s in new}
    held = profile(connection, job_id, device, version)
    if not held and _devices(connection, job_id, version) >= MOST_DEVICES:
        return
    changed = [s for s in held if s.batch_size in restarted or (s.batch_size, s.limit_w) in measured]
    if changed:
        one = sa.delete(_S).where(
            *_by_device, _S.c.batch_size == sa.bindparam("size"), _S.c.limit_w == sa.bindparam("limit")
        )
        of_device = _device(job_id, device, version)
        connection.execute(one, [of_device | {"size": s.batch_size, "limit": s.limit_w} for s in changed])
    where = {"job_id": job_id, "device_model": model, "device_count": count, "energy_source": source or ""}
    where["job_version"] = version
    room = MOST_SAMPLES - len(held) + len(changed)
    rows = [where | encode(s) for s in summed([*changed, *new])[:room]]
    if rows:
        connection.execute(sa.insert(_S), rows)


def _devices(connection: sa.Connection, job_id: str, version: str) -> int:
    """Number of devices of which one version of a job has a profile."""
    own = (_S.c.job_id == job_id, _S.c.job_version == version)
    devices = sa.select(_S.c.device_model, _S.c.device_count, _S.c.energy_source).where(*own).distinct().subquery()
    return connection.scalar(sa.select(sa.func.count()).select_from(devices)) or 0


def _device(job_id: str, device: Where, version: str) -> dict[str, object]:
    return {"job": job_id, "model": device[0], "count": device[1], "source": device[2] or "", "version": version}


def kept_series(connection: sa.Connection, name: str, now: float, *, claim: bool = False) -> tuple[str | None, bool]:
    """(Series that is kept, whether it is due to be asked for).

    :param claim: where it is due, the caller is now the one that asks. Where it keeps nothing, another one asks soon.
    """
    if claim:
        add = sa.text("INSERT INTO zeus_signal (name, asked_at) VALUES (:name, 0) ON CONFLICT (name) DO NOTHING")
        connection.execute(add, {"name": name})
    row = connection.execute(_SERIES.with_for_update() if claim else _SERIES, {"of": name}).one_or_none()
    if row is None:
        return None, True
    due = not now - FRESH_S < row.asked_at <= now  # after a clock was set back, too
    if due and claim:
        connection.execute(_TAKE, {"of": name, "at": now - FRESH_S + RETRY_S})
    return row.series, due


def keep_series(connection: sa.Connection, name: str, text: str | None, now: float) -> None:
    """Keep a series; without one let another caller ask soon."""
    if text is None:
        connection.execute(_TAKE, {"of": name, "at": now - FRESH_S + RETRY_S})
    else:
        table = schema.signal
        connection.execute(sa.update(table).where(table.c.name == name).values(series=text, asked_at=now))
