"""``airflow zeus plan``: the decision that the next run makes, without asking for it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_zeus.airflow_compat import DagModel, create_session
from airflow_provider_zeus.cli.plan import may_wait
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import UNSEEN, Observation, State
from airflow_provider_zeus.store.base import Report
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from tests.unit.cli.conftest import Zeus, recur
from tests.unit.store.store_kit import report, request


def test_it_is_what_the_next_question_is_answered_and_asks_nothing(zeus: Zeus, store: Store) -> None:
    for n in range(1, 5):
        recur(store, n)
        found = json.loads(zeus("plan", "d.train", "-o", "json").out)
        assert len(store.trials("d.train")) == n
        decision = store.ask(request(n + 1, ti_id=f"d.train-{n + 1}")).trial.decision
        planned = [(a["batch_size"], a["phase"], a["bound_cost"]) for a in found["attempts"]]
        assert planned == [(a.batch_size, a.phase.value, a.bound_cost) for a in decision.attempts]


def test_lines_for_people(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    recur(store, 2)
    AirflowVariables().set("zeus-settings:d.train", '{"pause_exploration": true}')
    store.ask(request(3, ti_id="d.train-3"))
    lines = dict(line.split(None, 1) for line in zeus("plan", "d.train").out.splitlines() if line)
    assert lines["job"] == "d.train"
    assert lines["starts"].startswith("not known: DAG d has no schedule")
    assert lines["phase"] == "best known"
    assert "paused" in lines["why"]
    assert "Wh" in lines["expected"]
    assert "of a run of 16" in lines["expected"]
    assert "pause_exploration=true" in lines["settings"]
    assert "trial 3;" in lines["open"]


def test_a_script_that_reports_no_metric_is_told_with_the_remedy(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    trial = store.ask(request(2, ti_id="d.train-2")).trial
    seen = Observation(time_s=9.0, reasons={UNSEEN: "the command is not seen to use batch size 32: it never names it"})
    store.tell(trial.key, State.NO_METRIC, Report(observation=seen), reason="the command did not report its metric")
    for command in (("plan", "d.train"), ("trials", "d.train"), ("jobs", "list")):
        said = zeus(*command).out
        assert "No metric reported: whether trial 2 reached its target is not known" in said, command
        assert "JSON on the last line of its output" in said, command
        assert "not seen to use batch size 32" in said, command
    assert "no metric reported (batch size not seen)" in zeus("trials", "d.train").out
    assert len(json.loads(zeus("plan", "d.train", "-o", "json").out)["remarks"]) == 2
    assert ",no_metric,the command did not report its metric," in zeus("export").out


def test_when_the_schedule_begins_it(zeus: Zeus, store: Store) -> None:
    from airflow.models.dagbundle import DagBundleModel

    recur(store, 1)
    after = datetime(2031, 5, 1, 2, tzinfo=UTC)
    with create_session() as session:
        session.merge(DagBundleModel(name="tests"))
        session.flush()
        session.merge(DagModel(dag_id="d", bundle_name="tests", is_paused=False, next_dagrun_create_after=after))
    try:
        assert "2031-05-01 02:00 UTC, by the schedule of d" in zeus("plan", "d.train").out
        assert json.loads(zeus("plan", "d.train", "-o", "json").out)["starts"] == "2031-05-01T02:00:00+00:00"
    finally:
        with create_session() as session:
            session.delete(session.get(DagModel, "d"))


def test_what_is_not_known_has_a_reason(zeus: Zeus, store: Store) -> None:
    nothing = Report(observation=Observation(reasons={"energy_j": "none"}))
    store.tell(store.ask(request(1)).trial.key, State.FAILED, nothing)
    found = json.loads(zeus("plan", "d.train", "-o", "json").out)
    assert found["energy_j"]["value"] is None
    assert found["energy_j"]["missing"]
    assert "not known: " in zeus("plan", "d.train").out


def test_a_job_that_is_not_in_the_log(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    done = zeus("plan", "d.trian")
    assert done.status == 1
    assert "Did you mean d.train" in done.err


def test_a_job_with_a_deadline_says_how_long_95_percent_of_its_runs_take(zeus: Zeus, store: Store) -> None:
    job = replace(request(1).job, finish_by="2 h", policy="knowledge_gradient")
    for n in range(1, 4):
        asked = store.ask(request(n, ti_id=f"d.train-{n}", job=job, finish_by_s=time.time() + 7200.0)).trial
        store.tell(asked.key, State.CONVERGED, report(asked.batch_size))
    said = zeus("plan", "d.train").out
    assert "deadline    decided as if it had as long until its deadline as the newest run had, 2 h 00 min" in said
    assert "95 % of such runs end within" in said
    found = json.loads(zeus("plan", "d.train", "-o", "json").out)
    assert 7100 < found["room_s"] <= 7200
    assert 0 < found["time_95_s"] < 7200


@pytest.mark.parametrize("switch", ["measure", "False"])
def test_what_is_switched_off_tries_nothing(
    zeus: Zeus, store: Store, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    recur(store, 1)
    recur(store, 2)
    monkeypatch.setenv("AIRFLOW__ZEUS__ENABLED", switch)
    found = json.loads(zeus("plan", "d.train", "-o", "json").out)
    asked = request(3, ti_id="d.train-3", pinned_by=f"[zeus] enabled = {switch}")
    (attempt,) = store.ask(asked).trial.decision.attempts
    assert [(a["batch_size"], a["phase"], a["why"]) for a in found["attempts"]] == [
        (attempt.batch_size, "pinned", attempt.why)
    ]
    assert (found["settings"], found["limit_w"]) == ({}, None), "these are the live settings; no limit is set"


# --- a wait for a cheaper start

STARTS = datetime(2031, 5, 1, 2, tzinfo=UTC)


def waiting(store: Store, runs: int, **changes: Any) -> ZeusJob:
    job = replace(request(1).job, start_within=timedelta(hours=8), start_signal="price", **changes)
    for n in range(1, runs + 1):
        asked = store.ask(request(n, ti_id=f"d.train-{n}", job=job)).trial
        store.tell(asked.key, State.CONVERGED, report(asked.batch_size))
    return job


def test_a_wait_is_planned_by_a_tariff(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = {"timezone": "UTC", "unit": "EUR/kWh", "default": 0.4, "rules": [{"hours": "5-7", "value": 0.1}]}
    monkeypatch.setenv("AIRFLOW__ZEUS__TARIFF", json.dumps(hours))
    job = waiting(store, 2)
    wait = may_wait(job, STARTS, store, "d.train", now_s=0.0)
    assert wait is not None
    assert wait.as_json() == {"within_s": 28_800.0, "signal": "price", "until": "2031-05-01T05:00:00+00:00"}
    until = "as its series stands it would start at 2031-05-01 05:00 UTC"
    assert wait.text == f"at most 8 h 00 min for a cheaper start by price; {until}"
    late = may_wait(job, STARTS.replace(hour=8), store, "d.train", now_s=0.0)
    assert late is not None
    assert late.text.endswith("it would not wait")


@pytest.mark.parametrize(
    ("runs", "starts", "changes", "said"),
    [
        (0, STARTS, {}, "it starts at once: no run has shown yet how long it takes"),
        (2, None, {}, "start by price; it is planned when the run begins"),
        (2, STARTS, {"finish_by": "06:00"}, "no longer than its deadline lets it; it is planned when the run begins"),
        (2, STARTS, {}, "no series of these hours is in the log; it is planned when the run begins"),
    ],
)
def test_a_wait_that_cannot_be_planned_says_why(
    store: Store, runs: int, starts: datetime | None, changes: dict[str, Any], said: str
) -> None:
    wait = may_wait(waiting(store, runs, **changes), starts, store, "d.train", now_s=0.0)
    assert wait is not None
    assert wait.text.endswith(said)
    assert wait.until is None


def test_the_window_of_a_wait_is_said_and_none_where_zeus_is_switched_off(
    zeus: Zeus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting(store, 2)
    assert "wait        at most 8 h 00 min for a cheaper start by price" in zeus("plan", "d.train").out
    assert json.loads(zeus("plan", "d.train", "-o", "json").out)["wait"]["within_s"] == 28_800.0
    monkeypatch.setenv("AIRFLOW__ZEUS__ENABLED", "measure")
    assert json.loads(zeus("plan", "d.train", "-o", "json").out)["wait"] is None


def test_a_wait_knows_how_long_a_run_takes_behind_many_that_trained_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = {"timezone": "UTC", "unit": "EUR/kWh", "default": 0.4, "rules": [{"hours": "5-7", "value": 0.1}]}
    monkeypatch.setenv("AIRFLOW__ZEUS__TARIFF", json.dumps(hours))
    job = waiting(store, 2)
    for n in range(3, 70):
        asked = store.ask(request(n, ti_id=f"d.train-{n}", job=job)).trial
        store.tell(asked.key, State.NOT_NEEDED, report(asked.batch_size, time_s=None, energy_j=None, epochs=None))
    wait = may_wait(job, STARTS, store, "d.train", now_s=0.0)
    assert wait is not None
    assert wait.until == datetime(2031, 5, 1, 5, tzinfo=UTC), "as the run itself reads it"


def test_a_job_that_chooses_its_start_has_it_in_its_plan(zeus: Zeus, store: Store) -> None:
    job = replace(request(1).job, policy="knowledge_gradient", starts=["cold", "warm"])
    asked = store.ask(request(1, job=job))
    store.tell(asked.trial.key, State.CONVERGED, report(32, returned='"m"', start="cold"))
    found = json.loads(zeus("plan", "d.train", "-o", "json").out)
    assert "warm" in zeus("plan", "d.train").out
    again = store.ask(request(2, job=job)).trial.decision
    assert [a["start"] for a in found["attempts"]] == [a.start for a in again.attempts]
    assert "warm" in [a["start"] for a in found["attempts"]], "it is worth a try"
