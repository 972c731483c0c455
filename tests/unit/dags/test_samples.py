"""Samples: lags by the hour, labels that were observed, a hold-out that says what it is."""

from __future__ import annotations

import csv
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from weather import readings, samples, slices
from weather.samples import HORIZON_H, LAGS_H

# columns of the first lag; they alternate
TEMP_LAGS_AT = 9
PRESSURE_LAGS_AT = 10


def by_hour(airport: str, name: str) -> dict[datetime, float]:
    with readings.weather_csv().open(encoding="utf-8", newline="") as file:
        return {
            datetime.fromisoformat(row["time_hour"]): float(row[name])
            for row in csv.DictReader(file)
            if row["origin"] == airport and row[name] != "NA"
        }


@pytest.mark.parametrize("airport", readings.AIRPORTS)
def test_lags_and_labels_are_joined_on_the_hour(airport: str) -> None:
    start = datetime(2013, 1, 1, tzinfo=UTC)
    temp = by_hour(airport, "temp")
    pressure = by_hour(airport, "pressure")
    hours, x, y = samples._airport(readings.load(), airport, *samples._span("2013-W30"))
    checked = 0
    for hour, features, change in zip(hours, x, y, strict=True):
        now = start + timedelta(hours=int(hour))
        assert change == pytest.approx(temp[now + timedelta(hours=HORIZON_H)] - temp[now]), (
            "both ends were observed"
        )
        for i, lag in enumerate(LAGS_H):
            for values, at in ((temp, TEMP_LAGS_AT), (pressure, PRESSURE_LAGS_AT)):
                before = now - timedelta(hours=lag)
                if now in values and before in values:
                    assert features[at + 2 * i] == pytest.approx(values[now] - values[before])
                    checked += 1
    assert checked > 15_000


def test_samples_stay_in_their_slice() -> None:
    start, end = slices.window("2013-W30")
    hours, _, _ = samples._airport(readings.load(), "LGA", *samples._span("2013-W30"))
    first, last = (
        datetime(2013, 1, 1, tzinfo=UTC) + timedelta(hours=int(h)) for h in (hours[0], hours[-1])
    )
    assert first - timedelta(hours=max(LAGS_H)) >= start
    assert last + timedelta(hours=HORIZON_H) < end


def test_features_know_nothing_of_the_future() -> None:
    grid = readings.load().filled["EWR"]
    hours = np.arange(2000, 2100)
    later = grid.copy()
    later[hours[-1] + 1 :] += 40.0
    for a, b in zip(samples._features(grid, hours), samples._features(later, hours), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("key", slices.all_keys())
def test_every_slice_has_samples_that_can_be_trained_on(key: str) -> None:
    data = samples.of_slice(key)
    held = len(data.y_holdout) / (len(data.y) + len(data.y_holdout))
    assert 4_500 < len(data.y) < 5_300, "about 85 % of three airports' 84 days"
    assert held == pytest.approx(samples.HOLDOUT, abs=0.015)
    assert np.isfinite(data.x).all()
    assert np.isfinite(data.x_holdout).all()
    np.testing.assert_allclose(data.x.mean(axis=0), 0.0, atol=1e-4)
    np.testing.assert_allclose(data.x.std(axis=0), 1.0, atol=1e-3)
    assert data.y.std() == pytest.approx(1.0, abs=1e-3)
    assert 3.0 < data.trivial_rmse_f < 5.5
    assert data.trivial_rmse_f < data.spread_f * 1.05, "the hour of the day says something"


def test_a_slice_is_the_same_at_every_call_and_differs_from_its_neighbour() -> None:
    first, again, next_one = (samples.of_slice(key) for key in ("2013-W20", "2013-W20", "2013-W21"))
    for a, b in ((first.x, again.x), (first.y, again.y), (first.x_holdout, again.x_holdout)):
        np.testing.assert_array_equal(a, b)
    assert first.trivial_rmse_f != next_one.trivial_rmse_f


def test_the_hold_out_leaks_and_the_code_says_so() -> None:
    hours, _, _ = samples._all_airports(readings.load(), *samples._span("2013-W20"))
    held = np.random.default_rng(0).random(len(hours)) < samples.HOLDOUT
    known = set(hours[~held].tolist())
    neighbours = np.mean([{h - 1, h + 1} <= known for h in hours[held].tolist()])
    assert neighbours > 0.95, "nearly every held-out hour has both neighbours in the training part"
    assert "leaks" in (samples.Samples.__doc__ or "")


def test_the_newest_week_was_not_seen_by_a_model_of_an_earlier_slice() -> None:
    earlier = samples.of_slice("2013-W20")
    data = samples.newest_week("2013-W22", "2013-W20")
    np.testing.assert_array_equal(data.x, earlier.x)
    seen_until = samples._span("2013-W20")[1]
    (hours, _, _), _ = samples._parts("2013-W22")
    assert hours.min() < seen_until, "slices overlap"
    assert len(data.y_holdout) <= 3 * samples.WEEK_H
    first = samples._span("2013-W22")[1] - samples.WEEK_H
    assert first >= seen_until
    assert data.trivial_rmse_f > 0
    with pytest.raises(ValueError, match="Give an earlier slice"):
        samples.newest_week("2013-W20", "2013-W20")
