"""``ZeusCommandOperator``: a child process with the plan in its environment, followed, measured, and ended with its task."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_zeus.operators.command import ZeusCommandOperator
from tests.integration.jobs import job, log_of

START = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]

LOOP = """
import os, sys, time
from airflow_provider_zeus.training.run import ZeusRun
EPOCHS = {16: 19, 32: 4, 64: 5}
run = ZeusRun.from_env()
def train(run):
    for epoch in run.epochs():
        for _ in range(5000 // run.batch_size):
            run.step()
        run.report(accuracy=0.9 * (epoch + 1) / EPOCHS[run.batch_size])
    with open(os.environ["SAVES"], "a") as file:
        print(run.batch_size, file=file)
    return run.batch_size
"""
IN_ONE_PROCESS = LOOP + "print('kept', run.train(train))\n"
BY_LOOP_ALONE = LOOP + "print('kept', train(run))\n"


class Commands:
    """DAGs of one command each; ``saves`` is what their models were saved with."""

    def __init__(self, tmp: Path, run_dag: Any) -> None:
        self.tmp, self.run_dag = tmp, run_dag

    def dag(self, dag_id: str, code: str | list[str], spec: Any = None, **kwargs: Any) -> DAG:
        command: Any = code
        if isinstance(code, str):
            (self.tmp / "train.py").write_text(code)
            command = [sys.executable, "train.py"]
        env = {"PYTHONPATH": str(ROOT), "SAVES": str(self.tmp / "saves")}
        with DAG(dag_id, schedule=None, start_date=START) as dag:
            ZeusCommandOperator(
                task_id="train", job=spec or job(), command=command, env=env, **{"cwd": str(self.tmp), **kwargs}
            )
        return dag

    def saves(self) -> list[int]:
        path = self.tmp / "saves"
        return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.fixture
def commands(tmp_path: Path, run_dag: Any) -> Commands:
    return Commands(tmp_path, run_dag)


def xcom(dag_run: Any, key: str) -> Any:
    return dag_run.get_task_instance("train").xcom_pull(task_ids="train", key=key)


@pytest.mark.parametrize("code", [IN_ONE_PROCESS, BY_LOOP_ALONE], ids=["train(fn)", "epochs() alone"])
def test_a_command_keeps_one_model_per_run_in_both_styles(commands: Commands, code: str) -> None:
    name = "zeus_command_" + ("one" if code is IN_ONE_PROCESS else "loop")
    dag = commands.dag(name, code)
    first, second = commands.run_dag(dag), commands.run_dag(dag)
    assert [first.state, second.state] == ["success"] * 2
    assert commands.saves() == [32, 32], "16 is given up in the second run, and 32 trains to the end"
    assert [(t.batch_size, t.state.value, t.key.attempt) for t in log_of(f"{name}.train")] == [
        (32, "converged", 1),
        (16, "given_up", 1),
        (32, "converged", 2),
    ]
    cost = xcom(second, "zeus_cost")
    assert [a["state"] for a in cost["attempts"]] == ["given_up", "converged"]
    assert cost["kept_attempt"] == 2
    assert cost["energy_j"] > 0
    assert xcom(second, "return_value") == "kept 32"
    assert xcom(second, "zeus_decision")["batch_size"] == 16
