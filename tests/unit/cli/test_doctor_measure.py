"""What doctor says of ``[zeus] measure``, before it is set and after."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.cli import checks_measure, doctor
from airflow_provider_zeus.cli.checks_measure import KnownDag, of_patterns, of_refused
from airflow_provider_zeus.cli.finding import Finding
from airflow_provider_zeus.task_patterns import TaskPatterns
from tests.unit.cli.conftest import Zeus

DAG_FILE = """
from datetime import datetime, timedelta

from airflow.providers.standard.sensors.time_delta import TimeDeltaSensor
from airflow.sdk import DAG

with DAG("waits_in_the_triggerer", schedule=None, start_date=datetime(2026, 1, 1), tags=["zeus"]):
    TimeDeltaSensor(task_id="wait", delta=timedelta(1), deferrable=True, end_from_trigger=True)
"""
SALES = KnownDag(dag_id="sales_daily", tags=["zeus"], task_ids=["load", "wait_for_file"])
OTHER = KnownDag(dag_id="other", task_ids=["a", "b"])


def named(text: str, *, in_variables: bool = False) -> Finding:
    return of_patterns(TaskPatterns.parse(text), [SALES, OTHER], in_variables=in_variables)


def test_tasks_are_counted_and_patterns_that_match_nothing_are_named() -> None:
    assert named("").status == "ok"
    assert named("tag:zeus, !*.wait_*") == Finding("measure", "ok", "names 1 task of 1 DAG")
    assert named("*").finding == "names 4 tasks of 2 DAGs"
    found = named("tag:zeus, tag:Zeus, sale_*, !nobody")
    assert found.status == "warning"
    assert found.finding == "names 2 tasks of 1 DAG; tag:Zeus, sale_*, nobody match nothing"


def test_before_airflow_has_read_a_dag_no_pattern_is_accused() -> None:
    found = of_patterns(TaskPatterns.parse("tag:zeus"), [], in_variables=False)
    assert found.status == "warning"
    assert found.finding == "Airflow's database has no DAG yet, so what it names is not known"
    assert "airflow dags reserialize" in str(found.remedy)


def test_with_the_variable_store_it_does_nothing() -> None:
    found = named("tag:zeus", in_variables=True)
    assert found.status == "warning"
    assert "does nothing" in found.finding
    assert "PostgreSQL" in str(found.remedy)


@pytest.fixture
def refused_dag(tmp_path: Path) -> KnownDag:
    file = tmp_path / "refused.py"
    file.write_text(DAG_FILE)
    return KnownDag(dag_id="waits_in_the_triggerer", tags=["zeus"], file=str(file))


@pytest.mark.parametrize(("is_set", "status"), [(False, "ok"), (True, "error")])
def test_dags_that_airflow_would_refuse_are_named_before_it_is_set(
    refused_dag: KnownDag, is_set: bool, status: str
) -> None:
    found = of_refused([SALES, refused_dag], is_set=is_set)
    assert found.status == status
    assert "waits_in_the_triggerer" in found.finding
    assert "end_from_trigger=False" in str(found.remedy)


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        ("Sensor(end_from_trigger=True)", True),
        ("Sensor(end_from_trigger=ENDS)", True),
        ("Sensor(end_from_trigger=False)", False),
        ("# end_from_trigger=True", False),
        ("DAG(default_args={'end_from_trigger': True})", True),
        ("DAG(default_args={**ARGS, 'end_from_trigger': False})", False),
        ("Sensor(end_from_trigger=", False),
    ],
)
def test_a_file_is_read_and_not_run(tmp_path: Path, text: str, sets: bool) -> None:
    file = tmp_path / "dag.py"
    file.write_text(text)
    assert checks_measure.sets_flag(str(file)) is sets
    assert not checks_measure.sets_flag(str(tmp_path / "none.py"))


@pytest.fixture
def manager() -> Iterator[Any]:
    """Airflow's listeners, with none registered: Airflow 3.2 has one among its examples."""
    from airflow.listeners.listener import get_listener_manager

    manager = get_listener_manager()
    others = list(manager.pm.get_plugins())
    for listener in others:
        manager.pm.unregister(listener)
    yield manager
    for listener in others:
        manager.pm.register(listener)


def test_airflow_refuses_exactly_such_a_dag_while_a_listener_is_registered(
    refused_dag: KnownDag, airflow_home: Path, manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words of the import error are those of the documentation."""
    from airflow.dag_processing.dagbag import DagBag

    from airflow_provider_zeus.plugin import ZeusPlugin

    assert ZeusPlugin().listeners == [], "none is registered if [zeus] measure is empty"
    assert DagBag(dag_folder=refused_dag.file).import_errors == {}
    monkeypatch.setenv("AIRFLOW__ZEUS__MEASURE", "tag:zeus")
    (listener,) = ZeusPlugin().listeners
    manager.add_listener(listener)
    try:
        (problem,) = DagBag(dag_folder=refused_dag.file).import_errors.values()
    finally:
        manager.pm.unregister(listener)
    words = "Listeners are not supported with end_from_trigger=True for deferrable operators."
    assert words in problem


def test_the_patterns_of_the_command_line_are_tried_on_the_dags_that_airflow_knows(
    zeus: Zeus, monkeypatch: pytest.MonkeyPatch, refused_dag: KnownDag
) -> None:
    monkeypatch.setattr(checks_measure, "known_dags", lambda: [SALES, refused_dag])
    found = {
        each["check"]: Finding(**each)
        for each in json.loads(zeus("doctor", "--json", "--measure", "sales_*, no_such").out)
    }
    assert found["measure"].finding == "names 2 tasks of 1 DAG; no_such matches nothing"
    assert found["refused DAGs"].status == "ok"
    assert "waits_in_the_triggerer" in found["refused DAGs"].finding


def test_the_dags_of_airflows_database_have_their_tags_tasks_and_file(
    airflow_home: Path, tmp_path: Path, manager: Any
) -> None:
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    file = tmp_path / "known.py"
    file.write_text(DAG_FILE.replace("waits_in_the_triggerer", "known_to_airflow"))
    with create_session() as session:
        session.merge(DagBundleModel(name="tests"))
    sync_bag_to_db(DagBag(dag_folder=str(file)), "tests", None)
    (found,) = [dag for dag in checks_measure.known_dags() if dag.dag_id == "known_to_airflow"]
    assert (found.tags, found.task_ids, found.file) == (["zeus"], ["wait"], str(file))


def test_factors_are_offered_if_they_are_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checks_measure.of_factors(has_price=False, has_carbon=False)
    assert found.status == "ok"
    assert "price_per_kwh" in str(found.remedy)
    assert "g_co2e_per_kwh" in str(found.remedy)
    monkeypatch.setenv("AIRFLOW__ZEUS__PRICE_PER_KWH", "0.3")
    monkeypatch.setenv("AIRFLOW__ZEUS__G_CO2E_PER_KWH", "380")
    assert doctor.factors().remedy is None
