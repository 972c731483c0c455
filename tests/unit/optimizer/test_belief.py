"""What each kind of trial teaches, and what it does not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_provider_zeus.model.trial import Phase, State
from airflow_provider_zeus.optimizer.belief import Belief, belief_tag
from airflow_provider_zeus.optimizer.policy import learn, prior
from tests.strategies import A40, V100
from tests.unit.optimizer.world import World, job_of

JOB = job_of(16, 32, 64, default=32)
NEEDS = {16: 12.0, 32: 10.0, 64: 9.0}


def test_before_any_trial_nothing_is_known() -> None:
    belief = prior(JOB)
    assert belief == Belief(job=JOB)
    assert belief.last_device() is None
    assert belief.struck == frozenset()
    assert 32 not in belief.infeasible("V100")


def test_a_running_trial_teaches_nothing() -> None:
    world = World(JOB, NEEDS)
    world.add(32, State.RUNNING)
    assert world.belief == prior(JOB)


@pytest.mark.parametrize("state", [State.FAILED, State.ABANDONED])
def test_a_run_that_died_teaches_its_epoch_cost_only(state: State) -> None:
    world = World(JOB, NEEDS)
    world.add(32, state, epochs=4.0, phase=Phase.EXPLORE, round_=1)
    belief = world.belief
    assert not belief.converged
    assert not belief.stopped
    assert not belief.explored
    assert [b for b, _ in belief.rates] == [32]


@pytest.mark.parametrize("run_type", ["backfill", "test"])
def test_backfills_and_test_runs_teach_epoch_cost_only(run_type: str) -> None:
    world = World(JOB, NEEDS)
    world.add(32, phase=Phase.EXPLORE, round_=1, run_type=run_type)
    belief = world.belief
    assert not belief.converged
    assert not belief.explored
    assert not belief.listed
    assert [b for b, _ in belief.rates] == [32]


@pytest.mark.parametrize("run_type", ["scheduled", "asset_triggered", "manual"])
def test_scheduled_asset_and_manual_runs_teach_epochs(run_type: str) -> None:
    world = World(JOB, NEEDS)
    world.add(32, run_type=run_type)
    assert world.belief.converged == ((1, 32, 10.0),)


def test_test_runs_teach_epochs_where_the_job_says_so() -> None:
    world = World(replace(JOB, learn_from=("test",)), NEEDS)
    world.add(32, run_type="test")
    world.add(32, run_type="scheduled")
    assert world.belief.converged == ((1, 32, 10.0),)


def test_a_new_target_resets_epochs_and_keeps_epoch_costs() -> None:
    world = World(JOB, NEEDS)
    world.runs(6)
    world.job = replace(JOB, target="acc >= 0.95")
    belief = world.belief
    assert not belief.converged
    assert not belief.explored
    assert {b for b, _ in belief.rates} == {16, 32, 64}
    first, *_ = world.decide().attempts
    assert (first.batch_size, first.phase, first.round) == (32, Phase.EXPLORE, 1)


def test_a_target_written_otherwise_is_the_same_target() -> None:
    world = World(JOB, NEEDS)
    world.runs(6)
    converged = world.belief.converged
    world.job = replace(JOB, target="acc>=0.90")
    assert world.belief.converged == converged


def test_a_new_job_version_resets_both() -> None:
    world = World(JOB, NEEDS)
    world.runs(6)
    world.job = replace(JOB, job_version="2")
    assert world.belief == prior(world.job)


@pytest.mark.parametrize(("eta", "best"), [(0.0, 64), (1.0, 16)])
def test_a_changed_eta_recosts_the_history(eta: float, best: int) -> None:
    world = World(JOB, NEEDS)
    for b, time_s, energy_j in (
        (16, 200.0, 10_000.0),
        (32, 150.0, 20_000.0),
        (64, 100.0, 30_000.0),
    ):
        world.add(b, time_s=time_s, energy_j=energy_j)
    world.job = JOB.with_settings({"eta": eta})
    assert world.decide(settings={"pause_exploration": True}).attempts[0].batch_size == best


def test_changed_batch_sizes_keep_the_history_of_those_that_stay() -> None:
    world = World(JOB, NEEDS)
    world.runs(6)
    world.job = job_of(32, 64, default=64)
    assert world.decide().attempts[0].phase is Phase.SAMPLE
    assert {world.decide(seed=s).attempts[-1].batch_size for s in range(100)} <= {32, 64}


def test_the_window_holds_the_newest_converged_runs_of_the_whole_job() -> None:
    world = World(job_of(16, 32, default=32, window=4), NEEDS)
    for b in (16, 32, 32, 16, 32, 32):
        world.add(b)
    world.add(16, State.GIVEN_UP, epochs=2.0)
    assert [n for n, _, _ in world.belief.converged] == [3, 4, 5, 6]
    assert world.belief.window_start() == 3


def test_a_given_up_run_of_unknown_length_ends_the_walk_too() -> None:
    world = World(JOB, NEEDS)
    world.run()
    world.add(16, State.GIVEN_UP, epochs=0.0, phase=Phase.EXPLORE, round_=1)
    assert world.belief.explored[1, 16] == (2, False)
    assert world.decide().attempts[0].batch_size == 64


def test_the_last_device_is_that_of_the_newest_trial_by_number() -> None:
    world = World(JOB, NEEDS)
    world.add(32)
    world.device = A40
    world.add(32)
    newest, oldest = reversed(world.log)
    assert learn(learn(prior(JOB), newest), oldest).last_device() == A40
    assert world.belief.last_device() == A40


def test_a_size_that_reached_its_target_again_has_missed_nothing_lately() -> None:
    world = World(replace(JOB, policy="knowledge_gradient"), NEEDS)
    missed = {"state": State.EXHAUSTED, "epochs": 100.0}
    world.add(32)
    world.add(32, **missed)
    assert world.belief.missed_lately(32) == 1
    world.add(32)
    assert world.belief.missed_lately(32) == 0
    world.add(32, **missed)
    assert world.belief.missed_lately(32) == 1
    assert world.belief.missed_lately(64) == 0


def test_a_checkpoint_s_tag_holds_all_that_a_belief_depends_on() -> None:
    tag = belief_tag(prior(JOB))
    changes = (
        {"target": "acc >= 0.8"},
        {"job_version": "2"},
        {"window": 99},
        {"learn_from": ("manual",)},
    )
    for changed in (*changes, {"policy": "knowledge_gradient"}):
        assert belief_tag(prior(replace(JOB, **changed))) != tag
    for same in ({"eta": 0.1}, {"batch_sizes": (32, 128)}, {"max_epochs": 7}):
        assert belief_tag(prior(replace(JOB, **same))) == tag
    assert belief_tag(prior(replace(JOB, learn_from=JOB.learn_from[::-1]))) == tag


def test_a_checkpoint_is_one_strict_json_document_and_small() -> None:
    world = World(replace(JOB, window=50), NEEDS)
    for number in range(200):
        world.add((16, 32, 64)[number % 3])
    text = world.belief.to_json()
    assert json.loads(text)["newest"] == [200, False]
    assert len(text) < 6_000
    assert Belief.from_json(prior(world.job), text).last_device() == V100
