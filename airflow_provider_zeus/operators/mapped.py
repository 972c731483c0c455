"""Mapped tasks: one job for each mapped value (``job_id_by``), and what is said where they share a job."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.printable import plain_name, visible

log = logging.getLogger(__name__)


def job_part(name: str | None, values: Mapping[str, Any]) -> str | None:
    """The part that the argument ``name`` adds to the job id; None without a name.

    It is a plain name (:func:`~airflow_provider_zeus.printable.plain_name`), so that the id is also the name of a
    Variable, and two values are never one job.

    :param values: the arguments of this map index, rendered.

    Raises JobSpecError where there is no such argument, or its value is neither a text nor a number.
    """
    if name is None:
        return None
    if name not in values:
        known = ", ".join(values) or "none"
        raise JobSpecError.of(
            "job_id_by", name, "this task gets no such argument", f"name one of its arguments: {known}"
        )
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        problem = f"its value is {'an empty text' if value == '' else f'of type {type(value).__name__}'}"
        raise JobSpecError.of(
            "job_id_by",
            name,
            problem,
            "map an argument whose values are texts or numbers, such as region names, and name it",
        )
    return plain_name(str(value))


def warn_of_sharing(job_id: str, task_id: str, map_index: int, others: Sequence[int]) -> None:
    """Say in the task's log that other map indexes of this task train the same job. ``others``: they."""
    if others:
        log.warning(
            "Task %s is mapped, and its map indexes %s share the job %s: Zeus learns from all of them as from one "
            "training. If each has its own data or model, name the mapped argument that tells them apart: "
            'job_id_by="<argument>" makes one job for each of its values.',
            task_id,
            ", ".join(map(str, sorted({map_index, *others}))),
            visible(job_id),
        )
