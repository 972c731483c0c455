"""What was saved against the default at full power, worked out by hand."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import Estimate, Z
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Origin, Phase, ProfileSample, State, Trial, Where
from airflow_provider_zeus.reports.baseline import NEWEST_RUNS
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.limit_profiles import ratio_sd
from airflow_provider_zeus.reports.savings import Savings, saving
from tests.strategies import A40, CPU, REPRODUCIBLE, V100, jobs_and_logs, profiles
from tests.unit.optimizer.world import World, job_of

JOB = job_of(16, 32, 64, default=32)
NEEDS = {16: 20.0, 32: 10.0, 64: 10.0}


def profile(limit_w: float, power_w: float, s: float, b: int = 32) -> ProfileSample:
    return ProfileSample(
        batch_size=b, limit_w=limit_w, samples=1000, energy_j=power_w * s, time_s=s
    )


# the default at 150 W, where it ran: 10 s an epoch at 140 W; at full power 8 s at 225 W
PROFILE = [profile(150.0, 140.0, 10.0), profile(250.0, 225.0, 8.0)]
FULL_J = 225 * 8.0
FULL_S = 8.0
FULL = 0.5 * FULL_J + 0.5 * 250 * FULL_S  # 1900 J an epoch


def add(
    world: World,
    b: int,
    epochs: float,
    power_w: float = 140.0,
    state: State = State.CONVERGED,
    **f: Any,
) -> Trial:
    time_s = 10 * epochs
    return world.add(
        b,
        state,
        epochs,
        **{"time_s": time_s, "energy_j": time_s * power_w, "power_limit_w": 150.0, **f},
    )


def cost(epochs: float, power_w: float = 140.0) -> float:
    return 10 * epochs * (0.5 * power_w + 0.5 * 250)


def answer(world: World, where: Where | None = None, **asked: Any) -> Savings:
    return saving(
        as_dataset(world.log, world.job, where),
        rng=random.Random(1),
        **{"profiles": PROFILE, **asked},
    )


def audited() -> World:
    """A log after which the policy audits the default, and 64 is the incumbent."""
    world = World(
        replace(JOB, batch_sizes=[32, 64], policy="knowledge_gradient", audit=0.3),
        {32: 10.0, 64: 8.0},
    )
    for b in (*[32] * 4, *[64] * 8):
        add(world, b, world.epochs[b])
    return world


def same_run(*trials: Trial) -> list[Trial]:
    return [
        replace(t, origin=Origin(dag_id="d", run_id="r", task_id="t", run_type="scheduled"))
        for t in trials
    ]


def test_the_baseline_is_the_default_at_the_highest_limit_profiled() -> None:
    world = World(JOB, NEEDS)
    add(world, 32, 9.0)
    add(world, 32, 11.0)
    add(world, 64, 5.0)
    found = answer(world)
    assert (found.default_batch_size, found.full_power_w, found.runs, found.measured) == (
        32,
        250.0,
        3,
        2,
    )
    first, second, third = (step.baseline for step in found.steps)
    assert [first.value, second.value] == pytest.approx([9 * FULL, 11 * FULL])
    estimated = third.value or 0.0
    assert found.cost.baseline.value == pytest.approx(20 * FULL + estimated)
    assert found.energy.baseline.value == pytest.approx((20 + estimated / FULL) * FULL_J)
    assert found.time.baseline.value == pytest.approx((20 + estimated / FULL) * FULL_S)
    assert found.cost.spent == pytest.approx(cost(25.0))
    assert found.cost.saved.value == pytest.approx(20 * FULL + estimated - cost(25.0))


def test_what_a_slice_did_to_another_size_it_would_have_done_to_the_default() -> None:
    world = World(JOB, NEEDS)
    difficulty = [1.0, 1.3, 1.8, 2.4, 2.0, 1.5, 1.1, 0.9, 1.2, 1.7, 2.3, 2.6]
    for n, factor in enumerate(difficulty):
        add(world, *((64, 20.0 * factor) if n % 2 else (32, 10.0 * factor)))
    steps = answer(world).steps
    for n in range(1, len(difficulty), 2):
        low, value, high = (
            v or 0.0
            for v in (steps[n].baseline.low, steps[n].baseline.value, steps[n].baseline.high)
        )
        assert low < 10 * difficulty[n] * FULL < high
        assert value == pytest.approx(10 * difficulty[n] * FULL, rel=0.5)
    assert (steps[7].baseline.value or 0.0) < 0.7 * (steps[3].baseline.value or 0.0), (
        "an easy slice, a hard one"
    )


def test_the_interval_of_the_sum_comes_from_the_same_draws_and_narrows_with_what_is_known() -> None:
    world = World(JOB, NEEDS)
    shares = []
    for n in range(1, 13):
        add(world, 32, 10.0 + n % 3)
        add(world, 64, 11.0 - n % 3)
        if n in (1, 12):
            found = answer(world)
            saved = found.cost.saved
            last = found.steps[-1].saved
            assert (saved.value, saved.low, saved.high) == pytest.approx(
                (last.value, last.low, last.high)
            )
            assert (saved.low or 0) < (saved.value or 0) < (saved.high or 0)
            shares.append(((saved.high or 0) - (saved.low or 0)) / (found.cost.baseline.value or 1))
    assert shares[1] < 0.6 * shares[0]
    assert answer(world).cost == found.cost, "the same seed gives the same answer"


def test_what_an_epoch_draws_varies_from_run_to_run_and_is_known_from_few() -> None:
    """Its logarithm varies by v between runs: of four runs the mean by v / 4,
    for all estimated runs the same way.
    """
    world = World(JOB, NEEDS)
    factors = (0.8, 1.25, 0.8, 1.25)
    for factor in factors:
        for b in (32, 64):
            add(world, b, 10.0, time_s=100 * factor, energy_j=14_000 * factor, power_limit_w=None)
    found = answer(world, profiles=[])
    base = found.base
    weights = Weights.of(JOB, V100)
    estimated = [step.run for step in found.steps if not step.measured]
    draws = base.draws(estimated, weights)
    epochs = base.default_epochs
    assert draws is not None
    assert epochs is not None
    known = base.epoch_cost(1000.0, weights)
    assert known is not None
    assert known.profiled == 0.0, "no run had a limit"
    off = np.log(draws / epochs[:, 1::2] / known.measured)
    v = sum(math.log(factor) ** 2 for factor in factors) / 3
    assert np.exp(off).mean() == pytest.approx(1.0, abs=0.03), "EpochCost is the mean of its runs"
    assert off.mean() == pytest.approx(-v * 1.25 / 2, abs=0.03)
    assert off.std(0) == pytest.approx([math.sqrt(v * 1.25)] * 4, rel=0.07)
    assert np.corrcoef(off.T)[np.triu_indices(4, 1)] == pytest.approx([0.2] * 6, abs=0.1)
    low = found.steps[0].baseline.low
    high = found.steps[0].baseline.high
    assert low == high == pytest.approx(cost(8.0)), "measured: its own epochs, at its own cost"


def test_what_the_default_draws_is_what_its_newest_runs_drew() -> None:
    world = World(JOB, NEEDS)
    for power_w in (280.0,) * 4 + (140.0,) * NEWEST_RUNS:
        add(world, 32, 10.0, power_w=power_w, power_limit_w=None)
    found = answer(world, profiles=[])
    assert found.base.epoch_cost(1000.0, Weights.of(JOB, V100)) == pytest.approx((cost(1.0), 0.0))
    assert found.steps[0].baseline.value == pytest.approx(cost(10.0, 280.0)), "its own run"


def test_where_the_default_ran_at_full_power_its_cost_is_measured() -> None:
    world = World(JOB, NEEDS)
    add(world, 32, 10.0, time_s=80.0, energy_j=225 * 80.0, power_limit_w=249.8)
    baseline = answer(world).cost.baseline
    assert [baseline.value, baseline.low, baseline.high] == pytest.approx([10 * FULL] * 3)


def test_a_saving_by_the_limit_is_as_uncertain_as_the_profile_that_shows_it() -> None:
    """The profiler aims at 2 % (95 %) at each of two limits;
    the ticks of the counter add to that.
    """
    world = World(JOB, NEEDS)
    for _ in range(4):
        add(world, 32, 10.0)
    found = answer(world)
    baseline = found.cost.baseline
    truth = 4 * 10 * FULL
    assert baseline.value == pytest.approx(truth), "off by nothing on average"
    off = Z * ratio_sd(*PROFILE)
    for end, factor in ((baseline.low, math.exp(-off)), (baseline.high, math.exp(off))):
        assert end == pytest.approx(truth * factor, rel=4e-3), (
            "the same draw in all runs: it does not average out"
        )
    small = answer(world, profiles=[profile(150.0, 140.0, 10.0), profile(250.0, 141.0, 10.0)])
    for saved in (small.cost.saved, small.energy.saved, small.per_run):
        assert (saved.low or 0.0) < 0.0 < (saved.high or 0.0), "less than the profile can show"


@REPRODUCIBLE
@given(
    st.lists(st.integers(1, 99), min_size=1, max_size=4),
    st.floats(0.1, 1e6),
    st.floats(0.1, 400.0),
    st.sampled_from([997.0, 1000.0, 12_345.0]),
    st.floats(0.0, 0.09),
)
def test_runs_of_the_default_at_full_power_saved_exactly_nothing(
    runs: list[int], epoch_s: float, power_w: float, samples: float, rest: float
) -> None:
    """What rounding leaves is neither a saving nor a loss."""
    world = World(JOB, NEEDS, samples=samples)
    for epochs in map(float, runs):
        time_s = epoch_s * epochs
        energy_j = time_s * power_w
        rests = {"rest_s": rest * time_s, "rest_j": rest * energy_j}
        world.add(
            32,
            State.CONVERGED,
            epochs,
            time_s=time_s,
            energy_j=energy_j,
            power_limit_w=None,
            **rests,
        )
    found = answer(world, profiles=[])
    for saved in (found.cost, found.energy, found.time):
        assert saved.saved == Estimate(0.0, 0.0, 0.0)
    assert {step.saved for step in found.steps} == {Estimate(0.0, 0.0, 0.0)}
    assert found.per_run == Estimate(0.0, 0.0, 0.0)
    assert found.break_even_run == 1, "none of them lost"


def test_what_left_no_model_is_exploration_and_is_shown_apart() -> None:
    world = World(JOB, NEEDS)
    add(world, 32, 10.0, excess_s=5.0, excess_j=1_000.0, time_s=105.0, energy_j=15_000.0)
    tried = add(world, 16, 4.0, state=State.GIVEN_UP, phase=Phase.EXPLORE)
    then = add(world, 32, 10.0, phase=Phase.INCUMBENT)
    world.log[1:] = same_run(tried, then)
    found = answer(world)
    assert (found.runs, found.measured) == (2, 2)
    excess = 0.5 * 1_000 + 0.5 * 250 * 5
    assert found.cost.exploration == pytest.approx(cost(4.0) + excess)
    assert found.cost.saved.value == pytest.approx(2 * 10 * FULL - cost(24.0) - excess)
    assert found.cost.settled.value == pytest.approx(2 * 10 * FULL - cost(20.0))


def test_of_a_run_without_a_model_what_was_tried_is_lost_and_what_failed_is_told() -> None:
    world = World(JOB, NEEDS)
    add(world, 32, 10.0)
    before = answer(world).cost.saved.value
    assert before is not None
    tried = add(world, 16, 3.0, state=State.GIVEN_UP)
    failed = add(world, 32, 2.0, state=State.FAILED)
    world.log[-2:] = same_run(tried, failed)
    found = answer(world)
    assert found.cost.saved.value == pytest.approx(before - cost(3.0))
    assert found.aside.failed == 1
    assert found.aside.energy_j == failed.observation.energy_j


@pytest.mark.parametrize(
    ("size", "later", "ours"),
    [
        (64, 32, True),  # another size kept the model: it died of its size, as far as can be told
        (64, 64, False),  # its own size did
        (32, 16, False),  # the default: it would have died without us, too
        (64, None, False),  # no size did
    ],
)
def test_a_failure_is_ours_where_another_size_kept_the_runs_model(
    size: int, later: int | None, ours: bool
) -> None:
    world = World(JOB, NEEDS)
    add(world, 32, 10.0)
    before = answer(world).cost
    died = add(world, size, 2.0, state=State.FAILED)
    if later is not None:
        kept = add(world, later, 10.0)
        world.log[-2:] = same_run(died, kept)
    found = answer(world)
    assert found.aside.failed == (0 if ours else 1)
    explored = (found.cost.exploration or 0.0) - (before.exploration or 0.0)
    assert explored == pytest.approx(cost(2.0) if ours else 0.0)


def test_a_model_that_a_later_try_replaced_was_cleared_and_counts_once() -> None:
    world = World(JOB, NEEDS)
    add(world, 32, 10.0)
    once = answer(world)
    first = world.log[0]
    second = add(world, 32, 10.0)
    world.log[:] = same_run(first, second)
    found = answer(world)
    assert found.aside.cleared == 1
    assert found.aside.energy_j == first.observation.energy_j
    assert (found.cost.spent, found.runs) == (once.cost.spent, 1)


def test_slices_of_another_size_have_another_baseline() -> None:
    world = World(JOB, NEEDS)
    add(world, 32, 10.0)
    world.samples = 2000.0
    add(world, 32, 10.0, time_s=200.0, energy_j=28_000.0)
    assert answer(world).cost.baseline.value == pytest.approx(10 * FULL + 10 * 2 * FULL)


def test_break_even_is_the_run_from_which_on_nothing_is_lost() -> None:
    world = World(JOB, NEEDS)
    add(world, 32, 10.0)  # 19.5 kJ against 19 kJ
    assert answer(world).break_even_run is None
    tried = add(world, 16, 1.0, state=State.GIVEN_UP, phase=Phase.EXPLORE)
    then = add(world, 32, 10.0)
    world.log[-2:] = same_run(tried, then)
    assert answer(world).break_even_run is None
    add(world, 64, 2.0)
    found = answer(world)
    assert (found.break_even_run, found.break_even_in) == (3, None)
    assert (found.cost.saved.value or 0) > 0


def test_not_yet_is_projected_from_what_the_incumbent_saves() -> None:
    world = World(JOB, NEEDS)
    for _ in range(3):
        add(world, 32, 10.0)
        add(world, 64, 5.0)
    add(world, 16, 90.0, state=State.GIVEN_UP)  # 175 kJ
    add(world, 64, 5.0)
    found = answer(world)
    saves = found.per_run.value or 0.0
    saved = found.cost.saved.value or 0.0
    assert 0 < (found.per_run.low or 0.0) < 10 * FULL - cost(5.0) < (found.per_run.high or 0.0)
    assert saved < 0
    assert (found.break_even_run, found.break_even_in) == (None, math.ceil(-saved / saves))


def test_what_one_more_run_pays_for_is_even_after_it() -> None:
    world = World(JOB, NEEDS)
    add(world, 16, 27.0, state=State.GIVEN_UP)
    for _ in range(5):
        add(world, 32, 10.0)
        add(world, 64, 5.0)
    found = answer(world)
    saves = found.per_run.value or 0.0
    saved = found.cost.saved.value or 0.0
    assert saved < 0 < (found.per_run.low or 0.0)
    assert found.break_even_in == math.ceil(-saved / saves)


def test_what_may_save_nothing_projects_no_break_even() -> None:
    world = World(JOB, NEEDS)
    for _ in range(3):
        add(world, 32, 10.0)
    add(world, 64, 8.0)
    died = add(world, 16, 90.0, state=State.FAILED)
    then = add(world, 64, 8.0)
    world.log[-2:] = same_run(died, then)
    found = answer(world)
    assert (found.per_run.low or 0.0) < 0 < (found.per_run.value or 0.0)
    assert (found.cost.saved.value or 0.0) < 0
    assert (found.break_even_run, found.break_even_in) == (None, None)


def test_a_sum_with_a_gap_has_no_break_even() -> None:
    world = World(JOB, NEEDS)
    add(world, 32, 10.0)
    add(world, 64, 2.0)
    assert answer(world).break_even_run == 2
    add(world, 64, 5.0, energy_j=None)
    found = answer(world)
    assert [step.saved.value is None for step in found.steps] == [False, False, True]
    assert (found.break_even_run, found.break_even_in) == (None, None)


def test_a_run_is_expected_to_save_what_the_incumbent_saves_not_what_is_tried_or_audited_next() -> (
    None
):
    world = audited()
    found = answer(world)
    assert [a.batch_size for a in world.decide().attempts] == [32], "an audit"
    assert (found.per_run.value or 0.0) > 1000


def test_on_slices_as_the_newest_after_a_change_of_the_data() -> None:
    """64 first saves half, and after the change it costs three times as much as the default."""
    found = {}
    for runs in (16, 40):
        world = World(replace(JOB, policy="knowledge_gradient"), NEEDS)
        for n in range(runs):
            b = 64 if n % 2 else 32
            add(world, b, {32: 10.0, 64: 5.0 if n < 16 else 30.0}[b], data_slice=f"{n}")
        found[runs] = answer(world), {c.since for c in world.belief.changes}
    (before, none), (after, changes) = found[16], found[40]
    assert none == set()
    assert len(changes) == 1
    assert before.per_run.value == pytest.approx(10 * FULL - cost(5.0), rel=0.15)
    assert after.per_run.value == 0.0, (
        "the default runs again, at full power, the cheapest limit profiled"
    )
    estimated = [step.baseline.value for step in after.steps if not step.measured]
    assert estimated == pytest.approx([10 * FULL] * 20, rel=0.3)


def test_what_never_pays_has_no_break_even() -> None:
    world = World(replace(JOB, mode="observe"), NEEDS)
    for _ in range(3):
        add(world, 32, 10.0, power_w=160.0)
    found = answer(world)
    assert (found.cost.saved.value or 0) < 0
    assert (found.per_run.value or 0) < 0
    assert (found.break_even_run, found.break_even_in) == (None, None)


@pytest.mark.parametrize(
    ("history", "asked", "why"),
    [
        ([], {}, "no run of the default"),
        ([(64, State.CONVERGED)], {}, "no run of the default"),
        ([(32, State.EXHAUSTED)], {}, "no run of the default"),
        ([(32, State.GIVEN_UP), (64, State.CONVERGED)], {}, "no run of the default"),
        ([(32, State.CONVERGED)], {"profiles": []}, "neither measured nor profiled"),
        ([(32, State.CONVERGED)], {"profiles": PROFILE[1:]}, "neither measured nor profiled"),
    ],
)
def test_what_the_log_cannot_say_is_none_with_its_reason(
    history: list[tuple[int, State]], asked: dict[str, Any], why: str
) -> None:
    world = World(JOB, NEEDS)
    for b, state in history:
        add(world, b, 5.0, state=state)
    found = answer(world, **asked)
    for saved in (found.cost, found.energy, found.time):
        assert saved.saved.value is None
        assert why in (saved.saved.reason or "")
    assert (found.per_run.value, found.break_even_run, found.break_even_in) == (None, None, None)


def test_epochs_of_another_gpu_count_its_joules_do_not() -> None:
    world = World(JOB, NEEDS)
    add(world, 32, 12.0)
    world.device = A40
    elsewhere = answer(world, where=A40.where).cost.saved
    assert (elsewhere.value, "this device" in (elsewhere.reason or "")) == (None, True)
    add(world, 32, 8.0)
    found = answer(world)
    assert found.runs == 1
    assert found.time.baseline.value == pytest.approx(8 * FULL_S)
    assert found.time.spent == pytest.approx(80.0)
    assert (
        found.left_out["on another device or by another energy source, for joules and seconds"] == 1
    )


@pytest.mark.parametrize("limit_w", [250.0, None])
def test_runs_at_full_power_need_no_profile(limit_w: float | None) -> None:
    world = World(JOB, NEEDS)
    add(world, 32, 10.0, power_limit_w=limit_w)
    assert answer(world, profiles=[]).cost.baseline.value == pytest.approx(cost(10.0))


def test_where_nothing_measures_energy_time_is_saved() -> None:
    world = World(JOB, NEEDS, {64: 5.0}, device=CPU)
    world.add(32)
    world.add(64)
    found = answer(world, profiles=[])
    assert (found.cost.unit, found.time.unit) == ("s", "s")
    assert found.cost.saved.value == found.time.saved.value
    assert found.time.baseline.value == pytest.approx(
        100.0 + (found.steps[1].baseline.value or 0.0)
    )
    assert (found.cost.saved.value or 0.0) > 30
    assert found.energy.saved.value is None


def test_running_dead_and_foreign_trials_are_left_out_and_counted() -> None:
    world = World(JOB, NEEDS)
    add(world, 32, 10.0)
    world.add(64, State.RUNNING)
    world.died(64)
    add(world, 32, 1.0, spec={"target": "acc >= 0.1"})
    found = answer(world)
    assert found.runs == 1
    assert found.cost.saved.value == pytest.approx(10 * FULL - cost(10.0))
    assert sum(found.left_out.values()) == 3


@REPRODUCIBLE
@given(jobs_and_logs(), profiles(), st.integers(0, 5))
def test_every_log_is_answered_in_numbers_or_reasons(
    job_and_log: tuple[ZeusJob, list[Trial]], profile: list[ProfileSample], seed: int
) -> None:
    job, log = job_and_log
    found = saving(as_dataset(log, job), rng=random.Random(seed), profiles=profile)
    for saved in (found.cost, found.energy, found.time):
        assert saved.spent is None or (math.isfinite(saved.spent) and saved.spent >= 0)
        assert saved.exploration is None or (
            math.isfinite(saved.exploration) and saved.exploration >= 0
        )
        for estimate in (saved.baseline, saved.saved, saved.settled):
            if estimate.value is None:
                assert estimate.reason
                assert estimate.low is estimate.high is None
            else:
                assert math.isfinite(estimate.value)
                assert (estimate.low is None) is (estimate.high is None)
                assert (estimate.low is None) is bool(estimate.reason)
        if saved.saved.value is not None:
            assert saved.saved.value == pytest.approx(
                (saved.baseline.value or 0) - (saved.spent or 0), abs=1e-6
            )
    if found.break_even_run is not None:
        assert 1 <= found.break_even_run <= found.runs
        assert (found.cost.saved.value or 0) >= 0


def test_runs_from_before_a_job_named_sizes_are_no_baseline() -> None:
    world = World(JOB, NEEDS)
    full = {"power_limit_w": 250.0, "epochs": None, "samples_per_epoch": None}
    world.add(
        32, State.DONE, phase=Phase.MEASURED, **full, samples=1000, energy_j=64_000.0, time_s=320.0
    )
    world.log[-1] = replace(world.log[-1], planned=replace(world.log[-1].planned, batch_size=None))
    world.add(32, device_model="A40", epochs=10.0)
    add(world, 64, 10.0)
    assert answer(world).base.why_not == "the default batch size 32 has not run on this device"


@pytest.mark.parametrize("excluded", [[1], [4], [1, 2, 3, 4, 5, 6]])
def test_a_run_that_was_excluded_stays_in_the_savings(excluded: list[int]) -> None:
    world = World(JOB, NEEDS)
    for b in (32, 32, 64, 64, 16, 64):
        add(world, b, NEEDS[b])
    whole = saving(as_dataset(world.log, JOB), rng=random.Random(0), profiles=PROFILE)
    without = saving(
        as_dataset(world.log, JOB, settings={"excluded": excluded}),
        rng=random.Random(0),
        profiles=PROFILE,
    )
    assert (without.runs, without.measured) == (whole.runs, whole.measured) == (6, 2)
    assert (without.cost.spent, without.energy.spent) == (whole.cost.spent, whole.energy.spent)
    assert without.cost.saved.value == pytest.approx(whole.cost.saved.value, rel=0.05)


def test_a_paused_run_of_the_default_neither_saves_nor_loses_by_its_pause() -> None:
    world = World(JOB, NEEDS)
    usual = World(JOB, NEEDS)
    for _ in range(4):
        add(world, 32, 10.0)
        add(usual, 32, 10.0)
    one = usual.log[-1].observation
    more_s = 500.0
    more_j = 10_000.0
    spent = {"time_s": (one.time_s or 0.0) + more_s, "energy_j": (one.energy_j or 0.0) + more_j}
    add(usual, 32, 10.0)
    add(world, 32, 10.0, **spent, paused_s=more_s, paused_j=more_j)
    found = answer(world)
    expected = answer(usual)
    assert found.time.saved.value == pytest.approx(expected.time.saved.value, abs=1e-6)
    assert found.energy.saved.value == pytest.approx(expected.energy.saved.value, abs=1e-6)
    assert found.time.spent == pytest.approx((expected.time.spent or 0.0) + more_s), (
        "the ledger keeps the wall time"
    )
