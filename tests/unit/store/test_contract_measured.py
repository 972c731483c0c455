"""Runs for which no batch size is chosen, on each store: rows without one,
which teach nothing about sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import Phase, ProfileSample, State
from airflow_provider_zeus.store.base import AskAnswer
from airflow_provider_zeus.store.sql.measurements import MEASURED_KEPT_S
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.store.store_kit import JOB, Clock, report, request, run, seen

MEASURED = ZeusJob(mode="measure")


def measured(
    store: Store, n: int, job: ZeusJob = MEASURED, *, points: int = 0, **changes: Any
) -> AskAnswer:
    asked = store.ask(request(n, job=job, device=None))
    told = report(points=points)
    store.tell(
        asked.trial.key, State.DONE, replace(told, observation=seen(**{"epochs": None, **changes}))
    )
    return asked


def test_a_row_has_no_batch_size_and_comes_back_as_it_was(store: Store) -> None:
    asked = measured(store, 1)
    (trial,) = store.trials("d.train")
    assert (trial.batch_size, trial.planned.phase, trial.state) == (
        None,
        Phase.MEASURED,
        State.DONE,
    )
    assert trial.spec["default_batch_size"] is None
    assert trial.job == MEASURED
    assert trial.key == asked.trial.key
    assert store.unreadable == []


def test_live_settings_and_a_switched_off_provider_change_no_size_and_eta_weighs_the_limit(
    store: Store, set_setting: Callable[[str, str], None]
) -> None:
    asked = store.ask(request(1, job=MEASURED, device=None, pinned_by="[zeus] enabled = measure"))
    assert asked.trial.planned.phase is Phase.MEASURED
    store.tell(asked.trial.key, State.DONE, report())
    set_setting(
        "zeus-settings:d.train", '{"pin_batch_size": 32, "pause_exploration": true, "eta": 0.9}'
    )
    tuned = store.ask(request(2, job=ZeusJob(eta=0.1), device=None)).trial
    assert (tuned.planned.phase, tuned.batch_size, tuned.job.eta) == (Phase.MEASURED, None, 0.9)


def test_a_try_that_was_killed_is_closed_by_the_next_one(store: Store) -> None:
    store.ask(request(1, job=MEASURED, device=None))
    again = request(1, ti_id="ti-1-again", job=MEASURED, device=None)
    store.ask(replace(again, origin=replace(again.origin, try_number=2)))
    killed, running = store.trials("d.train")
    assert (killed.state, running.state) == (State.ABANDONED, State.RUNNING)


def test_a_job_that_names_sizes_later_knows_nothing_of_them(store: Store) -> None:
    for n in (1, 2, 3):
        measured(store, n)
    asked = store.ask(request(4, device=None))
    assert (asked.trial.batch_size, asked.trial.planned.phase) == (
        JOB.default_batch_size,
        Phase.EXPLORE,
    )
    assert asked.trial.number == 4


def test_going_back_leaves_what_was_learned(store: Store) -> None:
    run(store, 1)
    measured(store, 2)
    before = store.trials("d.train")[0]
    assert (before.batch_size, before.state) == (32, State.CONVERGED)
    assert run(store, 3).trial.number == 3


def test_the_profile_of_its_steps_comes_back_by_device(store: Store) -> None:
    job = ZeusJob()
    asked = store.ask(request(1, job=job, device=None))
    sample = ProfileSample(
        batch_size=7_000_000_001, limit_w=200.0, samples=10, energy_j=2.0, time_s=1.0, steps=10
    )
    told = Report(observation=seen(epochs=None, step_kind=7_000_000_001), profile=[sample])
    store.tell(asked.trial.key, State.DONE, told)
    assert store.ask(request(2, job=job, device=None)).profile == (sample,)
    assert store.trials("d.train")[0].observation.step_kind == 7_000_000_001


def test_power_points_go_after_90_days_and_figures_stay(store: Store, clock: Clock) -> None:
    old = measured(store, 1, points=3).trial.key
    clock.t += MEASURED_KEPT_S + 1.0
    new = measured(store, 2, points=3).trial.key
    measured(store, 3)
    assert store.points(old) == []
    assert len(store.points(new)) == 3
    assert store.trials("d.train")[0].observation.energy_j is not None
