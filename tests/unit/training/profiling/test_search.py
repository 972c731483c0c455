"""Which power limit to measure next: properties of the search on any curve, with any noise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_zeus.model.cost import Weights, best_limit
from airflow_provider_zeus.model.partial_sums import since_mark, summed
from airflow_provider_zeus.model.trial import ProfileSample
from airflow_provider_zeus.training.profiling.search import (
    MOST,
    LimitMeasurement,
    NextLimit,
    Search,
    by_limit,
    coarse,
)

GRID_W = tuple(float(w) for w in range(250, 99, -25))
LONG_W = tuple(float(w) for w in range(700, 199, -25))  # 21 limits
PIECES = 5
Curve = Callable[[float], tuple[float, float]]  # limit [W] -> (J, s) per sample


def binding(limit_w: float) -> tuple[float, float]:
    """A load of 220 W that slows down as its power is taken away: least J at some 135 W."""
    drawn_w = min(limit_w, 220.0)
    sample_s = 0.01 * (1 + 0.6 * (220.0 / drawn_w - 1) ** 1.5)
    return drawn_w * sample_s, sample_s


def flat(limit_w: float) -> tuple[float, float]:
    """A load so light that no limit binds."""
    return 0.5, 0.01


def window(limit_w: float, curve: Curve, rng: random.Random, noise: float) -> list[ProfileSample]:
    """One window of 5 s in pieces, whose mean has that relative noise."""
    j, s = curve(limit_w)
    pieces = []
    for _ in range(PIECES):
        off_j, off_s = (max(1 + noise * math.sqrt(PIECES) * rng.gauss(0, 1), 0.2) for _ in range(2))
        pieces.append(piece(limit_w, j * off_j, s * off_s))
    return pieces


def piece(limit_w: float, j: float, s: float, length_s: float = 1.0) -> ProfileSample:
    n = max(round(length_s / s), 1)
    return ProfileSample(
        batch_size=32, limit_w=limit_w, samples=n, energy_j=j * n, time_s=s * n, steps=10
    )


def search(
    limits_w: Sequence[float] = GRID_W,
    eta: float = 0.5,
    slowdown: float | None = None,
    *,
    window_s: float = 5.0,
) -> Search:
    weights = Weights(eta, 250.0, slowdown=slowdown)
    return Search(tuple(limits_w), weights, window_s * 0.8, 10)


def walked(
    search: Search, curve: Curve, *, seed: int = 0, noise: float = 0.0
) -> list[ProfileSample]:
    """Samples of a whole profile, in the order in which they were asked for."""
    rng = random.Random(seed)
    samples = []
    for _ in range(2 * MOST * len(search.limits_w) + 1):
        step = search.next_limit(by_limit(samples))
        if step is None:
            return samples
        assert step.limit_w in search.limits_w
        samples += window(step.limit_w, curve, rng, noise)
    raise AssertionError("the search does not end")


def asked(samples: Sequence[ProfileSample]) -> list[float]:
    """Limits in the order in which they were first measured."""
    return list(dict.fromkeys(s.limit_w for s in samples))


rough = st.lists(st.tuples(st.floats(0.05, 20.0), st.floats(0.001, 0.1)), min_size=1, max_size=24)
slowdowns = st.sampled_from([None, 1.0, 1.05, 2.0])
etas = st.sampled_from([0.0, 0.01, 0.5, 1.0])


@settings(deadline=None)
@given(
    rates=rough,
    eta=etas,
    slowdown=slowdowns,
    noise=st.sampled_from([0.0, 0.01, 0.1]),
    seed=st.integers(0, 99),
)
def test_any_search_ends_within_its_limits_with_the_neighbours_of_the_best_measured(
    rates: list[tuple[float, float]], eta: float, slowdown: float | None, noise: float, seed: int
) -> None:
    limits_w = [700.0 - 25 * i for i in range(len(rates))]
    curve = dict(zip(limits_w, rates, strict=True)).__getitem__
    one = search(limits_w, eta, slowdown)
    samples = walked(one, curve, seed=seed, noise=noise)
    seen = by_limit(samples)
    best_w = one.best_w(seen)
    assert {limits_w[0], best_w} <= set(seen)
    at = limits_w.index(best_w)
    assert set(limits_w[max(at - 1, 0) : at + 2]) <= set(seen)
    found = best_limit(samples, one.weights)
    assert found is not None
    assert found[0] == best_w, "the optimizer reads the profile as the training did"


@settings(deadline=None)
@given(seed=st.integers(0, 999), cut=st.integers(0, 200), noise=st.sampled_from([0.0, 0.02]))
def test_neither_the_order_of_samples_nor_who_asks_again_matters(
    seed: int, cut: int, noise: float
) -> None:
    one = search()
    samples = walked(one, binding, seed=seed, noise=noise)[:cut]
    mixed = random.Random(seed).sample(samples, len(samples))
    assert (
        one.next_limit(by_limit(samples))
        == one.next_limit(by_limit(mixed))
        == one.next_limit(by_limit(mixed))
    )
    assert one.best_w(by_limit(samples)) == one.best_w(by_limit(mixed))


@settings(deadline=None)
@given(seed=st.integers(0, 999), noise=st.sampled_from([0.0, 0.01, 0.03]))
def test_a_complete_profile_stays_complete_once_a_store_has_added_it_up(
    seed: int, noise: float
) -> None:
    one = search()
    samples = walked(one, binding, seed=seed, noise=noise)
    assert one.next_limit(by_limit(samples)) is None
    assert one.next_limit(by_limit(summed(samples))) is None


def test_every_second_limit_from_the_highest_then_the_neighbours_of_the_best() -> None:
    limits_w = asked(walked(search(eta=1.0), binding))
    assert limits_w[:4] == [250.0, 200.0, 150.0, 100.0]
    assert limits_w[4:] == [125.0], "the best, between two that are measured"
    assert asked(walked(search(eta=1.0), lambda w: (abs(w - 155.0) + 9, 0.01)))[4:] == [
        175.0,
        125.0,
    ]


def test_a_long_grid_is_begun_with_six_limits() -> None:
    assert coarse(LONG_W) == [700.0, 600.0, 500.0, 400.0, 300.0, 200.0]
    assert coarse(GRID_W) == [250.0, 200.0, 150.0, 100.0]
    assert [coarse(GRID_W[:n]) for n in range(4)] == [[], [250.0], [250.0, 225.0], [250.0, 200.0]]
    # the lowest is no neighbour of a coarse one
    assert coarse([300.0, 275.0, 250.0, 225.0]) == [300.0, 250.0, 225.0]


@pytest.mark.parametrize("limits_w", [(250.0,), (250.0, 150.0)])
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_grids_of_one_and_of_two_limits(limits_w: tuple[float, ...], eta: float) -> None:
    samples = walked(search(limits_w, eta), binding)
    assert asked(samples) == list(limits_w)
    assert search(limits_w, eta).best_w(by_limit(samples)) == (limits_w[-1] if eta else limits_w[0])


def test_without_limits_there_is_nothing_to_do() -> None:
    assert search(()).next_limit({}) is None
    assert search(()).best_w({}) is None


def test_it_does_not_stop_at_the_first_worse_limit() -> None:
    hump = {250.0: 1.0, 225.0: 1.1, 200.0: 1.3, 175.0: 1.2, 150.0: 0.7, 125.0: 0.8, 100.0: 1.5}
    samples = walked(search(eta=1.0), lambda w: (hump[w], 0.01))
    assert search(eta=1.0).best_w(by_limit(samples)) == 150.0


def test_a_clear_winner_needs_no_second_window_and_near_ties_do() -> None:
    steep = walked(search(eta=1.0), lambda w: ((w / 100) ** 2, 0.01))
    assert len(steep) == PIECES * len(asked(steep))
    ties = walked(search(eta=1.0), flat)
    windows = [len([s for s in ties if s.limit_w == w]) / PIECES for w in asked(ties)]
    assert min(windows) >= 2
    assert max(windows) <= MOST


def test_a_noisy_limit_is_measured_longer_and_one_that_is_clearly_out_is_not() -> None:
    rng = random.Random(3)
    quiet = window(250.0, binding, rng, 0.0)
    noisy = window(250.0, binding, rng, 0.05)
    assert search().next_limit(by_limit(quiet)) == NextLimit(200.0)
    assert search().next_limit(by_limit(noisy)) == NextLimit(250.0)
    longest = [s for _ in range(3) for s in window(250.0, binding, rng, 0.05)]
    assert search().next_limit(by_limit(longest)) == NextLimit(200.0)
    dear = window(200.0, lambda w: (9.0, 0.05), rng, 0.05)
    assert search().next_limit(by_limit([*longest, *dear])) == NextLimit(150.0)


def test_the_ticks_of_a_counter_are_no_noise() -> None:
    ticks = [piece(250.0, 2.0 * (1 + off), 0.01) for off in (0.04, -0.04, 0.02, -0.04, 0.03)]
    assert search().next_limit(by_limit(ticks)) == NextLimit(200.0)
    slow = [piece(250.0, 2.0, 0.01 * (1 + off)) for off in (0.04, -0.04, 0.02, -0.04, 0.03)]
    assert search().next_limit(by_limit(slow)) == NextLimit(250.0), "time has no ticks"


@pytest.mark.parametrize(
    ("eta", "slowdown", "best_w"),
    [
        (1.0, None, 125.0),
        (0.0, None, 225.0),
        (1.0, 1.3, 150.0),
        (1.0, 1.05, 200.0),
        (1.0, 1.02, 200.0),
    ],
)
def test_energy_or_time_alone_within_a_slowdown(
    eta: float, slowdown: float | None, best_w: float
) -> None:
    one = search(eta=eta, slowdown=slowdown)
    assert one.best_w(by_limit(walked(one, binding))) == best_w
    assert one.best_w(by_limit(walked(one, binding, seed=5, noise=0.002))) == pytest.approx(
        best_w, abs=25.0
    )


def test_what_a_partial_window_says_does_not_win_over_whole_ones() -> None:
    samples = [piece(250.0, 2.0, 0.01, 5.0), piece(200.0, 0.1, 0.01, 0.5)]
    assert search(eta=1.0).best_w(by_limit(samples)) == 250.0
    assert search(eta=1.0).best_w(by_limit(samples[1:])) == 200.0


def test_samples_before_a_mark_hold_no_more() -> None:
    one = piece(250.0, 1.0, 0.01)
    other = replace(piece(250.0, 1.0, 0.01), batch_size=64)
    assert since_mark([one, other, ProfileSample.mark(32)]) == [other]
    assert since_mark([one, ProfileSample.mark(32), one, other]) == [one, other]
    assert summed([one, ProfileSample.mark(64), one, other]) == (
        replace(
            one, samples=2 * one.samples, energy_j=2 * one.energy_j, time_s=2 * one.time_s, steps=20
        ),
        other,
    )


def test_pieces_of_other_lengths_at_one_rate_do_not_scatter() -> None:
    measured = LimitMeasurement()
    for n in (100, 300, 500):
        measured.add(
            ProfileSample(
                batch_size=32,
                limit_w=150.0,
                samples=n,
                energy_j=2.0 * n,
                time_s=0.01 * n,
                steps=n // 10,
            )
        )
    assert measured.squares(ticks=True) == pytest.approx((0.0, 0.0), abs=1e-9)
