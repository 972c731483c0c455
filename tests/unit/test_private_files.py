"""Folders and files of Zeus: what stands in their place is refused at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.private_files import make_folder, open_file


def test_a_file_where_a_folder_belongs_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "state"
    place.write_text("mine")
    with pytest.raises(NotADirectoryError):
        make_folder(place)
    assert place.read_text() == "mine"


def test_a_pipe_where_a_file_belongs_is_refused_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "limit.json"
    os.mkfifo(place)
    opened = os.open

    def opened_at_once(path: Any, flags: int, *mode: int, **where: Any) -> int:
        assert flags & os.O_NONBLOCK, "nobody will ever write into it"
        return opened(path, flags, *mode, **where)

    monkeypatch.setattr(os, "open", opened_at_once)
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):
        with pytest.raises(OSError, match="not a plain file"):
            open_file(place, flags)
