"""Runs DAGs in this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.operators import asking, metrics, mixins, result_reporter
from airflow_provider_zeus.patience import retried
from airflow_provider_zeus.power.limits import guardian_client
from airflow_provider_zeus.store import open  # noqa: A004


@pytest.fixture
def run_dag(airflow_home: Path) -> Callable[..., Any]:
    """Runs a DAG in this process by ``dag.test()`` and returns the DAG run; a DAG must be serialised first."""

    def run(dag: Any, **kwargs: Any) -> Any:
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
        from airflow.models.dagbundle import DagBundleModel
        from airflow.utils.session import create_session

        with create_session() as session:
            session.merge(DagBundleModel(name="tests"))
        bag = DagBag(dag_folder=os.devnull)
        bag.bag_dag(dag)
        sync_bag_to_db(bag, "tests", None)
        return dag.test(**kwargs)

    return run


@pytest.fixture
def asks_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run asks a store that refuses again for two seconds instead of twenty.

    One that answers has the twenty: in ``dag.test()`` a task must not go on beside a question.
    """
    monkeypatch.setattr(asking, "retried", lambda call, _: retried(call, 2.0))


@pytest.fixture
def rerun_tasks(airflow_home: Path) -> Callable[..., None]:
    """Clears task instances of a finished run, as the UI does, and runs them again in this process, in that order."""

    def rerun(dag: Any, dag_run: Any, task_ids: list[str]) -> None:
        from airflow.models.taskinstance import clear_task_instances
        from airflow.sdk.definitions.dag import _run_task
        from airflow.utils.session import create_session

        with create_session() as session:
            run = session.merge(dag_run)
            clear_task_instances(
                [run.get_task_instance(task_id, session=session) for task_id in task_ids], session
            )
        for task_id in task_ids:
            with create_session() as session:
                session.merge(dag_run).get_task_instance(task_id, session=session).try_number += 1
            with create_session() as session:
                ti = session.merge(dag_run).get_task_instance(task_id, session=session)
                _run_task(ti=ti, task=dag.task_dict[task_id])

    return rerun


@pytest.fixture
def rerun_task(rerun_tasks: Callable[..., None]) -> Callable[..., None]:
    """Clears one task instance of a finished run and runs it again."""
    return lambda dag, dag_run, task_id: rerun_tasks(dag, dag_run, [task_id])


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take long to estimate a saving, to push an XCom, to read a Variable,
    to start a guardian, and to store the end of a task that is stopped.
    """
    monkeypatch.setattr(mixins, "figures_of", partial(mixins.figures_of, most_s=60.0))
    monkeypatch.setattr(mixins, "PUSH_S", 60.0)
    monkeypatch.setitem(mixins.push.__kwdefaults__, "most_s", 60.0)
    monkeypatch.setattr(metrics, "bounded", lambda call, _: call())
    for module in (asking, open):
        monkeypatch.setattr(module, "SETTINGS_S", 60.0)
    monkeypatch.setattr(guardian_client, "START_S", 60.0)
    monkeypatch.setattr(result_reporter, "STOPPED_S", 30.0)
