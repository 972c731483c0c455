"""A DAG that a benchmark runs in this process."""

from __future__ import annotations

import os
from typing import Any


def known_to_airflow(dag: Any) -> Any:
    """The DAG, once it is in Airflow's database, as its DAG processor puts it there."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    with create_session() as session:
        session.merge(DagBundleModel(name=dag.dag_id))
    bag = DagBag(dag_folder=os.devnull)
    bag.bag_dag(dag)
    sync_bag_to_db(bag, dag.dag_id, None)
    return dag
