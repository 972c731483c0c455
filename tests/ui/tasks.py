"""A DAG of plain tasks that ``[zeus] measure`` names, as its listener writes them:
for the tables of tasks.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import Any

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.store.store_kit import outside

DAG_ID = "zeus_ui_shop"
RUN = "scheduled__2026-11-28"
WH_J = 3600.0
PLAIN = {
    "power_limit_w": None,
    "device_model": "AMD EPYC 7763",
    "device_count": None,
    "max_power_w": None,
    "gpu_uuid": None,
    "limit_found_w": None,
    "samples": None,
    "samples_per_epoch": None,
    "metric": None,
    "learning_rate": None,
    "rest_j": None,
    "rest_s": None,
}
MAPPED = 50


def history(dag_id: str = DAG_ID, task: str = "transform", run: str = RUN) -> None:
    """Three runs of a DAG: one mapped task, one that uses a GPU, one that fails,
    and two that are hardly there.
    """
    known_to_airflow(dag_id)
    store = open_store()
    now_s = time.time()
    for n, run_id in enumerate((f"{run}-2", f"{run}-1", run)):
        at_s = now_s - 3600.0 * (3 - n)
        took(store, dag_id, run_id, "load", at_s + 40, wh=4.0, time_s=120.0)
        took(store, dag_id, run_id, "extract", at_s, wh=11.0, time_s=600.0)
        for index in range(MAPPED):
            took(store, dag_id, run_id, task, at_s + 20, index, wh=0.5 + 0.01 * index, time_s=90.0)
        gpu = {"energy_source": "nvml_counter", "device_model": "NVIDIA L4", "device_count": 1}
        took(store, dag_id, run_id, "embed", at_s + 30, wh=38.0, time_s=1900.0, **gpu)
        took(store, dag_id, run_id, "wait", at_s + 10, wh=0.02, time_s=30.0)
        state = State.FAILED if n == 2 else State.DONE
        took(store, dag_id, run_id, "report", at_s + 50, wh=0.01, time_s=2.0, state=state)
        took(store, dag_id, run_id, "notify", at_s + 60, wh=None, time_s=3.0, energy_source=None)


def took(
    store: Store,
    dag_id: str,
    run_id: str,
    task_id: str,
    at_s: float,
    map_index: int = -1,
    *,
    wh: float | None,
    **changes: Any,
) -> None:
    """One task of a run."""
    key = f"{dag_id}-{run_id}-{task_id}-{map_index}"
    values = {"energy_source": "estimate", **changes}
    energy_j = None if wh is None else wh * WH_J
    state = values.pop("state", State.DONE)
    outside(
        store,
        1,
        state,
        at_s,
        dag_id=dag_id,
        run_id=run_id,
        task_id=task_id,
        map_index=map_index,
        ti_id=key,
        energy_j=energy_j,
        start_id=key[-90:],
        **{**PLAIN, **values},
    )


def known_to_airflow(dag_id: str) -> None:
    """The DAG, so that Airflow has its graph: extract, wait, transform, embed, load,
    report, notify.
    """
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dagbundle import DagBundleModel
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk import DAG
    from airflow.utils.session import create_session

    with create_session() as session:
        session.merge(DagBundleModel(name="tests"))
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with DAG(dag_id, schedule=None, start_date=start, tags=["zeus", "shop"]) as dag:
        names = ("extract", "wait", "transform", "embed", "load", "report", "notify")
        before = None
        for name in names:
            task = EmptyOperator(task_id=name)
            if before is not None:
                before >> task
            before = task
    bag = DagBag(dag_folder=os.devnull)
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "tests", None)
