"""Facts about the data, and how they are cleaned."""

from __future__ import annotations

import csv
import logging
from importlib import metadata
from typing import Any

import numpy as np
import pytest
from weather import readings
from weather.readings import AIRPORTS, COLUMNS, MAX_WIND_MPH, START

WIND = COLUMNS.index("wind_speed")
FAULT = ("EWR", "2013-02-12T08:00:00Z", 1048.36058)


def raw() -> list[dict[str, str]]:
    with readings.weather_csv().open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def row_of(hour: str) -> int:
    return int((np.datetime64(hour.rstrip("Z"), "h") - START).astype(int))


def test_the_data_are_the_ones_described() -> None:
    rows = raw()
    assert len(rows) == readings.load().rows == 26_115
    assert {row["origin"] for row in rows} == set(AIRPORTS)
    assert len({(row["origin"], row["time_hour"]) for row in rows}) == len(rows), "no hour twice"
    too_fast = [
        r for r in rows if r["wind_speed"] != "NA" and float(r["wind_speed"]) > MAX_WIND_MPH
    ]
    assert [(r["origin"], r["time_hour"], float(r["wind_speed"])) for r in too_fast] == [FAULT]


def test_the_impossible_reading_is_removed_and_said(caplog: pytest.LogCaptureFixture) -> None:
    readings.load.cache_clear()
    with caplog.at_level(logging.WARNING):
        loaded = readings.load()
    airport, hour, value = FAULT
    assert [(c.airport, c.hour, c.value) for c in loaded.cleaned] == [FAULT]
    assert f"{airport} {hour}: wind_speed 1048 mph" in caplog.text
    assert value not in loaded.observed[airport]
    at = row_of(hour)
    assert np.isnan(loaded.observed[airport][at, WIND])
    assert loaded.filled[airport][at, WIND] == loaded.observed[airport][at - 1, WIND], (
        "the hour before stands in"
    )


def test_nothing_else_is_removed_or_changed() -> None:
    loaded = readings.load()
    seen = 0
    for row in raw():
        at = row_of(row["time_hour"])
        for column, name in enumerate(COLUMNS):
            value = loaded.observed[row["origin"]][at, column]
            if row[name] == "NA" or (row["origin"], row["time_hour"], name) == (
                *FAULT[:2],
                "wind_speed",
            ):
                assert np.isnan(value)
            else:
                assert value == float(row[name])
                seen += 1
    assert seen == sum(int((~np.isnan(grid)).sum()) for grid in loaded.observed.values())


def test_gaps_are_filled_from_the_past_and_not_for_long() -> None:
    nan = np.nan
    grid = np.array([[nan, 1.0], [2.0, nan], [nan, nan], [nan, nan], [nan, nan], [3.0, 5.0]])
    filled = readings.carry_forward(grid, 2)
    expected = np.array([[nan, 1.0], [2.0, 1.0], [2.0, 1.0], [2.0, nan], [nan, nan], [3.0, 5.0]])
    np.testing.assert_array_equal(filled, expected)


def test_a_gap_is_never_filled_from_the_future() -> None:
    grid = readings.load().observed["JFK"]
    cut = 4000
    np.testing.assert_array_equal(
        readings.carry_forward(grid, 12)[:cut],
        readings.carry_forward(grid[:cut], 12),
        "what follows changes nothing",
    )


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", missing)
    with pytest.raises(ModuleNotFoundError, match=r"install airflow-provider-zeus\[demo\]"):
        readings.weather_csv()
