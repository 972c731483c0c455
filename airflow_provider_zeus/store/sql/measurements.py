"""Statements of the SQL store about measurements: power points, profile samples, and the series of
services.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from airflow_provider_zeus.model.partial_sums import Report, summed, thinned, usable
from airflow_provider_zeus.model.size_bounds import MOST_SAMPLES
from airflow_provider_zeus.model.trial import (
    Phase,
    PowerPoint,
    ProfileSample,
    Trial,
    TrialKey,
    Where,
)
from airflow_provider_zeus.model.wire import encode
from airflow_provider_zeus.store.base import FRESH_S, RETRY_S, JobProfile
from airflow_provider_zeus.store.rows import points_from_lists, points_to_lists
from airflow_provider_zeus.store.sql import schema

MOST_DEVICES = 50  # a training that invents devices must not fill the table
# Power points of runs without a batch size teach nothing, and are most of what a run stores.
MEASURED_KEPT_S = 90 * 86400.0

_T = schema.trial
_P = schema.power
_S = schema.profile
_s = _S.c
_by_key = (_T.c.ti_id == sa.bindparam("ti"), _T.c.attempt == sa.bindparam("nth"))
# Samples add up only if these are equal: another device or source gives other figures.
_OF_DEVICE = ("job_id", "device_model", "device_count", "energy_source", "job_version")
_by_device = [_S.c[name] == sa.bindparam(name) for name in _OF_DEVICE]
_DELETE = sa.delete(_S).where(
    *_by_device,
    _s.batch_size == sa.bindparam("batch_size"),
    _s.limit_w == sa.bindparam("limit_w"),
)
_of_name = schema.signal.c.name == sa.bindparam("of")
_SERIES = sa.select(schema.signal.c.series, schema.signal.c.asked_at).where(_of_name)
_TAKE = sa.update(schema.signal).where(_of_name).values(asked_at=sa.bindparam("at"))
_POINTS = (
    sa.select(_T.c.id, _P.c.trial_id, _P.c.points).select_from(_T.outerjoin(_P)).where(*_by_key)
)


def _mean(column: sa.Column[float]) -> sa.Label[float]:
    """Mean by time of a column that may be unknown for a part of it."""
    known_s = sa.func.sum(sa.case((column.is_not(None), _s.time_s), else_=0.0))
    # nullif(): a column that nobody measured would be divided by 0, at which PostgreSQL fails.
    return (sa.func.sum(column * _s.time_s) / sa.func.nullif(known_s, 0.0)).label(column.name)


_SAMPLES = (  # the cast: PostgreSQL sums whole numbers into decimals
    sa.select(
        _s.batch_size,
        _s.limit_w,
        sa.cast(sa.func.sum(_s.samples), sa.BigInteger).label("samples"),
        sa.func.sum(_s.energy_j).label("energy_j"),
        sa.func.sum(_s.time_s).label("time_s"),
        sa.cast(sa.func.sum(_s.steps), sa.BigInteger).label("steps"),
        _mean(_s.capped),
        _mean(_s.sm_clock_mhz),
    )
    .where(*_by_device)
    .group_by(_s.batch_size, _s.limit_w)
    .order_by(_s.batch_size, _s.limit_w)
    .limit(MOST_SAMPLES)
)


def points(connection: sa.Connection, key: TrialKey) -> list[PowerPoint]:
    """Power points of a trial."""
    row = connection.execute(_POINTS, {"ti": key.ti_id, "nth": key.attempt}).one_or_none()
    if row is None:
        return []
    return points_from_lists(row.points)


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
    """Delete the power points of runs without a batch size that are older than 90 days; their
    figures stay.
    """
    measured = sa.select(_T.c.id).where(_T.c.job_id == job_id, _T.c.phase == Phase.MEASURED.value)
    old = measured.where(_T.c.opened_at < now_s - MEASURED_KEPT_S)
    connection.execute(sa.delete(_P).where(_P.c.trial_id.in_(old)))


def profile(
    connection: sa.Connection, job_id: str, device: Where | None, job_version: str
) -> tuple[ProfileSample, ...]:
    """One sum per (batch size, limit) of one version of the job on one device; empty for an unknown
    device.
    """
    if device is None:
        return ()
    rows = connection.execute(_SAMPLES, _of_device(job_id, device, job_version)).mappings()
    samples = [ProfileSample(**row) for row in rows]
    return tuple(filter(usable, samples))


def profiles(connection: sa.Connection, job_id: str) -> Iterator[JobProfile]:
    """The profiles of a job: one for each device and version."""
    of_profile = (_s.device_model, _s.device_count, _s.energy_source, _s.job_version)
    statement = sa.select(*of_profile).where(_s.job_id == job_id).distinct()
    for row in connection.execute(statement.order_by(*of_profile)).all():
        where = (row.device_model, row.device_count, row.energy_source or None)
        yield JobProfile(
            job_id=job_id,
            device_model=row.device_model,
            device_count=row.device_count,
            energy_source=row.energy_source or None,
            job_version=row.job_version,
            samples=profile(connection, job_id, where, row.job_version),
        )


def add(connection: sa.Connection, trial: Trial, report: Report) -> None:
    """Write the measurements of a report: its power points, and its samples to the profile of the
    trial's device.
    """
    device = trial.observation.where
    if device is not None:
        add_profile(connection, trial.job_id, device, version=trial.job_version, new=report.profile)
    add_points(connection, trial.key, report.points)


def add_profile(
    connection: sa.Connection,
    job_id: str,
    device: Where,
    version: str,
    new: Iterable[ProfileSample],
) -> None:
    """Add profile samples of one version of a job on one device; a mark first deletes those of its
    batch size.

    A profile has at most 1000 pairs of batch size and limit. A version of a job has profiles of at
    most :data:`MOST_DEVICES` devices: a training names its device itself, and could name another
    one in each heartbeat.
    """
    new = list(new)
    if not new:
        return
    # The job's row is locked by the caller, so no other writer adds between reading and writing.
    present = profile(connection, job_id, device, job_version=version)
    if not present and _devices(connection, job_id, version) >= MOST_DEVICES:
        return
    # A mark says that profiling began anew: older samples are of another state of the device.
    restarted = {sample.batch_size for sample in new if sample.is_mark}
    measured = {(sample.batch_size, sample.limit_w) for sample in new}
    changed = []
    for sample in present:
        is_measured = (sample.batch_size, sample.limit_w) in measured
        if is_measured or sample.batch_size in restarted:
            changed.append(sample)
    of_device = _of_device(job_id, device, version)
    if changed:
        pairs = [{"batch_size": old.batch_size, "limit_w": old.limit_w} for old in changed]
        connection.execute(_DELETE, [of_device | pair for pair in pairs])
    room = MOST_SAMPLES - len(present) + len(changed)
    rows = [of_device | encode(sample) for sample in summed([*changed, *new])[:room]]
    if rows:
        connection.execute(sa.insert(_S), rows)


def _devices(connection: sa.Connection, job_id: str, version: str) -> int:
    """Number of devices of which one version of a job has a profile."""
    own = (_s.job_id == job_id, _s.job_version == version)
    devices = (
        sa.select(_s.device_model, _s.device_count, _s.energy_source)
        .where(*own)
        .distinct()
        .subquery()
    )
    return connection.scalar(sa.select(sa.func.count()).select_from(devices)) or 0


def _of_device(job_id: str, device: Where, version: str) -> dict[str, object]:
    model, count, source = device
    values = (job_id, model, count, source or "", version)
    return dict(zip(_OF_DEVICE, values, strict=True))


class KeptSeries(NamedTuple):
    """A series that is kept."""

    text: str | None
    is_due: bool  # one task asks for all: requests cost


def kept_series(
    connection: sa.Connection, name: str, now: float, *, claim: bool = False
) -> KeptSeries:
    """The series of a name.

    :param claim: if it is due, the caller is now the one that asks. If it keeps nothing, another
        one asks soon.
    """
    if claim:
        add = sa.text(
            "INSERT INTO zeus_signal (name, asked_at) VALUES (:name, 0) ON CONFLICT (name) DO "
            "NOTHING"
        )
        connection.execute(add, {"name": name})
    statement = _SERIES.with_for_update() if claim else _SERIES
    row = connection.execute(statement, {"of": name}).one_or_none()
    if row is None:
        return KeptSeries(None, is_due=True)
    is_due = not now - FRESH_S < row.asked_at <= now  # after a clock was set back, too
    # Not until now: if this caller dies, another one may ask soon.
    if is_due and claim:
        connection.execute(_TAKE, {"of": name, "at": now - FRESH_S + RETRY_S})
    return KeptSeries(row.series, is_due)


def keep_series(connection: sa.Connection, name: str, text: str | None, now: float) -> None:
    """Keep a series; without one let another caller ask soon."""
    if text is None:
        connection.execute(_TAKE, {"of": name, "at": now - FRESH_S + RETRY_S})
    else:
        table = schema.signal
        connection.execute(
            sa.update(table).where(table.c.name == name).values(series=text, asked_at=now)
        )
