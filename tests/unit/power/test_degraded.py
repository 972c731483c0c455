"""The table in docs/power.md of messages where something is missing:
each sentence is logged or stored.

Every case is a whole training, which ends well.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.power.factory import HostSettings, open_device
from airflow_provider_zeus.power.nvml import library
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from airflow_provider_zeus.training.profiling import measurement_windows
from tests.fake_nvml import FakeNvml, Gpu
from tests.unit.power.conftest import ROOT
from tests.unit.power.test_nvml_training import Training

COUNTER = "nvmlDeviceGetTotalEnergyConsumption"
SETTER = "nvmlDeviceSetPowerManagementLimit"


def documented() -> dict[str, tuple[str, str]]:
    """Case -> (what is still measured, sentence)."""
    text = (ROOT / "docs" / "power.md").read_text(encoding="utf-8").partition("| case |")[2]
    table = text.partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return {case: (measured, said) for case, measured, said in rows}


class World:
    """What a case may arrange before the training, and in its middle."""

    def __init__(
        self, nvml: FakeNvml, card: Gpu, tmp: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.nvml = nvml
        self.card = card
        self.tmp = tmp
        self.monkeypatch = monkeypatch
        self.plan: dict[str, Any] = {}
        self.middle: Callable[[], None] = lambda: None

    def show(self, gpus: str) -> None:
        self.monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)

    def fail(self, function: str, code: int) -> None:
        self.nvml.fail(function, code)

    def hold_lock(self) -> None:
        self.held = (self.tmp / f"gpu-{self.card.uuid.decode()}.lock").open("w")
        fcntl.flock(self.held, fcntl.LOCK_EX)
        self.plan["gpu_lock"] = "share"

    def in_the_middle(self, field: str, value: float) -> None:
        self.plan["mode"] = "measure"
        self.middle = lambda: setattr(self.card, field, value)

    def slow(self) -> None:
        """Its own clock is driven by the test, so nothing of it passes in a call."""
        self.monkeypatch.setattr(NvmlDevice, "takes_s", lambda *_: 0.02)

    def hang(self) -> None:
        def middle() -> None:
            self.nvml.hang(COUNTER)
            self.monkeypatch.setattr(library, "RETURNS_S", 1.0)

        self.plan["mode"] = "measure"
        self.middle = middle

    def no_library(self) -> None:
        """As pynvml answers where the dynamic loader finds none;
        a process that has loaded one cannot forget it.
        """
        import pynvml

        def fails() -> None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

        self.monkeypatch.setattr(pynvml, "nvmlInit", fails)


def both(world: World) -> None:
    world.card.has_counter = world.card.has_power = 0


CASES: dict[str, Callable[[World], object]] = {
    "no library": World.no_library,
    "no driver": lambda w: w.nvml.lose_driver(),
    "no GPU shown": lambda w: w.show(""),
    "no such GPU": lambda w: w.show("7"),
    "GPU lost": lambda w: setattr(w.card, "lost", 1),
    "driver not ready": lambda w: w.fail("nvmlInit", 27),
    "no counter, no power": both,
    "reading refused": lambda w: w.fail(COUNTER, 4),
    "counter went back": lambda w: w.in_the_middle("energy_mj", 0.0),
    "GPU lost in the middle": lambda w: w.in_the_middle("lost", 1),
    "driver slow": World.slow,
    "driver hangs": World.hang,
    "setting refused": lambda w: setattr(w.card, "may_set", 0),
    "setting not supported": lambda w: w.fail(SETTER, 3),
    "limit not in force": lambda w: (
        setattr(w.card, "floor_w", 175.0),
        w.plan.update(power_limits_w=[150.0]),
    ),
    "limits not reported": lambda w: w.fail("nvmlDeviceGetPowerManagementLimitConstraints", 3),
    "read only": lambda w: w.plan.update(power_read_only=True),
    "no sidecar": lambda w: w.plan.update(power_socket=str(w.tmp / "power.sock")),
    "no zeusd": lambda w: w.plan.update(power_socket=f"zeusd:{w.tmp}/zeusd.sock"),
    "MIG slice": lambda w: w.show(w.card.mig_uuid.decode()),
    "GPU cut into slices": lambda w: setattr(w.card, "mig_enabled", 1),
    "another process": lambda w: setattr(w.card, "processes", 1),
    "another training": World.hold_lock,
    "lock out of reach": lambda w: (w.tmp / f"gpu-{w.card.uuid.decode()}.lock").mkdir(),
    "no processor counters": lambda w: w.show(""),
}


@pytest.fixture
def world(nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(measurement_windows, "SETTLE_S", 0.02)
    card = nvml.add(tick_s=0.002, settle_s=0.002, energy_mj=1e9)
    return World(nvml, card, tmp_path, monkeypatch)


def test_the_table_has_every_case() -> None:
    assert list(documented()) == list(CASES)


@pytest.mark.parametrize("case", CASES)
def test_the_training_goes_on_and_the_sentence_is_said(
    case: str,
    world: World,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    wait: Callable[[float], None],
) -> None:
    measured, sentence = documented()[case]
    CASES[case](world)
    steps = iter(range(10**6))

    def step() -> None:
        wait(0.002)
        if next(steps) == 60:
            world.middle()

    seen = Training(tmp_path, wait).run(step=step, **world.plan)
    pattern = re.escape(sentence).replace("…", ".+?")
    said = " ".join([*seen.reasons.values(), caplog.text])
    missing = world.plan.get("power_socket") or case in ("read only", "limits not reported")
    if missing:  # shown by airflow zeus doctor, and in the log where it is no one's wish
        device = open_device(
            "auto",
            state_dir=tmp_path,
            host=HostSettings(
                power_socket=world.plan.get("power_socket", ""),
                power_read_only=bool(world.plan.get("power_read_only")),
            ),
        )
        said += " ".join(device.missing.values())
    assert re.search(pattern, said), f"not said: {sentence}\nsaid: {said}"
    assert (seen.time_s or 0) > 0.05
    assert (seen.energy_j is not None) == ("energy" in measured)
    if world.card.lost == 0:
        assert world.card.limit_w == 250.0


def test_nvml_by_name_says_the_same_as_an_error(world: World, tmp_path: Path) -> None:
    world.nvml.lose_driver()
    with pytest.raises(JobSpecError, match=r"ZeusJob\.device = 'nvml'"):
        open_device("nvml", state_dir=tmp_path)
    assert library.ask("nvmlDeviceGetCount").code == 9
