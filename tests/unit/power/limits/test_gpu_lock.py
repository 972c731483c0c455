"""One training at a time on a GPU: the lock of real processes,
with the time of the waiting one told by the test.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_zeus.power.factory import open_nvml
from airflow_provider_zeus.power.limits import gpu_lock
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.power.limits.gpu_lock import GpuLock, held_here
from airflow_provider_zeus.power.nvml import visible
from tests.fake_nvml import FakeNvml, Gpu
from tests.unit.power.conftest import ROOT, wait_for
from tests.unit.power.test_nvml_training import Training

UUIDS = ["GPU-1111", "GPU-2222"]
HOLDER = """
import os, sys, time
from airflow_provider_zeus.power.limits.gpu_lock import GpuLock
above = os.environ.get("ZEUS_TEST_ABOVE", "").split(",")
lock = GpuLock(sys.argv[1], sys.argv[2].split(","), how="share", wait_s=0, above=above)
print(lock.why_shared, flush=True)
if "fork" in sys.argv:
    if os.fork() == 0:
        time.sleep(60)
for line in sys.stdin:
    print(lock.check(), flush=True)
"""


class Other:
    """Another training of this host."""

    def __init__(self, state_dir: Path, uuids: list[str], *options: str, **environ: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(state_dir), ",".join(uuids), *options],
            env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.why_shared = self.process.stdout.readline().strip()

    def check(self) -> str:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Callable[..., Other]]:
    started: list[Other] = []

    def other(*options: str, uuids: list[str] = UUIDS[:1], **environ: str) -> Other:
        started.append(Other(tmp_path, uuids, *options, **environ))
        return started[-1]

    yield other
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.communicate()


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[Callable[..., GpuLock]]:
    taken: list[GpuLock] = []

    def lock(*uuids: str, how: str = "share", wait_s: float = 0.0, **options: object) -> GpuLock:
        taken.append(GpuLock(tmp_path, uuids or UUIDS[:1], how=how, wait_s=wait_s, **options))
        return taken[-1]

    yield lock
    for each in taken:
        each.close()


class Clock:
    """Time that passes by sleeping alone; ``then`` is done at a moment of it."""

    def __init__(self, **then: Callable[[], None]) -> None:
        self.now_s, self._then = 0.0, {float(at.removeprefix("at_")): do for at, do in then.items()}

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, for_s: float) -> None:
        self.now_s += for_s
        for at_s in [at_s for at_s in self._then if at_s <= self.now_s]:
            self._then.pop(at_s)()


def test_a_gpu_that_nobody_has_is_taken_at_once(lock, other) -> None:
    mine = lock()
    assert (mine.why_shared, mine.waited, mine.check()) == ("", False, "")
    assert "uses GPU-1111" in other().why_shared
    assert other(uuids=UUIDS[1:]).why_shared == "", "another GPU is free"
    mine.close()
    assert other().why_shared == ""


def test_it_waits_until_the_other_has_ended_and_says_so(
    lock, other, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = other(AIRFLOW_CTX_DAG_ID="nightly", AIRFLOW_CTX_TASK_ID="train")
    clock = Clock(at_200=first.end)
    mine = lock(how="wait", wait_s=3600.0, clock=clock, sleep=clock.sleep)
    assert (mine.why_shared, mine.waited) == ("", True)
    assert 200 <= clock.now_s <= 202
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith(
        f"Zeus waits for GPU-1111, at most 60 min: process {first.process.pid} on "
    )
    assert said[0].endswith("(nightly.train) trains on it.")
    assert [f" {n} min:" in line for n, line in enumerate(said[1:-1], 1)] == [True] * 3
    assert said[-1].endswith(" after 3.3 min.")
    assert other().why_shared, "it is ours now"


def test_after_its_time_it_trains_beside_the_other(
    lock, other, caplog: pytest.LogCaptureFixture
) -> None:
    first = other()
    clock = Clock()
    mine = lock(how="wait", wait_s=90.0, clock=clock, sleep=clock.sleep)
    assert clock.now_s == pytest.approx(90.0, abs=1.0)
    assert "uses GPU-1111" in mine.why_shared
    assert "GPU-1111 after 2 min" in caplog.text
    assert "Power limits are not set" in caplog.text
    assert "came to share" in first.check()


def test_sharing_waits_for_nothing_and_the_holder_learns_of_it(lock, other) -> None:
    first = other()
    assert first.check() == ""
    clock = Clock()
    mine = lock(how="share", wait_s=3600.0, clock=clock, sleep=clock.sleep)
    assert clock.now_s == 0.0
    assert "set gpu_lock='wait'" in mine.why_shared
    assert "came to share" in first.check()
    first.end()
    assert other().why_shared == "", "who shared it holds no lock"


def test_the_lock_ends_with_the_training_whatever_its_workers_do(lock, other) -> None:
    first = other("fork")
    first.end()
    wait_for(lambda: lock().why_shared == "", within_s=60.0)


def test_a_process_started_by_the_holder_trains_for_it(lock, other, tmp_path: Path) -> None:
    """As a command does: its operator measures from outside, and holds the lock."""
    mine = lock()
    assert held_here() == ("GPU-1111",)
    child = other(ZEUS_TEST_ABOVE="GPU-1111")
    assert child.why_shared == ""
    assert mine.check() == ""
    mine.close()
    assert held_here() == ()


def test_a_holder_above_that_has_gone_protects_nobody(lock, other) -> None:
    orphan = other(ZEUS_TEST_ABOVE="GPU-1111")
    assert orphan.why_shared == ""
    assert lock().why_shared, "it took the lock itself"


def test_a_second_device_of_this_process_is_no_other_training(lock) -> None:
    first = lock()
    second = lock()
    assert first.why_shared == second.why_shared == ""


def test_a_device_that_nobody_closed_holds_no_lock_once_it_is_forgotten(
    tmp_path: Path, other
) -> None:
    forgotten = [GpuLock(tmp_path, UUIDS[:1], how="share", wait_s=0.0)]
    assert other().why_shared
    forgotten.clear()
    assert held_here() == ()
    assert other().why_shared == ""


def test_several_gpus_are_all_waited_for(lock, other) -> None:
    one = other(uuids=UUIDS[:1])
    two = other(uuids=UUIDS[1:])
    clock = Clock(at_10=two.end, at_20=one.end)
    mine = lock(*reversed(UUIDS), how="wait", wait_s=60.0, clock=clock, sleep=clock.sleep)
    assert mine.why_shared == ""
    assert 20 <= clock.now_s <= 22
    assert other(uuids=UUIDS).why_shared


def test_being_told_to_stop_while_waiting_holds_nothing(lock, other) -> None:
    other(uuids=UUIDS[1:])

    def stop(for_s: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lock(*UUIDS, how="wait", wait_s=60.0, sleep=stop)
    assert other(uuids=UUIDS[:1]).why_shared == ""


def test_where_there_can_be_no_lock_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    lock = GpuLock(tmp_path / "file", UUIDS, how="wait", wait_s=60.0)
    assert "is not known" in lock.why_shared, "the GPU may be another training's"
    assert lock.check() == lock.why_shared
    assert "energy is not measured" in caplog.text
    assert held_here() == ()


# --- a training on a GPU that has one


@pytest.fixture
def uuid(card: Gpu) -> str:
    return card.uuid.decode()


def test_a_training_that_shares_sets_no_limit_and_teaches_no_energy(
    card: Gpu, nvml: FakeNvml, uuid: str, other, tmp_path: Path, wait
) -> None:
    first = other(uuids=[uuid])
    training = Training(tmp_path, wait)
    seen = training.run(gpu_lock="share")
    assert (seen.energy_source, seen.energy_j, nvml.sets) == (None, None, [])
    assert seen.device_model == "Tesla V100-SXM2-16GB (shared)", (
        "its times are not those of the GPU alone"
    )
    assert f"uses {uuid}" in seen.reasons["energy_j"]
    assert "came to share" in first.check()
    assert training.run(gpu_lock="wait", gpu_lock_wait_s=0.0).energy_j is None


def test_a_training_alone_holds_the_lock_while_it_lasts(
    card: Gpu, uuid: str, other, tmp_path: Path, wait
) -> None:
    training = Training(tmp_path, wait)
    others = []

    def step() -> None:
        wait(0.002)
        if not others:
            others.append(other(uuids=[uuid]).why_shared)

    training.run(step=step, mode="measure")
    assert f"uses {uuid}" in others[0]
    assert other(uuids=[uuid]).why_shared == "", "it ended with the training"


def test_a_training_that_somebody_joins_loses_its_energy_from_then_on(
    card: Gpu, nvml: FakeNvml, uuid: str, other, tmp_path: Path, wait
) -> None:
    training = Training(tmp_path, wait)
    joined = []

    def step() -> None:
        wait(0.002)
        if not joined:
            joined.append(other(uuids=[uuid]))

    seen = training.run(step=step)
    assert seen.energy_j is None
    assert "came to share" in seen.reasons["energy_j"]
    assert seen.device_model.endswith("(shared)")
    assert card.limit_w == 250.0


def test_after_a_wait_the_training_before_has_time_to_leave_the_gpu(
    card: Gpu, uuid: str, other, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card.processes = 1
    first = other(uuids=[uuid])
    waits = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: setattr(card, "processes", 0))
    monkeypatch.setattr(visible, "time", waits)
    waiting = partial(GpuLock, tmp_path, how="wait", wait_s=120.0, sleep=lambda _: first.end())
    device = open_nvml(lock=waiting)
    assert device.info.energy_source == "nvml_counter"
    device.close()


def test_a_guardian_that_lives_on_holds_no_lock(
    card: Gpu, uuid: str, other, tmp_path: Path, guardians
) -> None:
    device = open_nvml(lock=partial(GpuLock, tmp_path, how="share", wait_s=0.0))
    with LimitControl(device, tmp_path) as control:
        assert control.set_w(150.0)
        (guardian,) = guardians()
        held = [os.readlink(path) for path in Path(f"/proc/{guardian}/fd").iterdir()]
        assert not any(name.endswith(".lock") for name in held)
    device.close()


def test_a_training_on_several_gpus_that_somebody_joins_on_one_is_labelled(
    card: Gpu, nvml: FakeNvml, uuid: str, other, tmp_path: Path
) -> None:
    nvml.add()
    device = open_nvml(gpus=2, lock=partial(GpuLock, tmp_path, how="share", wait_s=0.0))
    assert (device.info.model, device.info.count) == ("Tesla V100-SXM2-16GB", 2)
    assert device.energy_j() is not None
    other(uuids=[uuid])
    assert device.energy_j() is None
    assert device.info.model == "Tesla V100-SXM2-16GB (shared)"
    assert "came to share" in device.missing["energy_j"]
    device.close()
    assert held_here() == ()


def test_a_lock_whose_file_was_closed_ends_no_training(tmp_path: Path) -> None:
    lock = GpuLock(tmp_path, ["GPU-1"], how="wait", wait_s=0.0)
    for descriptor in list(lock._files.values()):
        # as a training does that closes all descriptors before it starts its workers
        os.close(descriptor)
    assert lock.check() == ""
    lock._files.clear()


@pytest.mark.parametrize("length", [20, 250])  # Airflow's longest names
def test_a_holder_that_the_task_itself_started_is_not_told(
    lock, other, tmp_path: Path, length: int
) -> None:
    holder = other(AIRFLOW_CTX_DAG_ID="d" * length, AIRFLOW_CTX_TASK_ID="t" * length)
    gpu_lock.tell_holder(tmp_path, UUIDS[0], ours={os.getpid(), holder.process.pid})
    assert holder.check() == ""
    gpu_lock.tell_holder(tmp_path, UUIDS[0], ours={os.getpid()})
    assert "came to share" in holder.check()
