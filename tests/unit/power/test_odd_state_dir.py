"""Rubbish in ``[zeus] state_dir``: no training fails over it; it is named and left as it is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.power.limits.gpu_lock import GpuLock
from airflow_provider_zeus.power.limits.record import create, restore_orphans
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu, open_simulated
from airflow_provider_zeus.untrusted_files import read_plain
from tests.rubbish import EVERYTHING, NO_FILES
from tests.unit.power.conftest import records

GPU = "simulated:v100/shufflenet"


def seen(path: Path) -> tuple[int, int, int]:
    """What must not change of a file."""
    found = path.lstat()
    return stat.S_IFMT(found.st_mode), found.st_ino, found.st_size


@pytest.mark.parametrize("kind", EVERYTHING)
def test_what_is_named_like_a_limit_record_and_is_none_is_named_and_left_alone(
    kind: str, gpu: SimulatedGpu, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rubbish = tmp_path / "limit-bad.json"
    EVERYTHING[kind](rubbish)
    before = seen(rubbish)
    record = {"restore": gpu.restore_record(), "found_w": 225.0, "set_w": [150.0]}
    os.close(create(str(tmp_path / "limit-good.json"), record))
    gpu.set_limit_w(150.0)
    assert restore_orphans(tmp_path) == 1, "the one that is a record is served"
    assert gpu.limit_w() == 225.0
    assert [str(rubbish) in r.getMessage() for r in caplog.records].count(True) == 1
    with LimitControl(gpu, tmp_path) as control:
        assert control.set_w(150.0)
    assert gpu.limit_w() == 225.0
    assert records(tmp_path) == [rubbish]
    assert seen(rubbish) == before


def test_a_name_that_is_no_text_is_named_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/limit-\xff.json")).touch()
    assert restore_orphans(tmp_path) == 0
    assert "limit-\\xff.json" in caplog.records[0].getMessage()


@pytest.mark.parametrize("kind", EVERYTHING)
def test_a_gpu_is_locked_or_not_whatever_lies_in_its_locks_place(kind: str, tmp_path: Path) -> None:
    EVERYTHING[kind](tmp_path / "gpu-A.lock")
    lock = GpuLock(tmp_path, ["A"], how="share", wait_s=0.0)
    assert lock.why_shared == lock.check()
    assert ("is not known" in lock.why_shared) == (kind in NO_FILES)
    lock.close()


@pytest.mark.parametrize("kind", NO_FILES)
def test_a_simulated_gpu_does_without_its_state_file(kind: str, tmp_path: Path) -> None:
    EVERYTHING[kind](tmp_path / "simulated-v100-shufflenet.gpu")
    gpu = open_simulated(GPU, tmp_path)
    gpu.set_limit_w(150.0)
    with LimitControl(gpu, tmp_path) as control:
        control.set_w(125.0)
        gpu.on_step(256)
    assert gpu.limit_w() == 150.0
    assert gpu.now_s() > 0


def test_a_plain_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    assert read_plain(tmp_path / "file", 4) == b"1234"
    with pytest.raises(ValueError, match="longer than 3 bytes"):
        read_plain(tmp_path / "file", 3)
