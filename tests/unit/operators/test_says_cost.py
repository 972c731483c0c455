"""What an operator says of its cost: nothing where nobody listens, and never an error."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zeus.operators import says_cost
from airflow_provider_zeus.operators.says_cost import SaysCost

CONF = "airflow.providers.openlineage.conf"


class Operator(SaysCost):
    outlets: list[Any] = []  # noqa: RUF012


def said(monkeypatch: pytest.MonkeyPatch, is_disabled: Any) -> list[str]:
    """What was worked out under such an OpenLineage."""
    worked: list[str] = []

    def figures_of(*_: Any) -> dict[str, Any]:
        worked.append("figures")
        return {"energy_j": 1.0}

    monkeypatch.setattr(says_cost, "figures_of", figures_of)
    monkeypatch.setitem(sys.modules, CONF, SimpleNamespace(is_disabled=is_disabled))
    Operator().say_cost({"outlet_events": {}}, None, None)  # type: ignore[arg-type]
    return worked


def test_nothing_is_worked_out_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, lambda: True) == []
    assert said(monkeypatch, lambda: False) == ["figures"]


def test_a_broken_setting_of_openlineage_fails_no_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> bool:
        raise ValueError("[openlineage] disabled = perhaps")

    assert said(monkeypatch, broken) == []
    assert "could not say" in caplog.text


def test_a_task_that_did_not_train_has_no_facet() -> None:
    assert Operator().get_openlineage_facets_on_complete(None) is None
