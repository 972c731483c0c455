"""Starts in real Airflow runs: a function with a torch model, and a command that reads ``ZEUS_START``."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task

from airflow_provider_zeus.model.trial import WHY_COLD
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.operators.trial import ZeusTrial
from tests.integration.jobs import job, log_of, loop

START = datetime(2026, 1, 1, tzinfo=UTC)
STARTS = ["cold", "warm"]
DEAF = """echo '{"accuracy": 0.95, "epochs": 4, "samples": 20000}'"""
HEARS = """echo "{\\"accuracy\\": 0.95, \\"epochs\\": 4, \\"samples\\": 20000, \\"start\\": \\"$ZEUS_START\\"}" """

SCRIPT = """
import os
from airflow_provider_zeus.training.run import ZeusRun
def train(run):
    run.started(os.environ["ZEUS_START"])
    for epoch in run.epochs():
        for _ in range(100):
            run.step()
        run.report(accuracy=0.95)
    return {"model": "m"}
ZeusRun.from_env().train(train)
"""


def test_a_function_starts_from_what_the_run_before_returned(run_dag: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    seen: list[tuple[str, bool]] = []
    with DAG("zeus_starts", schedule=None, start_date=START) as dag:

        @task.zeus(
            job(starts=STARTS, policy="knowledge_gradient", batch_sizes=[32], default_batch_size=32)
        )
        def train(run, run_id=None):
            model = torch.nn.Linear(2, 1)
            state = (
                torch.load(run.previous, weights_only=True) if run.previous is not None else None
            )
            taken = run.start(model, state)
            seen.append((taken, state is not None and torch.equal(model.weight, state["weight"])))
            loop(run, 8 if taken == "cold" else 2)
            path = tmp_path / f"{len(seen)}.pt"
            torch.save(model.state_dict(), path)
            return str(path)

        train()
    assert [run_dag(dag).state for _ in range(4)] == ["success"] * 4
    kept = [t for t in log_of("zeus_starts.train") if t.state.kept_model]
    assert (kept[0].observation.start, kept[0].lineage.from_ti_id) == ("cold", None)
    assert kept[-1].observation.start == "warm"
    assert kept[-1].lineage.from_ti_id == kept[-2].key.ti_id
    assert kept[-1].generations == kept[-2].generations + 1
    assert all(loaded == (taken == "warm") for taken, loaded in seen)


def test_a_command_gets_its_start(run_dag: Any) -> None:
    for name, command, why in (
        ("hears", HEARS, ""),
        ("deaf", DEAF, "not seen to be used: read it from ZEUS_START"),
    ):
        with DAG(f"zeus_starts_{name}", schedule=None, start_date=START) as dag:
            ZeusCommandOperator(
                task_id="train",
                job=job(starts=STARTS, policy="knowledge_gradient"),
                command=command,
            )
        assert run_dag(dag).state == "success"
        (trial,) = log_of(f"zeus_starts_{name}.train")
        assert trial.observation.start == "cold"
        said = trial.observation.reasons.get(WHY_COLD, "")
        assert why in said if why else not said


@pytest.mark.parametrize("native", [False, True])
def test_a_script_inside_zeus_trial_gets_its_start(
    run_dag: Any, tmp_path: Path, native: bool
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    dag_id = f"zeus_starts_trial_{native}"
    asked = job(starts=STARTS, policy="knowledge_gradient", batch_sizes=[32], default_batch_size=32)
    with (
        DAG(dag_id, schedule=None, start_date=START, render_template_as_native_obj=native) as dag,
        ZeusTrial(asked) as trial,
    ):
        own = {
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PATH": "/usr/bin:/bin",
            "ZEUS_STATE_DIR": str(tmp_path),
        }
        env = trial.env | own | {"ZEUS_XCOM": str(tmp_path / "return.json")}
        command = f"{sys.executable} train.py && cat $ZEUS_XCOM"
        BashOperator(
            task_id="train", bash_command=command, env=env, append_env=False, cwd=str(tmp_path)
        )
    assert [run_dag(dag).state for _ in range(3)] == ["success"] * 3
    log = log_of(f"{dag_id}.train")
    assert [t.observation.start for t in log] == [t.planned.start for t in log], (
        "each says what it read"
    )
    assert (log[0].planned.start, "warm" in {t.observation.start for t in log}) == ("cold", True)
    assert all(WHY_COLD not in t.observation.reasons for t in log[1:])
    with (
        DAG(f"{dag_id}_plain", schedule=None, start_date=START) as other,
        ZeusTrial(job()) as plain,
    ):
        BashOperator(task_id="train", bash_command="true")
    assert other.task_dict
    assert "ZEUS_START" not in plain.env, "a job that asks for no starts"
