"""A password that Airflow's log masks is masked in the reason of a run too, wherever that reason came from."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, BaseHook, task

from airflow_provider_zeus.operators.command import ZeusCommandOperator
from tests.integration.jobs import job, log_of

PASSWORD = "tr0ub4dor-Masked"


@pytest.fixture
def dbx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_DBX",
        json.dumps({"conn_type": "postgres", "host": "db", "password": PASSWORD}),
    )


@pytest.mark.usefixtures("dbx")
def test_the_reason_of_a_function_that_raises_with_an_address(run_dag: Any) -> None:
    with DAG("masked_function") as dag:

        @task.zeus(job())
        def train(run):
            address = BaseHook.get_connection("dbx").get_uri()
            # the cut of a reason must not leave a part of it
            raise ValueError("x" * 470 + f" {address}")

        train()
    result = run_dag(dag)
    assert result.state == "failed"
    (trial,) = log_of("masked_function.train")
    assert str(trial.reason).startswith("ValueError: ")
    xcom = json.dumps(
        result.get_task_instance("train").xcom_pull(task_ids="train", key="zeus_cost")
    )
    for said in (str(trial.reason), xcom):
        assert PASSWORD[:8] not in said
    assert "***" in str(trial.reason)


@pytest.mark.usefixtures("dbx")
def test_the_reason_that_a_command_gives(run_dag: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from airflow_provider_zeus.training.run import ZeusRun\n"
        "def fn(run):\n"
        f"    raise ValueError('no such host: postgres://:{PASSWORD}@db')\n"
        "ZeusRun.from_env().train(fn)\n"
    )
    with DAG("masked_command") as dag:

        class Reads(ZeusCommandOperator):
            def execute(self, context: Any) -> Any:
                BaseHook.get_connection("dbx")
                return super().execute(context)

        Reads(task_id="train", job=job(), command=[sys.executable, str(script)])
    assert run_dag(dag).state == "failed"
    reasons = [str(trial.reason) for trial in log_of("masked_command.train")]
    assert any("***" in reason for reason in reasons)
    assert not any(PASSWORD in reason for reason in reasons)
