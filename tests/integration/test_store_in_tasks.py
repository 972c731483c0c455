"""The store as a task meets it: zeus.db, Variables, unreachable, refused, told later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Variable

from airflow_provider_zeus.operators.mixins import COST, DECISION
from airflow_provider_zeus.store.open import open_store
from tests.integration.jobs import job, log_of, saves_of, zeus_dag

UNREACHABLE = json.dumps({"conn_type": "sqlite", "host": "/dev/null/zeus.db"})
VARIABLES = json.dumps({"conn_type": "zeus", "extra": {"store": "variable"}})


@pytest.mark.skipif(
    not hasattr(Variable, "keys"), reason="a task lists Variables from Airflow 3.3 on"
)
def test_the_cost_of_a_run_without_a_store_is_told_by_the_next_run(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dag = zeus_dag("zeus_told_later", job())
    monkeypatch.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", UNREACHABLE)
    alone = run_dag(dag)
    assert alone.state == "success", "a store that cannot be reached never fails a training"
    assert saves_of(alone.run_id) == [32]
    assert "default batch size 32" in caplog.text

    cost = alone.get_task_instance("train").xcom_pull(task_ids="train", key="zeus_cost")
    assert cost["attempts"][0]["untold"].startswith("Variable zeus-untold:")
    assert cost["energy_j"] > 0

    monkeypatch.delenv("AIRFLOW_CONN_ZEUS_DEFAULT")
    assert run_dag(dag).state == "success"
    told = [t for t in log_of("zeus_told_later.train") if t.origin.run_id == alone.run_id]
    assert [(t.batch_size, t.state.value, t.planned.phase.value) for t in told] == [
        (32, "converged", "fallback")
    ]
    assert told[0].observation.energy_j == pytest.approx(cost["energy_j"])

    assert run_dag(dag).state == "success"
    assert (
        len([t for t in log_of("zeus_told_later.train") if t.origin.run_id == alone.run_id]) == 1
    ), "told once"


@pytest.mark.skipif(
    not hasattr(Variable, "keys"), reason="a task lists Variables from Airflow 3.3 on"
)
def test_a_misspelt_connection_is_a_store_out_of_reach(
    run_dag: Any,
    airflow_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dag = zeus_dag("zeus_misspelt", job(), zeus_conn_id="zeus_prud")
    alone = run_dag(dag)
    assert (alone.state, saves_of(alone.run_id)) == ("success", [32])
    (said,) = [
        record
        for record in caplog.records
        if "'zeus_prud'" in record.getMessage() and record.levelno >= 40
    ]
    assert "default batch size 32" in said.getMessage()
    decision, cost = (
        alone.get_task_instance("train").xcom_pull(task_ids="train", key=k)
        for k in (DECISION, COST)
    )
    assert (decision["phase"], "'zeus_prud'" in decision["why"]) == ("fallback", True)
    assert cost["attempts"][0]["untold"].startswith("Variable zeus-untold:")
    assert "zeus_misspelt.train" not in open_store().jobs()

    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_PRUD",
        json.dumps({"conn_type": "sqlite", "host": f"{airflow_home}/zeus.db"}),
    )
    assert run_dag(dag).state == "success"
    assert [t.origin.run_id for t in log_of("zeus_misspelt.train")][:1] == [alone.run_id], (
        "stored by the next run"
    )


def test_strict_fails_under_a_misspelt_connection(run_dag: Any) -> None:
    dag_run = run_dag(zeus_dag("zeus_misspelt_strict", job(strict=True), zeus_conn_id="zeus_prud"))
    assert (dag_run.state, saves_of(dag_run.run_id)) == ("failed", [])


def test_strict_fails_without_a_store(run_dag: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", UNREACHABLE)
    dag_run = run_dag(zeus_dag("zeus_strict", job(strict=True)))
    assert dag_run.state == "failed"
    assert saves_of(dag_run.run_id) == []


def test_the_variable_store_closes_the_loop_too(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", VARIABLES)
    dag = zeus_dag("zeus_variables", job(), max_active_tis_per_dag=1)
    for _ in range(3):
        assert run_dag(dag).state == "success"
    trials = log_of("zeus_variables.train")
    assert [(t.number, t.batch_size, t.state.value) for t in trials] == [
        (1, 32, "converged"),
        (2, 16, "given_up"),
        (3, 32, "converged"),
        (4, 64, "converged"),
    ]

    from airflow.models import Variable

    assert json.loads(Variable.get("zeus-log:zeus_variables.train"))


def test_the_variable_store_wants_recurrences_that_cannot_overlap(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", VARIABLES)
    assert run_dag(zeus_dag("zeus_overlap_strict", job(strict=True))).state == "failed"
    caplog.clear()
    assert run_dag(zeus_dag("zeus_overlap", job())).state == "success"
    assert "max_active_tis_per_dag=1" in caplog.text


def test_a_remote_executor_needs_a_connection(
    airflow_home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_zeus.errors import StoreError
    from airflow_provider_zeus.store.open import open_store

    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    with pytest.raises(StoreError, match=r"zeus_default.*PostgreSQL.*zeus db upgrade"):
        open_store()


def test_an_sqlite_file_of_a_connection_is_made_by_the_first_run(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "mine" / "zeus.db"
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_DEFAULT", json.dumps({"conn_type": "sqlite", "host": str(file)})
    )
    dag = zeus_dag("zeus_own_file", job())
    for _ in range(2):
        assert run_dag(dag).state == "success"
    assert "no store" not in caplog.text
    assert [t.number for t in log_of("zeus_own_file.train")][:2] == [1, 2]
    assert file.exists()


@pytest.mark.slow
def test_a_profile_carries_over_to_the_next_run(run_dag: Any) -> None:
    at_its_limit = job(batch_sizes=[8], default_batch_size=8, device="simulated:v100/bert_sa")
    dag = zeus_dag("zeus_profile", at_its_limit, lambda b: 2)
    excess: list[float | None] = []
    while excess[-2:] != [0.0, 0.0] and len(excess) < 30:  # a busy host measures less in a run
        run_dag(dag)
        excess = [t.observation.excess_s for t in log_of("zeus_profile.train")]
    assert excess[-2:] == [0.0, 0.0], "the profile is complete: nothing is measured any more"
    assert excess[0], "at first it was"
    limits = [t.observation.power_limit_w for t in log_of("zeus_profile.train")]
    assert len(set(limits[-2:])) == 1, "and the best limit is set from the first step"


def test_the_hook_opens_the_log(run_dag: Any) -> None:
    from airflow_provider_zeus.hooks.zeus import ZeusHook

    run_dag(zeus_dag("zeus_hooked", job()))
    store = ZeusHook().get_conn()
    assert "zeus_hooked.train" in store.jobs()
    assert store.identity.startswith("sqlite:")
