"""Metrics of a task that a real scheduler starts, by OpenTelemetry's own protocol."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_zeus.store.sql.store import SqlStore
from tests.receivers import otlp
from tests.system.servers import airflow, wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

DAG = """
from airflow.sdk import DAG, task
from airflow_provider_zeus import ZeusJob
JOB = ZeusJob(batch_sizes=[16, 32], default_batch_size=32, target="accuracy >= 0.9", max_epochs=20,
              device="simulated:v100/shufflenet")
with DAG("told", schedule=None, is_paused_upon_creation=False):
    @task.zeus(JOB)
    def train(run):
        for epoch in run.epochs():
            for _ in range(5000 // run.batch_size):
                run.step()
            run.report(accuracy=0.46 * (epoch + 1))
    train()
"""


def test_what_a_short_process_sent_has_come(tmp_path: Path) -> None:
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "told.py").write_text(DAG)
    with otlp() as received:
        settings = {"OTEL_ON": "True", "OTEL_HOST": "127.0.0.1", "OTEL_PORT": str(received.port)}
        with airflow(
            tmp_path, **{f"AIRFLOW__METRICS__{name}": value for name, value in settings.items()}
        ) as site:
            wait_until(lambda: site.api.get("dags/told") is not None, 60, "the DAG")
            assert site.wait_for_run("told", site.trigger("told")) == "success"
            (energy,) = {
                (p.value, p.tags["source"])
                for p in received.wait_for("zeus.trial.energy_j")
                if p.value
            }
    (trial,) = SqlStore(f"sqlite:///{tmp_path}/zeus.db").trials("told.train")
    assert energy == (pytest.approx(trial.observation.energy_j), "simulated")
