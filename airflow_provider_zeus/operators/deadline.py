"""When the run of a task has to end, by the job's ``finish_by``."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

from airflow_provider_zeus.airflow_compat import is_test_run
from airflow_provider_zeus.model.deadline import deadline_of
from airflow_provider_zeus.model.job import ZeusJob

log = logging.getLogger(__name__)


def of_another_time(context: Mapping[str, Any]) -> bool:
    """Whether a run has data of another time: a backfill, or a test. It has no deadline and waits for nothing."""
    run_type = context["dag_run"].run_type
    return str(getattr(run_type, "value", run_type)) == "backfill" or is_test_run()


def finish_by_s(job: ZeusJob, context: Mapping[str, Any]) -> float | None:
    """The deadline [s since the epoch], the same for all tries of a run; None for a run that has none.

    A deadline that is past is warned of.
    """
    if not isinstance(job.finish_by, str) or of_another_time(context):
        return None
    zone = getattr(context.get("dag"), "timezone", None) or ZoneInfo("UTC")
    at = deadline_of(job.finish_by, context["dag_run"].run_after, zone)
    if at.timestamp() <= time.time():
        log.warning(
            "Zeus: ZeusJob.finish_by = %r: %s is past, so the fastest known batch size runs at full power. Remedy: a "
            "time of day or a timedelta moves with each run; a run that is cleared later keeps its deadline.",
            job.finish_by,
            f"{at:%Y-%m-%d %H:%M %Z}",
        )
    return at.timestamp()
