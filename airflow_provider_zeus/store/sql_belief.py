"""The belief of a job from its log, with checkpoints that only save time: deleting them changes no decision.

A checkpoint is the belief after trial n. It is written only up to the oldest trial still open, and holds only as long
as no trial at or below n was closed after it: the question for one compares ``told_seq`` itself.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import sqlalchemy as sa

from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.policy import Belief, belief_tag, learn, prior
from airflow_provider_zeus.optimizer.trial import Trial
from airflow_provider_zeus.store import schema, sql_trials
from airflow_provider_zeus.store.rows import is_known

EVERY = 16  # folded trials between two checkpoints: a question folds as many anew at most
KEPT = 16  # newest checkpoints of a job: a late result that far back folds no whole log anew

_C, _T = schema.checkpoint, schema.trial
_job: sa.BindParameter[Any] = sa.bindparam("job")
_tag: sa.BindParameter[Any] = sa.bindparam("tag")
_told_since = sa.exists().where(_T.c.job_id == _C.c.job_id, _T.c.told_seq > _C.c.told_seq, _T.c.number <= _C.c.number)
_NEWEST = (
    sa.select(_C.c.number, _C.c.told_seq, _C.c.belief)
    .where(_C.c.job_id == _job, _C.c.tag == _tag, ~_told_since)
    .order_by(_C.c.number.desc())
    .limit(1)
)
_FORGET = sa.delete(_C).where(_C.c.job_id == _job, _C.c.number >= sa.bindparam("first"))
_TAKE_BACK = sa.delete(_C).where(_C.c.job_id == _job, _C.c.tag == _tag, _C.c.number == sa.bindparam("after"))
_OLD = (
    sa.select(_C.c.number).where(_C.c.job_id == _job).order_by(_C.c.number.desc()).offset(KEPT - 1).limit(1)
).scalar_subquery()
_THIN = sa.delete(_C).where(_C.c.job_id == _job, _C.c.number < _OLD)
_INSERT = sa.insert(_C)

_Mark = tuple[int, int, Belief]  # trial number, highest told_seq at or below it, belief after it


def belief_of(connection: sa.Connection, job_id: str, job: ZeusJob, *, oldest_open: int | None) -> Belief:
    """Fold the log in order of trial number, from the newest checkpoint that holds; leave new ones behind."""
    start = connection.execute(_NEWEST, {"job": job_id, "tag": belief_tag(job)}).one_or_none()
    number, seq = (start.number, start.told_seq) if start else (0, 0)
    belief = Belief.from_json(job, start.belief) if start else prior(job)
    marks: deque[_Mark] = deque(maxlen=KEPT)
    last, whole = number, True
    for trial in sql_trials.log(connection, job_id, after=number):
        if not is_known(trial):  # a newer version may learn from it: no checkpoint behind it
            whole = False
            continue
        belief, seq = learn(belief, trial), max(seq, trial.told_seq or 0)
        if whole and trial.number - last >= EVERY and (oldest_open is None or trial.number < oldest_open):
            marks.append((trial.number, seq, belief))
            last = trial.number
    if marks:
        _write(connection, job_id, belief_tag(job), marks)
    return belief


def _write(connection: sa.Connection, job_id: str, tag: str, marks: deque[_Mark]) -> None:
    rows = [
        {"job_id": job_id, "tag": tag, "number": number, "told_seq": seq, "belief": belief.to_json()}
        for number, seq, belief in marks
    ]
    for row in rows:  # one that no longer holds may still lie there
        connection.execute(_TAKE_BACK, {"job": job_id, "tag": tag, "after": row["number"]})
    connection.execute(_INSERT, rows)
    connection.execute(_THIN, {"job": job_id})


def forget_checkpoints(connection: sa.Connection, trial: Trial) -> None:
    """Delete the checkpoints that hold an older word of this trial."""
    connection.execute(_FORGET, {"job": trial.job_id, "first": trial.number})
