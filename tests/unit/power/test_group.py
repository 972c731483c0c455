"""Several GPUs used as one: sums, one limit for all, each gets back its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.power.cpu import EstimateDevice
from airflow_provider_zeus.power.device import DeviceGroup
from airflow_provider_zeus.power.factory import open_device, open_nvml
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.power.limits.record import restore_orphans
from airflow_provider_zeus.power.meter import Reading, Span, read
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from airflow_provider_zeus.power.simulated.gpu import open_simulated
from tests.fake_nvml import FakeNvml, Gpu
from tests.unit.power.conftest import records, wait_for
from tests.unit.power.limits.test_guardian import HOLD, WITHIN_S, die_with_guardian

NAME = "simulated:v100/shufflenet"
SETTER = "nvmlDeviceSetPowerManagementLimit"


@pytest.fixture
def cards(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> list[Gpu]:
    """Three V100, of which CUDA shows the last and the first, in that order."""
    cards = [nvml.add() for _ in range(3)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    return cards


class TestWhichGpus:
    def test_those_that_are_named(self, cards: list[Gpu]) -> None:
        device = open_nvml()
        assert device.uuid == ",".join(cards[i].uuid.decode() for i in (2, 0))
        assert (device.info.count, device.info.max_power_w, device.info.model) == (
            2,
            500.0,
            "Tesla V100-SXM2-16GB",
        )

    def test_one_where_none_is_named_the_others_are_not_ours(
        self, cards: list[Gpu], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        device = open_nvml()
        assert isinstance(device, NvmlDevice)
        assert device.uuid == cards[0].uuid.decode()

    @pytest.mark.parametrize(("gpus", "expected"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 2])])
    def test_as_many_as_the_job_says(
        self, cards: list[Gpu], monkeypatch: pytest.MonkeyPatch, gpus: int, expected: list[int]
    ) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        assert open_nvml(gpus=gpus).uuid == ",".join(cards[i].uuid.decode() for i in expected)

    def test_one_for_each_process(
        self, cards: list[Gpu], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        assert open_device("auto", state_dir=tmp_path, processes=2).info.count == 2
        assert open_device("auto", state_dir=tmp_path, processes=2, gpus=3).info.count == 3, (
            "the job knows better"
        )

    def test_fewer_than_train_are_not_measured(
        self, cards: list[Gpu], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each process may be shown its own alone; what the others draw would be left out."""
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        device = open_nvml(gpus=2, processes=2)
        assert (device.energy_j(), device.limit_range(), device.info.energy_source) == (
            None,
            None,
            None,
        )
        assert "this process sees 1" in device.missing["energy_j"]

    def test_models_may_differ(self, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
        nvml.add("Tesla T4", min_w=60.0, max_w=70.0)
        nvml.add("NVIDIA L4", min_w=65.0, max_w=72.0)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        device = open_nvml()
        assert device.info.model == "Tesla T4 + NVIDIA L4"
        limits = device.limit_range()
        assert limits is not None
        assert (limits.min_w, limits.max_w) == (65.0, 70.0), "which both accept"


class TestProcesses:
    @pytest.mark.parametrize(
        ("processes", "there", "shared"), [(2, 2, False), (2, 3, True), (1, 1, True)]
    )
    def test_those_that_train_together_are_no_strangers(
        self, cards: list[Gpu], processes: int, there: int, shared: bool
    ) -> None:
        cards[0].processes = there
        device = open_nvml(gpus=2, processes=processes)
        assert (device.info.energy_source is None) is shared
        assert (device.energy_j() is None) is shared, (
            "what one of them does not tell is missing for all"
        )
        assert ("other process" in device.missing.get("energy_j", "")) is shared


def test_energy_is_summed(cards: list[Gpu], nvml: FakeNvml) -> None:
    now_s = time.monotonic() + 1.0
    nvml.tell_time(now_s)
    for card, watts in zip(cards, (100.0, 240.0, 200.0), strict=True):
        card.demand_w = watts
    device = open_nvml()
    before_j = device.energy_j()
    nvml.tell_time(now_s + 100.0)
    after_j = device.energy_j()
    assert before_j is not None
    assert after_j is not None
    assert after_j - before_j == pytest.approx(100 * (100 + 200), rel=0.02), (
        "not the one in the middle"
    )


def test_a_counter_that_is_lost_is_missing_for_all_with_its_reason(cards: list[Gpu]) -> None:
    device = open_nvml()
    cards[0].lost = 1
    assert device.energy_j() is None
    assert "the GPU is lost" in device.missing["energy_j"]


def test_sources_are_never_mixed(cards: list[Gpu]) -> None:
    cards[0].has_counter = 0
    device = open_nvml()
    assert (device.info.energy_source, device.energy_j()) == (None, None)
    assert "nvml_counter, nvml_poll" in device.missing["energy_j"]
    device.close()


def test_torch_may_be_on_any_of_them(cards: list[Gpu], monkeypatch: pytest.MonkeyPatch) -> None:
    synchronised: list[int | None] = []

    def on(index: int) -> SimpleNamespace:
        return SimpleNamespace(
            cuda=SimpleNamespace(
                is_initialized=lambda: True,
                device_count=lambda: 2,
                current_device=lambda: 0,
                memory_reserved=lambda other: other * 100,
                get_device_properties=lambda _: SimpleNamespace(
                    uuid=cards[index].uuid.decode().removeprefix("GPU-")
                ),
                synchronize=lambda device=None: synchronised.append(device),
            )
        )

    device = open_nvml()
    monkeypatch.setitem(sys.modules, "torch", on(0))
    device.synchronize()
    assert device.energy_j() is not None, "the second of the two"
    assert set(synchronised) == {None, 1}, "its own, and the others that it has begun to use"
    device = open_nvml(processes=2)
    monkeypatch.setitem(sys.modules, "torch", on(1))
    device.synchronize()
    assert device.energy_j() is None, "neither of them"


class TestLimit:
    def test_all_are_set_and_all_are_given_back(self, cards: list[Gpu], tmp_path: Path) -> None:
        with LimitControl(open_nvml(), tmp_path) as control:
            assert control.set_w(150.0)
            assert [card.limit_w for card in cards] == [150.0, 250.0, 150.0]
        assert [card.limit_w for card in cards] == [250.0] * 3
        assert records(tmp_path) == []

    def test_different_ones_are_left_alone_with_a_reason(
        self, cards: list[Gpu], tmp_path: Path
    ) -> None:
        cards[0].limit_w = 225.0
        device = open_nvml()
        with LimitControl(device, tmp_path) as control:
            assert not control.set_w(150.0)
        assert "limits of 250, 225 W" in device.missing["limit_w"]
        cards[0].limit_w = 249.8
        assert device.limit_w() is None, (
            "a limit that is given back to all would lower one or raise the other"
        )
        cards[0].limit_w = 250.0
        assert device.limit_w() == 250.0
        assert "limit_w" not in device.missing

    def test_none_is_left_behind_where_one_refuses(
        self, cards: list[Gpu], nvml: FakeNvml, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        cards[0].may_set = 0
        with LimitControl(open_nvml(), tmp_path) as control:
            assert not control.set_w(150.0)
            assert [card.limit_w for card in cards] == [250.0] * 3
            assert not control.can_set
        assert "CAP_SYS_ADMIN" in caplog.text
        assert records(tmp_path) == []

    def test_one_that_somebody_else_changed_stops_it_and_the_guardian_gives_the_rest_back(
        self, cards: list[Gpu], tmp_path: Path
    ) -> None:
        with LimitControl(open_nvml(), tmp_path) as control:
            assert control.set_w(150.0)
            cards[0].limit_w = 180.0
            assert not control.set_w(200.0)
            (path,) = records(tmp_path)
            record = json.loads(path.read_text())
        assert len(record["restore"]) == 2
        control._guardian._stdin.close()  # type: ignore[union-attr]  # as when this process ends
        control._guardian._kill()  # type: ignore[union-attr]
        orphan = tmp_path / "limit-again.json"
        orphan.write_text(json.dumps(record).ljust(4096))
        assert restore_orphans(tmp_path) == 1
        assert [card.limit_w for card in cards] == [180.0, 250.0, 250.0]

    @pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
    def test_each_comes_back_when_the_trainer_dies(
        self,
        signal_number: int,
        cards: list[Gpu],
        tmp_path: Path,
        start,
        guardians: Callable[[], list[int]],
    ) -> None:
        group = "from airflow_provider_zeus.power.factory import open_nvml\ngpu = open_nvml()\n"
        trainer = start(group + HOLD.replace("WORKERS", "0"))
        trainer.hear()
        assert [card.limit_w for card in cards] == [150.0, 250.0, 150.0]
        trainer.die(signal_number)
        wait_for(lambda: [card.limit_w for card in cards] == [250.0] * 3, WITHIN_S)
        wait_for(lambda: guardians() == records(tmp_path) == [], WITHIN_S)

    def test_one_that_is_gone_does_not_keep_the_others_low(
        self, cards: list[Gpu], tmp_path: Path, start, guardians: Callable[[], list[int]]
    ) -> None:
        group = "from airflow_provider_zeus.power.factory import open_nvml\ngpu = open_nvml()\n"
        trainer = start(group + HOLD.replace("WORKERS", "0"))
        trainer.hear()
        cards[2].lost = 1  # the first of the two
        die_with_guardian(trainer, guardians, tmp_path)
        assert restore_orphans(tmp_path) == 0, "its record stays"
        assert cards[0].limit_w == 250.0
        cards[2].lost = 0
        assert restore_orphans(tmp_path) == 1
        assert cards[2].limit_w == 250.0


class TestSimulated:
    def test_each_trains_its_share_and_time_is_the_longest(self, tmp_path: Path) -> None:
        alone = open_simulated(NAME, tmp_path / "alone")
        pair = open_device(NAME, state_dir=tmp_path, gpus=2)
        began_s = pair.now_s()
        began_j = pair.energy_j()
        for _ in range(1000):
            alone.on_step(512)
            pair.on_step(1024)
        assert pair.now_s() - began_s == pytest.approx(alone.now_s())
        assert began_j is not None
        assert (pair.energy_j() or 0) - began_j == pytest.approx(2 * alone.energy_j(), abs=0.01)
        assert (pair.info.count, pair.info.max_power_w) == (2, 500.0)
        assert len(list(tmp_path.glob("*.gpu"))) == 2

    def test_what_each_of_them_drew_adds_up_to_what_all_drew(self, tmp_path: Path) -> None:
        pair = open_device(NAME, state_dir=tmp_path, gpus=2)
        span = Span(read(pair))
        for _ in range(200):
            pair.on_step(1024)
        open_simulated(NAME, tmp_path, 2).on_step(4096)  # the second one works on its own as well
        span.advance(read(pair))
        assert span.each_j is not None
        first, second = span.each_j
        assert second > first > 0
        assert span.energy_j == pytest.approx(first + second)

    def test_one_gpu_has_no_parts(self, tmp_path: Path) -> None:
        alone = open_simulated(NAME, tmp_path)
        span = Span(read(alone))
        alone.on_step(4096)
        span.advance(read(alone))
        assert (span.energy_j, span.each_j) == (pytest.approx(alone.energy_j()), None)

    def test_a_counter_that_went_back_leaves_the_parts_unknown(self) -> None:
        span = Span(Reading(10.0, 0.0, each_j=(4.0, 6.0)))
        span.advance(Reading(20.0, 1.0, each_j=(3.0, 17.0)))
        span.advance(Reading(30.0, 2.0, each_j=(8.0, 22.0)))
        assert (span.energy_j, span.each_j) == (20.0, None)

    def test_the_slower_one_is_waited_for(self, tmp_path: Path) -> None:
        slow = open_simulated(NAME, tmp_path, 1)
        quick = open_simulated(NAME, tmp_path, 2)
        for _ in range(5):
            quick.on_step(64)  # its clock is ahead from earlier
        pair = DeviceGroup([slow, quick])
        slow.set_limit_w(100.0)
        for _ in range(3000):
            pair.on_step(1024)
        slowest_s = max(device.now_s() for device in (slow, quick))
        assert pair.now_s() == pytest.approx(slow.now_s()) == pytest.approx(slowest_s)
        assert slow.now_s() > 1.2 * quick.now_s()

    def test_among_several_hosts_it_trains_its_hosts_share(self, tmp_path: Path) -> None:
        alone = open_simulated(NAME, tmp_path / "alone")
        here = open_device(NAME, state_dir=tmp_path, hosts=2)
        for _ in range(100):
            alone.on_step(512)
            here.on_step(1024)
        assert here.now_s() == pytest.approx(alone.now_s())
        assert here.info.count == 1

    def test_a_limit_out_of_range_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DeviceError, match="out of range"):
            open_device(NAME, state_dir=tmp_path, gpus=2).set_limit_w(1000.0)


def test_an_estimate_counts_the_processes_beside_it_too() -> None:
    """As started by a launcher that starts the others as well."""
    burns = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    asks = (
        "from airflow_provider_zeus.power.cpu import EstimateDevice\n"
        "beside, alone = EstimateDevice(10.0, with_siblings=True), EstimateDevice(10.0)\n"
        "input()\nprint(beside.energy_j() - alone.energy_j())"
    )
    before_j = EstimateDevice(10.0).energy_j()  # of this process, which stands for the launcher
    with (
        subprocess.Popen([sys.executable, "-c", burns], **pipes) as other,
        subprocess.Popen([sys.executable, "-c", asks], **pipes) as asking,
    ):
        assert other.stdout is not None
        other.stdout.readline()
        told_j = float(asking.communicate("\n")[0])
        other.communicate("\n")
    assert told_j >= before_j + 5.0 - 1.0
