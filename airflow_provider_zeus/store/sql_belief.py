"""The belief of a job from its log, with checkpoints that only save time: deleting them changes no decision.

A checkpoint is the belief after trial n. It is written only up to the oldest trial still open, and holds only as long
as no trial at or below n was closed after it: the question for one compares ``told_seq`` itself. So they may be made
before the job's row is locked: whatever is told until then makes those that miss it hold no longer.

Each carries a digest. One whose digest does not fit is damaged: it is dropped, and an older one taken.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import sqlalchemy as sa

from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.policy import Belief, belief_tag, learn, prior
from airflow_provider_zeus.optimizer.trial import State, Trial
from airflow_provider_zeus.store import schema, sql_trials
from airflow_provider_zeus.store.base import Unreadable
from airflow_provider_zeus.store.rows import is_known
from airflow_provider_zeus.visible import visible

log = logging.getLogger(__name__)

EVERY = 16  # folded trials between two checkpoints: a question folds as many anew at most
KEPT = 16  # newest checkpoints of a job: a late result that far back folds no whole log anew
_MOST = 2**63 - 1  # above every trial number
AHEAD = 256  # trials (0.2 s and more): a question that has to fold more of them does so before it takes the lock

_C, _T = schema.checkpoint, schema.trial
_job: sa.BindParameter[Any] = sa.bindparam("job")
_tag: sa.BindParameter[Any] = sa.bindparam("tag")
_told_since = sa.exists().where(_T.c.job_id == _C.c.job_id, _T.c.told_seq > _C.c.told_seq, _T.c.number <= _C.c.number)
_NEWEST = (
    sa.select(_C.c.number, _C.c.told_seq, _C.c.belief)
    .where(_C.c.job_id == _job, _C.c.tag == _tag, _C.c.number < sa.bindparam("below"), ~_told_since)
    .order_by(_C.c.number.desc())
    .limit(1)
)
_marked = sa.select(sa.func.max(_C.c.number)).where(_C.c.job_id == _job, _C.c.tag == _tag, ~_told_since)
_open = sa.select(sa.func.min(_T.c.number)).where(_T.c.job_id == _job, _T.c.state == State.RUNNING.value)
_BEHIND = sa.select(  # trials that a question folds and that a checkpoint may stand behind
    sa.func.coalesce(_open.scalar_subquery() - 1, schema.job.c.last_number)
    - sa.func.coalesce(_marked.scalar_subquery(), 0)
).where(schema.job.c.job_id == _job)
_FORGET = sa.delete(_C).where(_C.c.job_id == _job, _C.c.number >= sa.bindparam("first"))
_TAKE_BACK = sa.delete(_C).where(_C.c.job_id == _job, _C.c.tag == _tag, _C.c.number == sa.bindparam("after"))
_OLD = (
    sa.select(_C.c.number).where(_C.c.job_id == _job).order_by(_C.c.number.desc()).offset(KEPT - 1).limit(1)
).scalar_subquery()
_THIN = sa.delete(_C).where(_C.c.job_id == _job, _C.c.number < _OLD)
_INSERT = sa.insert(_C)

Mark = tuple[int, int, Belief]  # trial number, highest told_seq at or below it, belief after it


def belief_of(connection: sa.Connection, job_id: str, job: ZeusJob, *, oldest_open: int | None) -> Belief:
    """Fold the log in order of trial number, from the newest checkpoint that holds; leave new ones behind."""
    belief, marks = _folded(connection, job_id, job, oldest_open)
    keep(connection, job_id, job, marks)
    return belief


def fold_ahead(connection: sa.Connection, job_id: str, job: ZeusJob) -> Sequence[Mark]:
    """Checkpoints that spare a question a long fold while it holds the job's lock; none where its fold is short."""
    behind = connection.scalar(_BEHIND, {"job": job_id, "tag": belief_tag(job)}) or 0
    if behind <= AHEAD:
        return ()
    oldest_open = min((t.number for t in sql_trials.open_trials(connection, job_id)), default=None)
    return _folded(connection, job_id, job, oldest_open, ahead=True)[1]


def believed(connection: sa.Connection, job_id: str, job: ZeusJob) -> Belief:
    """The belief of a job from its whole log; nothing is written."""
    return _folded(connection, job_id, job, None)[0]


def _folded(
    connection: sa.Connection, job_id: str, job: ZeusJob, oldest_open: int | None, *, ahead: bool = False
) -> tuple[Belief, Sequence[Mark]]:
    """The belief and new checkpoints; ``ahead``: no further than they may stand."""
    number, seq, belief = _start(connection, job_id, job, ahead=ahead)
    marks: deque[Mark] = deque(maxlen=KEPT)
    last, settled = number, True
    for trial in sql_trials.log(connection, job_id, after=number):
        if isinstance(trial, Unreadable):
            continue
        known = is_known(trial)  # else a newer version may learn from it: no checkpoint behind it
        settled = settled and known and (oldest_open is None or trial.number < oldest_open)
        if ahead and not settled:
            break
        if not known:
            continue
        belief, seq = learn(belief, trial), max(seq, trial.told_seq or 0)
        if settled and trial.number - last >= EVERY:
            marks.append((trial.number, seq, belief))
            last = trial.number
    return belief, marks


def _start(connection: sa.Connection, job_id: str, job: ZeusJob, *, ahead: bool) -> Mark:
    """The newest checkpoint that holds and is whole, else the prior. Damaged ones are deleted, but not ``ahead``."""
    tag, below = belief_tag(job), _MOST
    while row := connection.execute(_NEWEST, {"job": job_id, "tag": tag, "below": below}).one_or_none():
        below = row.number
        digest, _, text = str(row.belief).partition(" ")
        if digest == _digest(tag, row.number, row.told_seq, text):
            return row.number, row.told_seq, Belief.from_json(job, text)
        if not ahead:
            log.warning(
                "A checkpoint of %s (after trial %s) is damaged: its log is folded again.", visible(job_id), row.number
            )
            connection.execute(_TAKE_BACK, {"job": job_id, "tag": tag, "after": row.number})
    return 0, 0, prior(job)


def _digest(tag: str, number: object, seq: object, text: str) -> str:
    return sha256(f"{tag} {number} {seq} {text}".encode()).hexdigest()[:16]


def keep(connection: sa.Connection, job_id: str, job: ZeusJob, marks: Sequence[Mark]) -> None:
    """Write checkpoints. The job's row is locked."""
    if not marks:
        return
    tag = belief_tag(job)
    rows = [{"job_id": job_id, "tag": tag, "number": n, "told_seq": seq} for n, seq, _ in marks]
    for row, (number, seq, belief) in zip(rows, marks, strict=True):
        text = belief.to_json()
        row["belief"] = f"{_digest(tag, number, seq, text)} {text}"
    for row in rows:  # one that no longer holds may still lie there
        connection.execute(_TAKE_BACK, {"job": job_id, "tag": tag, "after": row["number"]})
    connection.execute(_INSERT, rows)
    connection.execute(_THIN, {"job": job_id})


def forget_checkpoints(connection: sa.Connection, trial: Trial) -> None:
    """Delete the checkpoints that hold an older word of this trial."""
    connection.execute(_FORGET, {"job": trial.job_id, "first": trial.number})
