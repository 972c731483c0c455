"""Draws of curve and difficulty, against the filter that they come from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from airflow_provider_zeus.optimizer.knowledge_gradient.epochs import EpochsModel
from airflow_provider_zeus.optimizer.knowledge_gradient.gp import LEVEL_SD, Vector, prior
from airflow_provider_zeus.optimizer.knowledge_gradient.slice_filter import (
    CORRELATION,
    initial,
    mixed,
    unchanged,
)
from airflow_provider_zeus.optimizer.knowledge_gradient.slice_paths import UNLIKELY, Paths, sample_paths
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
    mean, cov, _ = mixed(unchanged(EpochsModel(SIZES, DEFAULT, MOST, VARIED).newest.state))
    paths = drawn(VARIED)
    newest = np.concatenate((paths.curve[:, -1], paths.difficulty[:, -1:]), axis=1)
    assert newest.mean(0) == pytest.approx(mean, abs=0.05)
    assert newest.std(0) == pytest.approx(np.sqrt(cov.diagonal()), rel=0.1)


def prior_covariance(jumps: Sequence[float], slices: int, variance: float) -> Vector:
    """Of the curve of each stretch, then of the difficulties."""
    _, shape = prior(SIZES, DEFAULT)
    n, stretches, at = len(SIZES), len(jumps) + 1, np.arange(slices)
    steps = [shape + LEVEL_SD**2, *(LEVEL_SD**2 + jump**2 * shape for jump in jumps)]
    found = np.zeros((stretches * n + slices,) * 2)
    for i in range(stretches):
        for j in range(stretches):
            found[i * n : i * n + n, j * n : j * n + n] = np.sum(steps[: min(i, j) + 1], axis=0)
    found[stretches * n :, stretches * n :] = variance * CORRELATION ** np.abs(at[:, None] - at)
    return found


def regression(slices: Sequence[Slice], jumps: dict[int, float]) -> tuple[Vector, Vector]:
    """Posterior mean and covariance of the same, given all runs at once; mixed over the grid of standard deviations."""
    mean, n = prior(SIZES, DEFAULT)[0], len(SIZES)
    stretch = np.cumsum([any(run.number in jumps for run in item.runs) for item in slices])
    before = np.concatenate((np.tile(mean, len(jumps) + 1), np.zeros(len(slices))))
    rows = [(i, run) for i, item in enumerate(slices) for run in item.runs]
    design = np.zeros((len(rows), len(before)))
    for row, (i, run) in zip(design, rows, strict=True):
        row[[stretch[i] * n + SIZES.index(run.batch_size), len(before) - len(slices) + i]] = 1.0
    log_epochs, grid, found = np.array([math.log(run.epochs) for _, run in rows]), initial(mean, np.eye(n)), []
    for noise, variance, log_prior in zip(grid.noise, grid.difficulty, grid.log_weight, strict=True):
        cov = prior_covariance(list(jumps.values()), len(slices), variance)
        of_runs = design @ cov @ design.T + np.diag(noise + np.exp(-2 * log_epochs) / 12)
        off, gain = log_epochs - design @ before, np.linalg.solve(of_runs, design @ cov).T
        log_weight = log_prior - 0.5 * (off @ np.linalg.solve(of_runs, off) + np.linalg.slogdet(of_runs)[1])
        found.append((log_weight, before + gain @ off, cov - gain @ design @ cov))
    log_weights = np.array([log_weight for log_weight, _, _ in found])
    weight = np.exp(log_weights - log_weights.max()) * (log_weights > log_weights.max() + UNLIKELY)
    weight /= weight.sum()
    means, covs = np.stack([one for _, one, _ in found]), np.stack([one for _, _, one in found])
    center = weight @ means
    return center, np.tensordot(weight, covs, 1) + (weight[:, None] * (means - center)).T @ (means - center)


@pytest.mark.parametrize("jumps", [{}, {8: 0.8}, {5: 0.5, 13: 1.2}])
def test_the_draws_are_those_of_one_regression_on_all_runs(jumps: dict[int, float]) -> None:
    """Of slices with one run and with two; a change of the data counts from the slice on in which it is first seen."""
    pairs = [Slice.of("", (*VARIED[i].runs, *VARIED[i + 1].runs), MOST) for i in (3, 8)]
    runs = [*VARIED[:3], pairs[0], *VARIED[5:8], pairs[1], *VARIED[10:]]
    mean, cov = regression(runs, jumps)
    paths = drawn(runs, jumps)
    together = np.concatenate((*np.moveaxis(paths.curve, 1, 0), paths.difficulty), axis=1)
    sd = np.sqrt(cov.diagonal())
    assert np.abs((together.mean(0) - mean) / sd).max() < 0.05
    assert np.abs((np.cov(together.T) - cov) / np.outer(sd, sd)).max() < 0.1


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
