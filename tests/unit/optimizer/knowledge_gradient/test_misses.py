"""How often a size misses by itself, and how often its slice does."""

from __future__ import annotations

import warnings

import pytest

from airflow_provider_zeus.optimizer.knowledge_gradient.misses import Counts, MissRates, miss_rates


def rates_of(**counts: Counts) -> MissRates:
    """Of sizes that are named ``b32`` and so on; a warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return miss_rates({int(name[1:]): of_size for name, of_size in counts.items()})


def test_a_size_that_misses_alone_has_a_rate_of_its_own() -> None:
    rates = rates_of(b32=Counts(reached=20), b64=Counts(reached=14, missed_alone=6))
    assert rates.slices < 0.02
    assert rates.own[32] < 0.02
    assert rates.own[64] == pytest.approx(0.3, abs=0.05)


def test_slices_that_nobody_reaches_blame_nobody() -> None:
    rates = rates_of(b32=Counts(reached=20, missed=5), b64=Counts(reached=20, missed=5))
    assert rates.slices > 0.1
    assert max(rates.own.values()) < 0.1


@pytest.mark.parametrize("runs", [1_000, 100_000])
def test_the_weights_of_a_long_log_are_numbers(runs: int) -> None:
    """Each is far below the smallest number that a computer has: only their logarithms are not."""
    share = runs // 10
    often = Counts(reached=7 * share, missed=0, missed_alone=3 * share)
    at_times = Counts(reached=9 * share, missed=share)
    rates = rates_of(b32=often, b64=at_times)
    assert rates.own[32] == pytest.approx(0.3, abs=0.05)
    either = 1 - (1 - rates.slices) * (1 - rates.own[64])
    assert either == pytest.approx(0.1, abs=0.05)
