"""One run of each entry: what must work on any Airflow, the newest pre-release included. Needs no torch."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_zeus.plugin import ZeusPlugin
from tests.integration.jobs import job, log_of
from tests.unit.cli.conftest import Zeus, home, zeus  # noqa: F401  fixtures


def test_a_dag_with_the_decorator_its_trial_and_the_commands(
    run_dag: Any,
    zeus: Zeus,  # noqa: F811
) -> None:
    with DAG("smoke") as dag:

        @task.zeus(job(device="none"))
        def train(run: Any = None) -> int:
            for _ in run.epochs():
                run.report(accuracy=0.99)
            return int(run.batch_size)

        train()
    assert run_dag(dag).state == "success"
    (trial,) = log_of("smoke.train")
    assert trial.state.value == "converged"

    assert zeus("runs", "smoke.train").status == 0
    assert zeus("doctor").out.startswith(("OK", "warning")), "no error for this version"


def test_the_pages_are_there() -> None:
    (found,) = ZeusPlugin().fastapi_apps
    paths = {route.path for route in found["app"].routes}
    assert {"/page", "/api/dags/{dag_id}/costs"} <= paths
