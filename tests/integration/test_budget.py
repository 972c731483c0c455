"""A budget in real Airflow runs: once it is used up nothing else is tried, or no run begins, as the job says."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk import DAG, exceptions, task

from airflow_provider_zeus import ZeusJob, ZeusTrial
from tests.integration.jobs import job, log_of, saves_of, zeus_dag

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.slow
def test_a_budget_that_is_used_up_stops_exploration_and_no_run(run_dag: Any, caplog: pytest.LogCaptureFixture) -> None:
    dag = zeus_dag("zeus_budget", job(budget=["1 J/month", "5 EUR/day"], on_budget="incumbent"))
    assert [run_dag(dag).state for _ in range(3)] == ["success"] * 3
    first, *others = log_of("zeus_budget.train")
    assert "budget" not in first.planned.why
    assert [(t.batch_size, t.state.value) for t in others] == [(32, "converged")] * 2
    assert [t.planned.why for t in others if "A budget is used up" not in t.planned.why] == []
    assert [t.planned.why for t in others if "Wh/month" not in t.planned.why] == []
    said = [r.getMessage() for r in caplog.records]
    assert any("No other batch size is tried until then." in text for text in said)
    assert any("Zeus ignores a budget: budget 5 EUR/day: set [zeus] price_per_kwh" in text for text in said)


def states(run: Any) -> dict[str, str]:
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


@pytest.mark.parametrize(
    ("on_budget", "ends", "after"), [("skip", "skipped", "skipped"), ("fail", "failed", "upstream_failed")]
)
def test_a_budget_that_is_used_up_stops_the_next_run(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch, on_budget: str, ends: str, after: str
) -> None:
    said: list[str] = []
    real = getattr(exceptions, name := f"Airflow{on_budget.title()}Exception")

    class Heard(real):  # type: ignore[misc,valid-type]
        def __init__(self, text: str) -> None:
            super().__init__(text)
            said.append(text)

    monkeypatch.setattr(exceptions, name, Heard)
    dag = zeus_dag(f"zeus_budget_{on_budget}", job(budget="1 J/month", on_budget=on_budget), retries=2)
    with dag:
        task(lambda: None, task_id="deploy")()
    dag.task_dict["train"] >> dag.task_dict["deploy"]
    assert states(run_dag(dag)) == {"train": "success", "deploy": "success"}
    stopped = run_dag(dag)
    assert states(stopped) == {"train": ends, "deploy": after}
    assert [ti.try_number for ti in stopped.get_task_instances() if ti.task_id == "train"] == [1], "not retried"
    assert saves_of(stopped.run_id) == []
    assert [t.number for t in log_of(f"zeus_budget_{on_budget}.train")] == [1]
    then = "are skipped" if on_budget == "skip" else "fail"
    assert len(said) == 1
    assert f"(UTC). Runs {then} until then (on_budget='{on_budget}')." in said[0]


def test_a_setup_task_and_a_measured_task_stop_too(run_dag: Any) -> None:
    stops: dict[str, Any] = {"budget": "1 J/month", "on_budget": "skip", "job_id": "zeus_budget_shared"}
    assert run_dag(zeus_dag("zeus_budget_first", job(**stops))).state == "success"
    with DAG("zeus_budget_setup", schedule=None, start_date=START) as dag, ZeusTrial(job(**stops)):
        task(lambda: None, task_id="train")()
    assert states(run_dag(dag)) == dict.fromkeys(("zeus_ask", "train", "zeus_tell"), "skipped")
    with DAG("zeus_budget_measured", schedule=None, start_date=START) as dag:
        task.zeus(ZeusJob(mode="measure", **stops), task_id="train")(lambda: None)()
    assert states(run_dag(dag)) == {"train": "skipped"}
