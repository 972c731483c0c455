"""Turn the readings of a slice into samples: features of an hour,
and the temperature change after it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import slices
from .readings import AIRPORTS, COLUMNS, START, Grid, Readings, load

HORIZON_H = 6
LAGS_H = (1, 3, 6, 12, 24, 48, 72)
WEEK_H = 7 * 24
HOLDOUT = 0.15  # share of the samples on which the target is evaluated
TEMP, DEWP, HUMID, WIND_DIR, WIND_SPEED, PRECIP, PRESSURE, VISIB = range(len(COLUMNS))

Hours = NDArray[np.int64]  # hours since START
Rows = NDArray[np.float32]
Part = tuple[Hours, Grid, Grid]  # hours, features and temperature changes


@dataclass(frozen=True, slots=True)
class Samples:
    """Features (n, f) and temperature changes (n,) for training and hold-out,
    standardised on the training part.

    The hold-out is drawn at random inside the slice, so a held-out hour has its neighbours in the
    training part: it leaks, and an error on it says how fast the model learns the slice, not how
    well it forecasts next week. That is what the example needs (a target that every slice can
    reach); do not read it as forecast skill.
    """

    x: Rows
    y: Rows
    x_holdout: Rows
    y_holdout: Rows
    spread_f: float  # one unit of y [degrees F]
    # hold-out error of "it changes as it does on average at this hour of the day" [degrees F]
    trivial_rmse_f: float


def of_slice(key: str) -> Samples:
    """Return the samples of one slice, the same at every call."""
    known, held = _parts(key)
    return _samples(known, held)


def newest_week(key: str, trained_on: str) -> Samples:
    """Return the training part of an earlier slice, and the last week of ``key`` as its hold-out.

    A model that was trained on the earlier slice has not seen that week: its error there is
    forecast skill. Raises ValueError: ``trained_on`` is no earlier slice.
    """
    if trained_on >= key:
        raise ValueError(
            f"trained_on={trained_on!r}: slice {key} holds no later week. Give an earlier slice."
        )
    hours, x, y = _all_airports(load(), *_span(key))
    new = hours >= _span(key)[1] - WEEK_H
    return _samples(_parts(trained_on)[0], (hours[new], x[new], y[new]))


def _parts(key: str) -> tuple[Part, Part]:
    """Return the training part and the hold-out of a slice, in their own units."""
    hours, x, y = _all_airports(load(), *_span(key))
    held = np.random.default_rng(zlib.crc32(key.encode())).random(len(y)) < HOLDOUT
    return (hours[~held], x[~held], y[~held]), (hours[held], x[held], y[held])


def _samples(known: Part, held: Part) -> Samples:
    """Standardise both parts on the first."""
    hours, x, y = known
    held_hours, held_x, held_y = held
    mean = x.mean(axis=0)
    spread = x.std(axis=0)
    y_mean = y.mean()
    y_spread = y.std()
    x_unit, held_x_unit = (((each - mean) / spread).astype(np.float32) for each in (x, held_x))
    y_unit, held_y_unit = (((each - y_mean) / y_spread).astype(np.float32) for each in (y, held_y))
    trivial = _rmse(held_y - _hourly_mean(hours, y)[held_hours % 24])
    return Samples(x_unit, y_unit, held_x_unit, held_y_unit, float(y_spread), trivial)


def _span(key: str) -> tuple[int, int]:
    """Return the first hour of a slice and the hour after its last."""
    first, end = (
        int((np.datetime64(t.replace(tzinfo=None), "h") - START).astype(int))
        for t in slices.window(key)
    )
    return max(first, 0), end


def _all_airports(readings: Readings, first: int, end: int) -> tuple[Hours, Grid, Grid]:
    """Return hours, features and changes [degrees F] of the complete samples of a span."""
    parts = [_airport(readings, airport, first, end) for airport in AIRPORTS]
    hours, x, y = zip(*parts, strict=True)
    return np.concatenate(hours), np.concatenate(x), np.concatenate(y)


def _airport(readings: Readings, airport: str, first: int, end: int) -> tuple[Hours, Grid, Grid]:
    """Samples of one airport.

    Both ends of a change were observed; gaps in features are filled from the past.
    """
    grid = readings.filled[airport]
    temp = readings.observed[airport][:, TEMP]
    hours = np.arange(first + max(LAGS_H), min(end, len(grid)) - HORIZON_H)
    change = temp[hours + HORIZON_H] - temp[hours]
    one_hot = [float(airport == a) for a in AIRPORTS]
    x = np.column_stack([*_features(grid, hours), np.tile(one_hot, (len(hours), 1))])
    known = ~np.isnan(change) & ~np.isnan(x).any(axis=1)
    return hours[known], x[known], change[known]


def _features(grid: Grid, hours: Hours) -> list[Grid]:
    """Features of each hour: the readings, their past changes,
    time of day and position in the window.
    """
    now = grid[hours]
    angle = np.radians(now[:, WIND_DIR])
    day = 2 * np.pi * (hours % 24) / 24
    columns = [now[:, c] for c in (TEMP, DEWP, HUMID, WIND_SPEED, PRECIP, PRESSURE, VISIB)]
    columns += [now[:, WIND_SPEED] * np.sin(angle), now[:, WIND_SPEED] * np.cos(angle)]
    columns += [now[:, c] - grid[hours - lag, c] for lag in LAGS_H for c in (TEMP, PRESSURE)]
    columns += [
        np.sin(day),
        np.cos(day),
        np.sin(2 * day),
        np.cos(2 * day),
        (hours - hours[0]) / len(hours),
    ]
    return columns


def _hourly_mean(hours: Hours, change: Grid) -> Grid:
    """Return the mean change at each hour of the day, shape (24,) [degrees F]."""
    return np.array([change[hours % 24 == hour].mean() for hour in range(24)])


def _rmse(error: Grid) -> float:
    return float(np.sqrt(np.mean(np.square(error))))
