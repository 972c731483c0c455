"""A run whose power limit follows a signal behind a Connection: the plan holds the series. Else it just trains."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_zeus.operators import recurrence
from tests.integration.jobs import job, log_of, zeus_dag

TARIFF = {
    "timezone": "UTC",
    "unit": "EUR/kWh",
    "default": 0.3,
    "rules": [{"hours": "22-06", "value": 0.2}],
}


def test_a_run_follows_its_signal_and_trains_without_one(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Any] = []
    plan_of = recurrence.plan_of
    monkeypatch.setattr(
        recurrence, "plan_of", lambda *a, **k: plans.append(plan_of(*a, **k)) or plans[-1]
    )
    conn = {"conn_type": "zeus_signal", "extra": {"tariff": TARIFF}}
    monkeypatch.setenv("AIRFLOW_CONN_MY_TARIFF", json.dumps(conn))
    dag = zeus_dag("zeus_follow", job(follow="my_tariff"))
    assert run_dag(dag).state == "success"
    assert plans[0].signal.signal == "my_tariff"
    assert plans[0].signal.mean == pytest.approx((16 * 0.3 + 8 * 0.2) / 24)
    monkeypatch.delenv("AIRFLOW_CONN_MY_TARIFF")
    assert run_dag(dag).state == "success"
    assert plans[1].signal is None
    assert next(t.state.value for t in log_of("zeus_follow.train")) == "converged"
