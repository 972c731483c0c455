"""The limit found, from one run to the next through the run log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import State, Trial, TrialKey
from airflow_provider_zeus.power.factory import open_device
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.integration.jobs import job, log_of, zeus_dag

GPU = "simulated:v100/bert_sa"


@pytest.fixture
def gpu(airflow_home: Path) -> Any:
    device = open_device(GPU, state_dir=airflow_home / "zeus")
    device.set_limit_w(250.0)
    yield device
    device.set_limit_w(250.0)


def test_a_lower_limit_that_an_admin_set_between_two_runs_stays(run_dag: Any, gpu: Any) -> None:
    dag = zeus_dag("zeus_admin", job(device=GPU))
    run_dag(dag)
    assert gpu.limit_w() == 250.0
    gpu.set_limit_w(150.0)
    run_dag(dag)
    assert gpu.limit_w() == 150.0
    assert log_of("zeus_admin.train")[-1].observation.limit_found_w == 150.0


def only_a_heartbeat(
    store: SqlStore, key: TrialKey, state: State, report: Report, **_: Any
) -> Trial:
    """In place of ``SqlStore.tell``: what the log holds of a run that died before its end."""
    store.heartbeat(key, report)
    return next(
        trial for job_id in store.jobs() for trial in store.trials(job_id) if trial.key == key
    )


@pytest.mark.parametrize(("by_admin_w", "found_w"), [(None, 250.0), (150.0, 150.0)])
def test_what_a_killed_run_left_behind_does_not_become_the_limit_found(
    run_dag: Any,
    gpu: Any,
    monkeypatch: pytest.MonkeyPatch,
    by_admin_w: float | None,
    found_w: float,
) -> None:
    """A container that dies with its guardian and its records: the log alone remembers the limit found."""
    name = f"zeus_killed_{found_w:g}"
    dag = zeus_dag(name, job(device=GPU))
    with monkeypatch.context() as dying:
        dying.setattr(LimitControl, "_give_back", LimitControl._release)
        dying.setattr(SqlStore, "tell", only_a_heartbeat)
        run_dag(dag)
    left_w = gpu.limit_w()
    assert left_w < 250.0
    assert [t.state for t in log_of(f"{name}.train")] == [State.RUNNING]
    if by_admin_w is not None:
        gpu.set_limit_w(by_admin_w)
    run_dag(dag)
    assert log_of(f"{name}.train")[-1].observation.limit_found_w == found_w
    assert gpu.limit_w() == found_w
