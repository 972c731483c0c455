"""The limit over a run: frugal while energy is dear or dirty, fast while it is not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.objective import Rate
from airflow_provider_zeus.signals.follow import limit_w, weighed
from tests.strategies import REPRODUCIBLE

RATES: dict[float, Rate] = {100.0: (50.0, 1.9), 150.0: (62.0, 1.4), 200.0: (70.0, 1.15), 250.0: (85.0, 1.0)}
HALF = Weights(0.5, 50.0)


def test_a_dirty_hour_is_frugal_and_a_clean_one_fast() -> None:
    at = {share: limit_w(RATES, HALF, share * 300.0, 300.0) for share in (0.1, 1.0, 10.0)}
    assert at[1.0] == HALF.best_w(RATES)
    assert (at[0.1], at[10.0]) == (250.0, 100.0)


@pytest.mark.parametrize(("present", "mean"), [(300.0, 0.0), (300.0, -5.0)])
def test_without_a_mean_above_0_nothing_changes(present: float, mean: float) -> None:
    assert weighed(HALF, present, mean) == HALF


def test_a_negative_price_is_no_reason_to_waste_without_end() -> None:
    assert weighed(HALF, -500.0, 30.0) == weighed(HALF, 3.0, 30.0)
    assert weighed(HALF, -500.0, 30.0).eta > 0


def test_time_alone_and_energy_alone_stay_so() -> None:
    time_alone = Weights(0.0, 1.0, time_alone=True)
    assert weighed(time_alone, 1.0, 2.0) == time_alone
    assert weighed(Weights(1.0, 50.0), 3.0, 2.0).eta == 1.0
    assert weighed(Weights(0.0, 50.0), 3.0, 2.0).eta == 0.0
    assert limit_w({}, HALF, 1.0, 1.0) is None


@REPRODUCIBLE
@given(st.floats(0.01, 0.99), st.floats(0.2, 5.0))
def test_it_is_eq_7_with_the_energy_term_weighed(eta: float, ratio: float) -> None:
    weights = Weights(eta, 50.0)
    changed = weighed(weights, ratio * 300.0, 300.0)
    for energy_j, time_s in RATES.values():
        asked = eta * ratio * energy_j + (1 - eta) * 50.0 * time_s
        assert math.isclose(changed.cost(energy_j, time_s), asked / (eta * ratio + 1 - eta), rel_tol=1e-9)
