"""Whether a new job looks like an older one whose DAG or task was renamed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from airflow_provider_zeus.model.trial import Trial

FEW = 10  # trials of a job that counts as new
_ALIKE = ("batch_sizes", "default_batch_size", "target")


def candidates(trials: Sequence[Trial], latest: Iterable[Trial]) -> list[Trial]:
    """The newest trial of each job whose history a new job may have lost by a rename; empty for a job with a history.

    Such a job has the name of its task, the same batch sizes, default and target, no run since the new job's first
    one, and another DAG with this task, or another task of this DAG.

    :param trials: the newest of the new job, oldest first.
    :param latest: the newest trial of each job in the log.
    """
    if not trials or trials[0].number != 1 or len(trials) > FEW or not _named_by_task(trials[-1]):
        return []
    new, since = trials[-1], min(t.opened_at for t in trials)
    found = []
    for old in latest:
        same_dag, same_task = (getattr(old.origin, n) == getattr(new.origin, n) for n in ("dag_id", "task_id"))
        alike = all(old.spec.get(name) == new.spec.get(name) for name in _ALIKE)
        if alike and same_dag != same_task and old.opened_at < since and _named_by_task(old):
            found.append(old)
    return found


def looks_like(found: Sequence[Trial], new: Trial, dags: Collection[str]) -> str | None:
    """The name of the one job that a new job looks like; None where there is none, or several.

    :param found: as :func:`candidates` has them.
    :param dags: the DAGs that there are now.
    """
    gone = [t.job_id for t in found if t.origin.dag_id == new.origin.dag_id or t.origin.dag_id not in dags]
    return gone[0] if len(gone) == 1 else None


def _named_by_task(trial: Trial) -> bool:
    return trial.job_id == f"{trial.origin.dag_id}.{trial.origin.task_id}"
