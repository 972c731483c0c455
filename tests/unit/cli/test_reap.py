"""``airflow zeus reap``: limits given back, costs told, expired trials closed; a second time nothing is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider_zeus.model.trial import State, TrialKey
from airflow_provider_zeus.power.limits import record
from airflow_provider_zeus.power.simulated.gpu import open_simulated
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.pending import remember
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from tests.unit.cli.conftest import Zeus
from tests.unit.store.store_kit import DictPort, report, request, seen

GPU = "simulated:v100/shufflenet"
SNAPSHOTS = Path(__file__).parent / "snapshots"


def snapshot(name: str, home: Path) -> str:
    return (SNAPSHOTS / name).read_text().format(home=home)


def test_an_expired_trial_is_closed_once(zeus: Zeus, store: Store, home: Path) -> None:
    store.ask(request(1, lease_s=-1.0))
    store.ask(request(1, job_id="alive", ti_id="alive"))
    done = zeus("reap")
    assert done.status == 0
    assert "trial 1 of run run1\n" in done.out
    (trial,) = open_store().trials("d.train")
    assert (trial.state, trial.told_seq) == (State.ABANDONED, 1)
    assert open_store().trials("alive")[0].state is State.RUNNING
    assert zeus("reap").out == snapshot("reap_again.txt", home)


def test_pending_costs_in_variables_and_files_are_stored(zeus: Zeus, store: Store, home: Path) -> None:
    keys = [store.ask(request(n, lease_s=-1.0, job_id=f"j{n}")).trial.key for n in (1, 2)]
    remember(AirflowVariables(), keys[0], State.CONVERGED, report(), "j1")
    down = DictPort()
    down.down = True
    remember(down, keys[1], State.CONVERGED, report(), "j2", state_dir=home / "state")
    done = zeus("reap")
    assert done.status == 0
    assert f"2 costs stored in sqlite:{home}/zeus.db, 0 left." in done.out
    for job_id in ("j1", "j2"):
        (trial,) = open_store().trials(job_id)
        assert (trial.state, trial.observation) == (State.CONVERGED, seen())
    assert zeus("reap").out == snapshot("reap_again.txt", home)


def test_a_cost_that_cannot_be_stored_is_named_and_left(zeus: Zeus, store: Store, home: Path) -> None:
    remember(AirflowVariables(), TrialKey("never-asked"), State.CONVERGED, report(), "d.train")
    store.ask(request(1, lease_s=-1.0))
    done = zeus("reap")
    assert (done.status, done.out) == (1, snapshot("reap.txt", home))
    done = zeus("reap")
    assert done.status == 1
    assert "  left: Variable zeus-untold:never-asked:1\n" in done.out


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
    left = {"restore": gpu.restore_record(), "found_w": found_w, "set_w": [150.0]}
    os.close(record.create(str(state_dir / "limit-dead.json"), left))  # no process holds its lock
    gpu.set_limit_w(150.0)
    done = zeus("reap")
    assert gpu.limit_w() == found_w
    assert "1 orphaned record restored" in done.out
    assert done.status == 0
    assert ("no trial log yet" in done.out) is not with_store
    assert "0 orphaned records restored" in zeus("reap").out


def test_before_the_first_run_there_is_nothing_to_reap(zeus: Zeus, home: Path) -> None:
    done = zeus("reap")
    assert (done.status, done.err) == (0, "")
    assert f"log yet at {home}/zeus.db" in done.out
    assert "0 left." in done.out
    assert not (home / "zeus.db").exists()


def test_a_cost_kept_before_there_is_a_log_is_named_and_left(zeus: Zeus, home: Path) -> None:
    remember(AirflowVariables(), TrialKey("lost"), State.CONVERGED, report(), "d.train")
    done = zeus("reap")
    assert done.status == 1
    assert "  left: Variable zeus-untold:lost:1\n" in done.out


def test_where_no_log_can_be_the_remedy_is_said(zeus: Zeus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    done = zeus("reap")
    assert done.status == 1
    assert "a PostgreSQL database" in done.err


def test_a_limit_of_a_living_training_is_left(zeus: Zeus, store: Store, home: Path) -> None:
    state_dir = home / "state"
    state_dir.mkdir()
    gpu = open_simulated(GPU, state_dir)
    held = {"restore": gpu.restore_record(), "found_w": gpu.limit_w(), "set_w": [150.0]}
    descriptor = record.create(str(state_dir / "limit-held.json"), held)
    gpu.set_limit_w(150.0)
    assert zeus("reap").out == snapshot("reap_again.txt", home)
    assert gpu.limit_w() == 150.0
    os.close(descriptor)
