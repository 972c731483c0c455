"""What a check knows of a task's job before a run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_provider_zeus.cli.checks_dag import zeus_tasks
from airflow_provider_zeus.model.job import ZeusJob

JOB = ZeusJob(
    batch_sizes=[16, 32], default_batch_size=32, target="accuracy >= 0.9", max_epochs=5
).to_dict()


@pytest.mark.parametrize(
    ("data_slice", "known"),
    [("s1", "s1"), ("{{ 'of ' ~ dag.dag_id }}", "of d"), ("{{ ti.xcom_pull('load') }}", None)],
)
def test_the_job_of_a_made_up_run_or_none_that_a_real_run_alone_knows(
    data_slice: str, known: str | None
) -> None:
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

        @task.zeus({**JOB, "data_slice": data_slice})  # type: ignore[attr-defined,untyped-decorator]
        def train(run: Any) -> None:
            raise AssertionError("a check trains nothing")

        train()
    (one,) = zeus_tasks(dag)
    job = one.job(dag)
    assert (job if job is None else job.data_slice) == known
    assert job is None or isinstance(job, ZeusJob)
