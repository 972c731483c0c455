"""What a task takes that does not know that it is measured: its GPUs,
else its share of the processors.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import GPU_HIDDEN, DeviceInfo
from airflow_provider_zeus.power import task_meter
from airflow_provider_zeus.power.cpu import RaplShareDevice, cpu_seconds, descendants, host_seconds
from airflow_provider_zeus.power.device import Device, NoneDevice
from airflow_provider_zeus.power.limits.gpu_lock import GpuLock
from airflow_provider_zeus.power.nvml import visible
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from airflow_provider_zeus.power.task_meter import TaskMeter
from tests.fake_nvml import FakeNvml


@pytest.fixture
def no_rapl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZEUS_POWERCAP", str(tmp_path / "none"))


@pytest.fixture
def opened(nvml: FakeNvml, tmp_path: Path, no_rapl: None) -> Callable[[], TaskMeter]:
    return lambda: TaskMeter.open("auto", tmp_path, cpu_watts=None)


def work(seconds: float) -> None:
    """Keep a processor's thread busy for so long."""
    until_s = cpu_seconds() + seconds
    while cpu_seconds() < until_s:
        pass


def spend(nvml: FakeNvml, meter: TaskMeter) -> None:
    meter.look()
    for gpu in range(2):
        nvml.gpu(gpu).energy_mj += 5_000.0
    meter.look()


def test_a_gpu_that_the_task_uses_alone_counts_and_an_idle_one_does_not(
    nvml: FakeNvml, opened: Callable[[], TaskMeter]
) -> None:
    used = nvml.add(demand_w=0.0, idle_w=0.0)
    _idle = nvml.add(demand_w=0.0, idle_w=0.0)
    used.counter_mj = used.energy_mj = 1e6
    meter = opened()
    used.processes, used.own_pid = 1, os.getpid()
    spend(nvml, meter)
    seen = meter.observation()
    assert seen.energy_source == "nvml_counter"
    assert seen.gpu_uuid == used.uuid.decode()
    assert seen.device_count == 1
    assert seen.energy_j == pytest.approx(5.0, abs=0.5)
    assert seen.gpu_busy == pytest.approx(0.9)
    assert seen.time_s is not None


def test_the_processors_beside_a_gpu_are_a_figure_of_their_own(
    nvml: FakeNvml, tmp_path: Path
) -> None:
    class Processors(Device):
        drawn_j = 100.0

        def energy_j(self) -> float:
            self.drawn_j += 2.0
            return self.drawn_j

    gpu = nvml.add(demand_w=0.0, idle_w=0.0)
    gpu.counter_mj = gpu.energy_mj = 1e6
    host = Processors(DeviceInfo(model="cpu", energy_source="rapl_share"))
    meter = TaskMeter(task_meter._every_gpu(), host, lambda _: None)
    gpu.processes, gpu.own_pid = 1, os.getpid()
    for _ in range(2):
        meter.look()
        gpu.energy_mj += 5_000.0
    meter.look()
    seen = meter.observation()
    assert (seen.host_j, seen.host_source) == (6.0, "rapl_share")
    assert (seen.energy_j, seen.energy_source) == (pytest.approx(10.0, abs=0.5), "nvml_counter")


def test_a_gpu_that_nobody_of_the_task_touched_counts_nothing(
    nvml: FakeNvml, opened: Callable[[], TaskMeter]
) -> None:
    gpu = nvml.add()
    meter = opened()
    # of somebody else
    gpu.processes = 1
    gpu.own_pid = 1
    spend(nvml, meter)
    seen = meter.observation()
    assert seen.energy_j is None
    assert seen.energy_source is None
    assert seen.gpu_uuid is None
    assert "no source of energy" in seen.reasons["energy_j"]
    assert seen.time_s is not None


def test_where_a_container_hides_whose_processes_they_are_the_processors_count_with_a_remark(
    nvml: FakeNvml, no_rapl: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_meter, "IDLE_SHARE", 0.0)  # however busy the host is
    gpu = nvml.add()
    meter = TaskMeter.open("auto", tmp_path, cpu_watts=10.0)
    gpu.processes = 1  # by an id of the host: of this task's subprocess, or of somebody else
    work(0.1)
    spend(nvml, meter)
    seen = meter.observation()
    assert seen.energy_source == "estimate"
    assert seen.energy_j is not None
    assert "whether this task computed on GPU-" in seen.reasons[GPU_HIDDEN]
    assert "energy_j" not in seen.reasons


@pytest.mark.parametrize(("worked_s", "known"), [(0.4, False), (0.6, True)])
def test_a_task_whose_worker_is_nearly_idle_says_so_instead_of_a_small_figure(
    worked_s: float, known: bool
) -> None:
    now_s = [0.0]
    busy_s = [100.0]

    class Processors(Device):
        def energy_j(self) -> float:
            return busy_s[0]

        def now_s(self) -> float:
            return now_s[0]

    host = Processors(DeviceInfo(model="cpu", energy_source="estimate"))
    meter = TaskMeter((), host, lambda _: None, busy_s=lambda: busy_s[0])
    now_s[0] = 10.0
    busy_s[0] += worked_s
    meter.look()
    seen = meter.observation()
    assert seen.time_s == 10.0
    if known:
        assert seen.energy_j == pytest.approx(0.6)
    else:
        assert (seen.energy_j, seen.energy_source) == (None, None)
        assert "nearly idle (0.4 s of processor time in 10 s)" in seen.reasons["energy_j"]


@pytest.mark.parametrize("reserved", [(1, 1), (0, 1), (0, 0)])
def test_in_a_container_torch_names_every_gpu_that_this_process_holds_memory_on(
    nvml: FakeNvml,
    opened: Callable[[], TaskMeter],
    monkeypatch: pytest.MonkeyPatch,
    reserved: tuple[int, int],
) -> None:
    gpus = [nvml.add(), nvml.add()]
    asked = list[int]()
    cuda = SimpleNamespace(
        device_count=lambda: asked.append(2) or asked[-1],
        current_device=lambda: 0,
        memory_reserved=reserved.__getitem__,
        get_device_properties=lambda index: SimpleNamespace(uuid=gpus[index].uuid.decode()),
    )
    monkeypatch.setattr(visible, "torch_cuda", lambda: cuda)
    meter = opened()
    named = [gpu for gpu, held in zip(gpus, reserved, strict=True) if held] or gpus[:1]
    for gpu in named:
        gpu.processes = 1  # by an id of the host
    asked.clear()
    spend(nvml, meter)
    assert len(asked) == 2, "once for all GPUs in each of the two looks"
    seen = meter.observation()
    assert seen.gpu_uuid == ",".join(gpu.uuid.decode() for gpu in named)
    assert seen.energy_source == "nvml_counter"


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_a_gpu_that_others_computed_on_too_has_no_energy(
    nvml: FakeNvml, opened: Callable[[], TaskMeter], first: str
) -> None:
    gpu = nvml.add()
    meter = opened()
    gpu.processes, gpu.own_pid = (1, os.getpid()) if first == "ours" else (1, 0)
    meter.look()
    gpu.processes, gpu.own_pid = (2, os.getpid()) if first == "ours" else (1, os.getpid())
    meter.look()
    gpu.processes = 1
    meter.look()
    seen = meter.observation()
    assert seen.energy_j is None
    assert "1 other process computed on" in seen.reasons["energy_j"]
    assert seen.gpu_uuid == gpu.uuid.decode()


def test_a_process_that_the_task_started_is_the_task(
    nvml: FakeNvml, opened: Callable[[], TaskMeter]
) -> None:
    gpu = nvml.add()
    meter = opened()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in descendants(os.getpid())
        gpu.processes, gpu.own_pid = 1, child.pid
        meter.look()
        child.communicate(b"\n")
    assert meter.observation().energy_source == "nvml_counter"


HOLDER = """
import sys
from airflow_provider_zeus.power.limits.gpu_lock import GpuLock
lock = GpuLock(sys.argv[1], sys.argv[2:], how="wait", wait_s=0.0)
for _ in sys.stdin:
    print(lock.check(), flush=True)
"""


@pytest.mark.parametrize(
    "by_task", [False, True], ids=["another training", "a command of the task"]
)
def test_the_holder_of_the_lock_learns_that_it_is_not_alone(
    nvml: FakeNvml,
    opened: Callable[[], TaskMeter],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by_task: bool,
) -> None:
    gpu = nvml.add()
    if not by_task:
        monkeypatch.setattr(task_meter, "descendants", lambda pid: {pid})
    command = [sys.executable, "-c", HOLDER, str(tmp_path), gpu.uuid.decode()]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as holder:
        asks = holder.stdin
        answers = holder.stdout
        assert asks
        assert answers

        def checked() -> str:
            asks.write("\n")
            return answers.readline().strip()

        assert checked() == ""
        meter = opened()
        meter.look()
        assert checked() == ""
        gpu.processes, gpu.own_pid = 1, os.getpid()
        meter.look()
        assert ("came to share the GPU" in checked()) is not by_task
        asks.close()


def test_a_lock_that_the_task_itself_holds_says_nothing_of_another(
    nvml: FakeNvml, opened: Callable[[], TaskMeter], tmp_path: Path
) -> None:
    gpu = nvml.add()
    lock = GpuLock(tmp_path, [gpu.uuid.decode()], how="wait", wait_s=0.0)
    meter = opened()
    gpu.processes, gpu.own_pid = 1, os.getpid()
    meter.look()
    assert meter.observation().gpu_uuid == gpu.uuid.decode(), "it was seen on the GPU"
    assert lock.check() == ""
    lock.close()


def test_the_task_takes_no_lock_and_sets_no_limit(
    nvml: FakeNvml, opened: Callable[[], TaskMeter], tmp_path: Path
) -> None:
    gpu = nvml.add()
    meter = opened()
    gpu.processes, gpu.own_pid = 1, os.getpid()
    meter.look()
    assert not list(tmp_path.glob("gpu-*.lock"))
    assert GpuLock(tmp_path, [gpu.uuid.decode()], how="wait", wait_s=0.0).why_shared == ""
    meter.close()


def test_two_gpus_are_added_and_each_is_told(
    nvml: FakeNvml, opened: Callable[[], TaskMeter]
) -> None:
    # they draw what the test says and nothing by themselves, however slow this machine is
    gpus = [nvml.add(demand_w=0.0, idle_w=0.0) for _ in range(2)]
    meter = opened()
    for gpu in gpus:
        gpu.processes, gpu.own_pid = 1, os.getpid()
    meter.look()
    short = meter.observation()
    assert (short.energy_j, short.energy_source) == (None, "nvml_counter")
    assert short.reasons["energy_j"] == "it was shorter than a tick of the energy counter"
    for gpu in gpus:
        gpu.counter_mj += 5000.0
        gpu.energy_mj += 5000.0
    meter.look()
    seen = meter.observation()
    assert seen.device_count == 2
    assert seen.gpu_energy_j is not None
    assert sum(seen.gpu_energy_j) == pytest.approx(seen.energy_j)
    gpus[1].processes = 2
    meter.look()
    assert meter.observation().energy_j is None


class Counters(Device):
    """The processors' counters, as a test sets them."""

    def __init__(self) -> None:
        super().__init__(DeviceInfo(model="cpu", energy_source="rapl"))
        self.joules: float | None = 0.0

    def energy_j(self) -> float | None:
        return self.joules


def test_the_processors_energy_is_shared_by_processor_time() -> None:
    counters = Counters()
    task = [0.0]
    host = [0.0]
    share = RaplShareDevice(counters, task_s=lambda: task[0], host_s=lambda: host[0])
    counters.joules, task[0], host[0] = 100.0, 1.0, 4.0
    assert share.energy_j() == pytest.approx(25.0)
    counters.joules, task[0], host[0] = 160.0, 3.0, 6.0  # it has the processors for itself
    assert share.energy_j() == pytest.approx(85.0)
    counters.joules = 200.0  # nobody computed as far as the kernel counts: it counts later
    assert share.energy_j() == pytest.approx(85.0)
    assert share.info.energy_source == "rapl_share"
    # a child that ended while it was read is missing once, and comes back
    for seen_s in (1.0, 3.0):
        counters.joules, task[0], host[0] = counters.joules + 40.0, seen_s, host[0] + 4.0
        assert share.energy_j() == pytest.approx(85.0)
    counters.joules = None
    assert share.energy_j() is None
    assert share.missing["energy_j"]


def test_the_processor_time_of_the_host_includes_ours() -> None:
    host_s = host_seconds()
    task_s = cpu_seconds()
    assert host_s is not None
    while cpu_seconds() < task_s + 0.05:
        pass
    after_s = host_seconds()
    assert after_s is not None
    assert after_s > host_s


def test_without_a_counter_the_estimate_of_a_busy_core_counts(
    no_rapl: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_meter, "IDLE_SHARE", 0.0)  # however busy the host is
    meter = TaskMeter.open("auto", tmp_path, cpu_watts=10.0)
    before_s = cpu_seconds()
    while cpu_seconds() < before_s + 0.05:
        pass
    meter.look()
    seen = meter.observation()
    assert seen.energy_source == "estimate"
    assert seen.energy_j is not None
    assert seen.energy_j > 0.0


def test_a_simulated_gpu_that_nothing_advanced_tells_nothing_and_why(tmp_path: Path) -> None:
    gpu = SimulatedGpu("v100", load="shufflenet", state_file=tmp_path / "gpu")
    meter = TaskMeter.open("simulated:v100/shufflenet", tmp_path, cpu_watts=None, simulated=gpu)
    meter.look()
    seen = meter.observation()
    assert (seen.energy_j, seen.time_s) == (None, None)
    assert set(seen.reasons) == {"energy_j", "time_s"}


@pytest.mark.parametrize("device", ["none", "simulated:v100/shufflenet"])
def test_where_nothing_measures_time_alone_is_told(
    device: str, no_rapl: None, tmp_path: Path
) -> None:
    meter = TaskMeter.open(device, tmp_path, cpu_watts=10.0)
    meter.look()
    seen = meter.observation()
    assert (seen.energy_j, seen.energy_source) == (None, None)
    assert seen.time_s is not None
    assert seen.reasons["energy_j"]
    assert meter.point().power_w is None


def test_while_the_counters_are_read_no_other_thread_reads_the_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free: list[bool] = []
    meter = TaskMeter([], NoneDevice(), print)
    monkeypatch.setattr(
        meter._host, "look", lambda: free.append(meter._lock.acquire(blocking=False))
    )
    meter.look()
    assert free == [False]


def test_while_the_sums_are_read_no_other_thread_reads_the_counters() -> None:
    free: list[bool] = []

    class Watched(TaskMeter):
        @property
        def _used(self) -> Any:
            free.append(self._lock.acquire(blocking=False))
            return super()._used

    meter = Watched([], NoneDevice(), print)
    meter.observation()
    meter.point()
    assert len(free) > 1
    assert not any(free)
