"""What energy and time cost at prices that are set."""

from __future__ import annotations

import pytest

from airflow_provider_zeus.signals.prices import Prices

J_PER_KWH = 3.6e6
HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("prices", "energy_j", "gpu_s", "money"),
    [
        (Prices(), J_PER_KWH, HOUR_S, None),
        (Prices(price_per_kwh=0.3), J_PER_KWH, None, 0.3),
        (Prices(price_per_kwh=0.3), None, HOUR_S, None),
        (Prices(price_per_gpu_hour=2.0), None, HOUR_S, 2.0),
        (Prices(price_per_gpu_hour=2.0), J_PER_KWH, None, None),
        (Prices(price_per_kwh=0.3, price_per_gpu_hour=2.0), J_PER_KWH, HOUR_S, 2.3),
        (Prices(price_per_kwh=0.3, price_per_gpu_hour=2.0), J_PER_KWH, None, None),
    ],
)
def test_money_is_known_if_all_that_has_a_price_is(
    prices: Prices, energy_j: float | None, gpu_s: float | None, money: float | None
) -> None:
    found = prices.money_of(energy_j, gpu_s)
    assert found == (None if money is None else pytest.approx(money))
