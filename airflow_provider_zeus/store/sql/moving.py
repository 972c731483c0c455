"""History that moves: trials of another log, and a job under another name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import sqlalchemy as sa

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import Trial, TrialKey
from airflow_provider_zeus.store.base import History
from airflow_provider_zeus.store.sql import schema
from airflow_provider_zeus.store.sql.trials import count_job


def check_elsewhere(history: History, find: Callable[[TrialKey], Trial | None]) -> None:
    """Raises StoreError where a trial of a history is in the log under another job."""
    for trial in history.trials:
        other = find(trial.key)
        if other is not None:
            raise StoreError(
                f"Trial {trial.number} of {history.job_id!r} is in this log already, as trial {other.number} of "
                f"{other.job_id!r}. To move it: airflow zeus jobs rename {other.job_id} {history.job_id}."
            )


def placed(known: Mapping[TrialKey, int], newest: int, seq: int, trials: Sequence[Trial]) -> list[Trial]:
    """The trials that are new, in order, with the numbers that they get.

    They keep their numbers where the log holds nothing of the job but trials of this history; else they follow the
    log's newest trial. One that comes before it counts as closed now, so that no checkpoint without it stays valid.

    :param known: number of each trial in the log.
    :param newest: the highest of these.
    :param seq: number of closings in the log.
    """
    numbers = {t.key: t.number for t in trials}
    new = sorted((t for t in trials if t.key not in known), key=lambda t: t.number)
    if all(numbers.get(key) == number for key, number in known.items()):
        return [replace(t, told_seq=seq + i) if t.number < newest else t for i, t in enumerate(new, 1)]
    return [
        replace(
            t,
            number=newest + i,
            told_seq=None if t.told_seq is None else t.told_seq + seq,
            asked_after_seq=t.asked_after_seq + seq,
        )
        for i, t in enumerate(new, 1)
    ]


def moved_task(old: str, new: str, dag_id: str, task_id: str) -> tuple[str, str]:
    """DAG and task of a trial after the rename of its job.

    Where both names are those of a task, ``<dag_id>.<task_id>`` and what a mapped value adds, the DAG or the task was
    renamed: its runs belong to the new one. Where that cannot be told, they stay as they are.
    """
    if not dag_id or not task_id or not old.startswith(task := f"{dag_id}.{task_id}"):
        return dag_id, task_id
    rest = old[len(task) :]
    if not new.endswith(rest):
        return dag_id, task_id
    name = new[: len(new) - len(rest)]
    if name.endswith(f".{task_id}") and name != f".{task_id}":
        return name[: -len(task_id) - 1], task_id
    if name.startswith(f"{dag_id}.") and name != f"{dag_id}.":
        return dag_id, name[len(dag_id) + 1 :]
    parts = name.split(".")
    return (parts[0], parts[1]) if len(parts) == 2 and all(parts) else (dag_id, task_id)


def check_rename(old: str, new: str, *, open_trials: Sequence[Trial], own: int, others: int, merge: bool) -> None:
    """Raises StoreError where a job cannot be renamed.

    :param open_trials: of both jobs.
    :param own: trials of ``old``.
    :param others: trials of ``new``.
    """
    if old == new:
        raise StoreError(f"NEW = {new!r}: the job has this name already. Choose another one.")
    if not own:
        raise StoreError(f"OLD = {old!r}: no such job in the log. See 'airflow zeus jobs list'.")
    check_closed(open_trials)
    if others and not merge:
        raise StoreError(
            f"NEW = {new!r}: the log has {others} trial{'' if others == 1 else 's'} of this job. With --merge they "
            f"follow those of {old!r}."
        )


def check_closed(open_trials: Sequence[Trial]) -> None:
    """Raises StoreError where a trial is open: its reports would be lost."""
    if open_trials:
        running = open_trials[0]
        raise StoreError(
            f"Trial {running.number} of {running.job_id!r} is running: wait until it has ended; or, if its process is "
            f"gone, close it with 'airflow zeus repair --close {running.job_id} {running.number}'. Then try again."
        )


def moved_to(history: History, job_id: str) -> History:
    """The history under another name."""
    trials = []
    for trial in history.trials:
        dag_id, task_id = moved_task(history.job_id, job_id, trial.origin.dag_id, trial.origin.task_id)
        trials.append(replace(trial, job_id=job_id, origin=replace(trial.origin, dag_id=dag_id, task_id=task_id)))
    return replace(history, job_id=job_id, trials=trials)


def merge(connection: sa.Connection, old: str, new: str, *, counted: Mapping[str, tuple[int, int]]) -> None:
    """Give the trials and profiles of ``old`` to ``new``, whose own trials follow them; delete ``old``.

    The rows of both jobs must be locked. Checkpoints of both are deleted: the next request learns from the log again.

    :param counted: ``told_seq`` and last number of both jobs.
    """
    table, (seq, newest), (later_seq, later) = schema.trial, counted[old], counted[new]
    tasks = sa.select(table.c.dag_id, table.c.task_id).where(table.c.job_id == old).distinct()
    of_old, of_new = table.c.job_id == old, sa.update(table).where(table.c.job_id == new)
    if later:  # first below 0: a number must be free at each moment
        moved = {"told_seq": table.c.told_seq + seq, "asked_after_seq": table.c.asked_after_seq + seq}
        connection.execute(of_new.values(number=-(table.c.number + newest), **moved))
        connection.execute(of_new.values(number=-table.c.number))
    for dag_id, task_id in connection.execute(tasks).all():
        new_dag, new_task = moved_task(old, new, dag_id, task_id)
        if (new_dag, new_task) != (dag_id, task_id):
            of_task = sa.update(table).where(of_old, table.c.dag_id == dag_id, table.c.task_id == task_id)
            connection.execute(of_task.values(dag_id=new_dag, task_id=new_task))
    for moves in (table, schema.profile):
        connection.execute(sa.update(moves).where(moves.c.job_id == old).values(job_id=new))
    count_job(connection, new, seq=seq + later_seq, newest=newest + later)
    connection.execute(sa.delete(schema.checkpoint).where(schema.checkpoint.c.job_id.in_([old, new])))
    held = sa.select(schema.job.c.events).where(schema.job.c.job_id == old).scalar_subquery()
    connection.execute(sa.update(schema.job).where(schema.job.c.job_id == new).values(events=held))
    connection.execute(sa.delete(schema.job).where(schema.job.c.job_id == old))
