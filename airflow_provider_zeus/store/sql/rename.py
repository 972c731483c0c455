"""A job of the SQL store under another name. The rows of both jobs must be locked."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from airflow_provider_zeus.store.moving import moved_task
from airflow_provider_zeus.store.sql import families, schema
from airflow_provider_zeus.store.sql.trials import count_job

_T, _S, _C, _J = schema.trial, schema.profile, schema.checkpoint, schema.job


def merge(connection: sa.Connection, old: str, new: str, *, counted: Mapping[str, tuple[int, int]]) -> None:
    """Give the trials and profiles of ``old`` to ``new``, whose own trials follow them; delete ``old``.

    Checkpoints of both are deleted: the next request learns from the log again.

    :param counted: ``told_seq`` and last number of both jobs.
    """
    (seq, newest), (later_seq, later) = counted[old], counted[new]
    of_old, of_new = _T.c.job_id == old, sa.update(_T).where(_T.c.job_id == new)
    if later:  # first below 0: a number must be free at each moment
        moved = {"told_seq": _T.c.told_seq + seq, "asked_after_seq": _T.c.asked_after_seq + seq}
        connection.execute(of_new.values(number=-(_T.c.number + newest), **moved))
        connection.execute(of_new.values(number=-_T.c.number))
    for dag_id, task_id in connection.execute(sa.select(_T.c.dag_id, _T.c.task_id).where(of_old).distinct()).all():
        new_dag, new_task = moved_task(old, new, dag_id, task_id)
        if (new_dag, new_task) != (dag_id, task_id):
            of_task = sa.update(_T).where(of_old, _T.c.dag_id == dag_id, _T.c.task_id == task_id)
            connection.execute(of_task.values(dag_id=new_dag, task_id=new_task))
    for table in (_T, _S):
        connection.execute(sa.update(table).where(table.c.job_id == old).values(job_id=new))
    count_job(connection, new, seq=seq + later_seq, newest=newest + later)
    connection.execute(sa.delete(_C).where(_C.c.job_id.in_([old, new])))
    families.leave(connection, new)  # the next request tells its family what both have learnt
    connection.execute(sa.delete(_J).where(_J.c.job_id == old))
