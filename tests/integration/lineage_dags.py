"""Runs DAGs with ``dag.test()`` in a process of its own, whose OpenLineage settings are in its environment."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task

from airflow_provider_zeus.operators import mixins
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.operators.trial import ZeusTrial
from tests.integration.jobs import SCRIPT, job, loop

START = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = str(Path(__file__).parents[2])


def all_kinds(folder: Path) -> DAG:
    """A task of each operator; one of them fails after it has trained."""
    (folder / "train.py").write_text(SCRIPT)
    with DAG("zeus_lineage", schedule=None, start_date=START) as dag:

        @task.zeus(job())
        def decorated(run):
            loop(run, 4)

        @task.zeus(job())
        def mapped(run, region):
            loop(run, 4)

        @task.zeus(job())
        def fails(run):
            loop(run, 4)
            raise RuntimeError("disk full")

        decorated()
        mapped.expand(region=["north"])
        fails()
        run = [sys.executable, "train.py"]
        ZeusCommandOperator(
            task_id="command", job=job(), command=run, env={"PYTHONPATH": ROOT}, cwd=str(folder)
        )
        with ZeusTrial(job()) as trial:
            env = {
                "PYTHONPATH": ROOT,
                "ZEUS_XCOM": str(folder / "return.json"),
                "ZEUS_STATE_DIR": str(folder),
            }
            command = f"{sys.executable} train.py && cat $ZEUS_XCOM"
            BashOperator(
                task_id="pod",
                bash_command=command,
                env=trial.env | env,
                append_env=True,
                cwd=str(folder),
            )
    return dag


def main(folder: Path) -> None:
    """Serialise the DAG and run it."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    mixins.figures_of = partial(mixins.figures_of, most_s=60.0)  # type: ignore[assignment]  # a busy machine
    with create_session() as session:
        session.merge(DagBundleModel(name="tests"))
    dag = all_kinds(folder)
    bag = DagBag(dag_folder=os.devnull)
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "tests", None)
    ended: Any = dag.test()
    print("state", ended.state)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
