"""Records of limits in a folder."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_zeus.power.limits.record import candidates


def test_records_are_found_in_a_folder_of_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "host [1] *"
    folder.mkdir()
    for name in ("limit-b.json", "limit-a.json", "other.json"):
        (folder / name).touch()
    (tmp_path / "limit-c.json").touch()
    assert candidates(folder) == [str(folder / "limit-a.json"), str(folder / "limit-b.json")]
