"""What mode ``observe`` says the best limit would have saved: an interval,
*not clear yet* where it holds no gain.
"""

from __future__ import annotations

import random

import pytest

from airflow_provider_zeus.model.partial_sums import summed
from airflow_provider_zeus.training.profiling.profiler import MissedSaving
from airflow_provider_zeus.training.profiling.search import by_limit
from tests.unit.training.profiling.test_search import (
    GRID_W,
    Curve,
    binding,
    flat,
    search,
    walked,
    window,
)

FOUND_W = GRID_W[0]


def missed(curve: Curve, seed: int, noise: float) -> MissedSaving:
    one = search(eta=1.0)
    found = MissedSaving.of(one, by_limit(walked(one, curve, seed=seed, noise=noise)), FOUND_W)
    assert found is not None
    return found


def unclear(found: MissedSaving) -> bool:
    return (found.energy.low or 0.0) <= 0.0 <= (found.energy.high or 0.0)


@pytest.mark.parametrize("noise", [0.01, 0.03, pytest.param(0.05, marks=pytest.mark.nightly)])
def test_where_no_limit_saves_anything_it_is_not_clear(noise: float) -> None:
    """The best of seven limits that differ by noise alone looks better than the one found."""
    found = [missed(flat, seed, noise) for seed in range(40)]
    assert max(one.energy.value or 0.0 for one in found) > noise / 2
    assert sum(map(unclear, found)) >= 36
    said = [one.text(1000) for one in found if one.best_w != one.found_w]
    assert sum("not clear yet" in text.partition(" and ")[0] for text in said) >= len(said) - 4


def test_a_saving_above_the_noise_is_one_and_the_interval_holds_it() -> None:
    found = [missed(binding, seed, 0.03) for seed in range(40)]
    covered = 0
    for one in found:
        truth = 1 - binding(one.best_w)[0] / binding(FOUND_W)[0]
        covered += (one.energy.low or 0.0) <= truth <= (one.energy.high or 0.0)
        assert not unclear(one)
    assert covered >= 36


def test_more_measurements_narrow_the_interval_and_sums_from_the_store_have_the_width_aimed_at() -> (
    None
):
    one = search(eta=1.0)
    rng = random.Random(1)
    pieces = [p for w in (FOUND_W, 150.0) for _ in range(60) for p in window(w, binding, rng, 0.15)]
    widths = []
    for some in (
        [p for w in (FOUND_W, 150.0) for p in pieces if p.limit_w == w][::20],
        pieces,
        summed(pieces),
    ):
        found = MissedSaving.of(one, by_limit(some), FOUND_W)
        assert found is not None
        widths.append((found.energy.high or 0.0) - (found.energy.low or 0.0))
    few, many, sums = widths
    assert many < few / 2
    ratio = 1 - (found.energy.value or 0.0)
    assert sums == pytest.approx(2 * 1.645 * 2**0.5 * 0.02 / 1.96 * ratio, rel=0.01)


def test_where_the_limit_found_is_the_best_there_is_nothing_to_save() -> None:
    rng = random.Random(1)
    one = search(eta=1.0)
    pieces = [
        p
        for w in (FOUND_W, 225.0)
        for p in window(w, lambda limit_w: (500.0 / limit_w, 0.01), rng, 0.01)
    ]
    found = MissedSaving.of(one, by_limit(pieces), FOUND_W)
    assert found is not None
    assert (found.best_w, found.energy.value, found.energy.low, found.time.high) == (
        FOUND_W,
        0.0,
        0.0,
        0.0,
    )
    assert "nothing to save" in found.text(10)


def test_without_a_measurement_at_the_limit_found_nothing_is_said() -> None:
    one = search(eta=1.0)
    measured = by_limit(walked(one, binding))
    del measured[FOUND_W]
    assert MissedSaving.of(one, measured, FOUND_W) is None
    assert MissedSaving.of(one, measured, None) is None
    assert MissedSaving.of(one, {}, FOUND_W) is None
