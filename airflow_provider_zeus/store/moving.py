"""History that moves: trials of another log, and a job under another name. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import Trial, TrialKey
from airflow_provider_zeus.store.base import History


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


def renamed(trial: Trial, old: str, new: str) -> Trial:
    """A trial of the job ``old`` as one of ``new``."""
    dag_id, task_id = moved_task(old, new, trial.origin.dag_id, trial.origin.task_id)
    return replace(trial, job_id=new, origin=replace(trial.origin, dag_id=dag_id, task_id=task_id))


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
            f"Trial {running.number} of {running.job_id!r} is running: wait until it has ended, or close it with "
            f"'airflow zeus close {running.job_id} {running.number}' where its process is gone; then try again."
        )


def moved_to(history: History, job_id: str) -> History:
    """The history under another name."""
    trials = [renamed(t, history.job_id, job_id) for t in history.trials]
    return replace(history, job_id=job_id, trials=trials)
