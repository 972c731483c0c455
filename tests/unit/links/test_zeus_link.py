"""The button "Zeus cost" of a task instance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zeus.decorators.zeus import ZeusDecoratedOperator
from airflow_provider_zeus.links.zeus import ZeusCostLink, dag_path, run_path
from airflow_provider_zeus.operators.train import ZeusTrainOperator
from airflow_provider_zeus.plugin import DAG_ROUTE, RUN_ROUTE, ZeusPlugin


def link(dag_id: str, run_id: str) -> str:
    key: Any = SimpleNamespace(dag_id=dag_id, run_id=run_id, task_id="train", map_index=-1)
    operator: Any = None
    return ZeusCostLink().get_link(operator, ti_key=key)


def test_it_leads_to_the_tab_of_the_run() -> None:
    assert link("d", "scheduled__2026-01-01T00:00:00+00:00") == (
        "dags/d/runs/scheduled__2026-01-01T00%3A00%3A00%2B00%3A00/plugin/zeus-cost-run"
    )
    assert run_path("d", "r") == f"dags/d/runs/r/plugin/{RUN_ROUTE}"
    assert dag_path("d") == f"dags/d/plugin/{DAG_ROUTE}"
    assert RUN_ROUTE in [view["url_route"] for view in ZeusPlugin.external_views]


@pytest.mark.parametrize("odd", ["a/b", "a?b#c", "../..", "a b", "ü", "%2f", "javascript:alert(1)"])
def test_ids_are_quoted(odd: str) -> None:
    address = link(odd, odd)
    assert address.startswith("dags/")
    assert address.count("/") == 5
    assert not set(address) & set("?# :")


@pytest.mark.parametrize("operator", [ZeusTrainOperator, ZeusDecoratedOperator])
def test_training_operators_have_it(operator: Any) -> None:
    assert [type(one) for one in operator.operator_extra_links] == [ZeusCostLink]
