"""Records of limits in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_zeus.power.limits.record import candidates, create


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
