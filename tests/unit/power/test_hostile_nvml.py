"""Any error of NVML at any of its calls: the training ends with its model,
and the limit found is in force again.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_zeus.cli import checks_host
from airflow_provider_zeus.errors import ZeusError
from airflow_provider_zeus.power.factory import HostSettings, open_device
from airflow_provider_zeus.training.profiling import measurement_windows
from tests.fake_nvml import SOURCE, FakeNvml
from tests.hostile import HOSTILE
from tests.unit.power.conftest import records, wait_for
from tests.unit.power.test_nvml_training import Training

CODES = [1, 2, 3, 4, 6, 7, 9, 10, 13, 15, 16, 17, 18, 19, 20, 23, 27, 999, 12345]
ENTRY = re.compile(r"(?:API int |MILLIWATTS\(|PROCESSES\()(nvml\w+)")
FUNCTIONS = sorted(
    set(ENTRY.findall(SOURCE.read_text())) - {"nvmlInitWithFlags", "nvmlShutdown"} | {"nvmlInit"}
)
_faults = st.lists(
    st.tuples(
        st.sampled_from(FUNCTIONS),
        st.sampled_from(CODES),
        st.integers(0, 40),
        st.sampled_from([-1, -1, 1, 2, 5]),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda fault: fault[0],
)


def test_the_calls_are_those_of_the_library() -> None:
    assert {
        "nvmlDeviceSetPowerManagementLimit",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlInit",
    } <= set(FUNCTIONS)
    assert len(FUNCTIONS) > 15


def heal(nvml: FakeNvml, limit_w: float) -> None:
    nvml.heal()
    nvml.gpu(0).limit_w = nvml.gpu(0).in_force_w = limit_w


@pytest.mark.slow
@settings(HOSTILE, max_examples=20)
@given(faults=_faults)
def test_a_training_goes_on_whatever_nvml_answers(
    nvml: FakeNvml,
    tmp_path: Path,
    faults: list[Any],
    caplog: pytest.LogCaptureFixture,
    guardians: Any,
) -> None:
    """In a process of its own, as a task is:
    a limit that cannot be read at its end is the guardian's to give back.
    """

    def train() -> None:
        seen = Training(tmp_path, time.sleep).run()
        assert seen.epochs == 2.0
        assert seen.energy_j is None or 0 < seen.energy_j < 1e6
        assert seen.energy_j is not None or "energy_j" in seen.reasons
        assert "Traceback" not in caplog.text

    caplog.clear()
    caplog.set_level(logging.WARNING)
    if not nvml.calls() and not nvml.gpu(0).max_w:
        nvml.add(tick_s=0.002, settle_s=0.002)
    heal(nvml, 250.0)
    for function, code, after, times in faults:
        nvml.fail(function, code, after=after, times=times)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurement_windows, "SETTLE_S", 0.01)
        in_a_child(train)
        wait_for(
            lambda: not guardians() and not any(map(is_held, records(tmp_path))), within_s=60.0
        )
        nvml.heal()
        # what was refused to the guardian too, the next training gives back
        Training(tmp_path, time.sleep).run(epochs=1)
    assert nvml.gpu(0).limit_w == 250.0
    assert records(tmp_path) == []


def is_held(record: Path) -> bool:
    """Whether a guardian holds a record:
    one that ends is out of sight before the kernel has taken its lock away.
    """
    try:
        with record.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def in_a_child(work: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, "see above"


@HOSTILE
@given(faults=_faults)
def test_the_doctor_says_what_is_wrong(nvml: FakeNvml, tmp_path: Path, faults: list[Any]) -> None:
    if not nvml.gpu(0).max_w:
        nvml.add(tick_s=0.002)
    heal(nvml, 250.0)
    for function, code, after, times in faults:
        nvml.fail(function, code, after=after % 5, times=times)
    before = len(nvml.sets)
    for name in ("auto", "nvml"):
        said = doctors(name, tmp_path)
        assert said == "" or (name == "nvml" and "ZeusJob.device" in said) or len(said) > 20, said
    assert len(nvml.sets) == before, "a limit was set"


def doctors(name: str, state_dir: Path) -> str:
    """What an error of ours says; empty where each finding that is not well has its remedy."""
    try:
        device = open_device(name, state_dir=state_dir, host=HostSettings(power_read_only=True))
        findings = [checks_host.device(device), checks_host.energy(device, lambda _s: None)]
        findings.append(checks_host.permission(device, ""))
        device.close()
    except ZeusError as error:
        return str(error)
    return "; ".join(f.finding for f in findings if f.status != "ok" and not f.remedy)[:20]
