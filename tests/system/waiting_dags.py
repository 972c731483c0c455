"""DAGs whose tasks wait for a cheaper start: a function with several outputs, a command,
any operator.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task

from airflow_provider_zeus import ZeusJob
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.operators.trial import ZeusTrial

JOB = ZeusJob(
    batch_sizes=[16, 32],
    default_batch_size=32,
    target="accuracy >= 0.9",
    max_epochs=20,
    device="simulated:v100/shufflenet",
    start_within="1 h",
    start_signal="wait_signal",
)
WORK = os.environ["ZEUS_TEST_DIR"]
START = datetime(2026, 1, 1, tzinfo=UTC)
# where a busy host does not get a task started
AGAIN = {"retries": 3, "retry_delay": timedelta(seconds=1)}

with DAG("wait_function", schedule=None, start_date=START, default_args=AGAIN):

    @task.zeus(JOB, multiple_outputs=True)
    def train(run):
        for epoch in run.epochs():
            for _ in range(5000 // run.batch_size):
                run.step()
            run.report(accuracy=0.9 * (epoch + 1) / 4)
        return {"size": run.batch_size}

    train()

with DAG("wait_command", schedule=None, start_date=START, default_args=AGAIN):
    ZeusCommandOperator(task_id="train", job=JOB, command=[sys.executable, f"{WORK}/train.py"])

with (
    DAG("wait_trial", schedule=None, start_date=START, default_args=AGAIN),
    ZeusTrial(JOB) as trial,
):
    BashOperator(
        task_id="train",
        bash_command=f"{sys.executable} {WORK}/train.py && cat $ZEUS_XCOM",
        env=trial.env | {"ZEUS_XCOM": f"{WORK}/{{{{ run_id }}}}.json", "ZEUS_STATE_DIR": WORK},
        append_env=True,
    )
