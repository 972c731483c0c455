"""Folders of Zeus: what stands in their place is refused at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_zeus.private_files import make_folder


def test_a_file_where_a_folder_belongs_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "state"
    place.write_text("mine")
    with pytest.raises(NotADirectoryError):
        make_folder(place)
    assert place.read_text() == "mine"
