"""A slow driver costs a training 2 % of its time, one that hangs costs it one wait;
what is not read has its reason.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.model.trial import LIMIT, UNCAPPED, ProfileSample
from airflow_provider_zeus.power.device import Device, DeviceGroup, NoneDevice
from airflow_provider_zeus.power.factory import open_device
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.power.meter import PacedReader, Reading, Span
from airflow_provider_zeus.power.nvml import library
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from airflow_provider_zeus.training.profiling import measurement_windows
from airflow_provider_zeus.training.profiling.measurement_windows import MeasurementWindows
from airflow_provider_zeus.training.run import ZeusRun
from tests.fake_nvml import FakeNvml, Gpu
from tests.unit.power.conftest import records, wait_for
from tests.unit.power.test_hostile_nvml import in_a_child, is_held
from tests.unit.power.test_nvml_training import SETTER, Training

COUNTER = "nvmlDeviceGetTotalEnergyConsumption"


class SlowDriver:
    """Each call of NVML takes ``call_s`` of the time that tests tell;
    ``spent_s`` is the sum of them.
    """

    def __init__(self, wait: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> None:
        self.call_s = self.spent_s = 0.0
        asked = library._ask

        def slowly(function: str, *arguments: Any) -> Any:
            answer = asked(function, *arguments)
            self.spent_s += self.call_s
            wait(self.call_s)
            return answer

        monkeypatch.setattr(library, "_ask", slowly)


@pytest.fixture
def driver(wait: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> SlowDriver:
    return SlowDriver(wait, monkeypatch)


@pytest.mark.parametrize("by_loader", [True, False])
@pytest.mark.parametrize("call_s", [0.0, 0.001, 0.004, 0.02, 0.3])
@pytest.mark.parametrize(
    ("epochs", "steps", "step_s"), [(4, 80, 0.02), (12, 5, 0.02), (300, 1, 0.02), (2, 4000, 0.01)]
)
def test_between_its_first_and_last_reading_a_training_waits_for_2_percent_of_its_time(
    card: Gpu,
    driver: SlowDriver,
    training: Training,
    call_s: float,
    epochs: int,
    steps: int,
    step_s: float,
    by_loader: bool,
) -> None:
    trained_s = [0.0]
    waited_s = [0.0]
    driver.call_s = call_s

    def fn(run: ZeusRun) -> str:
        for epoch in run.epochs():
            end_pass = run.progress.start_pass(steps * 32) if by_loader else None
            for step in range(steps):
                training.wait(step_s)
                trained_s[0] += step_s
                run.step()
                if epoch == step == 0:
                    waited_s[0] = driver.spent_s
            if end_pass is not None:
                run.progress.present.end_pass()
            if epoch + 1 == epochs:
                waited_s[0] = driver.spent_s - waited_s[0]
            run.report(acc=1.0 if epoch + 1 == epochs else 0.0)
        return "kept"

    plan = training.plan(max_epochs=epochs, profile_s=5.0)
    assert ZeusRun.from_plan(plan, sink=training.lines.append).train(fn) == "kept"
    # of a limit that is profiled: the windows' readings are what 2 % is of
    one_setting_s = 10 * call_s
    settings = len({s.limit_w for line in training.lines for s in line.profile})
    assert (
        waited_s[0] <= 0.02 * (trained_s[0] + waited_s[0]) + one_setting_s * settings + 2 * call_s
    )
    seen = training.observation
    assert seen.energy_j is not None, "the last reading is always made"
    assert 145 * (seen.time_s or 0) < seen.energy_j < 250 * (seen.time_s or 0)
    assert (seen.rest_j is not None) or "takes" in seen.reasons["rest_j"]
    assert card.limit_w == 250.0


@pytest.fixture
def training(tmp_path: Path, wait: Callable[[float], None]) -> Training:
    return Training(tmp_path, wait)


def test_where_readings_of_a_window_take_too_long_it_is_not_profiled_and_the_reason_stands(
    card: Gpu, nvml: FakeNvml, driver: SlowDriver, training: Training
) -> None:
    driver.call_s = 0.02
    seen = training.run(profile_s=5.0, epochs=20)
    assert (nvml.sets, [s for line in training.lines for s in line.profile]) == ([], [])
    assert "power limits are not profiled: 2 readings of" in seen.reasons[LIMIT]
    assert UNCAPPED not in seen.reasons


def test_a_driver_that_answers_faster_later_is_profiled_after_all(
    card: Gpu, driver: SlowDriver, training: Training
) -> None:
    driver.call_s = 0.02
    steps = iter(range(10**6))

    def step() -> None:
        training.wait(0.02)
        if next(steps) == 100:
            driver.call_s = 0.0

    seen = training.run(step=step, epochs=20)
    assert LIMIT not in seen.reasons
    assert {s.limit_w for line in training.lines for s in line.profile} == {250.0, 200.0, 150.0}


def test_a_slow_driver_gets_fewer_and_longer_pieces(card: Gpu, driver: SlowDriver) -> None:
    device = NvmlDevice()
    device.energy_j()
    pieces = []
    for call_s in (0.0, 0.002, 0.0049, 0.02):
        driver.call_s = call_s
        for _ in range(2):
            device.energy_j(), device.clocks(), device.limit_w()
        windows = MeasurementWindows(device, 32, 5.0, 10)
        pieces.append(None if windows.fit() else 5.0 / windows._piece_s)
    assert pieces == [5.0, 5.0, pytest.approx(4.0), None]


def test_a_known_limit_is_set_as_soon_as_that_takes_2_percent(
    card: Gpu, nvml: FakeNvml, driver: SlowDriver, training: Training
) -> None:
    known = tuple(
        ProfileSample(batch_size=32, limit_w=w, samples=32000, energy_j=j, time_s=100.0, steps=1000)
        for w, j in ((250.0, 24000.0), (200.0, 20000.0), (150.0, 15000.0))
    )
    for call_s, is_set in ((0.0, True), (0.02, False), (0.3, False)):
        driver.call_s = call_s
        training.run(profile=known, epochs=4)
        assert bool(nvml.sets) is is_set
        nvml._state.sets_done = 0
    driver.call_s = 0.02
    seen = training.run(profile=known, epochs=40, step=lambda: training.wait(0.02))
    assert (nvml.sets, seen.power_limit_w) == ([150.0, 250.0], 150.0)
    assert card.limit_w == 250.0


def test_two_gpus_take_twice_as_long(nvml: FakeNvml, driver: SlowDriver) -> None:
    nvml.add()
    nvml.add()
    driver.call_s = 0.01
    group = open_device("nvml", state_dir="/nowhere", gpus=2)
    assert isinstance(group, DeviceGroup)
    group.energy_j()
    assert group.takes_s("energy_j") == pytest.approx(0.02)
    assert group.seen_limit_w == 250.0
    waited_s = group.waited_s
    assert (group.seen_limit_w, group.waited_s) == (250.0, waited_s), "no call"


class Clocked(Device):
    """Energy of 100 W, and readings of ``reading_s``."""

    def __init__(self, reading_s: float) -> None:
        super().__init__(NoneDevice().info)
        self.clock_s = 0.0
        self.reading_s = reading_s

    def now_s(self) -> float:
        return self.clock_s

    def energy_j(self) -> float:
        self.clock_s += self.reading_s
        self.waited_s += self.reading_s
        return 100.0 * self.clock_s

    def takes_s(self, method: str) -> float:
        return self.reading_s


def test_what_is_left_out_is_known_with_the_next_reading() -> None:
    device = Clocked(0.02)
    pace = PacedReader(device)
    total = Span(pace.read(must=True))
    pace.begin()
    device.clock_s += 0.5
    left_out = pace.read()
    assert (left_out.energy_j, left_out.left_out) == (None, True)
    part = Span()
    part.since = left_out
    total.advance(left_out)
    assert (total.behind, total.power_w, total.time_s) == (True, None, 0.5)
    device.clock_s += 0.6
    total.advance(reading := pace.read())
    part.close(reading)
    assert (total.behind, total.energy_j, total.power_w) == (
        False,
        pytest.approx(112.0),
        pytest.approx(100.0),
    )
    assert part.energy_j is None
    assert "a reading of this device takes 20 ms" in (part.reason or "")


@pytest.mark.parametrize(
    ("reading_s", "is_read"), [(0.001, True), (0.008, True), (0.012, False), (0.02, False)]
)
def test_a_short_training_has_time_for_the_readings_of_a_fast_driver(
    reading_s: float, is_read: bool
) -> None:
    device = Clocked(reading_s)
    pace = PacedReader(device)
    device.clock_s += 0.03
    assert pace.may("energy_j") is is_read


def test_a_part_that_ends_where_nothing_is_read_has_no_energy() -> None:
    span = Span(Reading(10.0, 0.0))
    span.close(Reading(None, 3.0, why="it takes long", left_out=True))
    assert (span.energy_j, span.reason, span.time_s, span.behind) == (
        None,
        "it takes long",
        3.0,
        False,
    )


def test_what_was_read_a_moment_ago_is_not_read_again() -> None:
    device = Clocked(0.02)
    pace = PacedReader(device)
    first = pace.read(must=True)
    device.clock_s += 0.01
    assert pace.read(must=True) == first._replace(time_s=0.03)
    device.clock_s += 0.02
    assert pace.read(must=True).energy_j == pytest.approx(7.0)


# ------------------------------------------------------------------ a call that does not return
@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> float:
    """How long a call that does not return is waited for, in these tests [s]."""
    monkeypatch.setattr(library, "RETURNS_S", 0.3)
    monkeypatch.setattr(measurement_windows, "SETTLE_S", 0.02)
    return 0.3


@pytest.mark.parametrize("mode", ["optimize", "measure"])
@pytest.mark.parametrize("after", [0, 3, 9, 13, 14, 15, 20, 25, 40])
def test_a_call_that_hangs_is_waited_for_once_and_the_guardian_gives_the_limit_back(
    nvml: FakeNvml,
    tmp_path: Path,
    brief: float,
    guardians: Any,
    after: int,
    mode: str,
    caplog: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml.add(tick_s=0.002, settle_s=0.002)
    caplog.set_level(logging.WARNING)

    def train() -> None:
        nvml.hang(after=after, pid=os.getpid())
        seen = Training(tmp_path, time.sleep).run(mode=mode, epochs=4)
        assert "Traceback" not in caplog.text
        if not library.why_silent():  # it ended before
            return
        if seen.energy_j is None:  # else it hung after the last reading
            assert "gave no answer for 0.3 s" in seen.reasons["energy_j"]
        begun: list[object] = []
        monkeypatch.setattr(library, "bounded", lambda call, _: begun.append(call))
        open_device("auto", state_dir=tmp_path).close()
        assert begun == [], "no call is made any more"

    in_a_child(train)
    wait_for(lambda: not guardians() and not any(map(is_held, records(tmp_path))), within_s=60.0)
    assert nvml.gpu(0).limit_w == 250.0


@pytest.mark.parametrize("name", ["auto", "nvml"])
def test_a_driver_that_hangs_as_the_device_is_opened_fails_no_task_and_no_other_source_stands_in(
    nvml: FakeNvml, tmp_path: Path, brief: float, name: str
) -> None:
    nvml.add()
    nvml.hang()
    began_s = time.monotonic()
    for _ in range(3):
        device = open_device(name, state_dir=tmp_path)
        assert device.info.energy_source is None
        assert "nvmlDeviceGetCount gave no answer for 0.3 s" in device.missing["energy_j"]
    wait_for(lambda: sum(nvml.calls().values()) == 1, within_s=60.0)  # as soon as its thread runs
    assert time.monotonic() - began_s >= brief


def test_a_driver_that_hangs_where_another_trainings_limit_is_given_back_holds_no_training(
    card: Gpu, nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies() -> None:
        device = NvmlDevice()
        control = LimitControl(device, tmp_path).__enter__()
        assert control.set_w(200.0)
        assert control._guardian is not None
        control._guardian._process.kill()

    in_a_child(dies)
    (left,) = records(tmp_path)
    wait_for(lambda: not is_held(left), within_s=60.0)
    device = NvmlDevice()
    nvml.hang()
    with monkeypatch.context() as patched:
        patched.setattr(library, "RETURNS_S", 0.3)
        with LimitControl(device, tmp_path) as control:
            assert not control.can_set
    assert "gave no answer" in library.why_silent()
    nvml.heal()
    library._Silence.why = ""
    with LimitControl(device, tmp_path):
        assert card.limit_w == 250.0
    assert records(tmp_path) == []


def test_a_setter_that_hangs_ends_in_an_error_and_is_not_called_again(
    card: Gpu, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = NvmlDevice()
    nvml.hang(SETTER)
    monkeypatch.setattr(library, "RETURNS_S", 1.0)
    for _ in range(2):
        with pytest.raises(DeviceError, match="gave no answer"):
            device.set_limit_w(200.0)
    wait_for(lambda: nvml.calls().get(SETTER) == 1, within_s=60.0)  # as soon as its thread runs
    assert (device.energy_j(), device.limit_w()) == (None, None)


def test_a_poll_that_hangs_holds_no_reading(
    card: Gpu, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    card.has_counter = 0
    device = NvmlDevice()
    assert device.energy_j() is not None
    nvml.hang("nvmlDeviceGetPowerUsage")
    monkeypatch.setattr(library, "RETURNS_S", 0.3)
    wait_for(lambda: bool(library.why_silent()), within_s=60.0)
    assert device.energy_j() is None
    assert "gave no answer" in device.missing["energy_j"]
    device.close()
