"""The simulated GPU as a device: clock, counter, limit, and the file that other processes share."""

from __future__ import annotations

import logging
import math
import os
import struct
import subprocess
import sys
import threading
import time
import timeit
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.errors import DeviceError, JobSpecError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.power.device import LimitRange
from airflow_provider_zeus.power.factory import device_of, open_device
from airflow_provider_zeus.power.meter import Span, edge
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu, open_simulated
from airflow_provider_zeus.power.simulated.state_file import MAGIC, StateFile, create


def test_clock_and_counter_stand_still_without_steps(gpu: SimulatedGpu) -> None:
    gpu.on_step(64)
    before = gpu.now_s(), gpu.energy_j()
    timeit.timeit(lambda: None, number=10_000)
    assert (gpu.now_s(), gpu.energy_j()) == before


@given(steps=st.lists(st.integers(1, 4096), min_size=1, max_size=60))
def test_counter_shows_the_energy_at_the_last_tick(
    steps: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    gpu = SimulatedGpu(
        "v100", load="shufflenet", state_file=tmp_path_factory.mktemp("state") / "gpu"
    )
    parts = [gpu.load.step(gpu.chip, b, 250.0) for b in steps]
    for samples in steps:
        gpu.on_step(samples)
    now_s = sum(s for s, _ in parts)
    assert gpu.now_s() == pytest.approx(now_s)
    left_s = math.floor(now_s * 10) / 10
    drawn_j = 0.0
    for step_s, power_w in parts:  # energy up to the tick, independently of how the device sums it
        drawn_j += power_w * min(step_s, max(left_s, 0.0))
        left_s -= step_s
    assert gpu.energy_j() == pytest.approx(drawn_j, abs=0.002)
    assert gpu.energy_j() * 1000 == pytest.approx(round(gpu.energy_j() * 1000), abs=1e-6)


def test_counter_moves_in_ticks_of_100_ms(gpu: SimulatedGpu) -> None:
    step_s, power_w = gpu.load.step(gpu.chip, 8, 250.0)  # 38 ms
    seen = []
    for _ in range(100):
        gpu.on_step(8)
        seen.append(gpu.energy_j())
    assert len(set(seen)) == pytest.approx(100 * step_s / 0.1, abs=2)
    jumps_j = [b - a for a, b in pairwise(seen) if a != b]
    assert jumps_j == [pytest.approx(power_w * 0.1, abs=0.002)] * len(jumps_j)  # whole millijoules


def test_a_new_limit_is_in_force_after_a_lag(tmp_path: Path) -> None:
    gpu = SimulatedGpu("v100", load="resnet50", state_file=tmp_path / "gpu")
    gpu.on_step(8)
    gpu.set_limit_w(100.0)
    assert gpu.limit_w() == 100.0
    start_s = gpu.now_s()
    durations = []
    while gpu.now_s() < start_s + 3.0:
        before_s = gpu.now_s()
        gpu.on_step(8)
        durations.append((before_s - start_s, gpu.now_s() - before_s))
    at_250_s, at_100_s = (gpu.load.step(gpu.chip, 8, w)[0] for w in (250.0, 100.0))
    assert durations[0][1] == pytest.approx(at_250_s, rel=0.05)
    assert all(later >= earlier - 1e-9 for (_, earlier), (_, later) in pairwise(durations))
    settled = [step_s for since_s, step_s in durations if since_s > 2.0]
    assert settled
    assert all(step_s == pytest.approx(at_100_s, rel=1e-9) for step_s in settled)
    late = [step_s for since_s, step_s in durations if since_s > 1.0]
    assert min(late) > 0.95 * at_100_s


def test_a_limit_below_the_floor_does_not_bind(tmp_path: Path) -> None:
    gpu = SimulatedGpu("a40", load="bert_qa", state_file=tmp_path / "gpu")
    powers_w = []
    for limit_w in (100.0, 110.0, 125.0):
        gpu.set_limit_w(limit_w)
        for _ in range(20):
            gpu.on_step(32)
        window = Span(edge(gpu))
        for _ in range(50):
            gpu.on_step(32)
        window.close(edge(gpu))
        powers_w.append(window.power_w)
    assert powers_w[0] == pytest.approx(powers_w[1], rel=0.01)
    assert 105.0 < powers_w[0] < 111.0 < powers_w[2]  # the counter's ticks blur it a little


def test_limits_have_a_range_and_need_a_permission(tmp_path: Path) -> None:
    gpu = SimulatedGpu("a40", load="neumf", state_file=tmp_path / "a", may_set_limit=True)
    assert gpu.limit_range() == LimitRange(min_w=100.0, max_w=300.0, step_w=25.0)
    assert (gpu.limit_w(), gpu.info.max_power_w) == (300.0, 300.0)
    for wrong_w in (99.0, 301.0, math.nan):
        with pytest.raises(DeviceError, match=r"out of range.* 100 to 300 W"):
            gpu.set_limit_w(wrong_w)
    refused = SimulatedGpu("v100", load="neumf", state_file=tmp_path / "b", may_set_limit=False)
    with pytest.raises(DeviceError, match="mode='measure'"):
        refused.set_limit_w(150.0)
    assert refused.limit_w() == 250.0


def test_no_samples_are_no_step(gpu: SimulatedGpu) -> None:
    with pytest.raises(ValueError, match="samples = 0"):
        gpu.on_step(0)


def test_another_process_sees_and_sets_the_limit(gpu: SimulatedGpu, start) -> None:
    gpu.set_limit_w(175.0)
    for _ in range(50):
        gpu.on_step(512)
    other = start(
        "say(limit_w=gpu.limit_w(), now_s=gpu.now_s(), energy_j=gpu.energy_j(), uuid=gpu.uuid)\n"
        "gpu.set_limit_w(125.0)\nsay()\ntime.sleep(60)"
    )
    assert other.hear() == {
        "limit_w": 175.0,
        "now_s": gpu.now_s(),
        "energy_j": gpu.energy_j(),
        "uuid": gpu.uuid,
    }
    other.hear()
    assert gpu.limit_w() == 125.0
    for _ in range(50):
        gpu.on_step(512)
    before_s = gpu.now_s()
    gpu.on_step(512)
    assert gpu.now_s() - before_s == pytest.approx(gpu.load.step(gpu.chip, 512, 125.0)[0])


def test_state_outlives_the_device(tmp_path: Path) -> None:
    first = open_simulated("simulated:v100/bert_sa", tmp_path)
    first.on_step(32)
    first.set_limit_w(200.0)
    again = open_device("simulated:v100/bert_sa", state_dir=tmp_path)
    assert (again.now_s(), again.energy_j(), again.limit_w()) == (
        first.now_s(),
        first.energy_j(),
        200.0,
    )
    assert (tmp_path / "simulated-v100-bert_sa.gpu").exists()
    assert open_simulated("simulated:a40/bert_sa", tmp_path).uuid != first.uuid


def _with_slots(*slots: float) -> bytes:
    return MAGIC + struct.pack("5d", *slots)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        b"ZEUSGPU0" + bytes(40),
        _with_slots(math.nan, 250.0, 0.0, 0.0, 0.0),
        _with_slots(250.0, 250.0, -1.0, 0.0, 0.0),
        _with_slots(300.0, 300.0, 0.0, 0.0, 0.0),  # another chip's limit
        _with_slots(250.0, 250.0, 0.0, 0.0, 0.0) + b"more",
    ],
)
def test_a_corrupt_or_older_state_is_recreated_with_one_line(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "gpu"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        gpu = SimulatedGpu("v100", load="shufflenet", state_file=path)
    assert [r.message for r in caplog.records if str(path) in r.message] == [
        r.message for r in caplog.records
    ]
    assert len(caplog.records) == 1
    gpu.on_step(8)
    assert (gpu.limit_w(), gpu.now_s() > 0) == (250.0, True)
    assert [p.name for p in tmp_path.iterdir()] == ["gpu"]


def test_creating_a_state_that_exists_keeps_it(gpu: SimulatedGpu, tmp_path: Path) -> None:
    gpu.set_limit_w(125.0)
    create(str(tmp_path / "simulated-v100-shufflenet.gpu"), 250.0)
    assert gpu.limit_w() == 125.0
    assert open_simulated("simulated:v100/shufflenet", tmp_path).limit_w() == 125.0
    assert len(list(tmp_path.iterdir())) == 1


def test_a_state_that_another_thread_or_container_is_making_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process may have the same pid."""
    path = tmp_path / "gpu"
    link = os.link

    def linked(temporary: str, name: str) -> None:
        monkeypatch.setattr(os, "link", link)
        create(str(path), 125.0)  # while this one is half made
        link(temporary, name)

    monkeypatch.setattr(os, "link", linked)
    create(str(path), 250.0)
    assert StateFile(str(path)).limit_w() == 125.0, "it was first"
    assert [p.name for p in tmp_path.iterdir()] == ["gpu"]


def test_a_file_with_the_name_of_the_half_made_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "urandom", bytes)
    others = tmp_path / f"gpu.{bytes(8).hex()}.new"
    others.write_text("theirs")
    with pytest.raises(FileExistsError):
        create(str(tmp_path / "gpu"), 250.0)
    assert others.read_text() == "theirs"
    assert not (tmp_path / "gpu").exists()


@pytest.mark.parametrize(
    "name",
    ["simulated:", "simulated:h100/resnet50", "simulated:v100/gpt", "simulated:v100", "v100/neumf"],
)
def test_unknown_names_are_answered_with_the_known(name: str, tmp_path: Path) -> None:
    with pytest.raises(JobSpecError, match=r"ZeusJob\.device = .*v100 or a40.*neumf.*shufflenet"):
        open_simulated(name, tmp_path)
    with pytest.raises(JobSpecError, match="simulated"):
        open_device("tpu", state_dir=tmp_path)


def test_a_step_costs_microseconds(gpu: SimulatedGpu) -> None:
    # seconds of the processor: on a busy host others run within any 20 ms
    steps_s = timeit.repeat(lambda: gpu.on_step(128), time.process_time, number=2000, repeat=5)
    assert min(steps_s) / 2000 < 10e-6


def test_a_state_file_is_found_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEUS_STATE_DIR", str(tmp_path / "state"))
    gpu = SimulatedGpu("v100", load="shufflenet")
    gpu.set_limit_w(150.0)
    assert SimulatedGpu("v100", load="shufflenet").limit_w() == 150.0
    assert open_simulated("simulated:v100/shufflenet", tmp_path / "state").uuid == gpu.uuid


# --- two trainings at once


SCRIPT = """
import sys
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.power.factory import device_of
device = "simulated:v100/shufflenet"
job = ZeusJob(batch_sizes=[32], default_batch_size=32, target="a >= 1", max_epochs=1, device=device)
gpu = device_of(job, sys.argv[1], gpus_held=sys.argv[2:])
print(gpu.uuid, flush=True)
for _ in sys.stdin:
    begun_s, begun_j = gpu.now_s(), gpu.energy_j()
    gpu.set_limit_w(100.0)
    for _ in range(500):
        gpu.on_step(128)
    print(gpu.now_s() - begun_s, gpu.energy_j() - begun_j, gpu.limit_w(), flush=True)
"""
SPEC = ZeusJob(
    batch_sizes=[32],
    default_batch_size=32,
    target="a >= 1",
    max_epochs=1,
    device="simulated:v100/shufflenet",
)


class Training:
    """A training in a process of its own."""

    def __init__(self, folder: Path, *held: str) -> None:
        command = [sys.executable, "-c", SCRIPT, str(folder), *held]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.uuid = self.said().strip()

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def begin(self) -> None:
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)

    def figures(self) -> list[float]:
        return [float(text) for text in self.said().split()]

    def end(self) -> None:
        self.process.communicate(timeout=60)


def test_trainings_at_once_have_a_gpu_each(tmp_path: Path) -> None:
    alone = Training(tmp_path / "alone")
    other = Training(tmp_path / "both")
    second = Training(tmp_path / "both")
    for training in (alone, other, second):
        training.begin()
    figures = [training.figures() for training in (alone, other, second)]
    for time_s, energy_j, limit_w in figures[1:]:
        assert time_s == pytest.approx(figures[0][0])
        assert energy_j == pytest.approx(figures[0][1], rel=0.01)
        assert limit_w == 100.0
    assert other.uuid != second.uuid
    other.end()
    third = Training(tmp_path / "both")
    assert third.uuid == other.uuid, "it is free again"
    for training in (alone, second, third):
        training.end()


def test_two_threads_have_a_gpu_each(tmp_path: Path) -> None:
    def train(count: int) -> tuple[float, float]:
        gpu = device_of(SPEC, tmp_path)
        both_have_one.wait(60)
        begun_s = gpu.now_s()
        for _ in range(count):
            gpu.on_step(128)
        both_have_one.wait(60)
        gpu.close()
        return gpu.now_s() - begun_s, count

    both_have_one = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        (one_s, one), (other_s, other) = pool.map(train, (300, 600))
    assert one_s / one == pytest.approx(other_s / other)
    assert (
        device_of(SPEC, tmp_path).uuid == open_simulated("simulated:v100/shufflenet", tmp_path).uuid
    )


def test_a_command_trains_on_the_gpu_of_its_operator(tmp_path: Path) -> None:
    operators = device_of(SPEC, tmp_path)
    child = Training(tmp_path, operators.uuid or "")
    stranger = Training(tmp_path)
    assert child.uuid == operators.uuid
    assert stranger.uuid != operators.uuid
    for training in (child, stranger):
        training.end()


def test_several_gpus_of_a_training_are_all_its_own(tmp_path: Path) -> None:
    first, second = (device_of(replace(SPEC, gpus=2), tmp_path) for _ in range(2))
    uuids = [uuid for device in (first, second) for uuid in (device.uuid or "").split(",")]
    assert len(set(uuids)) == 4
    assert len(list(tmp_path.glob("*.gpu"))) == 4
