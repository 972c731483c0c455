"""How many runs the schedule of a DAG still has."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import count, islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

MOST = 100  # runs that are counted: no policy looks further ahead

log = logging.getLogger(__name__)


def runs_left(context: Mapping[str, Any]) -> int | None:
    """Scheduled runs after this one until the task's ``end_date``, :data:`MOST` at most. Raises nothing.

    None where the task and its DAG have no ``end_date``, or the schedule is neither one cron expression nor one
    interval.
    """
    end, timetable = getattr(context["task"], "end_date", None), getattr(context.get("dag"), "timetable", None)
    if end is None or timetable is None:
        return None
    try:
        after = context.get("data_interval_end" if hasattr(timetable, "interval") else "data_interval_start")
        dates = _dates(timetable, after or context["dag_run"].run_after)
        return None if dates is None else sum(1 for _ in takewhile(lambda date: date <= end, islice(dates, MOST)))
    except Exception:  # of a timetable that somebody else has written
        log.warning("Zeus could not count the runs until %s and takes them for many.", end, exc_info=True)
        return None


def interval_s(context: Mapping[str, Any]) -> float | None:
    """Time from this run to the next one by the schedule [s]; None without a schedule of known dates."""
    timetable, run_after = getattr(context.get("dag"), "timetable", None), context["dag_run"].run_after
    try:
        dates = None if timetable is None else _dates(timetable, run_after)
        return None if dates is None else (next(dates) - run_after).total_seconds()
    except Exception:  # of a timetable that somebody else has written
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
