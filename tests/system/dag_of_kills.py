"""The DAG whose task test_kills.py kills; read by Airflow's task runner, not by pytest."""

from __future__ import annotations

import os

from airflow.sdk import DAG, task

from tests.system.kill_host import job, train

with DAG("kills", schedule=None):

    @task.zeus(job(os.environ["ZEUS_TEST_DEVICE"]))
    def train_it(run=None):
        return train(run)

    train_it.override(task_id="train")()
