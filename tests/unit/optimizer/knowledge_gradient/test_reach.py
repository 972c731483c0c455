"""Which batch sizes may be tried next, and which a run would make available."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from airflow_provider_zeus.model.trial import Phase, State
from airflow_provider_zeus.optimizer.knowledge_gradient import acquisition, decision_context
from airflow_provider_zeus.optimizer.knowledge_gradient.acquisition import Choice, best
from airflow_provider_zeus.optimizer.knowledge_gradient.decision_context import DecisionContext
from airflow_provider_zeus.optimizer.knowledge_gradient.gp import Vector
from airflow_provider_zeus.optimizer.situation import Situation
from tests.strategies import V100
from tests.unit.optimizer.world import World, job_of

SIZES = (8, 16, 32, 64, 128)


def test_candidates_lie_within_an_octave_or_next_in_the_list() -> None:
    sizes = (8, 32, 48, 64, 100, 512)
    near = acquisition.in_reach(sizes, frozenset(sizes), frozenset({32}))
    assert near == (True, True, True, True, False, False)
    assert acquisition.in_reach((8, 32), frozenset({8, 32}), frozenset()) == (False, False)


def test_an_infeasible_size_blocks_no_neighbour() -> None:
    without = frozenset(SIZES) - {64}
    assert acquisition.in_reach(SIZES, without, frozenset({32})) == (False, True, True, False, True)


def test_a_size_that_ran_and_never_reached_its_target_hides_no_neighbour() -> None:
    ran = frozenset({64})
    near = acquisition.in_reach(SIZES, frozenset(SIZES), frozenset({32}), ran)
    assert near == (False, True, True, True, True)
    both = acquisition.in_reach(SIZES, frozenset(SIZES), frozenset({32}), frozenset({16, 64}))
    assert all(both)


def test_which_sizes_a_run_would_make_available() -> None:
    barred = acquisition.barred_after(SIZES, frozenset(SIZES), frozenset({32}))
    never = math.inf
    assert barred[:, 2].tolist() == [never, never, 0, never, never], "32 has run: it makes nothing"
    assert barred[:, 1].tolist() == [0, 0, 0, never, never], "16 makes 8 available"
    assert barred[:, 3].tolist() == [never, never, 0, 0, 0]


def test_an_infeasible_size_never_becomes_available() -> None:
    barred = acquisition.barred_after(SIZES, frozenset(SIZES) - {8}, frozenset({32}))
    assert np.isinf(barred[0, 1:]).all()


def after_a_falling_trend() -> Choice:
    """Of 1024, 512 and 256 each needed fewer epochs than the last; 128 itself is believed about as dear as 256."""
    epoch_s = {64: 15.5, 128: 14.5, 256: 13.5, 512: 13.0, 1024: 13.0}
    job = job_of(*epoch_s, default=512, policy="knowledge_gradient")
    w = World(job, dict.fromkeys(epoch_s, 40.0), epoch_s, V100)
    w.add(128, State.ABANDONED, 0.1, phase=Phase.EXPLORE)  # it measured its EpochCost
    for b, epochs in ((512, 43.0), (1024, 74.0), (512, 41.0), *[(256, 30.0)] * 20):
        w.add(b, epochs=epochs)
    context = DecisionContext.of(Situation(job, w.belief, V100))
    predictions = context.predictions()
    assert predictions is not None
    return best(predictions, predictions.incumbent(), context.in_reach)


def test_a_size_is_worth_more_where_it_makes_others_available(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    available = after_a_falling_trend()
    after = decision_context.barred_after

    def alone_after(*arguments: Any) -> Vector:
        barred = after(*arguments).copy()
        barred[0, 1] = math.inf  # of 64 after 128
        return barred

    monkeypatch.setattr(decision_context, "barred_after", alone_after)
    alone = after_a_falling_trend()
    assert available.index == alone.index == 1, "128"
    assert available.net > alone.net
