"""The shell between a task and the store, without a running Airflow: what happens at its borders."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_provider_zeus import ZeusJob
from airflow_provider_zeus.errors import JobSpecError, SignalError
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.operators.mixins import ReportsCost
from airflow_provider_zeus.operators.recurrence import Recurrence, ask_request
from airflow_provider_zeus.power import device
from airflow_provider_zeus.power.device import NoneDevice
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from airflow_provider_zeus.store.open import open_store
from tests.handles import handle_of

JOB = ZeusJob(
    batch_sizes=[16, 32],
    default_batch_size=32,
    target="accuracy >= 0.9",
    max_epochs=5,
    device="simulated:v100/shufflenet",
    strict=True,
)


class NoXCom:
    """A task instance whose API is gone when it wants to push."""

    id = "ti-1"
    dag_id = "d"
    task_id = "train"
    run_id = "r1"
    try_number = 1
    map_index = -1

    def xcom_push(self, **_: Any) -> None:
        raise ConnectionError("the api-server is gone")


def context(run_type: str = "scheduled", **changes: Any) -> dict[str, Any]:
    return {
        "ti": NoXCom(),
        "dag_run": SimpleNamespace(run_type=run_type),
        "task": SimpleNamespace(max_active_tis_per_dag=None),
        **changes,
    }


def loop(run: Any) -> str:
    for _ in run.epochs():
        run.step()
        run.report(accuracy=0.95)
    return "kept"


def report(recurrence: Recurrence) -> None:
    operator = ReportsCost()
    operator.outlets = []
    operator.report_cost(context(), recurrence.reporter, recurrence.opened, recurrence.decision)


def test_a_failing_xcom_fails_no_training(
    airflow_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))  # the store's file
    recurrence = Recurrence.open(JOB, context(), conn_id="zeus_default")
    assert handle_of(recurrence).train(loop) == "kept"
    report(recurrence)
    assert "XCom zeus_decision" in caplog.text
    assert "XCom zeus_cost" in caplog.text

    from airflow_provider_zeus.store.open import open_store

    assert [t.state for t in open_store().trials("d.train")] == [State.CONVERGED]


def test_nothing_that_comes_after_the_training_raises(
    airflow_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    recurrence = Recurrence.open(JOB, context(), conn_id="zeus_default")
    assert handle_of(recurrence).train(loop) == "kept"

    def lost(*_: object) -> None:
        raise RuntimeError("GPU is lost")

    monkeypatch.setattr(recurrence.device, "close", lost)
    monkeypatch.setattr(recurrence.reporter, "cost_xcom", lost)
    recurrence.close_device()
    report(recurrence)


@pytest.mark.parametrize("fails", ["ask_request", "ask", "say_asked", "_check_limits"])
def test_a_device_that_was_opened_is_closed_whatever_fails_before_the_training(
    airflow_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    opened: list[SimulatedGpu] = []
    closed: list[SimulatedGpu] = []

    def keep(gpu: SimulatedGpu, *arguments: Any, **options: Any) -> None:
        opened.append(gpu)
        begin(gpu, *arguments, **options)

    def lost(*_: object, **__: object) -> None:
        raise RuntimeError("something of ours")

    begin = SimulatedGpu.__init__
    monkeypatch.setattr(SimulatedGpu, "__init__", keep)
    # a method: it is bound to the GPU
    monkeypatch.setattr(SimulatedGpu, "close", lambda gpu: closed.append(gpu))
    monkeypatch.setattr(f"airflow_provider_zeus.operators.recurrence.{fails}", lost)
    with pytest.raises(RuntimeError, match="something of ours"):
        Recurrence.open(JOB, context(), conn_id="zeus_default")
    assert len(opened) == 1
    assert closed == opened


@pytest.mark.parametrize(
    ("run_type", "taken_as"),
    [
        ("scheduled", "scheduled"),
        ("asset_triggered", "asset_triggered"),
        ("asset_materialization", "asset_triggered"),
        ("operator_triggered", "manual"),
        ("backfill", "backfill"),
        ("of a later Airflow", "manual"),
    ],
)
def test_run_types(run_type: str, taken_as: str) -> None:
    assert ask_request(JOB, context(run_type), None, lease_s=90).origin.run_type == taken_as


def test_the_data_slice_is_the_jobs_else_the_partition_else_the_end_of_the_interval() -> None:
    end = datetime(2026, 2, 1, tzinfo=UTC)

    def asked(job: ZeusJob, **known: Any) -> str | None:
        return ask_request(job, context(**known), None, lease_s=90).origin.data_slice

    named = ZeusJob.from_dict({**JOB.to_dict(), "data_slice": "mine"})
    assert asked(named, partition_key="2013-W05", data_interval_end=end) == "mine"
    assert asked(JOB, partition_key="2013-W05", data_interval_end=end) == "2013-W05"
    assert asked(JOB, partition_key=None, data_interval_end=end) == "2026-02-01T00:00:00+00:00"
    assert asked(JOB) is None


def test_the_schedule_says_how_many_runs_are_left_where_the_job_does_not() -> None:
    start = datetime(2026, 2, 1, tzinfo=UTC)
    day = timedelta(days=1)
    with DAG("short", schedule=day, start_date=start, end_date=start + 9 * day) as dag:
        task = EmptyOperator(task_id="train")
    known = context(task=task, dag=dag, data_interval_end=start + 2 * day)
    assert ask_request(JOB, known, None, lease_s=90).runs_left == 7
    assert ask_request(replace(JOB, expected_runs=20), known, None, lease_s=90).runs_left is None


def test_the_time_that_asking_took_is_gone_from_the_execution_timeout(
    airflow_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    task = SimpleNamespace(max_active_tis_per_dag=None, execution_timeout=timedelta(hours=1))
    begun_s = time.monotonic()
    recurrence = Recurrence.open(JOB, context(task=task), conn_id="zeus_default")
    took_s = time.monotonic() - begun_s
    left_s = recurrence.plan.time_left_s
    recurrence.close_device()
    assert left_s is not None
    assert 3600 - took_s <= left_s < 3600


def test_without_an_execution_timeout_no_time_is_said_to_be_left(
    airflow_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    task = SimpleNamespace(max_active_tis_per_dag=None, execution_timeout=None)
    recurrence = Recurrence.open(JOB, context(task=task), conn_id="zeus_default")
    recurrence.close_device()
    assert recurrence.plan.time_left_s is None


def test_map_indexes_that_share_a_job_are_told_once_how_to_part(
    airflow_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))

    def opened(
        ti_id: str,
        map_index: int,
        *,
        job: ZeusJob = JOB,
        run_id: str = "r1",
        part: str | None = None,
    ) -> int:
        """How often this map index was told so."""
        caplog.clear()
        names = {"id": ti_id, "map_index": map_index, "run_id": run_id}
        ti = type("Mapped", (NoXCom,), names)()
        recurrence = Recurrence.open(job, context(ti=ti), conn_id="zeus_default", part=part)
        recurrence.close_device()
        return caplog.text.count("job_id_by=")

    assert opened("a", 0) == 0, "no other has asked yet"
    assert opened("b", 1) == 1
    assert "map indexes 0, 1 share the job d.train" in caplog.text
    assert opened("c", 2, part="eu") == 0, "a job of its own"
    assert opened("d", 3, job=replace(JOB, job_id="by-3")) == 0, (
        "a template that renders per map index"
    )
    assert opened("e", -1, run_id="r2") == 0, "not mapped"
    assert opened("f", 0, run_id="r3") == 0, "one map index a run is one training"


def test_that_nothing_measures_energy_is_told_at_length_when_it_is_new(
    airflow_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    caplog.set_level(logging.INFO)
    host = {"cpu": "host A", "why": "no driver"}
    monkeypatch.setattr(device, "cpu_model", lambda: host["cpu"])
    monkeypatch.setattr(
        "airflow_provider_zeus.operators.recurrence.device_of",
        lambda *_, **__: NoneDevice(why=host["why"]),
    )

    def told(number: int, *, trains: bool = True) -> list[str]:
        """What the log of a run says of its energy."""
        caplog.clear()
        names = {"id": f"ti-{number}", "run_id": f"r{number}"}
        ti = type("Task", (NoXCom,), names)()
        recurrence = Recurrence.open(JOB, context(ti=ti), conn_id="zeus_default")
        if trains:
            handle_of(recurrence).train(loop)
        recurrence.close_device()
        said = [record.getMessage() for record in caplog.records]
        return [each for each in said if "on time alone" in each]

    short = ["Zeus tunes the batch size on time alone, as in the run before."]
    at_length = ["Zeus tunes the batch size on time alone: no driver"]
    assert told(1) == at_length, "the job's first run"
    assert told(2) == short
    assert told(3, trains=False) == short
    assert told(4) == short, "the run before did not report its device, the one before that did"
    host["why"] = "the driver is too old"
    assert told(5) == ["Zeus tunes the batch size on time alone: the driver is too old"]
    assert told(6) == short
    host["cpu"] = "host B"
    assert told(7) == ["Zeus tunes the batch size on time alone: the driver is too old"]
    assert told(8) == short


def test_an_unknown_simulated_device_is_named_before_any_trial(
    airflow_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    job = ZeusJob.from_dict({**JOB.to_dict(), "device": "simulated:h100/llama"})
    with pytest.raises(JobSpecError, match="h100"):
        Recurrence.open(job, context(), conn_id="zeus_default")
    assert not (tmp_path / "zeus.db").exists()


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("HEARTBEAT_S", "0", "heartbeat_s = 0.0:"),
        ("LEASE_S", "20", "lease_s = 20.0:"),
    ],
)
def test_settings_that_cannot_work_are_named(
    monkeypatch: pytest.MonkeyPatch, airflow_home: Path, option: str, value: str, said: str
) -> None:
    monkeypatch.setenv(f"AIRFLOW__ZEUS__{option}", value)
    with pytest.raises(JobSpecError, match=r"\[zeus\]") as caught:
        ZeusConfig.read()
    assert said in str(caught.value)


def test_a_data_slice_is_text_that_every_database_takes(airflow_home: Path) -> None:
    request = ask_request(JOB, context(partition_key="2026\0W05\ud800"), None, lease_s=90)
    assert request.origin.data_slice == "2026\N{REPLACEMENT CHARACTER}W05?"


def test_a_strict_job_without_its_signal_opens_no_trial(
    airflow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that nobody ends would count as a death of its batch size."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    job = replace(JOB, follow="price")  # no Connection, no tariff
    for _ in range(2):
        with pytest.raises(SignalError):
            Recurrence.open(job, context(), conn_id="zeus_default")
    assert open_store().trials("d.train") == []
