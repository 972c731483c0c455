"""``ZeusTrial`` around operators that know nothing of Airflow's store: plan by environment, result by XCom or files."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task, task_group

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.operators.trial import ZeusTrial
from tests.integration.jobs import job, log_of

START = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]

TRAIN = """
import os, sys
from airflow_provider_zeus.training.run import ZeusRun
EPOCHS = {16: 19, 32: 4, 64: 5}
def train(run):
    for epoch in run.epochs():
        for _ in range(5000 // run.batch_size):
            run.step()
        run.report(accuracy=0.9 * (epoch + 1) / EPOCHS[run.batch_size])
    with open("saves", "a") as file:
        print(run.batch_size, file=file)
    return {"model": f"model-{run.batch_size}"}
ZeusRun.from_env().train(train)
"""


class Pod:
    """A process that knows only its environment: what it writes for XCom is the last line of its output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(TRAIN)

    def env(self, trial: ZeusTrial, **more: str) -> dict[str, str]:
        own = {"PYTHONPATH": str(ROOT), "ZEUS_XCOM": str(self.folder / "return.json")}
        return trial.env | own | {"ZEUS_STATE_DIR": str(self.folder), "PATH": "/usr/bin:/bin"} | more

    def operator(self, trial: ZeusTrial, command: str = "{python} train.py && cat $ZEUS_XCOM", **kwargs: Any) -> Any:
        env = self.env(trial, **kwargs.pop("env", {}))
        return BashOperator(
            task_id="train",
            bash_command=command.format(python=sys.executable),
            env=env,
            append_env=False,
            cwd=str(self.folder),
            **kwargs,
        )

    def saves(self) -> list[int]:
        path = self.folder / "saves"
        return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def states(job_id: str) -> list[tuple[int, str, int]]:
    return [(t.batch_size, t.state.value, t.key.attempt) for t in log_of(job_id)]


def xcom(dag_run: Any, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
    ti = dag_run.get_task_instance(task_id, map_index=map_index)
    return ti.xcom_pull(task_ids=task_id, key=key, map_indexes=map_index)


def test_a_pod_whose_first_attempt_is_given_up_ends_with_one_save(run_dag: Any, pod: Pod) -> None:
    with DAG("zeus_pod", schedule=None, start_date=START) as dag, ZeusTrial(job()) as trial:
        pod.operator(trial)
    first, second = run_dag(dag), run_dag(dag)
    assert (first.state, second.state) == ("success", "success")
    assert states("zeus_pod.train") == [(32, "converged", 1), (16, "given_up", 1), (32, "converged", 2)]
    assert pod.saves() == [32, 32]
    cost = xcom(second, "zeus_tell", "zeus_cost")
    assert (cost["kept_attempt"], cost["batch_size"], cost["energy_source"]) == (2, 32, "simulated")
    assert cost["energy_j"] == pytest.approx(sum(t.observation.energy_j or 0 for t in log_of("zeus_pod.train")[1:]))
    document = json.loads(xcom(second, "train"))
    assert document["value"] == {"model": "model-32"}
    origin = log_of("zeus_pod.train")[1].origin
    assert (origin.task_id, origin.run_id) == ("train", second.run_id)
    assert xcom(second, "zeus_ask", "zeus_decision")["batch_size"] == 16
