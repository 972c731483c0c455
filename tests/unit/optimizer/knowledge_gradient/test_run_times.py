"""Decisions of a job with a deadline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import Decision, Phase, ProfileSample
from airflow_provider_zeus.optimizer.knowledge_gradient.decision_context import DecisionContext
from airflow_provider_zeus.optimizer.knowledge_gradient.run_times import RunTimes
from airflow_provider_zeus.optimizer.situation import Situation
from tests.unit.optimizer.world import SAMPLES, World, job_of

NOW_S = 1e9
EPOCHS = {16: 10.0, 32: 11.0, 64: 12.0, 128: 20.0}
EPOCH_S = {16: 40.0, 32: 20.0, 64: 12.0, 128: 8.0}  # 400, 220, 144 and 160 s


# [W]: 32 needs the least energy, 64 the least time
FRUGAL = {16: 50.0, 32: 60.0, 64: 200.0, 128: 200.0}


def world(runs: int = 8, power_w: Mapping[int, float] = FRUGAL, **fields: Any) -> World:
    """A job whose sizes are all known."""
    made = World(
        job_of(*EPOCHS, default=32, policy="knowledge_gradient", max_epochs=60, eta=1.0, **fields),
        EPOCHS,
    )
    made.epoch_s = EPOCH_S
    for _ in range(runs):
        for b in EPOCHS:
            made.add(b, energy_j=EPOCHS[b] * EPOCH_S[b] * power_w[b])
    return made


def profile(b: int, watts: dict[float, tuple[float, float]]) -> list[ProfileSample]:
    """Samples of b: limit [W] -> (power [W] of a size that draws 200 W at full power, slowdown)."""
    sample_s = EPOCH_S[b] / SAMPLES
    share = FRUGAL[b] / 200.0
    return [
        ProfileSample(
            batch_size=b,
            limit_w=w,
            samples=1000,
            energy_j=1000 * sample_s * slower * power_w * share,
            time_s=1000 * sample_s * slower,
            steps=100,
        )
        for w, (power_w, slower) in watts.items()
    ]


LIMITS = {250.0: (200.0, 1.0), 150.0: (120.0, 1.2), 100.0: (80.0, 1.6)}
PROFILES = [s for b in EPOCHS for s in profile(b, LIMITS)]


def decide(made: World, room_s: float | None, **asked: Any) -> Decision:
    finish_by_s = None if room_s is None else NOW_S + room_s
    return made.decide(seed=1, finish_by_s=finish_by_s, now_s=NOW_S, profiles=PROFILES, **asked)


def model_of(decision: Decision) -> int:
    return decision.attempts[-1].batch_size


def test_with_time_enough_the_deadline_changes_no_batch_size() -> None:
    made = world()
    free = made.decide(seed=1, profiles=PROFILES)
    bound = decide(made, 1e6)
    assert [a.batch_size for a in bound.attempts] == [a.batch_size for a in free.attempts]
    assert all(a.in_time is None for a in free.attempts)
    one = bound.attempts[-1].in_time
    assert one is not None
    assert one.finish_by_s == NOW_S + 1e6
    assert not one.hurry


@pytest.mark.parametrize(("slowdown", "share"), [(9.0, 0.64), (1.3, 0.72), (1.0, 1.0)])
def test_an_epoch_costs_what_it_does_at_the_best_limit_for_which_there_is_time(
    slowdown: float, share: float
) -> None:
    made = world()
    times = RunTimes.of(made.belief, made.device, PROFILES, 0.0)
    assert times is not None
    times = times._replace(room_s=slowdown * times.most_s[32])
    situation = Situation(
        made.job, made.belief, seed=1, device=made.device, profiles=PROFILES, times=times
    )
    assert DecisionContext.of(situation).epoch_costs[32] == pytest.approx(
        share * made.epoch_cost(32) * 60.0 / 200.0
    )


def test_the_cheapest_that_ends_in_time_with_95_percent_runs() -> None:
    made = world()
    assert model_of(made.decide(seed=1)) == 32
    times = RunTimes.of(made.belief, made.device, (), 0.0)
    assert times is not None
    assert min(times.most_s, key=lambda b: times.most_s[b]) == 64
    room_s = (times.most_s[64] + times.most_s[32]) / 2
    bound = made.decide(seed=1, finish_by_s=NOW_S + room_s, now_s=NOW_S)
    assert model_of(bound) in {b for b in EPOCHS if times.most_s[b] <= room_s}
    assert "95 % of its runs end within" in bound.attempts[-1].why


def test_where_nothing_ends_in_time_the_fastest_runs_and_the_decision_says_so() -> None:
    decision = decide(world(), 60.0)
    last = decision.attempts[-1]
    assert last.batch_size == 64
    assert last.in_time is not None
    assert last.in_time.hurry
    assert last.in_time.slowdown == 1.0
    assert "No known batch size ends in time: until the deadline it is 1 min 00 s." in last.why


def test_a_deadline_that_is_past_is_no_error() -> None:
    last = decide(world(), -5.0).attempts[-1]
    assert "64, the fastest known to reach the target, runs." in last.why
    assert last.batch_size == 64
    assert "until the deadline it is 0" in last.why


def test_the_limit_may_be_as_slow_as_the_room_allows() -> None:
    made = world()
    (one,) = {decide(made, 300.0).attempts[-1].in_time}
    assert one is not None
    assert one.time_95_s is not None
    assert one.slowdown == pytest.approx(300.0 / one.time_95_s)


def test_a_try_leaves_room_for_the_incumbent_or_ends_in_time_itself() -> None:
    made = World(
        job_of(32, 64, default=32, policy="knowledge_gradient", max_epochs=60, eta=1.0),
        EPOCHS,
        EPOCH_S,
    )
    for _ in range(5):
        made.add(32)
    free = made.decide(seed=1)
    assert [a.batch_size for a in free.attempts] == [64, 32]
    times = RunTimes.of(made.belief, made.device, (), 0.0)
    assert times is not None
    roomy = made.decide(seed=1, finish_by_s=NOW_S + 3 * times.most_s[32], now_s=NOW_S)
    assert [a.batch_size for a in roomy.attempts] == [64, 32]
    tight = made.decide(seed=1, finish_by_s=NOW_S + 1.01 * times.most_s[32], now_s=NOW_S)
    assert [a.batch_size for a in tight.attempts] == [32]
    assert times.most_s[64] > times.most_s[32], "less is known of 64"
    between = times._replace(room_s=(times.most_s[32] + times.most_s[64]) / 2)
    assert between.reserve_s(64, 32) == times.most_s[32]
    assert times._replace(room_s=times.most_s[64]).reserve_s(64, 32) == 0, "it ends in time itself"
    assert times._replace(room_s=times.most_s[32] / 2).reserve_s(64, 32) == 0, "nothing does"


@pytest.mark.parametrize(("room", "epochs"), [(4.0, 4.0), (0.5, 0.5), (0.0, 0.0)])
def test_a_try_is_given_up_after_the_epochs_that_leave_room_for_the_incumbent(
    room: float, epochs: float
) -> None:
    times = RunTimes(
        log_epochs={32: (math.log(10.0), 0.1), 64: (math.log(12.0), 0.1)},
        median_s={32: 200.0, 64: 144.0},
        most_s={32: 250.0, 64: 1e6},
        first_epoch_s={32: 25.0, 64: 15.0},
        room_s=250.0 + room * 12.0,  # an epoch of 64 takes 12 s
        pace=1.0,
    )
    assert times.epochs_before(64, 32) == pytest.approx(epochs)
    roomy = times._replace(room_s=2e6)
    assert roomy.epochs_before(64, 32) == math.inf, "64 ends in time itself"


def test_a_machine_that_is_slower_than_its_profile_is_known_by_its_runs() -> None:
    made = world()
    made.epoch_s = {b: 1.2 * 1.3 * s for b, s in EPOCH_S.items()}
    for _ in range(16):
        for b in EPOCHS:
            made.add(b, power_limit_w=150.0)  # at which training takes 1.2 times as long
    profiled = RunTimes.of(made.belief, made.device, PROFILES, 1e6)
    assert profiled is not None
    assert profiled.pace == pytest.approx(1.3, rel=1e-3)
    assert profiled.median_s[64] == pytest.approx(1.3 * EPOCHS[64] * EPOCH_S[64], rel=0.05)
    in_time = decide(made, 400.0).attempts[-1].in_time
    assert in_time is not None
    assert in_time.pace == profiled.pace
    epoch_s = EPOCH_S[64]
    assert in_time.slowdown_at(NOW_S, 0, 60, epoch_s) == pytest.approx(
        replace(in_time, pace=1.0).slowdown_at(NOW_S, 0, 60, 1.3 * epoch_s), rel=1e-3
    )


def test_before_the_first_run_nothing_is_known() -> None:
    made = World(job_of(32, 64, default=32, policy="knowledge_gradient"), EPOCHS, EPOCH_S)
    (first,) = decide(made, 500.0).attempts
    assert first.batch_size == 32
    assert first.why.endswith("It is not known yet how long a run takes.")
    assert first.in_time is not None
    assert (first.in_time.finish_by_s, first.in_time.slowdown) == (NOW_S + 500.0, None)


def test_the_paper_s_policy_chooses_as_ever_and_its_limit_knows_the_deadline() -> None:
    made = World(job_of(32, 64, default=32, policy="zeus"), EPOCHS, EPOCH_S)
    made.runs(12)
    free = made.decide(seed=3)
    bound = made.decide(seed=3, finish_by_s=NOW_S + 50.0, now_s=NOW_S)
    assert [a.batch_size for a in free.attempts] == [a.batch_size for a in bound.attempts]
    assert bound.attempts[-1].in_time is not None
    assert bound.attempts[-1].in_time.hurry


def test_no_audit_where_the_default_is_too_slow() -> None:
    made = world()
    made.job = replace(made.job, audit=1.0)
    phases = {decide(made, room).attempts[0].phase for room in (150.0, 190.0)}
    assert Phase.AUDIT not in phases
