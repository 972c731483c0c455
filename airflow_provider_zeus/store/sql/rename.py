"""A job of the SQL store under another name. The rows of both jobs must be locked."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from airflow_provider_zeus.store.moving import moved_task
from airflow_provider_zeus.store.sql import schema
from airflow_provider_zeus.store.sql.trials import count_job

_T, _S, _C, _J = schema.trial, schema.profile, schema.checkpoint, schema.job
_old: sa.BindParameter[str] = sa.bindparam("old")
_new: sa.BindParameter[str] = sa.bindparam("new")

_of_new = sa.update(_T).where(_T.c.job_id == _new)
_ASIDE = _of_new.values(  # below 0: a number must be free at each moment
    number=-(_T.c.number + sa.bindparam("newest")),
    told_seq=_T.c.told_seq + sa.bindparam("seq"),
    asked_after_seq=_T.c.asked_after_seq + sa.bindparam("seq"),
)
_BACK = _of_new.values(number=-_T.c.number)
_TASKS = sa.select(_T.c.dag_id, _T.c.task_id).where(_T.c.job_id == _old).distinct()
_MOVE_TASK = (
    sa.update(_T)
    .where(_T.c.job_id == _old, _T.c.dag_id == sa.bindparam("dag"), _T.c.task_id == sa.bindparam("task"))
    .values(dag_id=sa.bindparam("new_dag"), task_id=sa.bindparam("new_task"))
)
_MOVE = [sa.update(table).where(table.c.job_id == _old).values(job_id=_new) for table in (_T, _S)]
_FORGET = [sa.delete(_C).where(_C.c.job_id.in_([_old, _new])), sa.delete(_J).where(_J.c.job_id == _old)]


def merge(connection: sa.Connection, old: str, new: str, *, counted: Mapping[str, tuple[int, int]]) -> None:
    """Give the trials and profiles of ``old`` to ``new``, whose own trials follow them; delete ``old``.

    Checkpoints of both are deleted: the next request learns from the log again.

    :param counted: ``told_seq`` and last number of both jobs.
    """
    (seq, newest), (later_seq, later) = counted[old], counted[new]
    if later:
        connection.execute(_ASIDE, {"new": new, "newest": newest, "seq": seq})
        connection.execute(_BACK, {"new": new})
    for dag_id, task_id in connection.execute(_TASKS, {"old": old}).all():
        new_dag, new_task = moved_task(old, new, dag_id, task_id)
        if (new_dag, new_task) != (dag_id, task_id):
            values = {"dag": dag_id, "task": task_id, "new_dag": new_dag, "new_task": new_task}
            connection.execute(_MOVE_TASK, {"old": old, **values})
    for move in _MOVE:
        connection.execute(move, {"old": old, "new": new})
    count_job(connection, new, seq=seq + later_seq, newest=newest + later)
    for forget in _FORGET:
        connection.execute(forget, {"old": old, "new": new})
