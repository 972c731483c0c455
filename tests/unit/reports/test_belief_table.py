"""One table per job for both policies: how each batch size stands, what is believed of it,
what was seen.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import ProfileSample, State, Trial
from airflow_provider_zeus.reports.belief_table import (
    BatchSizeStatus,
    BeliefRow,
    belief_table,
    in_reach,
)
from airflow_provider_zeus.reports.dataset import as_dataset
from tests.strategies import A40, CPU, REPRODUCIBLE, jobs_and_logs, profiles
from tests.unit.optimizer.world import World, job_of

POLICIES = ("zeus", "knowledge_gradient")
EPOCH_COST = 2250.0


def lines(world: World, **asked: object) -> dict[int, BeliefRow]:
    return {
        line.batch_size: line
        for line in belief_table(as_dataset(world.log, world.job), **asked).lines
    }  # type: ignore[arg-type]


def world(policy: str, *sizes: int) -> World:
    made = World(job_of(8, 16, 32, 64, 128, 256, default=32, policy=policy), {16: 20.0, 32: 10.0})
    for b in sizes:
        made.add(b)
    return made


@pytest.mark.parametrize("policy", POLICIES)
def test_every_standing_there_is(policy: str) -> None:
    made = world(policy, 32, 16, 32)
    made.add(64, State.GIVEN_UP, epochs=20.0)
    made.died(8, State.FAILED, device_model="V100", out_of_memory=True)
    assert {b: line.standing for b, line in lines(made).items()} == {
        8: BatchSizeStatus.INFEASIBLE,
        16: BatchSizeStatus.CONVERGED,
        32: BatchSizeStatus.INCUMBENT,
        64: BatchSizeStatus.FAILING,
        128: BatchSizeStatus.UNTRIED,
        256: BatchSizeStatus.UNTRIED,
    }
    made.add(128, epochs=11.0)
    assert lines(made)[256].standing is BatchSizeStatus.IN_REACH


@pytest.mark.parametrize("policy", POLICIES)
def test_no_run_is_believed_to_take_more_than_its_epochs(policy: str) -> None:
    made = world(policy, 32, 16, 32)
    most = 19.0  # 16 needs 20, and the smaller ones are believed to need more
    made.job = replace(made.job, max_epochs=19)
    told = [line.believed for line in lines(made).values() if line.believed.cost.value is not None]
    assert any(of.epochs.value == most for of in told), "the bound holds something"
    for of in told:
        assert (of.epochs.value or 0.0) <= most
        assert (of.cost.value or 0.0) <= most * (of.epoch_cost.value or 0.0)
        if of.epoch_cost.high is not None:
            assert of.cost.ends[1] <= most * of.epoch_cost.high


@pytest.mark.parametrize(
    ("policy", "beyond"),
    [("knowledge_gradient", BatchSizeStatus.IN_REACH), ("zeus", BatchSizeStatus.UNTRIED)],
)
def test_what_lies_behind_a_size_that_does_not_fit(policy: str, beyond: BatchSizeStatus) -> None:
    made = world(policy, 32, 16, 32)
    made.died(64, State.FAILED, device_model="V100", out_of_memory=True)
    assert [lines(made)[b].standing for b in (64, 128, 256)] == [
        BatchSizeStatus.INFEASIBLE,
        beyond,
        BatchSizeStatus.UNTRIED,
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_size_whose_runs_had_another_target_or_left_the_window_has_missed_nothing(
    policy: str,
) -> None:
    made = world(policy)
    made.epochs = dict.fromkeys(made.job.batch_sizes, 10.0)
    for b in (32, 64, 128):
        made.add(b, spec={"target": "acc >= 0.5"})
    made.add(32)
    assert [(lines(made)[b].standing, lines(made)[b].stopped) for b in (64, 128, 256)] == [
        (BatchSizeStatus.IN_REACH, 0),
        (BatchSizeStatus.EARLIER, 0),
        (BatchSizeStatus.UNTRIED, 0),
    ]
    long = world(policy, 32)
    for b, state in ((128, State.GIVEN_UP), (64, State.GIVEN_UP)):
        long.add(b, state, 3.0)
    assert [lines(long)[b].standing for b in (64, 128)] == [BatchSizeStatus.FAILING] * 2
    for _ in range(2 * long.job.window):
        long.add(32)
    assert [lines(long)[b].standing for b in (64, 128)] == [
        BatchSizeStatus.IN_REACH,
        BatchSizeStatus.EARLIER,
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_before_any_run_only_the_default_is_in_reach(policy: str) -> None:
    found = lines(world(policy))
    assert [b for b, line in found.items() if line.standing is BatchSizeStatus.IN_REACH] == [32]
    assert all(
        line.believed.cost.value is None and line.believed.cost.reason for line in found.values()
    )
    assert all(
        line.observed_mean.value is None and line.observed_mean.reason for line in found.values()
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_belief_and_observation_side_by_side(policy: str) -> None:
    made = world(policy, 32, 32, 32)
    made.add(32, State.GIVEN_UP, epochs=2.0)
    made.add(32, spec={"target": "acc >= 0.5"}, epochs=1.0)
    line = lines(made)[32]
    assert (line.runs, line.stopped, line.listed) == (3, 1, True)
    assert line.observed == pytest.approx((10 * EPOCH_COST,) * 3)
    assert line.observed_mean.value == pytest.approx(10 * EPOCH_COST)
    b = line.believed
    assert b.epochs.value == pytest.approx(10.0, rel=0.03)
    assert b.epoch_cost.value == pytest.approx(EPOCH_COST)
    assert b.epoch_cost.low == pytest.approx(EPOCH_COST)
    assert b.cost.value == pytest.approx(10 * EPOCH_COST, rel=0.03)
    assert b.cost.low is not None
    assert b.cost.high is not None
    assert b.cost.low < 10 * EPOCH_COST < b.cost.high
    assert b.measured


def test_the_interval_of_policy_zeus_is_the_posterior_of_the_mean() -> None:
    made = world("zeus")
    for epochs in (8.0, 10.0, 12.0):
        made.add(32, epochs=epochs)
    sd = math.sqrt(8 / 3) / math.sqrt(3)
    cost = lines(made)[32].believed.cost
    assert cost.low == pytest.approx((10 - 1.6449 * sd) * EPOCH_COST, rel=1e-4)
    assert cost.high == pytest.approx((10 + 1.6449 * sd) * EPOCH_COST, rel=1e-4)


def test_a_size_never_tried_is_believed_through_its_neighbours_or_not_at_all() -> None:
    near = lines(world("knowledge_gradient", 32, 32))
    assert near[64].believed.cost.value is not None
    width = {
        b: math.log((line.believed.cost.high or 0) / (line.believed.cost.low or 1))
        for b, line in near.items()
    }
    assert width[32] < width[64] < width[128] < width[256]
    assert not near[64].believed.measured
    unknown = lines(world("zeus", 32, 32))[64].believed
    assert unknown.cost.value is None
    assert unknown.cost.reason


@pytest.mark.parametrize("policy", POLICIES)
def test_a_size_that_left_the_list_is_shown_as_history(policy: str) -> None:
    made = world(policy, 32)
    made.epochs = {**made.epochs, 48: 9.0}
    made.add(48, spec={"batch_sizes": [32, 48]})
    line = lines(made)[48]
    assert (line.listed, line.runs, line.standing) == (False, 1, BatchSizeStatus.CONVERGED)


@pytest.mark.parametrize("policy", POLICIES)
def test_on_another_gpu_epochs_stay_and_costs_are_marked_as_not_measured(policy: str) -> None:
    made = world(policy, 32, 32)
    made.device = A40
    made.add(16)
    found = lines(made)
    assert found[32].runs == 2
    assert found[32].observed == ()
    assert not found[32].believed.measured
    assert found[16].believed.measured
    assert found[16].observed == (pytest.approx(20 * 2500.0),)


def test_where_nothing_measures_energy_the_unit_is_seconds() -> None:
    made = World(job_of(32, default=32), {32: 10.0}, device=CPU)
    made.add(32)
    table = belief_table(as_dataset(made.log, made.job))
    assert table.lines[0].believed.cost.value == pytest.approx(100.0)


def test_reach_is_the_neighbours_for_zeus_and_an_octave_too_for_the_other() -> None:
    sizes = [8, 12, 16, 24, 32, 64]
    assert in_reach(sizes, {16}, "zeus") == {12, 16, 24}
    assert in_reach(sizes, {16}, "knowledge_gradient") == {8, 12, 16, 24, 32}


@REPRODUCIBLE
@given(jobs_and_logs(), profiles(), st.sampled_from(POLICIES))
def test_every_log_gives_a_table_of_numbers_or_reasons(
    job_and_log: tuple[ZeusJob, list[Trial]], profile: list[ProfileSample], policy: str
) -> None:
    job = ZeusJob.from_dict({**job_and_log[0].to_dict(), "policy": policy})
    table = belief_table(as_dataset(job_and_log[1], job), profiles=profile)
    assert {line.batch_size for line in table.lines} >= set(job.batch_sizes)
    assert sum(line.standing is BatchSizeStatus.INCUMBENT for line in table.lines) <= 1
    for line in table.lines:
        assert all(math.isfinite(cost) for cost in line.observed)
        for e in (line.believed.epochs, line.believed.epoch_cost, line.believed.cost):
            if e.value is None:
                assert e.reason
            else:
                assert math.isfinite(e.value)
                assert e.low is None or e.high is None or 0 <= e.low <= e.value <= e.high < math.inf
