"""Which run of which DAG, task and try a trial belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_zeus.airflow_compat import is_test_run
from airflow_provider_zeus.model.job_checks import RUN_TYPES
from airflow_provider_zeus.model.trial import Origin


def origin_of(
    context: Mapping[str, Any], *, task_id: str | None = None, data_slice: str | None = None
) -> Origin:
    """The origin of a trial, by the context of its task instance.

    :param task_id: of the task that trains, if that is another one.
    :param data_slice: of the job; by default the partition key, or the end of the data interval.
    """
    ti = context["ti"]
    data_slice = data_slice or _slice_of_run(context)
    return Origin(
        dag_id=ti.dag_id,
        run_id=ti.run_id,
        task_id=task_id or ti.task_id,
        map_index=-1 if ti.map_index is None else ti.map_index,
        try_number=ti.try_number,
        run_type=_run_type(context["dag_run"]),
        data_slice=_storable(data_slice),
    )


def _run_type(dag_run: Any) -> str:
    """Scheduled, manual, ...; of an unknown kind manual."""
    if is_test_run():
        return "test"
    name = type_of(dag_run)
    # to the log both are runs by new data
    if name == "asset_materialization":
        return "asset_triggered"
    return name if name in RUN_TYPES else "manual"


def type_of(dag_run: Any) -> str:
    """The type of a run in Airflow's words."""
    return str(getattr(dag_run.run_type, "value", dag_run.run_type))


def _slice_of_run(context: Mapping[str, Any]) -> str | None:
    """The data of a run: its partition, or the end of its data interval; None if it has neither."""
    # a partition names its data; two runs of one partition have the same
    partition_key: str | None = context.get("partition_key")
    if partition_key:
        return partition_key
    interval_end = context.get("data_interval_end")
    return interval_end.isoformat() if interval_end else None


def _storable(text: str | None) -> str | None:
    """The text without NUL and surrogates, which databases do not take."""
    if text is None:
        return None
    # a slice may be any text of the author, and a refused one would fail the run
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
