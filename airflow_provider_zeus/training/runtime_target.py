"""The value of a target ``"<metric> <= runtime"``, which the training gives while it runs."""

from __future__ import annotations

import math
from dataclasses import replace

from airflow_provider_zeus.errors import ReportError
from airflow_provider_zeus.optimizer.target import Target


def completed(stated: Target, value: float, *, epochs_reported: int) -> Target:
    """The job's target with ``value``.

    Raises ReportError: the job states a value itself, an epoch was reported already, not a finite number.
    """
    if stated.value is not None:
        raise ReportError(
            f'run.set_target({value!r}): the job\'s target "{stated} {stated.value:g}" has a value already. '
            f'Write "{stated} runtime" there, or leave set_target() out.'
        )
    if epochs_reported:
        raise ReportError(
            f"run.set_target({value!r}): an epoch was reported already. Set the target before the loop, or what "
            "was reached by then would count against another target."
        )
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ReportError(f"run.set_target({value!r}): not a finite number. Compute it from this run's own data.")
    return replace(stated, value=float(value))
