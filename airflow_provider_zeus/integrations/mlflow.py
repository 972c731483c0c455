"""Writes the cost of an attempt into the MLflow run that the training has open (``log_to``)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class OpenRun(NamedTuple):
    """A run of MLflow: its server or folder, and its id."""

    tracking_uri: str
    run_id: str


def open_run(*, closed: bool = False) -> OpenRun | None:
    """The run that is open in this thread; None: there is none. Asks no server.

    :param closed: else the one that was open last.
    """
    mlflow = sys.modules.get("mlflow")  # a training that has not imported it has no run open
    if not mlflow:
        return None
    run = mlflow.active_run()
    run_id = run.info.run_id if run else None
    # mlflow.last_active_run() would ask the server
    last: Any = getattr(sys.modules.get("mlflow.tracking.fluent"), "_last_active_run_id", None)
    if closed and run_id is None and hasattr(last, "get"):
        run_id = last.get()
    return OpenRun(mlflow.get_tracking_uri(), run_id) if run_id else None


def write(
    run: OpenRun,
    prefix: str,
    figures: Mapping[str, float],
    settings: Mapping[str, object],
    curve: Iterable[tuple[str, int, float]],
) -> None:
    """Write figures as metrics, settings as parameters. Raises any error of MLflow, and may wait.

    :param prefix: of all names.
    :param curve: (name, epoch from 0, value).
    """
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(run.tracking_uri)
    now_ms = int(1000 * time.time())
    points = [*((name, 0, value) for name, value in figures.items()), *curve]
    metrics = [Metric(prefix + name, value, now_ms, step) for name, step, value in points]
    most = 1000  # MLflow's server refuses more metrics in one call
    for at in range(0, len(metrics), most):
        client.log_batch(run.run_id, metrics=metrics[at : at + most], synchronous=True)
    params = [Param(prefix + name, str(value)) for name, value in settings.items()]
    client.log_batch(run.run_id, params=params, synchronous=True)
