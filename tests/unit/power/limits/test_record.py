"""Records of limits in a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider_zeus.power.limits.record import candidates, create, restore_orphans
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu


def test_records_are_found_in_a_folder_of_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "host [1] *"
    folder.mkdir()
    for name in ("limit-b.json", "limit-a.json", "other.json"):
        (folder / name).touch()
    (tmp_path / "limit-c.json").touch()
    assert candidates(folder) == [str(folder / "limit-a.json"), str(folder / "limit-b.json")]


def test_a_record_that_another_process_is_about_to_make_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "limit-a.json"
    others = tmp_path / "limit-a.json.new"
    others.write_text("{}")
    with pytest.raises(FileExistsError):
        create(str(path), {"set_w": 150.0})
    assert others.read_text() == "{}"
    assert not path.exists()


@pytest.mark.parametrize(
    "kind",
    ["a link", "no record", "of a GPU that is away", "of a damaged GPU", "of a dead training"],
)
def test_an_orphan_writes_no_log_line_of_its_own(
    kind: str, gpu: SimulatedGpu, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "limit-\x1b[31m\n.json"
    parts = gpu.restore_record()
    if kind == "a link":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "no record":
        path.write_text("{}")
        path.chmod(0o600)
    else:
        if kind == "of a GPU that is away":
            parts = [{"kind": "simulated", "path": str(tmp_path / "away")}]
        if kind == "of a damaged GPU":
            damaged = tmp_path / "x\x1b[31m\nWARNING  all limits are fine"
            damaged.touch(mode=0o600)
            parts = [{"kind": "simulated", "path": str(damaged)}]
        record = {"restore": parts, "found_w": 250.0, "set_w": [150.0]}
        os.close(create(str(path), record))
    assert restore_orphans(tmp_path) == (kind == "of a dead training")
    (line,) = caplog.messages
    assert "limit-\\x1b[31m\\n.json" in line
    assert line.isprintable()
