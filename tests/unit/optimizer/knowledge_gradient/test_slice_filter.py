"""The filter of log Epochs: what one run teaches of its batch size, of others, and of its slice."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from airflow_provider_zeus.optimizer.knowledge_gradient.epochs import EpochsModel
from airflow_provider_zeus.optimizer.knowledge_gradient.gp import LEVEL_SD, GaussianProcess, prior
from airflow_provider_zeus.optimizer.knowledge_gradient.slice_filter import (
    HAZARD,
    KEPT,
    NOISE_SDS,
    SLICE_SDS,
    initial,
    last_change,
    mixed,
    observe,
    observe_above,
    observe_slice,
    those,
    with_change,
)
from airflow_provider_zeus.optimizer.slices import Slice, SliceRun

SIZES = (16, 32, 64, 128)
MEAN, SHAPE = prior(SIZES, 32)
PRIOR = initial(MEAN, LEVEL_SD**2 + SHAPE)
# batch size, epochs, whether it reached the target
Took = tuple[int, float] | tuple[int, float, bool]


def after(*slices: Sequence[Took]) -> EpochsModel:
    items = []
    number = 0
    for runs in slices:
        taken = [
            SliceRun(number + i, r[0], r[1], r[2] if len(r) > 2 else True)
            for i, r in enumerate(runs, 1)
        ]
        number += len(runs)
        items.append(Slice.of(f"{number}", tuple(taken), 100.0))
    return EpochsModel(SIZES, 32, 100.0, items)


def gp(*runs: Took) -> GaussianProcess:
    return after(*[[run] for run in runs]).gp


def sd(model: GaussianProcess) -> np.ndarray:
    return np.sqrt(model.run_variance - model.noise)


def test_each_noise_of_the_grid_is_as_likely() -> None:
    assert PRIOR.weight == pytest.approx(1.0 / len(NOISE_SDS))
    assert np.sqrt(PRIOR.noise) == pytest.approx(NOISE_SDS)
    assert np.sqrt(PRIOR.shared) == pytest.approx(SLICE_SDS)


def test_a_list_that_ends_at_the_default_is_one_of_smaller_sizes_that_need_fewer_epochs() -> None:
    inside = prior((16, 32, 64), 32)[0]
    at_its_end = prior((16, 32), 32)[0]
    assert inside[0] == inside[1] < inside[2]
    assert at_its_end[0] < at_its_end[1]


def test_a_neighbour_informs_less_the_farther_it_is() -> None:
    model = gp((32, 10.0), (32, 10.0), (32, 10.0))
    assert sd(model)[1] < sd(model)[0]
    assert sd(model)[1] < sd(model)[2] < sd(model)[3]
    assert float(np.exp(model.mean[1])) == pytest.approx(10.0, rel=0.02)


def test_a_stopped_run_raises_what_is_expected_there_and_nearby() -> None:
    before = gp((32, 10.0), (64, 12.0))
    later = gp((32, 10.0), (64, 12.0), (64, 30.0, False))
    assert later.mean[2] > before.mean[2] + 0.3
    assert later.mean[1] > before.mean[1]


def test_a_stopped_run_of_a_size_that_never_reached_its_target_teaches_less_of_its_neighbour() -> (
    None
):
    """It may be one that always fails. So the size behind it is still worth a run."""
    state = observe(PRIOR, 1, math.log(10.0))
    item = Slice.of("", (SliceRun(2, 64, 30.0, False),), 100.0)
    index = {b: i for i, b in enumerate(SIZES)}
    new, proven = (
        mixed(observe_slice(state, index, item, 100.0, 0.0, reached))[0][3]
        for reached in (frozenset({32}), frozenset({32, 64}))
    )
    assert mixed(state)[0][3] < new < proven - 0.3


def test_a_run_stopped_early_changes_nothing() -> None:
    assert gp((32, 10.0), (64, 0.5, False)).mean == pytest.approx(gp((32, 10.0)).mean, abs=0.01)


def test_repeated_runs_determine_the_noise() -> None:
    calm, wild = (gp(*[(32, e) for e in epochs]) for epochs in ([10.0] * 8, [5.0, 20.0] * 4))
    assert calm.noise < 0.2**2 < wild.noise


def test_the_update_is_that_of_a_kalman_filter() -> None:
    """Against the formulas for one noise of the grid, written with a selection vector."""
    state = observe(PRIOR, 1, math.log(10.0))
    noise = 2
    h = np.array([0.0, 1.0, 0.0, 0.0])
    mean = PRIOR.mean[noise]
    cov = PRIOR.cov[noise]
    variance = h @ cov @ h + NOISE_SDS[noise] ** 2 + 10.0**-2 / 12
    gain = cov @ h / variance
    assert state.mean[noise] == pytest.approx(mean + gain * (math.log(10.0) - h @ mean))
    assert state.cov[noise] == pytest.approx(cov - np.outer(gain, h @ cov))


def test_the_runs_on_one_slice_share_an_effect() -> None:
    """Against the formulas for both runs at once: what they share is correlated noise of their sum."""
    runs = (SliceRun(1, 32, 10.0, True), SliceRun(2, 64, 24.0, True))
    index = {b: i for i, b in enumerate(SIZES)}
    state = observe_slice(PRIOR, index, Slice.of("", runs, 100.0), 100.0, 0.0, frozenset())
    shown = np.eye(len(SIZES))[[1, 2]]
    y = np.log([10.0, 24.0])
    for pair, (noise_sd, slice_sd) in enumerate(zip(NOISE_SDS, SLICE_SDS, strict=True)):
        mean = PRIOR.mean[pair]
        cov = PRIOR.cov[pair]
        of_runs = np.diag(noise_sd**2 + np.exp(-2.0 * y) / 12.0) + slice_sd**2
        gain = cov @ shown.T @ np.linalg.inv(shown @ cov @ shown.T + of_runs)
        assert state.mean[pair] == pytest.approx(mean + gain @ (y - shown @ mean))
        assert state.cov[pair] == pytest.approx(cov - gain @ shown @ cov)


def test_slices_that_differ_more_than_the_runs_on_one_are_believed_to() -> None:
    """Two sizes run on each slice, one of them twice as long; and slices are easy and hard in turn."""
    varied = [[(32, 10.0 * hard), (64, 20.0 * hard)] for hard in (0.6, 1.6, 0.7, 1.5, 0.6, 1.6)]
    state = after(*varied).newest.believed_state
    assert state.weight[state.shared > 0].sum() > 0.9
    assert after(*varied).gp.mean[2] - after(*varied).gp.mean[1] == pytest.approx(
        math.log(2.0), abs=0.1
    )


def test_a_complete_run_that_missed_may_have_diverged() -> None:
    state = observe(PRIOR, 1, math.log(10.0))
    sure, doubted = (mixed(observe_above(state, 1, math.log(100.0), p))[0][1] for p in (0.0, 0.05))
    assert mixed(state)[0][1] < doubted < sure


def test_the_level_of_all_sizes_wanders_from_slice_to_slice() -> None:
    """What an old run shows of a size counts less than a new one of its neighbour, but their difference stays."""
    model = after([(32, 10.0)], [(64, 10.0)], *[[(64, 20.0)]] * 6)
    assert model.gp.mean[2] - math.log(20.0) == pytest.approx(0.0, abs=0.1)
    assert model.gp.mean[1] > math.log(12.0)


def test_the_runs_of_a_missed_slice_show_less_the_likelier_it_is_out_of_reach() -> None:
    """A try was given up there, and the default took all its epochs."""
    state = observe(PRIOR, 1, math.log(10.0))
    runs = (SliceRun(2, 64, 40.0, False), SliceRun(3, 32, 100.0, False))
    item = Slice.of("", runs, 100.0)
    index = {b: i for i, b in enumerate(SIZES)}
    rises = []
    for out_of_reach in (0.0, 0.1, 0.5, 1.0):
        shown = observe_slice(state, index, item, 100.0, out_of_reach, frozenset(SIZES))
        rises.append(float(mixed(shown)[0][2] - mixed(state)[0][2]))
    assert rises == sorted(rises, reverse=True)
    assert rises[0] > 0.5
    assert rises[-1] == pytest.approx(0.0)


def test_two_runs_on_a_hard_slice_teach_their_difference() -> None:
    """Both took three times the usual epochs of 32: the slice was hard, 64 is as good as 32."""
    usual = [[(32, 10.0)], [(32, 30.0)], [(32, 11.0)], [(32, 28.0)], [(32, 9.0)]]
    alone, together = (after(*usual, hard) for hard in ([(64, 30.0)], [(64, 30.0), (32, 30.0)]))
    worse = [float(m.gp.mean[2] - m.gp.mean[1]) for m in (alone, together)]
    assert worse[1] < worse[0] - 0.03


def test_a_change_frees_the_level_and_the_shape() -> None:
    state = PRIOR
    for _ in range(3):
        for i, epochs in enumerate((12.0, 10.0, 20.0)):
            state = observe(state, i, math.log(epochs))
    changed = with_change(state, SHAPE, last_change(state, 9), 9, HAZARD)
    changed = those(changed, changed.since == 9)
    mean, cov, _ = mixed(observe(changed, 1, math.log(25.0)))
    assert math.exp(mean[1]) == pytest.approx(25.0, rel=0.1), "at the level of today"
    assert mean[2] - mean[1] > 0.4, "of the log 2 that was seen"
    difference = cov[2, 2] + cov[1, 1] - 2 * cov[1, 2]
    assert difference > SHAPE[2, 2], "it is no better known than before the first run"


def changes(*epochs: float) -> list[tuple[int, float, tuple[int, ...]]]:
    return [
        (c.since, round(c.jump, 1), c.shown_by) for c in after(*[[(32, e)] for e in epochs]).changes
    ]


def test_a_change_that_lasts_is_found_and_one_hard_slice_is_none() -> None:
    usual = [10.0, 11.0, 9.0, 10.0, 10.0, 12.0, 9.0, 10.0]
    assert changes(*usual) == changes(*usual, 30.0) == changes(*usual, 30.0, 10.0, 11.0) == []
    found = changes(*usual, 30.0, 33.0, 29.0)
    assert [(since, shown) for since, _, shown in found] == [(9, (9, 10))]
    assert found[0][1] == pytest.approx(math.log(3.0), abs=0.15)
    assert changes(*usual, 3.0, 3.0, 4.0, 3.0)[0][0] == 9, "fewer epochs, too"


def test_a_size_that_is_better_by_itself_is_no_change() -> None:
    usual = [[(32, 20.0)]] * 6
    better = [[(64, 10.0)]] * 6
    assert after(*usual, [(64, 8.0, False)], *usual, *better).changes == ()


def test_slices_that_differ_are_no_change() -> None:
    assert changes(10.0, 20.0, 12.0, 8.0, 18.0, 25.0, 11.0, 9.0, 19.0, 22.0, 10.0, 14.0, 8.0) == []


def test_what_the_default_would_have_needed_before_a_change_stays_as_it_was_believed() -> None:
    usual = [[(32, 10.0)], [(64, 10.0)], [(64, 11.0)], [(32, 10.0)], [(64, 10.0)], [(64, 9.0)]]
    before = after(*usual)
    for runs in (4, KEPT + 4):
        later = after(*usual, *[[(64, 40.0)]] * runs)
        assert len(later.changes) == 1
        assert later.account.default_epochs == pytest.approx(before.default_total(), rel=0.05)
        assert later.account.others == {64: 40.0 * runs}


def test_a_change_keeps_its_name_when_it_is_surer_a_slice_earlier() -> None:
    """64 changes alone: what stands between its runs belongs to neither side."""
    runs = [[(64, 5.0 if n < 16 else 30.0)] if n % 2 else [(32, 10.0)] for n in range(40)]
    for slices in (20, 26, 40):
        (change,) = after(*runs[:slices]).changes
        assert change.since in (17, 18)


def test_a_change_that_later_slices_refute_is_taken_back() -> None:
    usual = [10.0, 11.0, 9.0, 10.0, 10.0, 12.0, 9.0, 10.0]
    two_long = [30.0, 32.0]
    assert len(changes(*usual, *two_long)) == 1
    back = [10.0, 11.0, 10.0, 9.0, 10.0, 10.0, 11.0, 9.0]
    since = {c[0] for c in changes(*usual, *two_long, *back)}
    assert since in (set(), {9, 11}), "either nothing changed, or it changed and back again"
    refuted = after(*[[(32, e)] for e in (*usual, *two_long, *back)])
    assert float(np.exp(refuted.gp.mean[1])) == pytest.approx(10.0, rel=0.15)


def test_runs_added_one_by_one_show_the_same_changes() -> None:
    epochs = [10.0, 11.0, 9.0, 10.0, 12.0, 9.0, 31.0, 30.0, 28.0, 30.0, 9.0, 10.0, 11.0]
    items = [Slice.of(str(n), (SliceRun(n, 32, e, True),), 100.0) for n, e in enumerate(epochs, 1)]
    model = None
    for n in range(1, len(items) + 1):
        model = EpochsModel(SIZES, 32, 100.0, items[:n], model)
    assert model is not None
    assert model.changes == EpochsModel(SIZES, 32, 100.0, items).changes
    assert len(model.changes) == 2


def test_the_default_would_have_needed_what_the_slice_did_to_the_size_that_ran() -> None:
    easy, hard = (after([(32, 10.0)], [(32, 10.0)], [(64, 12.0)], [(64, e)]) for e in (12.0, 24.0))
    assert hard.default_total() > easy.default_total() + 3.0
    known = after([(32, 10.0)], [(32, 12.0)], [(64, 50.0, False), (32, 11.0)])
    assert known.default_total() == pytest.approx(33.0), "it ran on each slice"
    nobody = after([(32, 10.0)], [(64, 100.0, False)])
    assert nobody.default_total() == pytest.approx(110.0), (
        "what no size reaches costs the default max_epochs"
    )


def test_a_slice_that_the_default_missed_counts_for_nothing() -> None:
    """Nothing of ours could have saved anything there."""
    usual = after([(32, 10.0)], [(64, 12.0)])
    hopeless = after([(32, 10.0)], [(64, 12.0)], [(64, 30.0, False), (32, 100.0, False)])
    assert hopeless.account == usual.account


def test_where_loops_are_left_below_the_target_the_default_would_have_been_left_too() -> None:
    left = Slice.of("2", (SliceRun(2, 64, 25.0, False, 100.0),), 100.0)
    first = Slice.of("1", (SliceRun(1, 32, 10.0, True),), 100.0)
    model = EpochsModel(SIZES, 32, 100.0, [first, left])
    assert model.default_total() == pytest.approx(35.0)
    assert model.account.trained == {32: 10.0, 64: 25.0}


def test_one_unlucky_first_run_is_not_believed() -> None:
    """Nor a lucky one. A later run that differs as much is an accident, too."""
    for first in (40.0, 2.5):
        model = after([(32, first)], *[[(32, 10.0)]] * 3)
        assert math.exp(model.gp.mean[SIZES.index(32)]) == pytest.approx(10.0, rel=0.1)
        assert [change.since for change in model.changes] == [2]
    later = after(*[[(32, 10.0)]] * 4, [(32, 40.0)], *[[(32, 10.0)]] * 3)
    assert later.changes == ()


def test_each_kept_run_on_a_slice_counts_as_a_run_of_the_default() -> None:
    """A run that was cleared trains again; the default would have, too. What tries took counts in any case."""
    again = after(
        [(32, 10.0)], [(32, 12.0), (32, 11.0)], [(64, 5.0, False), (64, 10.0), (64, 10.0)]
    ).account
    assert (again.default_epochs, again.others) == (33.0, {64: 20.0})
    known = after([(32, 10.0), (64, 8.0), (64, 8.0)]).account
    assert (known.default_epochs, known.trained) == (30.0, {32: 10.0, 64: 16.0})
    given_up = after([(32, 10.0)], [(64, 5.0, False)]).account
    assert (given_up.default_epochs, given_up.trained) == (10.0, {32: 10.0, 64: 5.0})


def test_older_slices_are_not_folded_again() -> None:
    slices = [Slice.of(str(n), (SliceRun(n, 32, 10.0 + n % 3, True),), 100.0) for n in range(1, 9)]
    before = EpochsModel(SIZES, 32, 100.0, slices[:-1])
    reused, fresh = (EpochsModel(SIZES, 32, 100.0, slices, b) for b in (before, None))
    assert reused.gp.mean == pytest.approx(fresh.gp.mean)
    assert reused.default_total() == pytest.approx(fresh.default_total())
