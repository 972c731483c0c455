"""A run with a deadline in each entry: the decision knows it, the log keeps it, and the training gets it."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.operators import schedule
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.operators.trial import ZeusTrial
from tests.integration.jobs import SCRIPT, job, log_of, zeus_dag

START = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
SPEC = {"policy": "knowledge_gradient", "finish_by": timedelta(hours=2), "eta": 1.0}


@pytest.fixture(autouse=True)
def _scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    # dag.test() stands for a scheduled run here
    monkeypatch.setattr(schedule, "is_test_run", lambda: False)


def in_two_hours(trial: Trial, begun_s: float) -> bool:
    """Whether the trial's deadline is two hours after its run began: after that time, and before it asked."""
    known = trial.planned.in_time
    assert known is not None
    assert known.finish_by_s is not None
    return begun_s - 1 <= known.finish_by_s - 2 * 3600 <= trial.opened_at + 1


def test_a_function(run_dag: Any) -> None:
    dag = zeus_dag("zeus_in_time", job(**SPEC))
    begun_s = time.time()
    assert [run_dag(dag).state for _ in range(2)] == ["success"] * 2
    log = log_of("zeus_in_time.train")
    assert all(in_two_hours(trial, begun_s) for trial in log)
    assert log[0].planned.why.endswith("It is not known yet how long a run takes.")
    last = log[-1].planned.in_time
    assert last is not None
    assert last.time_95_s is not None
    assert last.slowdown is not None
    assert last.slowdown > 1
    assert "95 % of its runs end within" in log[-1].decision.attempts[-1].why


def test_a_deadline_that_is_past_trains_and_is_said(
    run_dag: Any, caplog: pytest.LogCaptureFixture
) -> None:
    dag = zeus_dag("zeus_too_late", job(**SPEC | {"finish_by": "2020-01-01 06:00"}))
    assert [run_dag(dag).state for _ in range(2)] == ["success"] * 2
    assert any("ZeusJob.finish_by = '2020-01-01 06:00'" in r.getMessage() for r in caplog.records)
    assert (
        "No known batch size ends in time"
        in log_of("zeus_too_late.train")[-1].decision.attempts[-1].why
    )


def test_a_command(run_dag: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with DAG("zeus_in_time_command", schedule=None, start_date=START) as dag:
        ZeusCommandOperator(
            task_id="train",
            job=job(**SPEC),
            command=[sys.executable, "train.py"],
            env={"PYTHONPATH": str(ROOT)},
            cwd=str(tmp_path),
        )
    begun_s = time.time()
    assert run_dag(dag).state == "success"
    assert in_two_hours(log_of("zeus_in_time_command.train")[0], begun_s)


@pytest.mark.slow
def test_any_operator(run_dag: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    own = {
        "PYTHONPATH": str(ROOT),
        "ZEUS_XCOM": str(tmp_path / "return.json"),
        "ZEUS_STATE_DIR": str(tmp_path),
    }
    with (
        DAG("zeus_in_time_trial", schedule=None, start_date=START) as dag,
        ZeusTrial(job(**SPEC)) as trial,
    ):
        BashOperator(
            task_id="train",
            bash_command=f"{sys.executable} train.py && cat $ZEUS_XCOM",
            env=trial.env | own | {"PATH": "/usr/bin:/bin"},
            append_env=False,
            cwd=str(tmp_path),
        )
    begun_s = time.time()
    assert run_dag(dag).state == "success"
    (only,) = log_of("zeus_in_time_trial.train")
    assert in_two_hours(only, begun_s)
    assert only.state.value == "converged"


@pytest.mark.usefixtures("asks_briefly")
@pytest.mark.slow
def test_without_the_store_the_default_keeps_the_deadline(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_zeus.operators import recurrence

    plans: list[Any] = []
    plan_of = recurrence.plan_of
    monkeypatch.setattr(
        recurrence, "plan_of", lambda *a, **k: plans.append(plan_of(*a, **k)) or plans[-1]
    )
    monkeypatch.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", "postgresql://nobody@127.0.0.1:1/none")
    assert run_dag(zeus_dag("zeus_in_time_alone", job(**SPEC))).state == "success"
    assert plans[0].attempts[0].in_time.finish_by_s > time.time() + 3600
