"""The name that a job has by default: that of its task, and the value of a mapped argument.

``.`` separates these names, so a dot within one of them is doubled: task ``eu.train`` of DAG
``fraud`` has the job ``fraud.eu..train``, and task ``train`` of DAG ``fraud.eu`` has
``fraud..eu.train``. Dots at the beginning of a name are written as ``:``, which is in no name of
Airflow's: after a separator they could belong to the name before it.
"""

from __future__ import annotations


def job_id_of_task(dag_id: str, task_id: str) -> str:
    """The name of a task's job."""
    return f"{_part(dag_id)}.{_part(task_id)}"


def job_id_of_value(job_id: str, value: str) -> str:
    """The name of one of the jobs of a mapped task."""
    return f"{job_id}.{_part(value)}"


def names_in(job_id: str) -> list[str]:
    """The names of which the name of a job is made: DAG and task, and perhaps a value."""
    no_name = "\0"  # no name of Airflow's has it, so no two of them meet in one id
    return [_name(part.replace(no_name, ".")) for part in job_id.replace("..", no_name).split(".")]


def _part(name: str) -> str:
    """A name as a part of the name of a job."""
    rest = name.lstrip(".")
    leading_dots = len(name) - len(rest)
    return ":" * leading_dots + rest.replace(".", "..")


def _name(part: str) -> str:
    """The name of a part in which dots are no longer doubled."""
    rest = part.lstrip(":")
    leading_dots = len(part) - len(rest)
    return "." * leading_dots + rest
