"""Draws of curve and difficulty, against the filter that they come from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from airflow_provider_zeus.optimizer.knowledge_gradient.epochs import EpochsModel
from airflow_provider_zeus.optimizer.knowledge_gradient.slice_filter import mixed
from airflow_provider_zeus.optimizer.knowledge_gradient.slice_paths import Paths, sample_paths
from airflow_provider_zeus.optimizer.slices import Slice, SliceRun

SIZES, DEFAULT, MOST, DRAWS = (16, 32, 64, 128), 32, 100.0, 20_000


def slices_of(*epochs: tuple[int, float]) -> list[Slice]:
    """A slice for each run (batch size, epochs to the target)."""
    return [Slice.of("", (SliceRun(n, b, e, True),), MOST) for n, (b, e) in enumerate(epochs, 1)]


def drawn(slices: Sequence[Slice], jumps: dict[int, float] | None = None) -> Paths:
    skipped = [False] * len(slices)
    return sample_paths(SIZES, DEFAULT, MOST, slices, skipped, jumps or {}, np.random.default_rng(0), DRAWS)


VARIED = slices_of(*[((32, 64, 128)[n % 3], 10 * math.exp(0.5 * math.sin(n / 2)) + n % 3) for n in range(18)])


def test_the_newest_slice_is_as_the_filter_knows_it() -> None:
    mean, cov, _ = mixed(EpochsModel(SIZES, DEFAULT, MOST, VARIED, []).newest.state)
    paths = drawn(VARIED)
    newest = np.concatenate((paths.curve[:, -1], paths.difficulty[:, -1:]), axis=1)
    assert newest.mean(0) == pytest.approx(mean, abs=0.05)
    assert newest.std(0) == pytest.approx(np.sqrt(cov.diagonal()), rel=0.1)


def test_later_slices_tell_of_earlier_ones() -> None:
    """A hard stretch is seen in each of its slices, and less is known of one alone than of the whole."""
    paths = drawn(slices_of(*[(32 if n % 2 else 64, 10.0 if n < 10 or n > 16 else 30.0) for n in range(26)]))
    difficulty = paths.difficulty.mean(0)
    assert difficulty[11:16].min() > difficulty[:9].max() + 0.6
    assert paths.difficulty[:, 10:17].mean(1).std() < paths.difficulty[:, 13].std()


def test_slices_that_are_alike_have_no_difficulty() -> None:
    paths = drawn(slices_of(*[(32, 10.0)] * 15))
    assert np.abs(paths.difficulty).mean() < 0.05
    assert np.exp(paths.curve[:, -1, 1]).mean() == pytest.approx(10.0, rel=0.05)


def test_the_curve_may_change_with_the_data_and_only_then() -> None:
    slices = slices_of(*[(32, 10.0), (64, 10.0)] * 6, *[(32, 10.0), (64, 30.0)] * 6)
    assert drawn(slices).curve.shape == (DRAWS, 1, 4)
    paths = drawn(slices, {13: 1.0})
    assert paths.curve.shape == (DRAWS, 2, 4)
    assert paths.stretch.tolist() == [0] * 12 + [1] * 12
    ratio = np.exp(paths.curve[:, :, 2] - paths.curve[:, :, 1]).mean(0)
    assert ratio == pytest.approx([1.0, 3.0], rel=0.2)
