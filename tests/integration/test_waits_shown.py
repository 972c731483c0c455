"""What a run waits for is read from Airflow's own XComs, as operators push them, and whatever else lies there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_zeus.operators.mixins import WAIT
from airflow_provider_zeus.operators.schedule import PlannedWait as Planned
from airflow_provider_zeus.plugin.api.reading import waits
from airflow_provider_zeus.plugin.text.run_notes import StartWait

UNTIL_S = 1_800_000_000.0
PLANNED = Planned(
    signal="carbon", why="It waits until then: 24 % less.", until_s=UNTIL_S, saves=0.24
)


def test_the_waits_of_a_run_by_the_task_that_trains(run_dag: Any) -> None:
    with DAG("zeus_waits_shown", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

        @task
        def pushes(value: Any, ti=None):  # type: ignore[no-untyped-def]
            ti.xcom_push(key=WAIT, value=value)

        pushes.override(task_id="train")(PLANNED.xcom() | {"trains": "train"})
        pushes.override(task_id="train_ask")(PLANNED.xcom() | {"trains": "inside"})
        pushes.override(task_id="rubbish")([1, {"why": 2}])
    run = run_dag(dag)
    found = waits("zeus_waits_shown", run.run_id, named=True)
    assert found.keys() == {("train", -1), ("inside", -1)}
    assert found["inside", -1] == StartWait(UNTIL_S, PLANNED.why, "inside")
    assert waits("zeus_waits_shown", "another run", named=True) == {}
