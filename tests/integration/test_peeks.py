"""Peeks in real Airflow runs: in the task itself, in a command, in a process that knows only its environment."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task

from airflow_provider_zeus import ZeusJob
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.operators.trial import ZeusTrial
from airflow_provider_zeus.optimizer.cost import Rates
from airflow_provider_zeus.optimizer.trial import Phase, State
from tests.integration.jobs import job, log_of, loop, save, saves_of, zeus_dag

START = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
NEEDS = 25  # epochs: a run long enough for a peek of one epoch beside it

SCRIPT = f"""
import os
from airflow_provider_zeus.training.run import ZeusRun
def train(run):
    for epoch in run.epochs():
        for _ in range(5000 // run.batch_size):
            run.step()
        run.report(accuracy=0.9 * (epoch + 1) / {NEEDS})
    return run.batch_size
run = ZeusRun.from_env()
"""
BY_TRAIN = SCRIPT + "print('kept', run.train(train))\n"
BY_LOOP = SCRIPT + "print('kept', train(run))\n"


def peeking(**changes: Any) -> ZeusJob:
    return job(**{"policy": "knowledge_gradient", "max_epochs": 40, **changes})


def rows(job_id: str) -> list[tuple[int, str, str]]:
    return [(t.batch_size, t.planned.phase.value, t.state.value) for t in log_of(job_id)]


FIRST_RUN = [(32, "explore", "converged"), (16, "peek", "given_up"), (64, "peek", "given_up")]


def xcom(dag_run: Any, key: str, task_id: str = "train") -> Any:
    value = dag_run.get_task_instance(task_id).xcom_pull(task_ids=task_id, key=key)
    return json.loads(json.dumps(value, allow_nan=False))


def test_the_second_run_knows_the_epoch_costs_that_the_first_one_peeked(run_dag: Any) -> None:
    dag = zeus_dag("zeus_peeks", peeking(), lambda b: NEEDS)
    first, second = run_dag(dag), run_dag(dag)
    assert [first.state, second.state] == ["success"] * 2
    log = log_of("zeus_peeks.train")
    assert rows("zeus_peeks.train")[:3] == FIRST_RUN
    assert [t.key.attempt for t in log[:3]] == [1, 2, 3]
    assert len({t.key.ti_id for t in log[:3]}) == 1
    assert all(Rates.of(t.observation) for t in log[1:3])
    assert saves_of(first.run_id) == [32], "a peek saves nothing"
    assert xcom(first, "return_value") == 32

    cost = xcom(first, "zeus_cost")
    assert [(a["phase"], a["batch_size"]) for a in cost["attempts"]] == [("explore", 32), ("peek", 16), ("peek", 64)]
    assert (cost["kept_attempt"], cost["batch_size"]) == (1, 32)
    assert cost["energy_j"] == pytest.approx(sum(t.observation.energy_j or 0 for t in log[:3])), "peeks are charged"
    assert cost["cost"] > cost["attempts"][0]["cost"]

    tried = log[3]
    assert (tried.batch_size, tried.planned.phase) == (64, Phase.EXPLORE)
    assert tried.planned.bound_epochs is not None, "its EpochCost was known before it ever ran"
    assert tried.asked_after_seq == 3


def test_no_peeks_where_the_job_wants_none(run_dag: Any) -> None:
    run_dag(zeus_dag("zeus_no_peeks", peeking(peek=False), lambda b: NEEDS))
    assert rows("zeus_no_peeks.train") == FIRST_RUN[:1]


def test_an_error_in_a_peek_fails_no_task(run_dag: Any) -> None:
    with DAG("zeus_peek_fails", schedule=None, start_date=START) as dag:

        @task.zeus(peeking())
        def train(run, run_id=None):
            if run.batch_size == 16:
                raise MemoryError("no room for 16")
            if run.batch_size == 64:
                raise RuntimeError("disk full")
            loop(run, NEEDS)
            return save(run_id, run.batch_size)

        train()
    dag_run = run_dag(dag)
    assert dag_run.state == "success"
    assert saves_of(dag_run.run_id) == [32]
    kept, no_memory, failed = log_of("zeus_peek_fails.train")
    assert (kept.state, no_memory.state, failed.state) == (State.CONVERGED, State.FAILED, State.FAILED)
    assert (no_memory.observation.out_of_memory, failed.observation.out_of_memory) == (True, False)
    assert failed.reason == "RuntimeError: disk full"


def test_a_task_killed_in_a_peek_leaves_the_kept_attempt_told_and_its_retry_decides_anew(run_dag: Any) -> None:
    killed: list[int] = []
    with DAG("zeus_peek_killed", schedule=None, start_date=START) as dag:

        @task.zeus(peeking(), retries=1, retry_delay=timedelta(0))
        def train(run, run_id=None, task=None):
            if run.batch_size == 16 and not killed:
                killed.append(16)
                task.on_kill()
            loop(run, NEEDS)
            return save(run_id, run.batch_size)

        train()
    run_dag(dag)
    log = log_of("zeus_peek_killed.train")
    assert [(t.batch_size, t.state.value) for t in log[:2]] == [(32, "converged"), (16, "failed")]
    assert log[1].reason == "killed: Airflow stopped the task"
    assert "died" not in log[2].planned.why


@pytest.mark.parametrize("code", [BY_TRAIN, BY_LOOP], ids=["train(fn)", "epochs() alone"])
def test_a_command_peeks_where_its_function_can_be_called_again(run_dag: Any, tmp_path: Path, code: str) -> None:
    (tmp_path / "train.py").write_text(code)
    name = "zeus_peek_command_" + ("train" if code is BY_TRAIN else "loop")
    with DAG(name, schedule=None, start_date=START) as dag:
        command = [sys.executable, "train.py"]
        env = {"PYTHONPATH": str(ROOT)}
        ZeusCommandOperator(task_id="train", job=peeking(), command=command, env=env, cwd=str(tmp_path))
    dag_run = run_dag(dag)
    assert dag_run.state == "success"
    assert rows(f"{name}.train") == (FIRST_RUN if code is BY_TRAIN else FIRST_RUN[:1])
    assert xcom(dag_run, "return_value") == "kept 32"


def test_a_command_that_dies_in_a_peek_fails_and_all_of_it_is_told(run_dag: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DYING)
    with DAG("zeus_peek_command_dies", schedule=None, start_date=START) as dag:
        env = {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "train.py"]
        ZeusCommandOperator(task_id="train", job=peeking(), command=command, env=env, cwd=str(tmp_path))
    dag_run = run_dag(dag)
    assert dag_run.state == "failed", "what it does with the model after run.train() never ran"
    kept, died = log_of("zeus_peek_command_dies.train")
    assert (kept.batch_size, kept.state, kept.key.attempt) == (32, State.CONVERGED, 1)
    assert (died.batch_size, died.state, died.key.attempt) == (16, State.FAILED, 2)
    assert died.planned.phase is Phase.PEEK
    assert "SIGKILL" in (died.reason or "")
    assert xcom(dag_run, "zeus_cost")["kept_attempt"] == 1


DYING = BY_TRAIN.replace("    for epoch in", "    if run.batch_size == 16: os.kill(os.getpid(), 9)\n    for epoch in")


@pytest.mark.parametrize("dies", [False, True])
def test_a_pod_peeks_and_one_that_dies_in_it_has_told_what_it_kept(run_dag: Any, tmp_path: Path, dies: bool) -> None:
    (tmp_path / "train.py").write_text(DYING if dies else BY_TRAIN)
    name = f"zeus_peek_pod_{dies}".lower()
    with DAG(name, schedule=None, start_date=START) as dag, ZeusTrial(peeking()) as trial:
        own = {"PYTHONPATH": str(ROOT), "ZEUS_XCOM": str(tmp_path / "return.json"), "ZEUS_STATE_DIR": str(tmp_path)}
        BashOperator(
            task_id="train",
            bash_command=f"{sys.executable} train.py; cat $ZEUS_XCOM",
            env=trial.env | own | {"PATH": "/usr/bin:/bin"},
            append_env=False,
            cwd=str(tmp_path),
        )
    run_dag(dag)
    assert rows(f"{name}.train") == (FIRST_RUN[:1] if dies else FIRST_RUN)
