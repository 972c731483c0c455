"""What an operator says of its cost: a line in its log, more where something listens, and never an error."""

from __future__ import annotations

import logging
import sys
import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import Phase, Trial
from airflow_provider_zeus.operators import mixins
from airflow_provider_zeus.operators.mixins import ReportsCost, figures_of
from airflow_provider_zeus.reports.run_figures import RunFigures
from tests.unit.reports.test_closing import trial

CONF = "airflow.providers.openlineage.conf"


class Operator(ReportsCost):
    outlets: list[Any] = []  # noqa: RUF012


def said(monkeypatch: pytest.MonkeyPatch, is_disabled: Any) -> list[str]:
    """What was worked out under such an OpenLineage."""
    worked: list[str] = []

    def as_event(*_: Any) -> dict[str, Any]:
        worked.append("figures")
        return {"energy_j": 1.0}

    monkeypatch.setattr(RunFigures, "as_event", as_event)
    monkeypatch.setitem(sys.modules, CONF, SimpleNamespace(is_disabled=is_disabled))
    Operator().report_cost({"ti": TI, "outlet_events": {}}, reporter(), None)  # type: ignore[arg-type]
    return worked


TI = SimpleNamespace(xcom_push=lambda key, value: None)


def reporter(stopped: bool = False, *ended: Any, not_needed: bool = False) -> Any:
    return SimpleNamespace(
        stopped=stopped, ended=list(ended), cost_xcom=lambda: {"not_needed": not_needed}
    )


def test_nothing_is_worked_out_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, lambda: True) == []
    assert said(monkeypatch, lambda: False) == ["figures"]


def test_a_broken_setting_of_openlineage_fails_no_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> bool:
        raise ValueError("[openlineage] disabled = perhaps")

    assert said(monkeypatch, broken) == []
    assert "could not report" in caplog.text


def test_the_log_ends_with_what_the_run_cost(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> Any:
        raise StoreError("gone")

    with caplog.at_level(logging.INFO):
        Operator().report_cost({"ti": TI}, reporter(False, trial()), fails)
    line = "reached its target after 6 epochs at batch size 64, accuracy 0.86, 3.78 Wh, 4 min 05 s"
    why = "what it saved is not known: the run log could not be read"
    assert f"Zeus: {line}, {why}." in caplog.text
    assert "Zeus cannot say what this run saved (StoreError)" in caplog.text


def test_a_slow_log_keeps_no_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mixins, "figures_of", partial(figures_of, most_s=0.05))
    release = threading.Event()
    with caplog.at_level(logging.INFO):
        Operator().report_cost({"ti": TI}, reporter(False, trial()), lambda: release.wait(30))  # type: ignore[arg-type, return-value]
    release.set()
    why = "what it saved is not known: reading the run log took longer than 0.05 s"
    assert f" 4 min 05 s, {why}." in caplog.text


def test_while_the_task_is_stopped_no_log_is_opened(caplog: pytest.LogCaptureFixture) -> None:
    opened: list[int] = []
    with caplog.at_level(logging.INFO):
        Operator().report_cost({"ti": TI}, reporter(True, trial()), lambda: opened.append(1))  # type: ignore[arg-type, return-value, func-returns-value]
    assert opened == []
    assert " 4 min 05 s." in caplog.text


@pytest.mark.parametrize(
    ("stopped", "keys"), [(False, ["zeus_cost", "zeus_decision"]), (True, ["zeus_cost"])]
)
def test_a_task_that_is_stopped_pushes_its_cost_alone(stopped: bool, keys: list[str]) -> None:
    pushed: list[str] = []
    ti = SimpleNamespace(xcom_push=lambda key, value: pushed.append(key))
    ended = reporter(stopped, not_needed=True)
    Operator().report_cost({"ti": ti}, ended, None, {"batch_size": 64})  # type: ignore[arg-type]
    assert pushed == keys


def test_a_task_that_did_not_train_has_no_facet() -> None:
    assert Operator().get_openlineage_facets_on_complete(None) is None


def test_a_run_without_batch_sizes_is_judged_by_its_own_tries_though_another_began_later() -> None:
    own = trial()
    planned = replace(own.planned, batch_size=None, phase=Phase.MEASURED)  # type: ignore[arg-type]
    own = replace(own, planned=planned)
    other = replace(own, job_id="d.another_task")
    asked: list[tuple[str, str]] = []

    def recurrence(dag_id: str, run_id: str) -> list[Trial]:
        asked.append((dag_id, run_id))
        return [other, own]

    store: Any = SimpleNamespace(recurrence=recurrence, profile=lambda *_: [])
    reported = reporter(False, own)
    figures = figures_of({}, reported, lambda: store)
    assert asked == [(own.origin.dag_id, own.origin.run_id)]
    assert list(figures.newest) == [own]
    assert not figures.why_not
