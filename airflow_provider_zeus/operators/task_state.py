"""The newest checkpoint of a run in Airflow's task state (since Airflow 3.3), which outlives a try of its task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.model.wire import decode, encode
from airflow_provider_zeus.patience import bounded, outlived
from airflow_provider_zeus.store.base import Report
from airflow_provider_zeus.training.protocol.plan import Checkpoint, Checkpoints

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

log = logging.getLogger(__name__)

KEY = "zeus_checkpoint"


def checkpoints_of(context: Mapping[str, Any], opened: Callable[[], Store]) -> Checkpoints:
    """Those of a task instance: the one of an earlier try, whose figures go to the log where it lacks them.

    A clear raises ``max_tries``: what an earlier run of the task left is not gone on from. Raises nothing.

    :param opened: gives the trial log, or raises StoreError.
    """
    state, tries = context.get("task_state_store"), getattr(context["ti"], "max_tries", None)
    if state is None or tries is None:
        return Checkpoints()
    newest: Checkpoint | None = None
    with outlived("read where the checkpoint of an earlier try lies"):
        held = state.get(KEY)
        if isinstance(held, dict) and held.get("max_tries") == tries:
            newest = decode(Checkpoint, held["checkpoint"])
    if newest is not None:
        log.info("Zeus: an earlier try left a checkpoint of %d epochs: run.checkpoint.", newest.epochs)
        with outlived("write what the earlier try took"):
            most_s = 5.0
            bounded(lambda: _count_once(opened(), context["ti"], newest), most_s)

    def keep(checkpoint: Checkpoint) -> None:
        seen = replace(checkpoint.observation, epoch_metrics=None)  # short: the rest is figures
        state.set(KEY, {"max_tries": tries, "checkpoint": encode(replace(checkpoint, observation=seen))})

    return Checkpoints(newest, keep)


def _count_once(store: Store, ti: Any, held: Checkpoint) -> None:
    """Give the trial of the try that died its figures, where those of the log are older. Raises StoreError."""
    for trial in store.recurrence(ti.dag_id, ti.run_id):
        if trial.key == held.key and (trial.observation.time_s or 0.0) < (held.observation.time_s or 0.0):
            store.heartbeat(held.key, Report(observation=held.observation))
