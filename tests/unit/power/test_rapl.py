"""The processors' energy counters, as a real folder tree of files like the kernel's."""

from __future__ import annotations

import codecs
import os
import re
import time
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import DeviceError, JobSpecError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.power import cpu as rapl
from airflow_provider_zeus.power.cpu import EstimateDevice, RaplDevice
from airflow_provider_zeus.power.device import NoneDevice
from airflow_provider_zeus.power.factory import HostSettings, open_device
from airflow_provider_zeus.power.meter import Span, edge
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from airflow_provider_zeus.power.polling import Polling
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.run import ZeusRun
from tests.fake_nvml import FakeNvml
from tests.unit.power.conftest import wait_for
from tests.unit.power.test_nvml_training import Training

RANGE_J = 65_712.999613


class Host:
    """Counters of two packages with memory; cores are within a package,
    the platform is around all.
    """

    def __init__(self, folder: Path, *, nested: bool = False) -> None:
        self.folder = folder
        self.now_s = 100.0
        self._nested = nested
        for socket in (0, 1):
            self.zone(f"intel-rapl:{socket}", f"package-{socket}", counter_j=1000.0)
            self.zone(f"intel-rapl:{socket}:0", "core", counter_j=500.0)
            self.zone(f"intel-rapl:{socket}:1", "dram", counter_j=200.0)
            self.write(f"intel-rapl:{socket}", "constraint_0_name", "long_term")
            self.write(f"intel-rapl:{socket}", "constraint_0_power_limit_uw", 150_000_000)
            self.write(f"intel-rapl:{socket}", "constraint_0_max_power_uw", 125_000_000)
            self.write(f"intel-rapl:{socket}", "constraint_1_name", "short_term")
            self.write(f"intel-rapl:{socket}", "constraint_1_power_limit_uw", 300_000_000)
        self.zone("intel-rapl:2", "psys", counter_j=9000.0)
        self.zone("intel-rapl-mmio:0", "package-0", counter_j=1000.0)
        (folder / "intel-rapl").mkdir()

    def path(self, zone: str) -> Path:
        outer = zone.rpartition(":")[0]
        return (
            self.folder / outer / zone
            if self._nested and zone.count(":") == 2
            else self.folder / zone
        )

    def write(self, zone: str, name: str, value: object) -> None:
        (self.path(zone) / name).write_text(f"{value}\n")

    def zone(self, zone: str, name: str, counter_j: float) -> None:
        self.path(zone).mkdir(parents=True)
        self.write(zone, "name", name)
        self.write(zone, "max_energy_range_uj", round(RANGE_J * 1e6))
        self.set(zone, counter_j)

    def set(self, zone: str, counter_j: float) -> None:
        self.write(zone, "energy_uj", round(counter_j * 1e6))

    def device(self, **options: object) -> RaplDevice:
        return RaplDevice(folder=self.folder, clock=lambda: self.now_s, **options)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "powercap")


def test_packages_and_their_memory_are_added_up_and_nothing_is_counted_twice(host: Host) -> None:
    device = host.device()
    assert device.info.energy_source == "rapl"
    assert (device.info.count, device.info.max_power_w) == (2, 250.0)
    assert device.energy_j() == 0.0
    host.now_s += 1.0
    for zone, drawn_j in {
        "0": 60,
        "0:0": 50,
        "0:1": 5,
        "1": 30,
        "1:0": 20,
        "1:1": 4,
        "2": 200,
    }.items():
        name = f"intel-rapl:{zone}"
        host.set(name, int((host.path(name) / "energy_uj").read_text()) / 1e6 + drawn_j)
    host.set("intel-rapl-mmio:0", 1060.0)
    assert device.energy_j() == pytest.approx(60 + 5 + 30 + 4)
    assert (device.limit_w(), device.limit_range(), device.restore_record(), device.uuid) == (
        None,
    ) * 4
    with pytest.raises(DeviceError, match="mode='measure'"):
        device.set_limit_w(100.0)
    device.close()


def test_zones_within_one_another_as_where_the_kernels_own_folder_is_mounted(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path / "powercap", nested=True)
    device = host.device()
    host.set("intel-rapl:1:1", 207.0)
    assert device.energy_j() == pytest.approx(7.0)


def test_a_counter_that_begins_anew_goes_on(host: Host) -> None:
    host.set("intel-rapl:0", RANGE_J - 30.0)
    device = host.device()
    span = Span(edge(device))
    host.now_s += 1.0
    host.set("intel-rapl:0", 40.0)
    span.close(edge(device))
    assert span.energy_j == pytest.approx(70.0)
    assert span.reason is None


@pytest.mark.parametrize(
    ("waited_s", "counter_j", "said"),
    [(1.0, 10.0, "went back"), (1.0, 9000.0, "went back"), (70.0, 1500.0, "not read for 70 s")],
)
def test_what_no_counter_can_have_counted_is_unknown_with_the_reason(
    host: Host, waited_s: float, counter_j: float, said: str
) -> None:
    device = host.device()
    span = Span(edge(device))
    host.now_s += waited_s
    host.set("intel-rapl:0", counter_j)
    span.close(edge(device))
    assert span.energy_j is None
    assert said in span.reason
    assert "intel-rapl:0" in device.missing["energy_j"]
    host.now_s += 1.0
    assert device.energy_j() is None, "the sum lacks something for good"


def test_a_counter_is_followed_while_nobody_asks(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation at 900 W for as long as the counter holds, and again:
    each look at the clock is 30 s later.
    """
    monkeypatch.setattr(rapl, "EVERY_S", 0.002)

    def clock() -> float:
        host.now_s += 30.0
        host.set("intel-rapl:0", (host.now_s * 900.0) % RANGE_J)
        return host.now_s

    device = RaplDevice(folder=host.folder, clock=clock)
    begin_s = host.now_s
    device.energy_j()
    wait_for(lambda: (host.now_s - begin_s) * 900.0 > 3 * RANGE_J, within_s=60.0)
    device.close()
    thread = device._polling._thread
    wait_for(lambda: not thread.is_alive(), within_s=60.0)
    assert device.energy_j() == pytest.approx((host.now_s - begin_s) * 900.0)


@pytest.mark.parametrize("kind", ["package", "dram"])
def test_counters_that_root_alone_may_read_are_named(host: Host, kind: str) -> None:
    zone = {"package": "intel-rapl:1", "dram": "intel-rapl:0:1"}[kind]
    (host.path(zone) / "energy_uj").chmod(0o400)
    said = as_nobody(host)
    assert f"{zone}/energy_uj" in said
    assert "since Linux 5.10" in said
    assert "chmod a+r" in said


def as_nobody(host: Host) -> str:
    """Why an ordinary user cannot open the device."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    for folder in (host.folder, *host.folder.parents):
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(folder.stat().st_mode | 0o005)
    codecs.lookup("ascii")  # another user may not be able to read Python's own modules
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            host.device()
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.wait()
    with os.fdopen(reading) as said:
        return said.read()


@pytest.mark.parametrize("content", ["none", "only platform", "half"])
def test_a_host_without_counters_says_so(host: Host, tmp_path: Path, content: str) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    if content == "only platform":
        (folder / "intel-rapl:0").mkdir()
        (folder / "intel-rapl:0" / "name").write_text("psys\n")
    if content == "half":
        (host.path("intel-rapl:0") / "max_energy_range_uj").unlink()
        folder = host.folder
    with pytest.raises(DeviceError, match=re.escape(str(folder))):
        RaplDevice(folder=folder)


def test_counters_are_read_while_no_other_thread_does(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: list[bool] = []
    device = host.device()
    monkeypatch.setattr(
        device, "_advance", lambda: free.append(device._lock.acquire(blocking=False))
    )
    device.energy_j()
    assert free == [False]


def test_a_counter_that_vanishes_in_the_middle_is_unknown_with_the_reason(host: Host) -> None:
    device = host.device()
    (host.path("intel-rapl:1") / "energy_uj").unlink()
    assert device.energy_j() is None
    assert "intel-rapl:1/energy_uj" in device.missing["energy_j"]


def test_the_highest_power_is_the_users_where_the_processors_tell_none(host: Host) -> None:
    for name in ("max_power_uw", "power_limit_uw"):
        host.write("intel-rapl:1", f"constraint_0_{name}", 0)
    assert host.device(max_power_w=280.0).info.max_power_w == 280.0
    device = host.device()
    assert device.info.max_power_w is None
    assert "set max_power_w" in device.missing["max_power_w"]
    host.write("intel-rapl:1", "constraint_0_power_limit_uw", 95_000_000)
    assert host.device().info.max_power_w == 220.0


def test_a_forked_process_reads_no_further(host: Host) -> None:
    device = host.device()
    if (pid := os.fork()) == 0:
        os._exit(0 if device.energy_j() is None and "forked" in device.missing["energy_j"] else 1)
    assert os.waitpid(pid, 0)[1] == 0


# --- what "auto" makes of it


def test_auto_takes_a_gpu_before_processors_and_processors_before_an_estimate(
    host: Host, nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUS_POWERCAP", str(host.folder))
    assert isinstance(
        open_device("auto", state_dir=tmp_path, host=HostSettings(cpu_watts=8.0)), RaplDevice
    )
    nvml.add()
    assert isinstance(open_device("auto", state_dir=tmp_path), NvmlDevice)
    assert isinstance(open_device("rapl", state_dir=tmp_path), RaplDevice)
    assert ZeusJob(
        batch_sizes=[8], default_batch_size=8, target="acc >= 1", max_epochs=1, device="rapl"
    )


def test_what_is_not_there_is_said_and_the_next_source_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert isinstance(
        open_device("auto", state_dir=tmp_path, host=HostSettings(cpu_watts=8.0)), EstimateDevice
    )
    none = open_device("auto", state_dir=tmp_path)
    assert isinstance(none, NoneDevice)
    assert "CUDA_VISIBLE_DEVICES" in none.missing["energy_j"]
    assert "shows no processor's energy" in none.missing["energy_j"]
    with pytest.raises(JobSpecError, match=r"ZeusJob\.device = 'rapl'.*'auto'"):
        open_device("rapl", state_dir=tmp_path, host=HostSettings(cpu_watts=8.0))


def test_a_training_is_measured_by_it(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUS_POWERCAP", str(host.folder))
    training = Training(tmp_path, time.sleep)
    lines = list[ResultLine]()
    counter_j = 1000.0

    def fn(run: ZeusRun) -> str:
        nonlocal counter_j
        for epoch in run.epochs():
            for _ in range(20):
                counter_j += 2.0
                host.set("intel-rapl:0", counter_j)
                run.step()
            run.report(acc=float(epoch == 1))
        return "kept"

    assert ZeusRun.from_plan(training.plan(device="rapl"), sink=lines.append).train(fn) == "kept"
    (seen,) = (line.observation for line in lines if line.kind == "end")
    assert (seen.energy_source, seen.energy_j) == ("rapl", pytest.approx(80.0))
    assert seen.power_limit_w is None
    assert seen.reasons["power_limit_w"]


def test_polling_ends_with_its_object() -> None:
    class Counted:
        calls = 0

        def call(self) -> None:
            self.calls += 1

    objects = [Counted()]
    polling = Polling(objects[0].call, 0.005)
    polling.start()
    polling.start()
    wait_for(lambda: objects[0].calls > 2, within_s=60.0)
    thread = polling._thread
    objects.clear()
    wait_for(lambda: not thread.is_alive(), within_s=60.0)
