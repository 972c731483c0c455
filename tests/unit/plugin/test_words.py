"""The pages speak of runs and attempts (tests/words.py), by the numbers of the commands."""

from __future__ import annotations

from typing import Any

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.live_settings import write_settings
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from tests.unit.plugin.kit import ran
from tests.unit.plugin.test_run_routes import charts, costs
from tests.words import found, texts

ENDS = (State.CONVERGED, State.FAILED, State.EXHAUSTED, State.NO_METRIC, State.GIVEN_UP)


def test_every_answer(viewer: Any, store: Store) -> None:
    for n, state in enumerate(ENDS, start=1):
        ran(store, n, state=state, profile=2, points=3)
    for n in range(len(ENDS) + 1, 12):
        ran(store, n, profile=2, points=3, device_model="A40")
    ran(store, 12, state=State.FAILED, reason="disk full")
    settings = {"excluded": [2, 3], "pause_exploration": True, "audit_after": 3}
    write_settings(AirflowVariables(), "d.train", settings, by="vic")
    dag = "/zeus/api/dags/d"
    answers = [
        viewer.get(f"{dag}/costs").json(),
        viewer.get(f"{dag}/charts").json(),
        viewer.get("/zeus/api/jobs").json(),
        costs(viewer).json(),
        charts(viewer).json(),
        costs(viewer, "run2").json(),
        costs(viewer, "nowhere").json(),
        costs(viewer, job_id="none").json(),
    ]
    try:
        for answer in answers:
            assert found(texts(answer)) == [], answer
        assert "device changed at run 12 from A40" in texts(answers[0])
        (part,) = answers[5]["parts"]
        assert part["attempts"][0]["number"] == "2.1"
        assert {row["number"] for row in answers[0]["rows"]} >= {2, 12}
    finally:
        AirflowVariables().delete("zeus-settings:d.train")
