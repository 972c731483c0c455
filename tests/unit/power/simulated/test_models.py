"""The model against the measured curves it was fitted to, and far outside them."""

from __future__ import annotations

import csv
import os
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.power.simulated.models import CHIPS, LOADS

ALL = pytest.mark.parametrize(("gpu", "name"), sorted(LOADS))
BATCH_SIZES = st.integers(min_value=1, max_value=65_536)
LIMITS_W = st.integers(min_value=100, max_value=300)


@pytest.fixture(scope="session")
def traces() -> Path:
    folder = os.environ.get("ZEUS_TRACES")
    if not folder:
        pytest.skip(
            "ZEUS_TRACES is not set: the folder of the published summary_power_<gpu>.csv"
            " (ml-energy/zeus)"
        )
    return Path(folder)


@ALL
def test_median_error_over_the_measured_grid_is_at_most_a_tenth(
    gpu: str, name: str, traces: Path
) -> None:
    load = LOADS[gpu, name]
    time_errors = []
    power_errors = []
    with (traces / f"summary_power_{gpu}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if (row["dataset"], row["optimizer"]) == (load.dataset, load.optimizer):
                batch_size = int(row["batch_size"])
                step_s, power_w = load.step(CHIPS[gpu], batch_size, float(row["power_limit"]))
                epoch_s = step_s * load.samples_per_epoch / batch_size
                time_errors.append(abs(epoch_s / float(row["time_per_epoch"]) - 1))
                power_errors.append(abs(power_w / float(row["average_power"]) - 1))
    assert len(time_errors) >= 30
    assert median(time_errors) <= 0.10
    assert median(power_errors) <= 0.10


@ALL
@given(batch_size=BATCH_SIZES, limit_w=LIMITS_W)
def test_power_stays_between_idle_and_what_the_limit_allows(
    gpu: str, name: str, batch_size: int, limit_w: int
) -> None:
    chip = CHIPS[gpu]
    _, power_w = LOADS[gpu, name].step(chip, batch_size, limit_w)
    assert chip.idle_w <= power_w <= max(limit_w, chip.floor_w)


@ALL
@given(batch_size=BATCH_SIZES, limit_w=LIMITS_W)
def test_a_step_takes_longer_with_more_samples_and_no_longer_with_a_higher_limit(
    gpu: str, name: str, batch_size: int, limit_w: int
) -> None:
    chip = CHIPS[gpu]
    load = LOADS[gpu, name]
    step_s, power_w = load.step(chip, batch_size, limit_w)
    assert 0 < step_s < load.step(chip, batch_size + 1, limit_w)[0]
    freer_s, freer_w = load.step(chip, batch_size, limit_w + 1)
    assert freer_s <= step_s
    assert freer_w >= power_w


@ALL
def test_a_sample_gets_no_dearer_in_time_with_the_batch_size(gpu: str, name: str) -> None:
    chip = CHIPS[gpu]
    load = LOADS[gpu, name]
    middle_w = (chip.min_limit_w + chip.max_limit_w) / 2
    for limit_w, allowed in ((chip.max_limit_w, 1.0), (middle_w, 1.01), (chip.min_limit_w, 1.25)):
        per_sample = [load.step(chip, 2**i, limit_w)[0] / 2**i for i in range(17)]
        assert all(later <= earlier * allowed for earlier, later in pairwise(per_sample))


def test_heavier_loads_draw_more() -> None:
    for gpu, chip in CHIPS.items():
        drawn_w = [
            LOADS[gpu, n].step(chip, 128, chip.max_limit_w)[1]
            for n in ("neumf", "shufflenet", "resnet50")
        ]
        assert drawn_w == sorted(drawn_w)
        assert drawn_w[-1] > 2 * drawn_w[0]


def test_the_fastest_limit_is_rarely_the_cheapest() -> None:
    """What the profiler is for: below the maximum an epoch of a heavy load costs less energy,
    up to a point.
    """
    for gpu, chip in CHIPS.items():
        load = LOADS[gpu, "bert_qa"]
        joules = {
            p: load.step(chip, 32, p)[0] * load.step(chip, 32, p)[1]
            for p in range(100, int(chip.max_limit_w) + 1, 25)
        }
        cheapest_w = min(joules, key=joules.__getitem__)
        assert 100 < cheapest_w < chip.max_limit_w, gpu
