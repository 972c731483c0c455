"""Limits of a GPU behind NVML come back whatever dies;
the guardian reaches the driver by itself.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_zeus.power.limits import record
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.power.limits.limit_format import new_record
from airflow_provider_zeus.power.limits.record import create, restore_orphans
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from tests.fake_nvml import FakeNvml, Gpu
from tests.unit.power.conftest import records, wait_for
from tests.unit.power.limits.test_guardian import HOLD, WITHIN_S, die_with_guardian, is_held

Guardians = Callable[[], list[int]]
ON_NVML = "from airflow_provider_zeus.power.nvml.gpu import NvmlDevice\ngpu = NvmlDevice()\n"


def hold(workers: int = 0, before: str = "") -> str:
    return before + ON_NVML + HOLD.replace("WORKERS", str(workers))


def orphan(card: Gpu, tmp_path: Path, **changes: str) -> Path:
    path = tmp_path / "limit-x.json"
    left = {
        **new_record(250.0, 250.0, 150.0),
        "restore": [{"kind": "nvml", "uuid": changes.pop("uuid", card.uuid.decode())}],
    }
    os.close(create(str(path), {**left, **changes}))
    return path


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("no_pidfd", ["", "if hasattr(os, 'pidfd_open'): del os.pidfd_open\n"])
def test_the_limit_comes_back_when_the_trainer_dies(
    signal_number: int,
    no_pidfd: str,
    card: Gpu,
    nvml: FakeNvml,
    tmp_path: Path,
    start,
    guardians: Guardians,
) -> None:
    trainer = start(hold(1, no_pidfd))
    (worker,) = trainer.hear()["workers"]
    try:
        assert card.limit_w == 150.0
        trainer.die(signal_number)
        wait_for(lambda: card.limit_w == 250.0, WITHIN_S)
        wait_for(lambda: guardians() == records(tmp_path) == [], WITHIN_S)
        assert nvml.setters[:2] == [trainer.process.pid] * 2
        assert nvml.setters[2] != trainer.process.pid
    finally:
        os.kill(worker, signal.SIGKILL)


def test_the_limit_found_is_the_one_given_back_not_the_default(card: Gpu, start) -> None:
    card.limit_w = 225.0
    trainer = start(hold())
    trainer.hear()
    trainer.die(signal.SIGKILL)
    wait_for(lambda: card.limit_w == 225.0, WITHIN_S)


def test_somebody_elses_limit_is_left_alone(
    card: Gpu, tmp_path: Path, start, guardians: Guardians
) -> None:
    trainer = start(hold())
    trainer.hear()
    card.limit_w = 180.0
    trainer.die(signal.SIGKILL)
    wait_for(lambda: guardians() == records(tmp_path) == [], WITHIN_S)
    assert card.limit_w == 180.0


@pytest.mark.parametrize(
    ("call", "then", "said"),
    [
        ("nvmlDeviceSetPowerManagementLimit", "said = {}", {}),
        (
            "nvmlDeviceGetPowerManagementLimit",
            "said = {'set': control.set_w(125.0)}",
            {"set": False},
        ),
    ],
    ids=["a setter that fails", "a limit that cannot be read is not taken for somebody else's"],
)
def test_what_the_driver_refuses_the_trainer_is_made_good_by_the_guardian(
    card: Gpu,
    nvml: FakeNvml,
    start,
    guardians: Guardians,
    call: str,
    then: str,
    said: dict[str, bool],
) -> None:
    trainer = start(
        ON_NVML + "control = LimitControl(gpu,"
        " state_dir)\ncontrol.__enter__()\nsay(set=control.set_w(150.0))\n"
        + f"sys.stdin.readline()\n{then}\ncontrol.__exit__(None, None,"
        " None)\nsay(**said)\ntime.sleep(60)",
        stdin=-1,
    )
    assert trainer.hear() == {"set": True}
    nvml.fail(call, 999)
    trainer.process.stdin.write("\n")
    trainer.process.stdin.flush()
    assert trainer.hear() == said
    assert (card.limit_w, len(guardians())) == (150.0, 1)
    nvml.heal()
    trainer.die(signal.SIGKILL)
    wait_for(lambda: card.limit_w == 250.0, WITHIN_S)


def test_an_orphaned_record_is_served_by_the_next_trainer(
    card: Gpu, tmp_path: Path, start, guardians: Guardians, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = start(hold())
    trainer.hear()
    assert json.loads(records(tmp_path)[0].read_text())["boot_id"] == record.boot_id()
    die_with_guardian(trainer, guardians, tmp_path)
    assert card.limit_w == 150.0
    with LimitControl(NvmlDevice(), tmp_path) as control:
        assert control.found_w == 250.0
    assert "restored 250 W from 150 W" in caplog.text
    assert records(tmp_path) == []


def test_a_record_made_before_a_reboot_is_dropped_and_nothing_is_set(
    card: Gpu, nvml: FakeNvml, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    card.limit_w = 150.0  # by whoever: the driver forgot what the dead training had set
    orphan(card, tmp_path, boot_id="00000000-0000-0000-0000-000000000000")
    assert restore_orphans(tmp_path) == 1
    assert (card.limit_w, nvml.sets, records(tmp_path)) == (150.0, [], [])
    assert "booted since" in caplog.text


@pytest.mark.parametrize("boot_id", [None, "same"])
def test_a_record_of_this_boot_or_of_an_unknown_one_is_served(
    card: Gpu, nvml: FakeNvml, tmp_path: Path, boot_id: str | None
) -> None:
    card.limit_w = 150.0
    orphan(card, tmp_path, boot_id=record.boot_id() if boot_id else "")
    assert restore_orphans(tmp_path) == 1
    assert (card.limit_w, nvml.sets) == (250.0, [250.0])


def test_without_a_boot_id_of_its_own_nothing_is_dropped(
    card: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card.limit_w = 150.0
    orphan(card, tmp_path)
    monkeypatch.setattr(record, "boot_id", lambda: "")
    assert restore_orphans(tmp_path) == 1
    assert card.limit_w == 250.0


@pytest.mark.parametrize("how", ["driver", "lost", "unknown"])
def test_a_record_whose_gpu_is_away_stays(
    card: Gpu, nvml: FakeNvml, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    card.limit_w = 150.0
    path = orphan(card, tmp_path, **({"uuid": "GPU-another"} if how == "unknown" else {}))
    if how == "driver":
        nvml.lose_driver()
    card.lost = how == "lost"
    assert restore_orphans(tmp_path) == 0
    assert path.exists()
    assert "cannot be reached" in caplog.text


def test_a_guardian_that_cannot_reach_the_driver_means_no_limit_is_set(
    card: Gpu,
    nvml: FakeNvml,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    device = NvmlDevice()
    monkeypatch.delenv("LD_LIBRARY_PATH")
    monkeypatch.delenv("FAKE_NVML_STATE")
    with LimitControl(device, tmp_path) as control:
        assert not control.set_w(150.0)
    assert nvml.sets == []
    assert "did not start" in caplog.text


TRAINING = """
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Phase, PlannedAttempt
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun

spec = ZeusJob(batch_sizes=[32], default_batch_size=32, target="acc >= 0.9", max_epochs=1).to_dict()
attempt = PlannedAttempt(batch_size=32, phase=Phase.PINNED, why="test")
plan = Plan(job_id="j", ti_id="t", number=1, first_attempt=1, spec=spec, attempts=(attempt,), heartbeat_s=0.2,
            state_dir=state_dir)
run = ZeusRun.from_plan(plan)
for _ in run.epochs():
    run.step(32)
    run.progress.limits.set_w(150.0)  # as the profiler does between two of its windows; from here on deep in a step
    say()
    time.sleep(120)
"""


def test_a_guardian_killed_in_the_middle_of_a_training_is_replaced_by_the_heartbeat(
    card: Gpu, tmp_path: Path, start, guardians: Guardians
) -> None:
    """Then the training is killed, too: the limit found is in force within 2 s."""
    card.limit_w = 225.0
    trainer = start(TRAINING)
    trainer.hear()
    assert card.limit_w == 150.0
    (killed,), old = guardians(), records(tmp_path)
    os.kill(killed, signal.SIGKILL)
    # the old one goes last
    wait_for(lambda: len(records(tmp_path)) == 1 and records(tmp_path) != old, within_s=60.0)
    assert held(tmp_path) == records(tmp_path)
    assert card.limit_w == 150.0
    trainer.die(signal.SIGKILL)
    wait_for(lambda: card.limit_w == 225.0, WITHIN_S)
    wait_for(lambda: guardians() == records(tmp_path) == [], WITHIN_S)


def held(state_dir: Path) -> list[Path]:
    """Records for which a living guardian answers."""
    return [path for path in records(state_dir) if is_held(path)]
