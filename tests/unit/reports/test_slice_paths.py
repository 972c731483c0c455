"""Draws of walks of log Epochs, against one regression on all runs."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from airflow_provider_zeus.optimizer.slices import Slice, SliceRun
from airflow_provider_zeus.reports import slice_paths
from airflow_provider_zeus.reports.slice_paths import (
    LEVEL_SD,
    SMOOTH_SD,
    Paths,
    prior,
    sample_paths,
)

SIZES = (16, 32, 64, 128)
DEFAULT = 32
MOST = 100.0
DRAWS = 20_000


def slices_of(*epochs: tuple[int, float]) -> list[Slice]:
    """A slice for each run (batch size, epochs to the target)."""
    return [Slice.of("", (SliceRun(n, b, e, True),), MOST) for n, (b, e) in enumerate(epochs, 1)]


def drawn(slices: list[Slice]) -> Paths:
    return sample_paths(SIZES, DEFAULT, MOST, slices, np.random.default_rng(0), DRAWS)


VARIED = slices_of(
    *[((32, 64, 128)[n % 3], 10 * math.exp(0.5 * math.sin(n / 2)) + n % 3) for n in range(18)]
)


def test_the_draws_are_those_of_one_regression_on_all_runs() -> None:
    """Of slices with one run, with two, and with none."""
    two = Slice.of("", (*VARIED[3].runs, *VARIED[4].runs), MOST)
    slices = [*VARIED[:3], two, Slice.of("", (), MOST), *VARIED[5:]]
    runs = [(t, run) for t, item in enumerate(slices) for run in item.runs]
    at = np.array([t for t, _ in runs])
    size = np.array([SIZES.index(run.batch_size) for _, run in runs])
    log_epochs = np.log([run.epochs for _, run in runs])
    mean, shape = prior(SIZES, DEFAULT)
    every = np.repeat(np.arange(len(slices)), len(SIZES))
    each = np.tile(np.arange(len(SIZES)), len(slices))

    def covariance(steps: float, own: float, t: np.ndarray, b: np.ndarray) -> np.ndarray:
        walked = np.minimum(t[:, None], at) * (
            steps**2 + own**2 * (shape / SMOOTH_SD**2)[b[:, None], size]
        )
        return (LEVEL_SD**2 + shape)[b[:, None], size] + walked

    grid = product(
        slice_paths.NOISE_SDS,
        slice_paths.STEP_SDS,
        slice_paths.OWN_SDS,
        range(slice_paths.WILD_RUNS + 1),
    )
    of_default = np.flatnonzero(size == SIZES.index(DEFAULT))
    log_weights = []
    means = []
    for noise, steps, own, wild in grid:
        of_runs = covariance(steps, own, at, size)
        share = 1 - slice_paths.WILD_RUNS * slice_paths.WILD_SHARE
        factor = np.ones(len(size))
        if wild:
            share = slice_paths.WILD_SHARE
            factor[of_default[wild - 1]] = slice_paths.WILD
        of_runs += np.diag((noise * factor) ** 2 + np.exp(-2 * log_epochs) / 12)
        off = log_epochs - mean[size]
        log_weights.append(
            math.log(share)
            - 0.5 * (off @ np.linalg.solve(of_runs, off) + np.linalg.slogdet(of_runs)[1])
        )
        gain = covariance(steps, own, every, each)
        means.append(mean[each] + gain @ np.linalg.solve(of_runs, off))
    log_weight = np.array(log_weights) - max(log_weights)
    weight = np.exp(log_weight) * (log_weight > slice_paths.UNLIKELY)
    expected = weight @ np.stack(means) / weight.sum()
    found = drawn(slices).centre().ravel()
    sure = np.abs(found - expected) < 0.03
    ran = np.isin(each, size)
    assert sure[ran].all()


def test_later_slices_tell_of_earlier_ones() -> None:
    """A hard stretch is seen in each of its slices."""
    hard = range(10, 17)
    runs = [(32 if n % 2 else 64, 30.0 if n in hard else 10.0) for n in range(26)]
    centre = drawn(slices_of(*runs)).centre()
    for i in (1, 2):
        assert centre[11:16, i].min() > centre[:9, i].max() + 0.6


def test_slices_that_are_alike_stay_so() -> None:
    paths = drawn(slices_of(*[(32, 10.0)] * 15))
    assert np.ptp(paths.centre()[:, 1]) < 0.05
    assert np.exp(paths.of(1)).mean() == pytest.approx(10.0, rel=0.05)


def test_one_long_first_run_of_the_default_is_chance_once_it_has_run_twice_more() -> None:
    others = [(64, 8.0), (64, 8.0), (128, 8.0)]
    usual = drawn(slices_of((32, 10.0), *others, (32, 10.0), (32, 10.0))).centre()[3, 1]
    long = drawn(slices_of((32, 25.0), *others, (32, 10.0), (32, 10.0))).centre()[3, 1]
    assert long - usual < 0.5 * math.log(2.5) / 3, "a third is what the mean of three would move"


def test_few_runs_of_the_default_leave_open_how_much_it_takes_and_less_how_little() -> None:
    off = drawn(slices_of((32, 10.0), *[(64, 5.0)] * 5)).of(1)[:, -1]
    low, centre, high = np.quantile(off, (0.05, 0.5, 0.95))
    assert high - centre > 2 * (centre - low)


def test_a_run_that_was_given_up_says_that_more_is_needed() -> None:
    once = slices_of((32, 10.0), (64, 5.0), (64, 5.0))
    given_up = Slice.of("", (SliceRun(4, 32, 20.0, False),), MOST)
    before = np.exp(drawn(once).of(1)[:, -1]).mean()
    after = np.exp(drawn([*once, given_up]).of(1)[:, -1]).mean()
    assert after > 1.2 * before


def test_a_run_that_missed_says_nothing_about_epochs() -> None:
    once = slices_of((32, 10.0), (64, 5.0), (64, 5.0))
    missed = Slice.of("", (SliceRun(4, 32, MOST, False),), MOST)
    before = np.exp(drawn(once).of(1)[:, -1]).mean()
    after = np.exp(drawn([*once, missed]).of(1)[:, -1]).mean()
    assert after == pytest.approx(before, rel=0.15)
