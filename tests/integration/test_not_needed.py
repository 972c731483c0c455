"""``run.previous`` and ``run.still_good()`` in real Airflow runs: function, command, and any operator."""

from __future__ import annotations

import json
import random
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task

from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.operators.trial import ZeusTrial
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.savings import saving
from airflow_provider_zeus.store.open import open_store
from tests.integration.jobs import job, log_of, loop

START = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]

SCRIPT = """
from airflow_provider_zeus.training.run import ZeusRun
def train(run):
    if run.previous is not None and run.still_good(accuracy=0.95):
        return run.previous
    for epoch in run.epochs():
        for _ in range(5000 // run.batch_size):
            run.step()
        run.report(accuracy=0.9 * (epoch + 1) / 4)
    return {"model": f"model-{run.batch_size}"}
print(ZeusRun.from_env().train(train))
"""


def states(job_id: str) -> list[str]:
    return [t.state.value for t in log_of(job_id)]


def xcom(dag_run: Any, key: str) -> Any:
    return dag_run.get_task_instance("train").xcom_pull(task_ids="train", key=key)


@pytest.mark.slow
def test_a_function_keeps_an_earlier_model_and_what_stands_downstream_runs(run_dag: Any) -> None:
    seen: list[Any] = []
    accuracy = iter([0.95, 0.5, 0.95, 0.95])
    spec = job(retrain_every=2)
    with DAG("zeus_whether", schedule=None, start_date=START) as dag:

        @task.zeus(spec)
        def train(run, run_id=None):
            if run.previous is not None and run.still_good(accuracy=next(accuracy)):
                return run.previous
            loop(run, 4)
            return f"model of {run_id}"

        @task
        def deploy(model: str) -> None:
            seen.append(model)

        deploy(train())
    runs = [run_dag(dag) for _ in range(5)]
    assert [r.state for r in runs] == ["success"] * 5
    first, bad, again = (f"model of {runs[i].run_id}" for i in (0, 2, 4))
    assert seen == [first, first, bad, bad, again], (
        "not needed, below the target, not needed, retrain_every"
    )
    trained = [s for s in states("zeus_whether.train") if s != "given_up"]
    assert trained == ["converged", "not_needed", "converged", "not_needed", "converged"]
    assert xcom(runs[1], "zeus_decision")["not_needed"] is True
    assert "not_needed" not in xcom(runs[2], "zeus_decision")
    cost = xcom(runs[1], "zeus_cost")
    assert (cost["not_needed"], cost["energy_j"], cost["attempts"][0]["state"]) == (
        True,
        None,
        "not_needed",
    )
    assert "returned" not in json.dumps(cost)
    log = log_of("zeus_whether.train")
    known = open_store().profile("zeus_whether.train", log[0].observation.where, "1")
    found = saving(as_dataset(log, spec), rng=random.Random(1), profiles=known)
    idle = [s for s in found.steps if s.run.not_needed]
    assert len(idle) == 2
    assert all(s.spent == 0 and (s.baseline.value or 0) > 0 for s in idle), (
        "each saved what the default would cost"
    )


def test_a_command_keeps_an_earlier_model(run_dag: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with DAG("zeus_whether_command", schedule=None, start_date=START) as dag:
        ZeusCommandOperator(
            task_id="train",
            job=job(),
            command=[sys.executable, "train.py"],
            env={"PYTHONPATH": str(ROOT)},
            cwd=str(tmp_path),
        )
    first = run_dag(dag)
    second = run_dag(dag)
    assert (first.state, second.state) == ("success", "success")
    assert states("zeus_whether_command.train") == ["converged", "not_needed"]
    assert xcom(second, "return_value") == "{'model': 'model-32'}"


@pytest.mark.slow
def test_any_operator_keeps_an_earlier_model(run_dag: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    own = {
        "PYTHONPATH": str(ROOT),
        "ZEUS_XCOM": str(tmp_path / "return.json"),
        "ZEUS_STATE_DIR": str(tmp_path),
    }
    with (
        DAG("zeus_whether_trial", schedule=None, start_date=START) as dag,
        ZeusTrial(job()) as trial,
    ):
        BashOperator(
            task_id="train",
            bash_command=f"{sys.executable} train.py && cat $ZEUS_XCOM",
            env=trial.env | own | {"PATH": "/usr/bin:/bin"},
            append_env=False,
            cwd=str(tmp_path),
        )
    assert [run_dag(dag).state for _ in range(2)] == ["success", "success"]
    assert states("zeus_whether_trial.train") == ["converged", "not_needed"]
