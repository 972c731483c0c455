"""A few real runs of a small job on a simulated GPU:
the reference shows what they push and send, name by name.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Origin
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.operators.recurrence import decision_xcom, plan_of
from airflow_provider_zeus.operators.result_reporter import ResultReporter
from airflow_provider_zeus.power.factory import device_of
from airflow_provider_zeus.reports.run_figures import RunFigures, with_log
from airflow_provider_zeus.reports.run_metrics import Metric, job_metrics, trial_metrics
from airflow_provider_zeus.store.base import AskRequest
from airflow_provider_zeus.store.sql.store import SqlStore
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from airflow_provider_zeus.training.run import ZeusRun

RUNS = 4
EPOCHS = {16: 19, 32: 4, 64: 5}  # that each batch size needs


@dataclass(frozen=True)
class Sample:
    """What the newest of some runs pushed, and what all of them sent."""

    decision: dict[str, Any]  # XCom zeus_decision
    cost: dict[str, Any]  # XCom zeus_cost
    metrics: list[Metric]


@cache
def sample(device: str = "simulated:v100/shufflenet") -> Sample:
    """Train a job on a device a few times,
    with a trial log of its own in a folder for temporary files.
    """
    spec = ZeusJob(
        batch_sizes=list(EPOCHS),
        default_batch_size=32,
        target="accuracy >= 0.9",
        max_epochs=20,
        device=device,
        profile_s=1,
        power_limits_w=[150, 200, 250] if "simulated" in device else None,
    )
    with tempfile.TemporaryDirectory(prefix="zeus-docs-") as folder:
        store = SqlStore(f"sqlite:///{folder}/zeus.db", create=True)
        try:
            runs = [_run(store, spec, number, Path(folder)) for number in range(1, RUNS + 1)]
            return replace(runs[-1], metrics=[metric for run in runs for metric in run.metrics])
        finally:
            store.close()


def _run(store: SqlStore, spec: ZeusJob, number: int, folder: Path) -> Sample:
    config = ZeusConfig(
        state_dir=folder, heartbeat_s=15, lease_s=90, cpu_watts=None, power_read_only=False
    )
    device = device_of(spec, folder)
    origin = Origin(
        dag_id="sales", run_id=f"2026-01-{number:02}", task_id="train", run_type="scheduled"
    )
    asked = store.ask(
        AskRequest(
            job=spec,
            job_id="sales.train",
            ti_id=f"try-{number}",
            origin=origin,
            device=device.info,
            lease_s=config.lease_s,
        )
    )
    reporter = ResultReporter(
        store, AirflowVariables(), asked.trial, lease_s=config.lease_s, state_dir=folder
    )
    plan = plan_of(asked, config, device=device)
    ZeusRun.from_plan(plan, sink=reporter, device=device).train(_train)
    cost = reporter.cost_xcom()
    run = with_log(
        RunFigures(cost=cost, ended=reporter.ended), store.trials("sales.train"), store.profile
    )
    sent = [*trial_metrics(run.ended, run.newest), *job_metrics(run)]
    return Sample(decision=decision_xcom(asked.trial, store), cost=cost, metrics=sent)


def _train(run: ZeusRun) -> str:
    for epoch in run.epochs():
        for _ in range(50_000 // run.batch_size):
            run.step()
        run.report(accuracy=0.9 * (epoch + 1) / EPOCHS[run.batch_size])
    return "models/sales.pt"
