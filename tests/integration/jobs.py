"""Jobs, loops and DAGs that the integration tests share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_zeus import ZeusJob
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.operators.command import ZeusCommandOperator

FOUR_SIZES = ZeusJob(
    batch_sizes=[16, 32, 64, 128],
    default_batch_size=32,
    target="accuracy >= 0.9",
    max_epochs=30,
    device="simulated:v100/shufflenet",
    profile_s=0.1,
)
SAVED: list[tuple[str, int]] = []  # (run id, batch size) of every model kept, in order


def save(run_id: str, batch_size: int) -> int:
    """Stands for the user's own ``save(model)``: what must happen once per scheduled run."""
    SAVED.append((run_id, batch_size))
    return batch_size


def saves_of(run_id: str) -> list[int]:
    """Batch sizes saved by one DAG run."""
    return [b for r, b in SAVED if r == run_id]


def job(**changes: Any) -> ZeusJob:
    """A job on the simulated GPU that learns from ``dag.test()``."""
    spec: dict[str, Any] = {
        "batch_sizes": [16, 32, 64],
        "default_batch_size": 32,
        "target": "accuracy >= 0.9",
        "max_epochs": 20,
        "device": "simulated:v100/shufflenet",
        "learn_from": ["test"],
        "policy": "zeus",  # whose order of exploration is known
    }
    return ZeusJob(**{**spec, **changes})


def loop(run: Any, epochs_needed: int) -> None:
    """A training whose metric reaches 0.9 after ``epochs_needed`` epochs."""
    for epoch in run.epochs():
        for _ in range(5000 // run.batch_size):
            run.step()
        run.report(accuracy=0.9 * (epoch + 1) / epochs_needed)


EPOCHS = {16: 19, 32: 4, 64: 5}  # 16 needs more than twice the cost of 32


def zeus_dag(
    dag_id: str,
    spec: ZeusJob,
    epochs: Callable[[int], int] = EPOCHS.__getitem__,
    **task_kwargs: Any,
) -> DAG:
    """One DAG with one task ``train`` that saves what it keeps."""
    with DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

        @task.zeus(spec, **task_kwargs)
        def train(run, run_id=None):
            loop(run, epochs(run.batch_size))
            return save(run_id, run.batch_size)

        train()
    return dag


def log_of(job_id: str) -> list[Trial]:
    """The run log as any reader gets it."""
    from airflow_provider_zeus.store.open import open_store

    return open_store().trials(job_id)


# A script that trains as any host can, and reaches its target in the fourth epoch.
SCRIPT = """
from airflow_provider_zeus.training.run import ZeusRun
def train(run):
    for epoch in run.epochs():
        for _ in range(5000 // run.batch_size):
            run.step()
        run.report(accuracy=0.9 * (epoch + 1) / 4)
ZeusRun.from_env().train(train)
"""


def of_script(dag_id: str, folder: Path, code: str, job: ZeusJob) -> DAG:
    """A DAG that trains by a script in a folder."""
    (folder / "train.py").write_text(code)
    with DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        ZeusCommandOperator(
            task_id="train",
            job=job,
            command=[sys.executable, "train.py"],
            env={"PYTHONPATH": str(Path(__file__).parents[2])},
            cwd=str(folder),
        )
    return dag
