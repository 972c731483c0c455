"""What profiling costs a training, on curves small enough to reckon by hand."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest

from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from airflow_provider_zeus.power.simulated.models import CHIPS, LOADS, Chip
from benchmarks.parts.profiler_overhead import Curve, Replayed, overhead

LIMITS_W = np.array([100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0])
BOWL = Curve(
    250.0, LIMITS_W, 100 * (250 / LIMITS_W) ** 0.5, (LIMITS_W - 40) * 100 * (250 / LIMITS_W) ** 0.5
)
LOAD = Replayed((125.0, 150.0, 175.0, 200.0), (0.2, 0.1, 0.1, 0.1), (70.0, 160.0, 178.0, 200.0))


def test_a_curve_is_met_at_its_limits_and_straight_between_them() -> None:
    chip = cast(Chip, None)
    assert LOAD.step(chip, 10, 137.5) == pytest.approx((1.5, 115.0))
    assert LOAD.step(chip, 10, 99.0) == pytest.approx((2.0, 70.0))
    assert LOAD.step(chip, 10, 225.0) == pytest.approx((1.0, 200.0))


def test_the_replayed_gpu_is_gone_when_it_is_left(tmp_path: Path) -> None:
    before = dict(LOADS), dict(CHIPS)
    with LOAD.opened(tmp_path, SimulatedGpu) as gpu:
        assert len(LOADS) == len(before[0]) + 1
        gpu.on_step(10)
        assert (gpu.now_s(), gpu.energy_j()) == pytest.approx((1.0, 200.0))
    assert before == (LOADS, CHIPS)


def test_a_training_costs_little_more_than_the_same_one_at_the_optimum() -> None:
    found = overhead(BOWL, 10.0, 12)
    assert 0 <= found.regret < 0.02
    assert -0.001 < found.cost < 0.2
    long = overhead(BOWL, 3600.0, 2)
    assert long.cost < found.cost
    assert long.cost == pytest.approx(found.regret, abs=0.01)
