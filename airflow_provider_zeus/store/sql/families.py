"""What each job tells its family, in the job's own row: jobs read each other's, and each writes its own alone.

A row that is damaged, or of another version, is left out. The job's row must be locked, as by ``ask``; the rows of
the others are read as they are committed. So jobs do not wait for each other, but for the tries of relatives on
PostgreSQL (:func:`tries`): at most a second.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from airflow_provider_zeus.model.family import Told
from airflow_provider_zeus.model.trial import Phase, State
from airflow_provider_zeus.model.wire import decode, encode
from airflow_provider_zeus.store.sql import schema

MOST_MEMBERS = 24  # of one family that are heard, those that tell most: more would say the same, and take time
WAIT_MS = 1000  # for the decision of a relative, so that two do not try one size at once

log = logging.getLogger(__name__)

_J, _T = schema.job, schema.trial
_job: sa.BindParameter[Any] = sa.bindparam("job")
_family: sa.BindParameter[Any] = sa.bindparam("family_name")
_text: sa.BindParameter[Any] = sa.bindparam("text")
_OTHERS = (
    sa.select(_J.c.told)
    .where(_J.c.family == _family, _J.c.job_id != _job, _J.c.told.is_not(None))
    .order_by(_J.c.learnt.desc(), _J.c.job_id)
    .limit(MOST_MEMBERS)
)
_TRIES = (
    sa.select(_T.c.batch_size)
    .join(_J, _J.c.job_id == _T.c.job_id)
    .where(_J.c.family == _family, _J.c.job_id != _job, _T.c.state == State.RUNNING.value)
    .where(_T.c.phase == Phase.EXPLORE.value, _T.c.lease_until > sa.bindparam("now"))
)
_SHARE = (  # where that is new
    sa.update(_J)
    .where(_J.c.job_id == _job, _J.c.family.is_distinct_from(_family) | _J.c.told.is_distinct_from(_text))
    .values(family=_family, told=_text, learnt=sa.bindparam("much"))
)


def share(connection: sa.Connection, job_id: str, family: str | None, told: Told | None = None) -> None:
    """Write the family of a job, None where it is in none, and what it has to share; None: nothing yet."""
    text = None if told is None else json.dumps(encode(told), separators=(",", ":"))
    much = None if told is None else told.learnt
    connection.execute(_SHARE, {"job": job_id, "family_name": family, "text": text, "much": much})


def members(connection: sa.Connection) -> dict[str, int]:
    """How many jobs are in the family of each job, itself among them; without jobs that are in none."""
    counted = sa.func.count().over(partition_by=_J.c.family)
    rows = connection.execute(sa.select(_J.c.job_id, counted).where(_J.c.family.is_not(None)))
    return {row.job_id: row[1] for row in rows}


def others(connection: sa.Connection, job_id: str, family: str) -> list[Told]:
    """What the other members tell."""
    found = []
    for text in connection.scalars(_OTHERS, {"job": job_id, "family_name": family}):
        try:
            found.append(decode(Told, json.loads(text)))
        except (ValueError, TypeError, RecursionError):
            log.warning("What one job tells its family cannot be read; its next run writes it again.")
    return found


def tries(connection: sa.Connection, job_id: str, family: str, now: float) -> Sequence[int]:
    """Batch size of each run of the others that tries one now; the next request waits for the end of this transaction.

    SQLite has one writer at a time. Where another decision takes longer than :data:`WAIT_MS`, none is waited for.
    """
    if connection.dialect.name == "postgresql":
        before = connection.scalar(sa.select(sa.func.current_setting("lock_timeout")))
        try:
            with connection.begin_nested():
                connection.execute(sa.select(sa.func.set_config("lock_timeout", f"{WAIT_MS:d}ms", True)))
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(family, 0))))
        except DBAPIError:
            log.debug("Relatives decide for longer than a second: this job decides without their tries.")
        connection.execute(sa.select(sa.func.set_config("lock_timeout", before, True)))  # the bound of all our waits
    return list(connection.scalars(_TRIES, {"job": job_id, "family_name": family, "now": now}))
