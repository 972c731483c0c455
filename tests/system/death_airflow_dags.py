"""A DAG for each cell of test_death_airflow.py; read by Airflow's servers, not by pytest.

``$ZEUS_TEST_DIR/cells.json`` says which there are. Each has a folder with its log and its fake GPU,
and while a file ``hold.json`` lies there its training stops at the point that this names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_provider_zeus.operators import asking, recurrence
from airflow_provider_zeus.operators.mixins import ReportsCost
from airflow_provider_zeus.operators.train import ZeusTrainOperator
from tests.system.death_training import AFTER_TELL, JOB, Held, Point, Watched, shorten, train
from tests.system.kill_host import feed_on_demand

HERE = Path(os.environ["ZEUS_TEST_DIR"])
POINT: Point  # of the task that this process runs


def arrange(device_of: Callable[..., Any], report_cost: Callable[..., None]) -> None:
    """In the task's process: the cell's GPU, its log, its point."""

    def of_cell(job: Any, *args: Any, **options: Any) -> Any:
        global POINT
        folder = HERE / job.job_id
        os.environ.update(FAKE_NVML_STATE=str(folder / "nvml.state"), ZEUS_CELL=str(folder))
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # of the fake library no GPU is hidden
        shorten()
        hold = folder / "hold.json"
        held = (
            json.loads(hold.read_text())
            if hold.exists()
            else {"stage": "", "early": False, "linger_s": 0.0}
        )
        POINT = Point({"cell": str(folder), **held})
        if hold.exists():
            feed_on_demand("task")
        return device_of(job, *args, **options)

    def reported(self: Any, *args: Any) -> None:
        report_cost(self, *args)
        POINT.here(AFTER_TELL)

    recurrence.device_of = of_cell
    asking.open_store = lambda conn_id, create=True, **_: Held(_url(), POINT, create)
    recurrence.ResultReporter = Watched  # type: ignore[misc]
    ReportsCost.report_cost = reported  # type: ignore[method-assign]


def _url() -> str:
    return f"sqlite:///{POINT.folder}/store/zeus.db"


arrange(recurrence.device_of, ReportsCost.report_cost)

for name, timeout_s in json.loads((HERE / "cells.json").read_text()).items():
    with DAG(
        name, schedule=None, dagrun_timeout=timedelta(seconds=timeout_s) if timeout_s else None
    ):
        ZeusTrainOperator(
            task_id="train",
            job=replace(JOB, job_id=name),
            python_callable=lambda run: train(run, POINT),
        )
