"""Which batch sizes may be tried, and which come into reach by a run."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from airflow_provider_zeus.optimizer import reach
from airflow_provider_zeus.optimizer.knowledge_gradient import Choice, best
from airflow_provider_zeus.optimizer.scene import Scene
from airflow_provider_zeus.optimizer.trial import Phase, State
from tests.strategies import V100
from tests.unit.optimizer.world import World, job_of

SIZES = (8, 16, 32, 64, 128)


def test_candidates_lie_within_an_octave_or_next_in_the_list() -> None:
    assert reach.candidates((8, 32, 48, 64, 100, 512), frozenset({32})) == (True, True, True, True, False, False)
    assert reach.candidates((8, 32), frozenset()) == (False, False)


def test_what_does_not_fit_is_passed_over() -> None:
    without = frozenset(SIZES) - {64}
    assert reach.reach(SIZES, without, frozenset({32})) == (False, True, True, False, True)


def test_what_converged_counts_as_it_is_and_what_a_run_would_open_counts_dearer() -> None:
    factors = np.exp(reach.open_after(SIZES, frozenset(SIZES), frozenset({32})))
    known, never = 1.0, math.inf
    assert factors[:, 2].tolist() == [never, never, known, never, never], "32 has run: it opens nothing"
    assert factors[:, 1] == pytest.approx([reach.BEYOND, known, known, never, never]), "16 opens 8"
    assert factors[:, 3] == pytest.approx([never, never, known, known, reach.BEYOND])


def test_what_does_not_fit_is_opened_by_nothing() -> None:
    factors = reach.open_after(SIZES, frozenset(SIZES) - {8}, frozenset({32}))
    assert np.isinf(factors[0, 1:]).all()


def after_a_falling_trend() -> Choice:
    """Of 1024, 512 and 256 each needed fewer epochs than the last; 128 itself is believed about as dear as 256."""
    epoch_s = {64: 15.5, 128: 14.5, 256: 13.5, 512: 13.0, 1024: 13.0}
    job = job_of(*epoch_s, default=512, policy="knowledge_gradient")
    w = World(job, dict.fromkeys(epoch_s, 40.0), epoch_s, V100)
    w.add(128, State.ABANDONED, 0.1, phase=Phase.EXPLORE)  # it told its EpochCost
    for b, epochs in ((512, 43.0), (1024, 74.0), (512, 41.0), *[(256, 30.0)] * 20):
        w.add(b, epochs=epochs)
    scene = Scene.of(job, w.belief, V100, ())
    outlook = scene.outlook()
    assert outlook is not None
    return best(outlook, outlook.incumbent()[0], scene.within)


@pytest.fixture
def nothing_kept() -> Iterator[None]:
    yield
    reach.open_after.cache_clear()


@pytest.mark.usefixtures("nothing_kept")
def test_a_size_is_worth_more_where_it_opens_the_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    opens = after_a_falling_trend()
    monkeypatch.setattr(reach, "BEYOND", math.inf)
    reach.open_after.cache_clear()
    alone = after_a_falling_trend()
    assert opens.index == alone.index == 1, "128"
    assert opens.net > alone.net
