"""Policies over weeks by hand, and one real fortnight of the weather."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import whether
from benchmarks.whether import MOST, Year, checked, every, played, report, year


def of(weeks: int = 10) -> Year:
    """A model's error grows by .1 a week, on the newest week and on the one that it serves; an epoch draws 2 J."""
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
    said = report([of(), of()])
    assert "| every second week | 5.0 | -50.0% | +10.0% |" in said
    assert "Warm starts from the week before: 0.20 x the epochs, error in service -10.0%." in said


def test_real_weeks() -> None:
    found = year(2, seed=0)
    assert all(1 <= epochs <= whether.MAX_EPOCHS for epochs in (*found.epochs, *found.warm_epochs))
    assert np.isnan(found.before[0, 1]), "a model of later data is tried on no earlier week"
    assert 0.3 < found.served[1, 0] < 1.5
