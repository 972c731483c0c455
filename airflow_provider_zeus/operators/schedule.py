"""What the schedule of a DAG says of a run: how many follow it, when the next one begins, and when it has to end."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import count, islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

from airflow_provider_zeus.airflow_compat import is_test_run
from airflow_provider_zeus.model.deadline import deadline_of
from airflow_provider_zeus.model.job import ZeusJob

log = logging.getLogger(__name__)


def runs_left(context: Mapping[str, Any], most: int = 100) -> int | None:
    """Scheduled runs after this one until the task's ``end_date``, ``most`` at most: no policy looks further ahead.

    Raises nothing. None where the task and its DAG have no ``end_date``, or the schedule is neither one cron expression
    nor one interval.
    """
    end, timetable = getattr(context["task"], "end_date", None), getattr(context.get("dag"), "timetable", None)
    if end is None or timetable is None:
        return None
    try:
        after = context.get("data_interval_end" if hasattr(timetable, "interval") else "data_interval_start")
        dates = _dates(timetable, after or context["dag_run"].run_after)
        return None if dates is None else sum(1 for _ in takewhile(lambda date: date <= end, islice(dates, most)))
    except Exception:  # of a timetable of the author
        log.warning("Zeus could not count the runs until %s and assumes that they are many.", end, exc_info=True)
        return None


def interval_s(context: Mapping[str, Any]) -> float | None:
    """Time from this run to the next one by the schedule [s]; None without a schedule of known dates."""
    timetable, run_after = getattr(context.get("dag"), "timetable", None), context["dag_run"].run_after
    try:
        dates = None if timetable is None else _dates(timetable, run_after)
        return None if dates is None else (next(dates) - run_after).total_seconds()
    except Exception:  # of a timetable of the author
        return None


def _dates(timetable: Any, after: datetime) -> Iterator[datetime] | None:
    """The dates of a timetable that Airflow compares with ``end_date``."""
    expression, delta = getattr(timetable, "expression", None), getattr(timetable, "delta", None)
    if isinstance(expression, str):
        from croniter import croniter

        zone = timetable.timezone
        start = after.astimezone(ZoneInfo(zone) if isinstance(zone, str) else zone)
        dates: Iterator[datetime] = croniter(expression, start).all_next(datetime)
        return dates
    return None if delta is None else (after + i * delta for i in count(1))


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
