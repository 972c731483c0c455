"""History that moves: trials of another log, and a job that gets another name."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.job_ids import names_in
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.store.sql import outside_sums, schema
from airflow_provider_zeus.store.sql.trials import count_job, find
from airflow_provider_zeus.units import counted


def moved_task(old: str, new: str, dag_id: str, task_id: str) -> tuple[str, str]:
    """DAG and task of a trial after the rename of its job.

    If both names are those of a task, with the same mapped value or none, the DAG or the task was
    renamed: its runs belong to the new one. If that cannot be told, they stay as they are.
    """
    old_dag, old_task, *old_value = [*names_in(old), ""]
    new_dag, new_task, *new_value = [*names_in(new), ""]
    is_of_task = (old_dag, old_task) == (dag_id, task_id) and new_value == old_value
    if is_of_task and "" not in (dag_id, task_id, new_dag, new_task):
        return new_dag, new_task
    return dag_id, task_id


def holds(connection: sa.Connection, trial: Trial) -> bool:
    """Whether the log holds a trial of another log.

    Raises StoreError if it holds it under another job.
    """
    there = find(connection, trial.key)
    if there is not None and there.job_id != trial.job_id:
        raise StoreError(
            f"Row {trial.number} of {trial.job_id!r} is in this log already, as row {there.number} "
            "of "
            f"{there.job_id!r}. Rename that job first: airflow zeus jobs rename {there.job_id} "
            f"{trial.job_id}."
        )
    return there is not None


def check_rename(
    old: str, new: str, *, open_trials: Sequence[Trial], own: int, others: int
) -> None:
    """Raises StoreError if a job cannot be renamed.

    :param open_trials: of both jobs.
    :param own: trials of ``old``.
    :param others: trials of ``new``.
    """
    if old == new:
        raise StoreError(f"NEW = {new!r}: the job has this name already. Choose another one.")
    if not own:
        raise StoreError(f"OLD = {old!r}: no such job in the log. See 'airflow zeus jobs list'.")
    check_closed(open_trials)
    if others:
        raise StoreError(
            f"NEW = {new!r}: the log has {counted(others, 'attempt')} of this job. Choose a free "
            "name, "
            "or give that job another one first."
        )


def check_closed(open_trials: Sequence[Trial]) -> None:
    """Raises StoreError if a trial is open: its reports would be lost."""
    for trial in open_trials[:1]:
        job_id = trial.job_id
        run = trial.origin.run_id or "-"
        raise StoreError(
            f"An attempt of {job_id!r} is running (DAG run {run}): wait until it has ended. If its "
            "process is gone, "
            f"take its number from 'airflow zeus runs {job_id}', and close it with "
            f"'airflow zeus repair --close {job_id} ATTEMPT'. Then try again."
        )


def rename(connection: sa.Connection, old: str, new: str, *, seq: int, newest: int) -> None:
    """Give the trials and profiles of ``old`` to ``new``, which has none; delete ``old``.

    The rows of both jobs must be locked. Checkpoints are deleted: the next request learns from the
    log again.

    :param seq: number of closings in the log of ``old``; ``newest``: number of its newest trial.
    """
    table = schema.trial
    dags: dict[str, str] = {}
    tasks = sa.select(table.c.dag_id, table.c.task_id).where(table.c.job_id == old).distinct()
    for dag_id, task_id in connection.execute(tasks).all():
        new_dag, new_task = moved_task(old, new, dag_id, task_id)
        dags[dag_id] = new_dag
        if (new_dag, new_task) != (dag_id, task_id):
            of_task = (table.c.job_id == old, table.c.dag_id == dag_id, table.c.task_id == task_id)
            connection.execute(
                sa.update(table).where(*of_task).values(dag_id=new_dag, task_id=new_task)
            )
    outside_sums.rename(connection, old, new, dags)
    for moves in (table, schema.profile):
        connection.execute(sa.update(moves).where(moves.c.job_id == old).values(job_id=new))
    count_job(connection, new, seq=seq, newest=newest)
    # They only save time, and the old job's row cannot go while they refer to it.
    of_both = schema.checkpoint.c.job_id.in_([old, new])
    connection.execute(sa.delete(schema.checkpoint).where(of_both))
    job = schema.job
    # Without them each event that still holds would begin, and be sent, once more.
    events = sa.select(job.c.events).where(job.c.job_id == old).scalar_subquery()
    connection.execute(sa.update(job).where(job.c.job_id == new).values(events=events))
    # Last: its trials and samples refer to it until they have the other name.
    connection.execute(sa.delete(job).where(job.c.job_id == old))
