"""Jobs of the generator: each trouble does what it says, and the truth about a job is known."""

from __future__ import annotations

import math
import statistics

import pytest

from benchmarks.quality.made_jobs import (
    FAILS,
    FIRST_BEST,
    LARGE,
    MISSES,
    MOVED,
    NEAR,
    SIZES,
    SLICES,
    SMALL,
    TROUBLES,
    MadeJob,
    made_job,
    world,
)

FEW = range(5)


def runs(job: MadeJob, b: int) -> list[float]:
    """Epochs of each slice."""
    return [week.epochs[b][0] for week in job.series.weeks]


def missed(job: MadeJob) -> list[int]:
    """Slices that no size reaches."""
    return [t for t in range(SLICES) if all(math.isinf(runs(job, b)[t]) for b in SIZES)]


@pytest.mark.parametrize("name", TROUBLES)
def test_a_job_can_be_made_again_and_its_default_reaches_its_target(name: str) -> None:
    for kind in TROUBLES[name].defaults:
        job = made_job(name, kind, 3)
        assert job == made_job(name, kind, 3)
        assert job.series.weeks != made_job(name, kind, 4).series.weeks
        assert len(job.series.weeks) == SLICES
        reached = sum(map(math.isfinite, runs(job, job.default)))
        assert reached > SLICES / 2


@pytest.mark.parametrize("seed", FEW)
def test_two_troubles_of_a_seed_befall_the_same_job(seed: int) -> None:
    plain = made_job("nothing", NEAR, seed)
    season = made_job("season", NEAR, seed)
    assert plain.series.epoch_s == season.series.epoch_s
    assert (
        runs(plain, plain.default)[1:]
        == runs(made_job("slice 1 missed", NEAR, seed), plain.default)[1:]
    )


@pytest.mark.parametrize("name", MOVED)
def test_the_best_size_moves_at_its_run(name: str) -> None:
    at = TROUBLES[name].moved_at
    assert at is not None
    moved = 0
    for seed in FEW:
        found = world(seed, moved_at=at)
        moved += found.best(until=at) != found.best(since=at)
        assert world(seed).needs[:at] == found.needs[:at]
        assert made_job(name, FIRST_BEST, seed).default == found.best(until=at)
        assert made_job(name, NEAR, seed).default == found.best()
    assert moved == len(FEW)


@pytest.mark.parametrize("default", [64, 256])
def test_the_default_alone_misses_three_runs_in_ten(default: int) -> None:
    shares = []
    for seed in range(20):
        job = made_job(MISSES, default, seed)
        whole = made_job("slice 1 missed", default, seed)
        shares.append(sum(map(math.isinf, runs(job, default))) / SLICES)
        others = [b for b in SIZES if b != default]
        assert all(runs(job, b)[1:] == runs(whole, b)[1:] for b in others)
    assert statistics.fmean(shares) == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize("default", [64, 16])
def test_the_size_that_fails_lies_between_default_and_best(default: int) -> None:
    for seed in FEW:
        job = made_job(FAILS, default, seed)
        failing = [
            b for b in SIZES if default < b < job.best and all(map(math.isinf, runs(job, b)))
        ]
        assert len(failing) == 1


def test_an_unlucky_first_run_and_a_hard_first_slice() -> None:
    for seed in FEW:
        usual = made_job("nothing", NEAR, seed)
        run = made_job("first default run x4", NEAR, seed)
        hard = made_job("first slice x3", NEAR, seed)
        b = usual.default
        assert runs(run, b)[0] == pytest.approx(4 * runs(usual, b)[0], abs=2.5)
        assert runs(run, b)[1:] == runs(usual, b)[1:]
        for size in SIZES:
            pair = runs(hard, size)[0], 3 * runs(usual, size)[0]
            assert pair[0] == pytest.approx(pair[1], abs=2) or math.inf in pair


def test_slices_that_every_size_misses() -> None:
    assert missed(made_job("slice 1 missed", SMALL, 0)) == [0]
    assert missed(made_job("slice 2 missed", LARGE, 0)) == [1]
    assert missed(made_job("slices 1 and 2 missed", NEAR, 0)) == [0, 1]
    hopeless = [len(missed(made_job("10 % of slices hopeless", NEAR, seed))) for seed in range(20)]
    assert statistics.fmean(hopeless) / SLICES == pytest.approx(0.1, abs=0.03)


def test_the_best_size_trains_again_what_it_missed() -> None:
    job = made_job("nothing", SMALL, 0)
    cost = {
        b: job.series.epoch_s[b] * sum(runs(job, b)) if math.inf not in runs(job, b) else math.inf
        for b in SIZES
    }
    assert job.best == min(SIZES, key=lambda b: cost[b])
