"""The run handle of a recurrence, as ``ZeusTrainOperator`` makes it."""

from __future__ import annotations

from airflow_provider_zeus.operators.recurrence import Recurrence
from airflow_provider_zeus.training.run import ZeusRun


def handle_of(recurrence: Recurrence) -> ZeusRun:
    return ZeusRun.from_plan(recurrence.plan, sink=recurrence.reporter, device=recurrence.device)
