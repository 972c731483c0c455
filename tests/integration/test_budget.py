"""A budget in real Airflow runs: nothing else is tried once it is used up, and every run trains."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.jobs import job, log_of, zeus_dag


def test_a_budget_that_is_used_up_stops_exploration_and_no_run(run_dag: Any, caplog: pytest.LogCaptureFixture) -> None:
    dag = zeus_dag("zeus_budget", job(budget=["1 J/month", "5 EUR/day"], on_budget="incumbent"))
    assert [run_dag(dag).state for _ in range(3)] == ["success"] * 3
    first, *others = log_of("zeus_budget.train")
    assert "budget" not in first.planned.why
    assert [(t.batch_size, t.state.value) for t in others] == [(32, "converged")] * 2
    assert all("A budget is used up" in t.planned.why and "1 J/month" in t.planned.why for t in others)
    said = [r.getMessage() for r in caplog.records]
    assert any("No other batch size is tried until then." in text for text in said)
    assert any("Zeus ignores a budget: budget 5 EUR/day: set [zeus] price_per_kwh" in text for text in said)
