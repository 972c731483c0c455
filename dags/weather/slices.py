"""Weekly slices of the year: the 84 days of data of each week's retraining.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

WINDOW = timedelta(days=84)
STEP = timedelta(days=7)
FIRST_WEEK = (2013, 13)  # its window opens hours before the data does
DATA_END = datetime(2013, 12, 31, tzinfo=UTC)  # the last reading is of 2013-12-30 23:00Z


def all_keys() -> list[str]:
    """Return the keys of all slices in order, ``"2013-W13"`` to ``"2013-W52"``:
    the ISO week that the model serves.
    """
    monday = _monday(*FIRST_WEEK)
    found = []
    while monday + STEP <= DATA_END:
        year, week, _ = monday.isocalendar()
        found.append(f"{year}-W{week:02d}")
        monday += STEP
    return found


def window(key: str) -> tuple[datetime, datetime]:
    """Return begin and end of a slice [UTC]: the 84 days before the Monday of its week.

    Raises ValueError.
    """
    if key not in all_keys():
        raise ValueError(
            f"slice {key!r}: no such week. Use one of {all_keys()[0]} to {all_keys()[-1]}."
        )
    year, week = key.split("-W")
    end = _monday(int(year), int(week))
    return end - WINDOW, end


def next_key(emitted: Collection[str]) -> str | None:
    """Return the earliest slice that is not in ``emitted``; None when all are."""
    return next((key for key in all_keys() if key not in emitted), None)


def _monday(year: int, week: int) -> datetime:
    return datetime.fromisocalendar(year, week, 1).replace(tzinfo=UTC)
