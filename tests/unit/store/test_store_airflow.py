"""Airflow's Variables: in a server process,
in a task with a supervisor that answers anything, in ``dag.test()``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import Variable

from airflow_provider_zeus import airflow_compat
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from airflow_provider_zeus.store.variables.store import VariableStore
from tests.unit.store.store_kit import report, request

pytestmark = pytest.mark.usefixtures("airflow_home")
lists_in_tasks = pytest.mark.skipif(
    not hasattr(Variable, "keys"), reason="a task lists Variables from Airflow 3.3 on"
)


def test_a_server_reads_writes_lists_and_deletes() -> None:
    port = AirflowVariables()
    assert port.get("zeus-test:a") is None
    port.set("zeus-test:a", '{"a": "ü"}\n')
    port.set("zeus-test:b", "")
    port.set("zeus_test:c", "%")
    assert port.get("zeus-test:a") == '{"a": "ü"}\n'
    assert port.get("zeus-test:b") == ""
    assert port.keys("zeus-test:") == ["zeus-test:a", "zeus-test:b"]
    for key in (*port.keys("zeus-test:"), "zeus_test:c", "zeus-test:never"):
        port.delete(key)
    assert port.keys("zeus-test:") == []


def test_a_database_that_fails_is_not_a_missing_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.secrets.metastore import MetastoreBackend

    def fails(*args: object, **kwargs: object) -> None:
        raise ConnectionError("gone")

    monkeypatch.setattr(MetastoreBackend, "get_variable", fails)
    with pytest.raises(StoreError, match=r"'zeus-test:a'.*ConnectionError: gone"):
        AirflowVariables().get("zeus-test:a")


class Supervisor:
    """The other end of a task's channel; ``answer`` makes the reply to a message."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self._answer = answer
        self.asked: list[str] = []

    def send(self, message: Any) -> Any:
        self.asked.append(type(message).__name__)
        return self._answer(message)


@pytest.fixture
def in_task(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], Any]], Supervisor]:
    from airflow.sdk.execution_time import task_runner

    def start(answer: Callable[[Any], Any]) -> Supervisor:
        supervisor = Supervisor(answer)
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
        return supervisor

    return start


def error(kind: str) -> Any:
    from airflow.sdk.exceptions import ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse

    return ErrorResponse(error=ErrorType[kind])


def raising(kind: str) -> Callable[[Any], Any]:
    from airflow.sdk.exceptions import AirflowRuntimeError

    def answer(message: Any) -> Any:
        raise AirflowRuntimeError(error(kind))

    return answer


Start = Callable[[Callable[[Any], Any]], Supervisor]


def test_a_task_asks_its_supervisor(in_task: Start) -> None:
    from airflow.sdk.execution_time.comms import OKResponse, VariableResult

    supervisor = in_task(lambda message: VariableResult(key=message.key, value="text"))
    assert AirflowVariables().get("zeus-test:a") == "text"
    in_task(lambda message: OKResponse(ok=True))
    AirflowVariables().set("zeus-test:a", "text")
    AirflowVariables().delete("zeus-test:a")
    assert supervisor.asked[0] == "GetVariable"
    assert not airflow_compat.is_test_run()


@pytest.mark.parametrize("how", [raising, lambda kind: lambda message: error(kind)])
def test_a_task_tells_missing_from_failed(
    in_task: Start, how: Callable[[str], Callable[[Any], Any]]
) -> None:
    """Airflow's own ``Variable.get`` says "not found" for every one of these."""
    in_task(how("VARIABLE_NOT_FOUND"))
    assert AirflowVariables().get("zeus-test:a") is None
    for kind in ("API_SERVER_ERROR", "GENERIC_ERROR"):
        in_task(how(kind))
        with pytest.raises(StoreError, match=kind):
            AirflowVariables().get("zeus-test:a")


def test_a_log_is_not_begun_anew_when_the_api_fails(in_task: Start) -> None:
    supervisor = in_task(raising("API_SERVER_ERROR"))
    with pytest.raises(StoreError):
        VariableStore(AirflowVariables(), overlap_possible=False).ask(request(1))
    assert "PutVariable" not in supervisor.asked


def test_a_passing_failure_does_not_hide_a_connection(
    in_task: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    from airflow.sdk.execution_time.comms import ConnectionResult

    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor")
    answers: list[Any] = [error("API_SERVER_ERROR")]

    there = dict.fromkeys(ConnectionResult.model_fields) | {
        "conn_id": "zeus_default",
        "conn_type": "zeus",
    }
    there |= {"extra": '{"store": "variable"}', "type": "ConnectionResult"}
    there["schema"] = there.pop("schema_", None)

    def answer(message: Any) -> Any:
        return answers.pop() if answers else ConnectionResult(**there)

    in_task(answer)
    assert open_store().identity.startswith("Airflow Variables")
    in_task(raising("API_SERVER_ERROR"))
    with pytest.raises(StoreError, match="cannot be looked up"):
        open_store()
    in_task(raising("CONNECTION_NOT_FOUND"))
    assert open_store().identity == f"sqlite:{tmp_path}/zeus.db"


@lists_in_tasks
def test_a_task_lists_page_by_page(in_task: Start) -> None:
    from airflow.sdk.execution_time.comms import VariableKeysResult

    in_task(lambda message: VariableKeysResult(keys=["zeus-test:a"], total_entries=1))
    assert AirflowVariables().keys("zeus-test:") == ["zeus-test:a"]


@lists_in_tasks
def test_a_task_of_an_airflow_without_listing_says_so(
    in_task: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk import Variable

    in_task(raising("GENERIC_ERROR"))
    monkeypatch.delattr(Variable, "keys")
    with pytest.raises(StoreError, match=r"before Airflow 3\.3"):
        AirflowVariables().keys("zeus-test:")


@lists_in_tasks
@pytest.mark.slow
def test_a_test_run_uses_the_store_from_within_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real task under ``dag.test()``: the real supervisor's messages, answers and errors."""
    from datetime import datetime

    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dagbundle import DagBundleModel
    from airflow.sdk import DAG, task
    from airflow.utils.session import create_session

    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_DEFAULT", '{"conn_type": "zeus", "extra": {"store": "variable"}}'
    )
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    found: dict[str, Any] = {}

    def in_a_task() -> None:
        found["test run"] = airflow_compat.is_test_run()
        monkeypatch.delenv("AIRFLOW_CONN_ZEUS_DEFAULT")
        found["embedded"] = open_store().identity
        monkeypatch.setenv(
            "AIRFLOW_CONN_ZEUS_DEFAULT", '{"conn_type": "zeus", "extra": {"store": "variable"}}'
        )
        store = open_store(overlap_possible=False)
        asked = store.ask(request(1))
        store.heartbeat(asked.trial.key, report(epochs=1.0, points=2))
        found["told"] = store.tell(asked.trial.key, State.CONVERGED, report())
        found["keys"] = AirflowVariables().keys("zeus-")
        found["missing"] = AirflowVariables().get("zeus-test:never")

    with DAG("zeus_store_test", schedule=None, start_date=datetime(2026, 1, 1)) as dag:
        task(task_id="train")(in_a_task)()
    with create_session() as session:
        session.merge(DagBundleModel(name="testing"))
    bag = DagBag(dag_folder=os.devnull)
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "testing", None)
    assert dag.test().state == "success"
    assert found["test run"] is True
    assert found["embedded"].startswith("sqlite:")
    assert found["told"].state is State.CONVERGED
    assert found["keys"] == ["zeus-jobs", "zeus-log:d.train"]
    assert found["missing"] is None
    assert airflow_compat.supervisor() is None
    reader = open_store()  # as the api-server reads what the task wrote
    assert reader.trials("d.train") == [found["told"]]
    for key in AirflowVariables().keys("zeus-"):
        AirflowVariables().delete(key)
    assert "airflow.sdk.execution_time.task_runner" in sys.modules
