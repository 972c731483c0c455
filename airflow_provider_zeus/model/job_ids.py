"""The name that a job has by default: that of its task, and the value of a mapped argument.

``.`` separates these names, so a dot within one of them is doubled: task ``eu.train`` of DAG ``fraud`` has the job
``fraud.eu..train``, and task ``train`` of DAG ``fraud.eu`` has ``fraud..eu.train``.
"""

from __future__ import annotations


def job_id_of_task(dag_id: str, task_id: str) -> str:
    """The name of a task's job."""
    return f"{_doubled(dag_id)}.{_doubled(task_id)}"


def job_id_of_value(job_id: str, value: str) -> str:
    """The name of one of the jobs of a mapped task."""
    return f"{job_id}.{_doubled(value)}"


def names_in(job_id: str) -> list[str]:
    """The names of which the name of a job is made: DAG and task, and perhaps a value."""
    no_name = "\0"  # is in no name of Airflow's
    return [name.replace(no_name, ".") for name in job_id.replace("..", no_name).split(".")]


def _doubled(name: str) -> str:
    return name.replace(".", "..")
