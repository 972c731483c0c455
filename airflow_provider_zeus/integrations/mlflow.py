"""Writes what an attempt cost into the MLflow run that the training has open: ``ZeusJob(log_to=["mlflow"])``."""

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
    """The run that is open in this thread; asks no server. None: there is none, or the training has no MLflow.

    :param closed: else the one that was open last.
    """
    mlflow = sys.modules.get("mlflow")  # a training that has not imported it has no run open
    if not mlflow:
        return None
    run = mlflow.active_run()
    if run:
        return OpenRun(mlflow.get_tracking_uri(), run.info.run_id)
    last: Any = getattr(sys.modules.get("mlflow.tracking.fluent"), "_last_active_run_id", None)
    run_id = last.get() if closed and hasattr(last, "get") else None  # mlflow.last_active_run() would ask the server
    return OpenRun(mlflow.get_tracking_uri(), run_id) if run_id else None


def write(
    run: OpenRun,
    prefix: str,
    figures: Mapping[str, float],
    settings: Mapping[str, object],
    curve: Iterable[tuple[str, int, float]],
) -> None:
    """Write figures as metrics, settings as parameters. Raises what MLflow raises; may wait for its server.

    :param prefix: of all names.
    :param curve: (name, epoch from 0, value).
    """
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client, now_ms = MlflowClient(run.tracking_uri), int(1000 * time.time())
    points = [*((name, 0, value) for name, value in figures.items()), *curve]
    metrics = [Metric(prefix + name, value, now_ms, step) for name, step, value in points]
    most = 1000  # metrics that MLflow takes in one call
    for at in range(0, len(metrics), most):
        client.log_batch(run.run_id, metrics=metrics[at : at + most], synchronous=True)
    params = [Param(prefix + name, str(value)) for name, value in settings.items()]
    client.log_batch(run.run_id, params=params, synchronous=True)
