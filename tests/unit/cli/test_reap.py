"""``airflow zeus reap``: limits given back, costs told, expired trials closed; a second time nothing is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider_zeus.optimizer.trial import State, TrialKey
from airflow_provider_zeus.power import record
from airflow_provider_zeus.power.simulated import open_simulated
from airflow_provider_zeus.store.airflow_variables import AirflowVariables
from airflow_provider_zeus.store.base import Store
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.untold import remember
from tests.unit.cli.conftest import Zeus
from tests.unit.store.store_kit import DictPort, report, request, seen

GPU = "simulated:v100/shufflenet"
NOTHING = [
    "Power limits in {home}/state: 0 orphaned records served.",
    "Costs not yet told: 0 costs told to sqlite:{home}/zeus.db, 0 left.",
    "Expired trials: 0 trials closed as abandoned.",
]


def nothing(home: Path) -> str:
    return "\n".join(NOTHING).format(home=home) + "\n"


def test_an_expired_trial_is_closed_once(zeus: Zeus, store: Store, home: Path) -> None:
    store.ask(request(1, lease_s=-1.0))
    store.ask(request(1, job_id="alive", ti_id="alive"))
    done = zeus("reap")
    assert done.status == 0
    assert "Expired trials: 1 trial closed as abandoned.\n  d.train: trial 1 of run run1\n" in done.out
    (trial,) = open_store().trials("d.train")
    assert (trial.state, trial.told_seq) == (State.ABANDONED, 1)
    assert open_store().trials("alive")[0].state is State.RUNNING
    assert zeus("reap").out == nothing(home)


def test_costs_kept_in_variables_and_files_are_told(zeus: Zeus, store: Store, home: Path) -> None:
    keys = [store.ask(request(n, lease_s=-1.0, job_id=f"j{n}")).trial.key for n in (1, 2)]
    remember(AirflowVariables(), keys[0], State.CONVERGED, report(), "j1")
    down = DictPort()
    down.down = True
    remember(down, keys[1], State.CONVERGED, report(), "j2", state_dir=home / "state")
    done = zeus("reap")
    assert done.status == 0
    assert f"Costs not yet told: 2 costs told to sqlite:{home}/zeus.db, 0 left." in done.out
    for job_id in ("j1", "j2"):
        (trial,) = open_store().trials(job_id)
        assert (trial.state, trial.observation) == (State.CONVERGED, seen())
    assert zeus("reap").out == nothing(home)


def test_a_cost_that_cannot_be_told_is_named_and_left(zeus: Zeus, store: Store) -> None:
    remember(AirflowVariables(), TrialKey("never-asked"), State.CONVERGED, report(), "d.train")
    for _ in range(2):
        done = zeus("reap")
        assert done.status == 1
        assert "0 costs told" in done.out
        assert "1 left.\n  left: Variable zeus-untold:never-asked:1\n" in done.out


@pytest.mark.parametrize("with_store", [True, False])
def test_a_limit_left_by_a_dead_training_is_given_back(
    zeus: Zeus, home: Path, request: pytest.FixtureRequest, with_store: bool
) -> None:
    if with_store:
        request.getfixturevalue("store")
    state_dir = home / "state"
    state_dir.mkdir()
    gpu = open_simulated(GPU, state_dir)
    found_w = gpu.limit_w()
    left = {"restore": gpu.restore_record(), "limit_found_w": found_w, "limits_set_w": [150.0]}
    os.close(record.create(str(state_dir / "limit-dead.json"), left))  # nobody holds it now
    gpu.set_limit_w(150.0)
    done = zeus("reap")
    assert gpu.limit_w() == found_w
    assert "1 orphaned record served" in done.out
    assert done.status == 0
    assert ("There is no trial log yet" in done.out) is not with_store
    assert "0 orphaned records served" in zeus("reap").out


def test_before_the_first_run_there_is_nothing_to_reap(zeus: Zeus, home: Path) -> None:
    done = zeus("reap")
    assert (done.status, done.err) == (0, "")
    assert f"There is no trial log yet at {home}/zeus.db" in done.out
    assert "0 left." in done.out
    assert not (home / "zeus.db").exists()


def test_a_cost_kept_before_there_is_a_log_is_named_and_left(zeus: Zeus, home: Path) -> None:
    remember(AirflowVariables(), TrialKey("lost"), State.CONVERGED, report(), "d.train")
    done = zeus("reap")
    assert done.status == 1
    assert "1 left.\n  left: Variable zeus-untold:lost:1\n" in done.out


def test_where_no_log_can_be_the_remedy_is_said(zeus: Zeus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    done = zeus("reap")
    assert done.status == 1
    assert "define it to a PostgreSQL database" in done.err


def test_a_limit_of_a_living_training_is_left(zeus: Zeus, store: Store, home: Path) -> None:
    state_dir = home / "state"
    state_dir.mkdir()
    gpu = open_simulated(GPU, state_dir)
    held = {"restore": gpu.restore_record(), "limit_found_w": gpu.limit_w(), "limits_set_w": [150.0]}
    descriptor = record.create(str(state_dir / "limit-held.json"), held)
    gpu.set_limit_w(150.0)
    assert zeus("reap").out == nothing(home)
    assert gpu.limit_w() == 150.0
    os.close(descriptor)
