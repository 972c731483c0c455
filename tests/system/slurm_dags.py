"""DAGs that submit to a fake Slurm: read by the servers of test_slurm.py, not by pytest."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_zeus import ZeusJob
from airflow_provider_zeus.operators.command import ZeusCommandOperator

SLURM = Path(os.environ["ZEUS_TEST_DIR"])
JOB = ZeusJob(
    batch_sizes=[32],
    default_batch_size=32,
    target="accuracy >= 0.9",
    max_epochs=20,
    device="simulated:v100/shufflenet",
)

with DAG("slurm", schedule=None, max_active_runs=1):
    ZeusCommandOperator(
        task_id="train",
        job=JOB,
        command=[str(SLURM / "bin" / "sbatch"), str(SLURM / "shared" / "train.sbatch")],
        cwd=str(SLURM / "shared"),
        retries=1,
        retry_delay=timedelta(seconds=1),
    )
