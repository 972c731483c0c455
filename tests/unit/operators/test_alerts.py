"""Looks for events: overlapping runs, and a trial log that hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import Origin
from airflow_provider_zeus.operators import alerts
from airflow_provider_zeus.reports.alerts import DEADLINE, FAILING, KINDS, STORE, Event
from airflow_provider_zeus.store.alerts import change_book, read_book
from airflow_provider_zeus.store.sql.store import SqlStore, Store
from tests.unit.plugin.kit import trial
from tests.unit.store.store_kit import Clock, DictPort


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> DictPort:
    found = DictPort()
    monkeypatch.setattr(alerts, "AirflowVariables", lambda: found)
    monkeypatch.delenv("AIRFLOW__ZEUS__NOTIFIERS", raising=False)
    return found


def looks_of(heard: list[str], reopen: Callable[[], Store], *, stored: bool = True) -> alerts.RunAlerts:
    def notifier(context: Any) -> None:
        heard.append(context["zeus"]["kind"])

    context = {"task": SimpleNamespace(notify=(notifier,))}
    return alerts.RunAlerts(context=context, trial=trial(0, "r", job_id="j"), stored=stored, reopen=reopen)


def test_an_event_whose_note_another_run_wrote_over_is_not_sent_again(tmp_path: Path, port: DictPort) -> None:
    clock, url, heard = Clock(), f"sqlite:///{tmp_path / 'zeus.db'}", list[str]()
    SqlStore(url, create=True).close()
    looks = looks_of(heard, lambda: SqlStore(url, now=clock))
    event = Event(kind=FAILING, name=FAILING, since=3, sentence="S.", remedy="R.")
    before = change_book(port, "j", lambda book: book.updated([event], dag_id="d", run_id="r", now_s=1.0, kinds=KINDS))
    looks._keep_and_send([event], KINDS)
    change_book(port, "j", lambda book: before)
    clock.t += 3600.0
    looks._keep_and_send([event], KINDS)
    assert heard == [FAILING]
    assert len(read_book(port, "j").open[0].sent_to) == 1


def test_a_run_sends_the_events_of_its_own_dag_and_its_decision_ends_none(tmp_path: Path, port: DictPort) -> None:
    url, heard = f"sqlite:///{tmp_path / 'zeus.db'}", list[str]()
    SqlStore(url, create=True).close()
    looks = looks_of(heard, lambda: SqlStore(url))
    theirs = Event(
        kind=DEADLINE, name=DEADLINE, since=1, origin=Origin(dag_id="b", run_id="r"), sentence="S.", remedy="R."
    )
    own = Event(kind=FAILING, name=FAILING, since=2, origin=looks.trial.origin, sentence="S.", remedy="R.")
    looks._keep_and_send([theirs, own], KINDS)
    assert heard == [FAILING]
    looks.look()
    assert [(r.dag_id, len(r.sent_to)) for r in read_book(port, "j").open] == [("b", 0), ("d", 1)]
    own_of_b = trial(0, "r2", job_id="j", dag_id="b")
    replace(looks_of(heard, lambda: SqlStore(url)), trial=own_of_b)._keep_and_send([theirs, own], KINDS)
    assert heard == [FAILING, DEADLINE], "and a run of that DAG sends it"


def test_a_log_that_hangs_is_told(port: DictPort, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def hangs() -> Store:
        answers.wait(60)
        raise AssertionError

    monkeypatch.setattr(alerts, "READ_S", 0.2)
    monkeypatch.setattr(alerts, "CLAIM_S", 0.2)
    heard: list[str] = []
    looks_of(heard, hangs).look(ended=True)
    answers.set()
    assert heard == [STORE]
