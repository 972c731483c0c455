"""The belief of a job from its log. Checkpoints only save time: deleting them changes no decision.

A checkpoint is the belief after trial n. It is written only before the oldest open trial, and is
valid only while no trial up to n was closed after it; the statement that reads checkpoints compares
``told_seq``. So checkpoints may be computed before the job's row is locked: a trial that is closed
meanwhile makes those without it invalid.

Each has a digest. A checkpoint with a wrong digest is damaged: it is deleted, and an older one is
used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import sqlalchemy as sa

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.optimizer.policy import Belief, belief_tag, learn
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.store.base import Unreadable
from airflow_provider_zeus.store.rows import is_known
from airflow_provider_zeus.store.sql import schema, trials

log = guarded_log(__name__)

EVERY = 16  # a request learns from at most so many trials again
# A late result makes newer ones invalid: with so many it seldom costs reading the whole log again.
KEPT = 16
# More take 0.2 s and longer: learnt under the lock, they would hold up the job's other runs.
AHEAD = 256

_C = schema.checkpoint
_c = _C.c
_T = schema.trial
_job: sa.BindParameter[Any] = sa.bindparam("job")
_tag: sa.BindParameter[Any] = sa.bindparam("tag")
_closed_since = sa.exists().where(
    _T.c.job_id == _c.job_id, _T.c.told_seq > _c.told_seq, _T.c.number <= _c.number
)
_NEWEST = (
    sa.select(_c.number, _c.told_seq, _c.belief)
    .where(_c.job_id == _job, _c.tag == _tag, _c.number < sa.bindparam("below"), ~_closed_since)
    .order_by(_c.number.desc())
    .limit(1)
)
_newest_valid = sa.select(sa.func.max(_c.number)).where(
    _c.job_id == _job, _c.tag == _tag, ~_closed_since
)
_open = sa.select(sa.func.min(_T.c.number)).where(
    _T.c.job_id == _job, _T.c.state == State.RUNNING.value
)
_COUNT_BEHIND = sa.select(  # only to the oldest open trial: no checkpoint may include it
    sa.func.coalesce(_open.scalar_subquery() - 1, schema.job.c.last_number)
    - sa.func.coalesce(_newest_valid.scalar_subquery(), 0)
).where(schema.job.c.job_id == _job)
_DELETE_FROM = sa.delete(_C).where(_c.job_id == _job, _c.number >= sa.bindparam("first"))
_DELETE = sa.delete(_C).where(_c.job_id == _job, _c.tag == _tag, _c.number == sa.bindparam("after"))

# (number, highest told_seq up to it, belief): a later closing up to the number has a higher one.
Checkpoint = tuple[int, int, Belief]


def belief_of(
    connection: sa.Connection,
    job_id: str,
    before: Belief,
    *,
    oldest_open: int | None = None,
    keep: bool = True,
) -> Belief:
    """Learn from the log in order of number, from the newest valid checkpoint on.

    :param before: the belief before any trial, of the job and its live settings.
    :param keep: write new checkpoints, for which the job's row must be locked.
    """
    belief, new = _learned(connection, job_id, before, oldest_open)
    if keep:
        write(connection, job_id, before, new)
    return belief


def learn_ahead(connection: sa.Connection, job_id: str, before: Belief) -> Sequence[Checkpoint]:
    """Checkpoints for a request that would learn from a long log under the job's lock; none if
    the log is short.
    """
    behind = connection.scalar(_COUNT_BEHIND, {"job": job_id, "tag": belief_tag(before)}) or 0
    # So few are learned under the lock faster than a second transaction takes.
    if behind <= AHEAD:
        return ()
    oldest_open = min((t.number for t in trials.open_trials(connection, job_id)), default=None)
    return _learned(connection, job_id, before, oldest_open, ahead=True)[1]


def _learned(
    connection: sa.Connection,
    job_id: str,
    before: Belief,
    oldest_open: int | None,
    *,
    ahead: bool = False,
) -> tuple[Belief, Sequence[Checkpoint]]:
    """The belief and new checkpoints; ``ahead``: only up to the last trial that a checkpoint may
    include.
    """
    number, seq, belief = _start(connection, job_id, before, ahead=ahead)
    new: deque[Checkpoint] = deque(maxlen=KEPT)  # older ones would be deleted at once
    last = number
    settled = True
    for trial in trials.log(connection, job_id, after=number):
        if isinstance(trial, Unreadable):
            continue
        # A trial that runs, or that a newer version may learn from, would never be learnt if a
        # checkpoint included it.
        is_of_ours = is_known(trial)
        if oldest_open is not None and trial.number >= oldest_open:
            settled = False
        if not is_of_ours:
            settled = False
        if ahead and not settled:
            break
        if not is_of_ours:
            continue
        belief = learn(belief, trial)
        seq = max(seq, trial.told_seq or 0)
        if settled and trial.number - last >= EVERY:
            new.append((trial.number, seq, belief))
            last = trial.number
    return belief, new


def _start(connection: sa.Connection, job_id: str, before: Belief, *, ahead: bool) -> Checkpoint:
    """The newest valid checkpoint, else the prior. Damaged ones are deleted unless ``ahead``."""
    tag = belief_tag(before)
    below = 2**63 - 1  # the highest that a column takes, so no number is left out
    while row := connection.execute(
        _NEWEST, {"job": job_id, "tag": tag, "below": below}
    ).one_or_none():
        below = row.number
        digest, _, text = str(row.belief).partition(" ")
        if digest == _digest(tag, row.number, row.told_seq, text):
            return row.number, row.told_seq, Belief.from_json(before, text)
        # Ahead of the lock the transaction only reads; the request itself deletes it.
        if not ahead:
            log.warning(
                "A checkpoint of %s (after row %s) is damaged: an older one is used.",
                visible(job_id),
                row.number,
            )
            connection.execute(_DELETE, {"job": job_id, "tag": tag, "after": row.number})
    return 0, 0, before


def _digest(tag: str, number: object, seq: object, text: str) -> str:
    return sha256(f"{tag} {number} {seq} {text}".encode()).hexdigest()[:16]


def write(
    connection: sa.Connection, job_id: str, before: Belief, new: Sequence[Checkpoint]
) -> None:
    """Write checkpoints. The job's row must be locked."""
    if not new:
        return
    tag = belief_tag(before)
    rows = []
    for number, seq, belief in new:
        # An invalid one may still have this key, and the insert would fail.
        connection.execute(_DELETE, {"job": job_id, "tag": tag, "after": number})
        text = belief.to_json()
        text = f"{_digest(tag, number, seq, text)} {text}"
        rows.append(
            {"job_id": job_id, "tag": tag, "number": number, "told_seq": seq, "belief": text}
        )
    connection.execute(sa.insert(_C), rows)
    newest_first = sa.select(_c.number).where(_c.job_id == job_id).order_by(_c.number.desc())
    oldest_kept = newest_first.offset(KEPT - 1).limit(1).scalar_subquery()
    connection.execute(sa.delete(_C).where(_c.job_id == job_id, _c.number < oldest_kept))


def forget_checkpoints(connection: sa.Connection, trial: Trial) -> None:
    """Delete the checkpoints that include an older state of this trial."""
    connection.execute(_DELETE_FROM, {"job": trial.job_id, "first": trial.number})
