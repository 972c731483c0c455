"""``@task.zeus`` and ``ZeusTrainOperator`` in real Airflow runs, on the simulated GPU and the embedded store."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_provider_zeus import ZeusJob

SAVED: list[tuple[str, int]] = []


def save(run_id: str, batch_size: int) -> int:
    SAVED.append((run_id, batch_size))
    return batch_size


def job(**changes: Any) -> ZeusJob:
    spec: dict[str, Any] = {
        "batch_sizes": [16, 32, 64],
        "default_batch_size": 32,
        "target": "accuracy >= 0.9",
        "max_epochs": 20,
        "device": "simulated:v100/shufflenet",
        "learn_from": ["test"],
    }
    return ZeusJob(**{**spec, **changes})


def loop(run: Any, epochs_needed: Callable[[int], int]) -> None:
    """A training whose metric reaches 0.9 after ``epochs_needed(batch_size)`` epochs."""
    needed = epochs_needed(run.batch_size)
    for epoch in run.epochs():
        for _ in range(5000 // run.batch_size):
            run.step()
        run.report(accuracy=0.9 * (epoch + 1) / needed)


def zeus_dag(dag_id: str, spec: ZeusJob, epochs_needed: Callable[[int], int], **task_kwargs: Any) -> DAG:
    with DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

        @task.zeus(spec, **task_kwargs)
        def train(run, run_id=None):
            loop(run, epochs_needed)
            return save(run_id, run.batch_size)

        train()
    return dag


def test_three_recurrences_learn_and_keep_one_model_each(run_dag: Any) -> None:
    SAVED.clear()
    dag = zeus_dag("zeus_learns", job(), lambda b: {16: 19, 32: 4, 64: 5}[b])
    runs = [run_dag(dag) for _ in range(4)]
    assert [r.state for r in runs] == ["success"] * 4
    assert [len([s for s in SAVED if s[0] == r.run_id]) for r in runs] == [1, 1, 1, 1]

    from airflow_provider_zeus.store import open_store

    trials = open_store().trials("zeus_learns.train")
    first, second, third = trials[:3]
    assert (first.batch_size, first.state.value) == (32, "converged")
    assert (second.batch_size, second.state.value) == (16, "given_up"), "16 needs 19 epochs, beyond twice the cost of 32"
    assert (third.batch_size, third.state.value, third.key.attempt) == (32, "converged", 2)
    assert third.key.ti_id == second.key.ti_id

    ti = runs[1].get_task_instance("train")
    decision = ti.xcom_pull(task_ids="train", key="zeus_decision")
    cost = ti.xcom_pull(task_ids="train", key="zeus_cost")
    assert json.loads(json.dumps(decision))["batch_size"] == 16
    assert [a["state"] for a in cost["attempts"]] == ["given_up", "converged"]
    assert cost["batch_size"] == 32
    assert cost["kept_attempt"] == 2
    assert cost["energy_source"] == "simulated"
    assert cost["energy_j"] == pytest.approx(sum(t.observation.energy_j for t in (second, third)))
    assert ti.xcom_pull(task_ids="train") == 32
