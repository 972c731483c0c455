"""``[zeus] cpu_watts`` and ``power_read_only``: from Airflow's configuration to the device and into the plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_zeus import ZeusJob
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.operators.config import TYPICAL_W, ZeusConfig
from airflow_provider_zeus.operators.recurrence import Recurrence
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun
from tests.fake_nvml import FakeNvml
from tests.unit.operators.test_recurrence import JOB, context
from tests.unit.power.limits.test_sidecar import Running

AUTO = ZeusJob.from_dict({**JOB.to_dict(), "device": "auto", "strict": False})


@pytest.fixture(autouse=True)
def _home(airflow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))  # the store's file


def test_by_default_nothing_is_estimated_and_limits_may_be_set() -> None:
    config = ZeusConfig.read()
    assert (config.cpu_watts, config.power_read_only) == (None, False)


def test_watts_make_an_estimate_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__CPU_WATTS", "8")
    recurrence = Recurrence.open(AUTO, context(), conn_id="zeus_default")
    assert recurrence.device.info.energy_source == "estimate"
    assert Plan.from_json(recurrence.plan.to_json()).cpu_watts == 8.0


MEASURED = ZeusJob(mode="measure")


@pytest.mark.parametrize(("text", "watts"), [("", None), ("0", None), ("8", 8.0)])
def test_a_job_that_chooses_a_size_has_an_estimate_if_watts_are_set(
    monkeypatch: pytest.MonkeyPatch, text: str, watts: float | None
) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__CPU_WATTS", text)
    found = Recurrence.open(AUTO, context(), conn_id="zeus_default")
    assert found.plan.cpu_watts == watts
    assert found.device.info.energy_source == ("estimate" if watts else None)


@pytest.mark.parametrize(("text", "watts"), [("", TYPICAL_W), ("0", None), ("8", 8.0)])
def test_a_task_that_is_only_measured_has_one_unless_watts_are_0(
    monkeypatch: pytest.MonkeyPatch, text: str, watts: float | None
) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__CPU_WATTS", text)
    assert Recurrence.open(MEASURED, context(), conn_id="zeus_default").plan.cpu_watts == watts


def test_without_a_word_of_watts_a_job_that_chooses_a_size_decides_as_if_there_were_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decisions = []
    for text in ("", "0"):
        monkeypatch.setenv("AIRFLOW__ZEUS__CPU_WATTS", text)
        plan = Recurrence.open(
            replace(AUTO, job_id=f"job{text}"), context(), conn_id="zeus_default"
        ).plan
        decisions.append([(attempt.batch_size, attempt.phase) for attempt in plan.attempts])
    assert decisions[0] == decisions[1]


@pytest.mark.parametrize("value", ["-1", "inf", "nan", "seven"])
def test_watts_that_are_none_are_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__CPU_WATTS", value)
    with pytest.raises(JobSpecError, match=r"\[zeus\] cpu_watts = "):
        ZeusConfig.read()


@pytest.mark.parametrize("read_only", [False, True])
def test_read_only_reaches_the_gpu_and_the_plan(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    nvml.add()
    monkeypatch.setenv("AIRFLOW__ZEUS__POWER_READ_ONLY", str(read_only))
    recurrence = Recurrence.open(AUTO, context(), conn_id="zeus_default")
    assert recurrence.device.info.energy_source == "nvml_counter"
    assert (recurrence.device.limit_range() is None) == read_only
    assert Plan.from_json(recurrence.plan.to_json()).power_read_only is read_only
    assert nvml.sets == []


def test_the_socket_of_a_helper_reaches_the_gpu_and_the_plan(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvml.add(may_set=2)
    sidecar = Running(tmp_path)
    try:
        monkeypatch.setenv("AIRFLOW__ZEUS__POWER_SOCKET", str(sidecar.socket))
        recurrence = Recurrence.open(AUTO, context(), conn_id="zeus_default")
        recurrence.device.set_limit_w(150.0)
        assert nvml.gpu(0).limit_w == 150.0
        recurrence.device.close()
        assert Plan.from_json(recurrence.plan.to_json()).power_socket == str(sidecar.socket)
    finally:
        sidecar.process.kill()
        sidecar.process.communicate()


def test_the_host_that_trains_may_have_its_helper_elsewhere(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvml.add()
    monkeypatch.setenv("AIRFLOW__ZEUS__POWER_SOCKET", str(tmp_path / "of the scheduler's host"))
    plan = Recurrence.open(AUTO, context(), conn_id="zeus_default").plan
    monkeypatch.setenv("ZEUS_POWER_SOCKET", str(tmp_path / "of this one"))
    run = ZeusRun.from_plan(plan)
    assert "of this one" in run.device.missing["limit_range"]
    run.close()


def test_how_long_a_gpu_is_waited_for_and_which_is_held_reach_the_plan(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = nvml.add()
    monkeypatch.setenv("AIRFLOW__ZEUS__GPU_LOCK_WAIT_S", "60")
    recurrence = Recurrence.open(AUTO, context(), conn_id="zeus_default")
    plan = Plan.from_json(recurrence.plan.to_json())
    assert (plan.gpu_lock_wait_s, plan.gpus_held) == (60.0, (card.uuid.decode(),))
    recurrence.device.close()
