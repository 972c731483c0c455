"""``airflow zeus repair``: limits restored, costs stored, expired trials closed;
a second time nothing is left.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import State, TrialKey
from airflow_provider_zeus.power.limits import record
from airflow_provider_zeus.power.simulated.gpu import open_simulated
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.pending import remember
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from tests.golden import Table
from tests.unit.cli.conftest import Done, Zeus
from tests.unit.store.store_kit import DictPort, report, request, seen

GPU = "simulated:v100/shufflenet"


def check(situation: str, done: Done, home: Path) -> None:
    """What people read is a row of the table."""
    text = done.out.replace(str(home), "HOME").replace(os.uname().nodename, "HOST")
    Table("repair").check(situation, text)


def left_limit(home: Path) -> tuple[Any, Path]:
    """A simulated GPU at 150 W, and the record of the training that set it and is dead."""
    state_dir = home / "state"
    state_dir.mkdir()
    gpu = open_simulated(GPU, state_dir)
    left = {"restore": gpu.restore_record(), "found_w": gpu.limit_w(), "set_w": [150.0]}
    path = state_dir / "limit-dead.json"
    os.close(record.create(str(path), left))  # no process holds its lock
    gpu.set_limit_w(150.0)
    return gpu, path


def test_an_expired_trial_is_closed_once(zeus: Zeus, store: Store, home: Path) -> None:
    store.ask(request(1, lease_s=-1.0))
    store.ask(request(1, job_id="alive", ti_id="alive"))
    done = zeus("repair")
    assert done.status == 0
    check("an attempt expired", done, home)
    (trial,) = open_store().trials("d.train")
    assert (trial.state, trial.told_seq) == (State.ABANDONED, 1)
    assert open_store().trials("alive")[0].state is State.RUNNING
    check("nothing is left", zeus("repair"), home)


def test_a_kept_model_whose_process_was_killed_is_named(
    zeus: Zeus, store: Store, home: Path
) -> None:
    folder = home / "models" / "zeus-attempt-a"
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"0" * 12_345)
    # no process holds its lock
    folder.with_suffix(".lock").write_text(f"kept by {os.uname().nodename}")
    for _ in range(2):
        done = zeus("repair")
        assert done.status == 0
        check("a kept model's process was killed", done, home)
        assert (folder / "weights").exists()


def test_pending_costs_in_variables_and_files_are_stored(
    zeus: Zeus, store: Store, home: Path
) -> None:
    keys = [store.ask(request(n, lease_s=-1.0, job_id=f"j{n}")).trial.key for n in (1, 2)]
    remember(AirflowVariables(), keys[0], State.CONVERGED, report(), "j1")
    down = DictPort()
    down.down = True
    remember(down, keys[1], State.CONVERGED, report(), "j2", state_dir=home / "state")
    done = zeus("repair")
    assert done.status == 0
    check("two costs were pending", done, home)
    for job_id in ("j1", "j2"):
        (trial,) = open_store().trials(job_id)
        assert (trial.state, trial.observation) == (State.CONVERGED, seen())
    check("nothing is left", zeus("repair"), home)


def test_a_cost_that_cannot_be_stored_is_named_and_left(
    zeus: Zeus, store: Store, home: Path
) -> None:
    remember(AirflowVariables(), TrialKey("never-asked"), State.CONVERGED, report(), "d.train")
    store.ask(request(1, lease_s=-1.0))
    done = zeus("repair")
    assert done.status == 1
    check("a cost cannot be stored, and an attempt expired", done, home)
    done = zeus("repair")
    assert done.status == 1
    check("a cost cannot be stored", done, home)


@pytest.mark.parametrize("with_store", [True, False])
def test_a_limit_left_by_a_dead_training_is_given_back(
    zeus: Zeus, home: Path, request: pytest.FixtureRequest, with_store: bool
) -> None:
    if with_store:
        request.getfixturevalue("store")
    gpu, path = left_limit(home)
    done = zeus("repair")
    assert gpu.limit_w() == 250.0
    assert not path.exists()
    assert done.status == 0
    check(
        "a limit was left" if with_store else "a limit was left, and there is no log yet",
        done,
        home,
    )
    assert "Power limits: 0 restored" in zeus("repair").out


def test_before_the_first_run_there_is_nothing_to_repair(zeus: Zeus, home: Path) -> None:
    done = zeus("repair")
    assert (done.status, done.err) == (0, "")
    check("there is no log yet", done, home)
    assert not (home / "zeus.db").exists()


def test_a_cost_kept_before_there_is_a_log_is_named_and_left(zeus: Zeus, home: Path) -> None:
    remember(AirflowVariables(), TrialKey("lost"), State.CONVERGED, report(), "d.train")
    done = zeus("repair")
    assert done.status == 1
    check("a cost was kept before there is a log", done, home)


@pytest.mark.parametrize(
    "unset", ["AIRFLOW__CORE__EXECUTOR", "AIRFLOW_CONN_ZEUS_DEFAULT", "AIRFLOW__ZEUS__LEASE_S"]
)
def test_limits_are_restored_also_where_no_store_can_be_reached(
    zeus: Zeus, home: Path, monkeypatch: pytest.MonkeyPatch, unset: str
) -> None:
    problems = {
        "AIRFLOW__CORE__EXECUTOR": ("CeleryExecutor", "define it to a PostgreSQL database"),
        "AIRFLOW_CONN_ZEUS_DEFAULT": ("postgresql://u:s3cr3t@127.0.0.1:9/zeus", "cannot be used"),
        "AIRFLOW__ZEUS__LEASE_S": ("5", None),  # of which this command reads nothing
    }
    value, problem = problems[unset]
    monkeypatch.setenv(unset, value)
    gpu, path = left_limit(home)
    done = zeus("repair")
    assert gpu.limit_w() == 250.0
    assert not path.exists()
    assert "Power limits: 1 restored" in done.out
    assert done.status == (0 if problem is None else 1)
    if problem is not None:
        pending, expired = done.err.splitlines()[-2:]
        assert pending.startswith("Pending costs: ")
        assert expired.startswith("Expired attempts: ")
        assert problem in pending
        assert problem in expired
        assert "s3cr3t" not in done.err


def test_a_limit_that_cannot_be_restored_stops_nothing_else(
    zeus: Zeus, store: Store, home: Path
) -> None:
    gpu, path = left_limit(home)
    gpu_file = home / "state" / "simulated-v100-shufflenet.gpu"
    gpu_file.rename(home / "away")
    store.ask(request(1, lease_s=-1.0))
    done = zeus("repair")
    assert done.status == 1
    assert "  left: limit-dead.json: " in done.out
    assert "Expired attempts: 1 closed" in done.out
    assert path.exists()
    (home / "away").rename(gpu_file)  # the device is back
    assert zeus("repair").status == 0
    assert gpu.limit_w() == 250.0
    assert not path.exists()


def test_costs_that_cannot_be_searched_stop_nothing_else(
    zeus: Zeus, store: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> list[str]:
        raise StoreError("Airflow's Variables cannot be listed.")

    monkeypatch.setattr(AirflowVariables, "keys", away)
    gpu, _ = left_limit(home)
    store.ask(request(1, lease_s=-1.0))
    done = zeus("repair")
    assert done.status == 1
    assert "Pending costs: Airflow's Variables cannot be listed.\n" in done.err
    assert "Expired attempts: 1 closed" in done.out
    assert gpu.limit_w() == 250.0


def test_an_error_of_any_kind_stops_nothing_else(
    zeus: Zeus, store: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("airflow_provider_zeus.cli.repair.restore_orphans", breaks)
    store.ask(request(1, lease_s=-1.0))
    done = zeus("repair")
    assert done.status == 1
    assert "Power limits: the step itself failed: RuntimeError: boom." in done.err
    assert "Expired attempts: 1 closed" in done.out


def test_a_reader_who_has_seen_enough_is_no_step_that_failed(
    zeus: Zeus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``| head`` leaves it where each line is written at once."""
    read, write = os.pipe()
    os.close(read)
    with monkeypatch.context() as piped, open(write, "w", buffering=1) as stdout:
        piped.setattr(sys, "stdout", stdout)
        done = zeus("repair")
    assert (done.status, done.err) == (1, "")


def test_a_limit_of_a_living_training_is_left(zeus: Zeus, store: Store, home: Path) -> None:
    state_dir = home / "state"
    state_dir.mkdir()
    gpu = open_simulated(GPU, state_dir)
    held = {"restore": gpu.restore_record(), "found_w": gpu.limit_w(), "set_w": [150.0]}
    descriptor = record.create(str(state_dir / "limit-held.json"), held)
    gpu.set_limit_w(150.0)
    check("nothing is left", zeus("repair"), home)
    assert gpu.limit_w() == 150.0
    os.close(descriptor)
