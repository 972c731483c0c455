"""Statements of the SQL store about series of prices and carbon intensities."""

from __future__ import annotations

import sqlalchemy as sa

from airflow_provider_zeus.store.base import FRESH_S, RETRY_S
from airflow_provider_zeus.store.sql import schema

_S = schema.signal
_OF_NAME = _S.c.name == sa.bindparam("of")
_READ = sa.select(_S.c.series, _S.c.asked_at).where(_OF_NAME)
_TAKE = sa.update(_S).where(_OF_NAME).values(asked_at=sa.bindparam("at"))


def read(connection: sa.Connection, name: str, now: float) -> tuple[str | None, bool]:
    """(Series, whether it is due to be asked for)."""
    row = connection.execute(_READ, {"of": name}).one_or_none()
    return (None, True) if row is None else (row.series, is_due(row.asked_at, now))


def claim(connection: sa.Connection, name: str, now: float) -> tuple[str | None, bool]:
    """The same; where it is due the caller is now the one that asks. If it tells nothing, another one asks soon."""
    add = sa.text("INSERT INTO zeus_signal (name, asked_at) VALUES (:name, 0) ON CONFLICT (name) DO NOTHING")
    connection.execute(add, {"name": name})
    row = connection.execute(_READ.with_for_update(), {"of": name}).one()
    due = is_due(row.asked_at, now)
    if due:
        connection.execute(_TAKE, {"of": name, "at": now - FRESH_S + RETRY_S})
    return row.series, due


def keep(connection: sa.Connection, name: str, text: str | None, now: float) -> None:
    """Keep a series; without one let another caller ask soon."""
    if text is None:
        connection.execute(_TAKE, {"of": name, "at": now - FRESH_S + RETRY_S})
    else:
        connection.execute(sa.update(_S).where(_S.c.name == name).values(series=text, asked_at=now))


def is_due(asked_at: float, now: float) -> bool:
    """Whether a series is to be asked for; after a clock was set back, too."""
    return not now - FRESH_S < asked_at <= now
