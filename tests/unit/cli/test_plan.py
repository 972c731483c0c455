"""``airflow zeus plan``: the decision that the next run makes, without asking for it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime

from airflow_provider_zeus.airflow_compat import DagModel, create_session
from airflow_provider_zeus.model.trial import Observation, State
from airflow_provider_zeus.store.base import Report, Store
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
    assert lines["phase"] == "incumbent"
    assert "paused" in lines["why"]
    assert "Wh" in lines["expected"]
    assert "of a run of 16" in lines["expected"]
    assert "pause_exploration=true" in lines["settings"]
    assert "trial 3;" in lines["open"]


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
