"""Folders and files of Zeus: what stands in their place is refused at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider_zeus.private_files import make_folder, open_file


def test_a_file_where_a_folder_belongs_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "state"
    place.write_text("mine")
    with pytest.raises(NotADirectoryError):
        make_folder(place)
    assert place.read_text() == "mine"


def test_a_pipe_where_a_file_belongs_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "limit.json"
    os.mkfifo(place)
    with pytest.raises(OSError, match="not a plain file"):
        open_file(place, os.O_RDWR | os.O_CREAT)
