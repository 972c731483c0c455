"""Which part of an odd log is read, and what is said of the rest."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import BATCH_SIZE, DeviceInfo, ProfileSample, State, Trial
from airflow_provider_zeus.reports.belief_table import belief_table
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.eta_choices import choice_at
from airflow_provider_zeus.reports.next_run import NextDecision
from airflow_provider_zeus.reports.pareto import pareto
from airflow_provider_zeus.reports.savings import saving
from tests.strategies import A40, REPRODUCIBLE, V100, jobs_and_logs
from tests.unit.optimizer.world import World, job_of

JOB = job_of(16, 32, 64, default=32)
NEEDS = {16: 12.0, 32: 10.0, 64: 9.0}


def world(*sizes: int) -> World:
    made = World(JOB, NEEDS)
    for b in sizes:
        made.add(b)
    return made


def test_of_a_trial_written_twice_the_one_stored_last_counts() -> None:
    log = world(32, 64).log
    late = replace(log[0], told_seq=7, observation=replace(log[0].observation, epochs=11.0))
    for order in ([late, *log], [*log, late]):
        found = as_dataset(order, JOB)
        assert [t.observation.epochs for t in found.trials] == [11.0, 9.0]
        assert found.left_out == {"written twice": 1}


def test_a_state_of_another_version_is_left_out_and_counted() -> None:
    log = world(32, 64).log
    log[1] = replace(log[1], state="frozen")  # type: ignore[arg-type]
    found = as_dataset(log, JOB)
    assert [t.number for t in found.trials] == [1]
    assert found.left_out == {"in a state or phase that this version does not know": 1}


def test_a_phase_of_another_version_is_left_out_and_counted() -> None:
    log = world(32, 64).log
    log[1] = replace(log[1], planned=replace(log[1].planned, phase="double"))  # type: ignore[arg-type]
    assert [t.number for t in as_dataset(log, JOB).trials] == [1]


def test_another_job_version_teaches_nothing_another_target_no_totals() -> None:
    made = world(32)
    made.add(64, spec={"job_version": "0"})
    made.add(64, spec={"target": "acc >= 0.5"})
    found = as_dataset(made.log, JOB)
    assert [t.number for t in found.trials] == [1, 3]
    assert found.left_out == {"of another job_version": 1}
    assert found.of_target().left_out == {"of another job_version": 1, "of another target": 1}
    assert [t.number for t in found.of_target().trials] == [1]


def test_a_log_of_another_policy_and_list_is_history_like_any_other() -> None:
    made = world()
    old = {"policy": "knowledge_gradient", "batch_sizes": [32, 48], "eta": 1.0}
    made.epochs = {**NEEDS, 48: 8.0}
    made.add(48, spec=old)
    made.add(32, spec=old)
    found = as_dataset(made.log, JOB)
    assert len(found.trials) == 2
    assert found.left_out == {}


@pytest.mark.parametrize(
    "other",
    [A40, replace(V100, energy_source="rapl"), replace(V100, count=2), replace(V100, model="H100")],
)
def test_joules_are_of_one_device_count_and_source_the_newest_unless_named(
    other: DeviceInfo,
) -> None:
    made = world(32, 64)
    made.device = other
    made.add(16)
    newest = as_dataset(made.log, JOB)
    assert (newest.where, [t.number for t in newest.here()]) == (other.where, [3])
    assert newest.left_out == {
        "on another device or by another energy source, for joules and seconds": 2
    }
    older = as_dataset(made.log, JOB, V100.where)
    assert [t.number for t in older.here()] == [1, 2]
    assert older.device == V100
    assert len(older.trials) == 3, "Epochs are taught by every device"


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf, -1.0])
def test_a_figure_that_cannot_be_is_a_missing_one(broken: float) -> None:
    made = world(32)
    made.add(64, energy_j=broken, metric=-3.0)
    seen = as_dataset(made.log, JOB).trials[1].observation
    assert (seen.energy_j, seen.metric) == (None, -3.0)


def test_what_may_be_below_0_stays() -> None:
    """Windows at limits that draw less than the chosen one, and a price of the hour."""
    signed = {"excess_j": -48.0, "excess_s": 0.5, "price_per_kwh": -0.02}
    log = [replace(t, observation=replace(t.observation, **signed)) for t in world(32, 64).log]
    found = as_dataset(log, JOB)
    assert [t.observation.excess_j for t in found.trials] == [-48.0, -48.0]
    assert [t.observation.price_per_kwh for t in found.trials] == [-0.02, -0.02]
    assert saving(as_dataset(log, JOB), rng=random.Random(0)).cost.exploration is not None


@REPRODUCIBLE
@given(jobs_and_logs(), st.data())
def test_any_order_and_any_number_of_copies_is_the_same_dataset(
    job_and_log: tuple[ZeusJob, list[Trial]], data: st.DataObject
) -> None:
    job, log = job_and_log
    copies = data.draw(st.lists(st.sampled_from(log), max_size=5)) if log else []
    mixed = data.draw(st.permutations([*log, *copies]))
    once = as_dataset(log, job)
    twice = as_dataset(mixed, job)
    assert twice.trials == once.trials
    assert twice.where == once.where
    assert twice.left_out.get("written twice", 0) == len(copies)
    assert twice.belief() == once.belief()
    assert all(t.state in State for t in twice.trials)


@REPRODUCIBLE
@given(jobs_and_logs(), st.sampled_from([0.0, 0.3, 1.0]))
def test_answers_that_share_one_fold_are_the_same_answers(
    made: tuple[ZeusJob, list[Trial]], eta: float
) -> None:
    job, log = made
    shared = as_dataset(log, job)
    shared = replace(shared, folded=shared.belief())
    profiles = [
        ProfileSample(batch_size=b, limit_w=200.0, samples=9, energy_j=9.0, time_s=1.0)
        for b in job.batch_sizes
    ]
    assert belief_table(shared) == belief_table(as_dataset(log, job))
    assert pareto(shared) == pareto(as_dataset(log, job))
    decided = NextDecision.of(shared, profiles=profiles)
    assert decided == NextDecision.of(as_dataset(log, job), profiles=profiles)
    choices = [
        choice_at(eta, of, decided, profiles=profiles) for of in (shared, as_dataset(log, job))
    ]
    assert choices[0] == choices[1]
    assert saving(shared, rng=random.Random(1)) == saving(
        as_dataset(log, job), rng=random.Random(1)
    )


def test_a_run_that_did_not_use_its_batch_size_is_no_saving() -> None:
    made = world(32, 32)
    made.add(64, reasons={BATCH_SIZE: "no step was counted"})
    found = as_dataset(made.log, JOB)
    assert ([t.batch_size for t in found.trials], found.left_out) == (
        [32, 32],
        {"not seen to use the chosen batch size": 1},
    )
    saved = saving(as_dataset(made.log, JOB), rng=random.Random(0))
    assert (saved.runs, saved.left_out) == (2, {"not seen to use the chosen batch size": 1})
