"""Policies over steps by hand, and two real steps of each series."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import whether
from benchmarks.quality.dated_series import NAMES, series
from benchmarks.whether import MOST, Year, checked, every, played, report, year


def of(weeks: int = 10) -> Year:
    """A model's error grows by .1 a week, on the newest week and on the one that it serves;
    an epoch draws 2 J.
    """
    age = np.subtract.outer(np.arange(weeks), np.arange(weeks)).astype(float)
    error = np.where(age >= 0, 0.5 + 0.1 * age, np.nan)
    return Year(
        epochs=[5] * weeks,
        warm_epochs=[1] * weeks,
        energy_j=[2.0] * weeks,
        before=error,
        served=error,
        warm_served=[0.45] * weeks,
    )


@pytest.mark.parametrize(
    ("trains", "count", "error"),
    [
        (every(1), 10, 0.5),
        (every(2), 5, 0.55),
        (checked(0.65), 5, 0.55),
        (checked(0.4), 10, 0.5),
    ],
)
def test_a_policy_pays_for_its_trainings_and_serves_its_newest_model(
    trains: whether.Trains, count: int, error: float
) -> None:
    assert played(of(), trains) == (count, pytest.approx(10.0 * count), pytest.approx(error))


def test_it_trains_at_the_latest_after_so_many_weeks() -> None:
    assert played(of(2 * MOST + 1), checked(99.0))[0] == 3


def test_the_report_compares_with_always_training() -> None:
    said = report([of(), of()], [0.65])
    assert "| every second step | 5.0 | -50.0% | +10.0% |" in said
    assert "Warm starts from the step before: 0.20 x the epochs, error in service -10.0%." in said


BIKE = """season,mnth,day,hr,holiday,weekday,workingday,weathersit,temp,atemp,hum,windspeed,bikers
"""


@pytest.fixture
def bike(tmp_path: Path) -> Path:
    """A year of hours as in ISLP's file: more rides in the afternoon and where it is warm."""
    rows = (
        f"1,Jan,{day},{hr},0,{day % 7},1,{('clear', 'fog')[day % 2]},{0.2 + day / 999:g},0.3,0.5,0.1,{hr * day % 97}"
        for day in range(1, 366)
        for hr in range(24)
    )
    file = tmp_path / "Bikeshare.csv"
    file.write_text(BIKE + "\n".join(rows) + "\n")
    return file


@pytest.mark.nightly
def test_the_rows_of_each_series_are_dated_and_finite(bike: Path) -> None:
    for name in NAMES:
        data = series(name, bike)
        assert len(data.hours) == len(data.x) == len(data.y) > 8000
        assert np.isfinite(data.x).all()
        assert np.isfinite(data.y).all()
        first, _, _ = data.rows(data.starts[0] - data.window_h, data.starts[0])
        assert len(first) > 0.9 * len(np.unique(data.rows(0, data.window_h)[0]))
        assert data.starts[-1] + data.step_h <= data.hours.max() + 24 * 14
    with pytest.raises(SystemExit, match="name ISLP's file"):
        series("bike")


@pytest.mark.nightly
def test_real_weeks() -> None:
    found = year("weather", None, 2, seed=0)
    assert all(1 <= epochs <= whether.MAX_EPOCHS for epochs in (*found.epochs, *found.warm_epochs))
    assert np.isnan(found.before[0, 1]), "a model of later data is tried on no earlier week"
    assert 0.3 < found.served[1, 0] < 1.5
